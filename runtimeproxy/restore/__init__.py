"""Restores the values that the kubelet requested, to remove the proxy from a node."""
