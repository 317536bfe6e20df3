"""The CRI proxy: a relay between the kubelet and the container runtime, and the calls that it intercepts."""
