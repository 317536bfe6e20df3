"""What decides, whichever front end asks: no socket, and no message of the CRI, NRI or the API."""
