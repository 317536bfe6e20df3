"""Few kills beside the CPU guard, and what status and explain say of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runtimeproxy.qosmanager.status import is_problem
from tests.lab.deadline import wait_until
from tests.restarts.guarded import GuardedNode, faults_after_kills, guarded_node, shown_status, switch_off

KILLS = 3
DECISION = r"rule \d: .*E [\d.]+ of lab/web, B \d+m, B_bad \d+m, F \d+m, BE pods use \d+m"
WAIT = r"w [\d.]+, t 5.0 ms/s \(asks for 1 ms/s, at least 5 ms/s by annotation\), e [\d.]+"


def missing_texts(node: GuardedNode) -> list[str]:
    """What is not said, of what the guard has to say."""
    status = node.status()
    web, batch = node.explained("web"), node.explained("batch")
    texts = [(each, pattern) for each in shown_status(status) for pattern in (DECISION, f"lab/web: {WAIT}")]
    texts += [(web, f"cpu-guard: {WAIT}; BE pods are bounded by what it waits")]
    texts += [(batch, f"cpu-guard: BE pods together: {DECISION}")]
    # The claim on their class, with the reason that it was made for.
    texts += [(batch, r"plugin:cpu-guard  at most \d+: rule 1: ")]
    found = [f"{pattern} in {text}" for text, pattern in texts if not re.search(pattern, text, re.DOTALL)]
    return [
        *found,
        *status.problems,
        *(["a problem of the manager"] if is_problem(status.qos_manager) else []),
    ]


@pytest.mark.slow
def test_a_bound_that_is_held(socket_folder: Path) -> None:
    with guarded_node(socket_folder) as node:
        node.wait_for_bound()
        # A report comes every 5 s.
        missing = [""]

        def is_all_said() -> bool:
            missing[:] = missing_texts(node)
            return not missing

        try:
            wait_until(is_all_said, "all that is to be said")
        except TimeoutError:
            pytest.fail("\n".join(missing))
        assert faults_after_kills(node, KILLS) == []
        switch_off(node)
