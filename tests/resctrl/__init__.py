"""A double of the kernel's file system resctrl, and the daemon on it."""
