"""The built-in plugins of the QoS manager, one per file."""
