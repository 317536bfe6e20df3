"""Cgroup values that policies own: written again after resets, and saved in the checkpoint."""
