"""HTTP/2 for the relay and for clients of the proxy's own: frames and header blocks. Knows no CRI."""
