"""Tests of the API server as a source."""
