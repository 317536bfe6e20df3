"""Starts real programs for tests: a container runtime, the proxy, clients built from Go modules."""
