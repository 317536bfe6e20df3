"""What the policies would do to a pod: from a manifest to the kubelet's requests, and to the changes."""
