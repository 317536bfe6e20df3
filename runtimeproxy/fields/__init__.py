"""Every field of a cgroup or of the CRI's resources, declared once; other packages derive their tables."""
