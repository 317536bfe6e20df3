"""The same pods in each mode of the daemon, on real runtimes: what programs see first, and in the end."""
