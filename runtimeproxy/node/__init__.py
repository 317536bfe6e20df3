"""Facts about this node that decide which values are valid."""
