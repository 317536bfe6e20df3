"""Small files of state."""
