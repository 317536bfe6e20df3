"""What counts for all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How fast an example is says something of the machine's load, and nothing of what is tested.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("any-machine")


@pytest.fixture(autouse=True)
def usual_turns() -> Iterator[None]:
    """What a test leaves behind with a policy that hangs must not slow down the others' threads."""
    usual_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(usual_s)
