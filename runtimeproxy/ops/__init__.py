"""Health, reflection, audit and status of the daemon."""
