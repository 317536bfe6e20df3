"""Fuzzers of the daemon as a process: `make fuzz`."""
