"""Gives containers and pod cgroups what the kubelet asked for, for taking the proxy off a node."""
