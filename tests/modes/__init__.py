"""The same pods in each mode of the daemon, on real runtimes: their values at first, and in the end."""
