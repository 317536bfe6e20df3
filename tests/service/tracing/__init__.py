"""Tests of spans and their way to a collector."""
