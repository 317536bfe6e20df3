"""Recordings of a node's calls, and their replay with other policies: see README.md."""
