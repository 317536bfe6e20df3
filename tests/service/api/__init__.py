"""The API of the daemon."""
