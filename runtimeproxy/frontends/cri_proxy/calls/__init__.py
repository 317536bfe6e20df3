"""Intercepted calls: which they are, from request to view, edits in place. Knows the CRI and no sockets."""
