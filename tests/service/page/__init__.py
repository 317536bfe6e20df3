"""Tests of the node page."""
