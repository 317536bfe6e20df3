"""Pods and containers through the proxy on a real containerd."""
