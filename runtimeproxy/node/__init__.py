"""What this node is, as far as values for pods depend on it."""
