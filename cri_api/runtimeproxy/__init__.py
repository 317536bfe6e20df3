"""The API of this daemon."""
