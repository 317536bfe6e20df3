"""The defects of Koordinator's proxy, each as a test that would fail on it."""
