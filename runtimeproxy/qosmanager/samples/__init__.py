"""Samples of CPU, memory and pressure of the node's cgroups, and their windows; see README.md."""
