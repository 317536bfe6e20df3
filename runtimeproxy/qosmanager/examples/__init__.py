"""Plugins in processes of their own, to copy: in Python, and in Go in the folder `go`."""
