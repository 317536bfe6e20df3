"""Properties of the relay that hold for all inputs: endpoints that keep books on both sides of it."""
