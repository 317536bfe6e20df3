"""The checkpoint: records saved for the next start of the daemon."""
