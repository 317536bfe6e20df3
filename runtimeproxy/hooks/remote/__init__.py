"""Hook servers in other processes: Koordinator's `RuntimeHookService`, registered by files in a directory."""
