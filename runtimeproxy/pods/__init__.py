"""What runs on this node: records of pods and containers, and how they come back from the runtime."""
