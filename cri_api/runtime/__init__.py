"""The Container Runtime Interface."""
