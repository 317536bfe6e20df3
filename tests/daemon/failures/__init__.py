"""How each failure of `systemd/FAILURES.md` is made to happen, a module for each part of the daemon."""
