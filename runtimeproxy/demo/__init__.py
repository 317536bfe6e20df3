"""What `make run` does: a pod of each QoS class through the proxy, and what policies changed."""
