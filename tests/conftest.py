"""What counts for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast an example is says something of the machine's load, and nothing of what is tested.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("any-machine")
