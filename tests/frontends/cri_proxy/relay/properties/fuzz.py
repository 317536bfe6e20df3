"""Looks for new examples: `python -m tests.frontends.cri_proxy.relay.properties.fuzz --minutes N`.

Ends at the first failure with the smallest example found, or when the time is over.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, Phase, seed, settings

from tests.frontends.cri_proxy.relay.properties import test_direct, test_garbage, test_mix, test_splits

PROPERTIES: Final[tuple[Callable[..., None], ...]] = (
    test_mix.test_every_stream_arrives_within_all_windows,
    test_splits.test_any_split_gives_the_same_output,
    test_direct.test_calls_have_the_same_outcome,
    test_garbage.test_nothing_but_a_peer_error_comes_out,
    test_garbage.test_any_header_block_decodes_or_is_a_peer_error,
)
EXAMPLES_PER_TURN: Final = 300


def look(test: Any, number: int) -> None:
    """Tries examples of one property that no other run has tried."""
    unbounded = settings(
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        derandomize=False,
        database=None,
        deadline=None,
        max_examples=EXAMPLES_PER_TURN,
        suppress_health_check=list(HealthCheck),
    )
    # Hypothesis offers no other way to give a decorated test new settings.
    test._hypothesis_internal_use_settings = unbounded
    seed(number)(test)()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="where to begin (default: anywhere)")
    arguments = parser.parse_args()
    number = random.randrange(2**32) if arguments.seed is None else arguments.seed
    end = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end:
        print(f"seed {number}")
        for test in PROPERTIES:
            look(test, number)
        number += 1


if __name__ == "__main__":
    main()
