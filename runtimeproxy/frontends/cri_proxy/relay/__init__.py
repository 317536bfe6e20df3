"""Bytes: HTTP/2 frames, header tracking, windows, connections, the listening socket. Knows no CRI."""
