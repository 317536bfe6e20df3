"""The held calls: which they are, message to view, applying a change in place. Knows CRI, no sockets."""
