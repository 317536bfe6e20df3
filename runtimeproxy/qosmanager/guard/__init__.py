"""The guard of latency-sensitive pods: what they feel, what is wanted, and what BE pods get of it. Pure."""
