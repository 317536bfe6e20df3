"""Policies: one per file, each usable and testable alone."""
