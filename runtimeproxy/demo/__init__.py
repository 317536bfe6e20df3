"""The demo of `make run`: a pod of each QoS class through the proxy, and the changes of the policies."""
