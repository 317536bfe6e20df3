"""The arithmetic of the advisor: how many CPUs pools need, and what is left for `reclaimed_cores`."""
