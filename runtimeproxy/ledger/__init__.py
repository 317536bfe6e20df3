"""Which values this program manages in cgroup files, and giving them back."""
