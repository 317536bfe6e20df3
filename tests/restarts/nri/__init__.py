"""A whole kubelet on containerd beside the NRI plugin."""
