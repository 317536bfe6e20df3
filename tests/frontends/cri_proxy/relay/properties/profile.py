"""How the properties are looked at: the same bounded examples in every run, or new ones by hand."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


def bounded(max_examples: int) -> settings:
    """The same examples each time; `fuzz.py` looks for new ones.

    Shrinking is quick to run out of the time of a test and is left to `fuzz.py` too.
    """
    return settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=max_examples,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
