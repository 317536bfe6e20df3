"""Metrics: what is served, and how."""
