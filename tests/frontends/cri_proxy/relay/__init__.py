"""The relay: frame by frame without sockets, then with endpoints that keep books, then on sockets."""
