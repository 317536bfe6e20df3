"""Pods of all classes in the three modes on a real containerd: the same values, and none wrong at first.

And what a policy that is late costs a start in mode nri.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.programs import CONTAINERDS_WITH_NRI, ContainerdVersion
from tests.modes.pods import pods, specs_of
from tests.modes.runs import (
    Mode,
    Values,
    first_values,
    merged,
    node,
    running,
    settled,
    unexplained,
)

pytestmark = pytest.mark.containerd


@pytest.fixture(scope="module", params=CONTAINERDS_WITH_NRI)
def runtime(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    version: ContainerdVersion = request.param
    with Containerd(version, PATIENT) as running_:
        yield running_


def outcome(mode: Mode, runtime: Containerd, folder: Path, wanted: Values) -> tuple[Values, Values]:
    """What the programs of a mode have seen first, and what is there in the end."""
    (folder / mode).mkdir()
    (folder / f"{mode}-logs").mkdir()
    with ExitStack() as stack:
        here = stack.enter_context(node(mode, runtime))
        specs, logs = list(pods(folder / mode, 1)), folder / f"{mode}-logs"
        found = stack.enter_context(running(here.client, specs, logs))
        first = first_values(found)
        final, _ = settled(found, lambda now: not unexplained(now, wanted, mode))
        assert not here.status().problems
    return first, final


def test_pods_of_all_classes_have_the_same_values_in_each_mode(runtime: Containerd, tmp_path: Path) -> None:
    first, final = outcome("nri", runtime, tmp_path, {})
    should = merged(final, first)
    assert unexplained(first, should, "nri", at_first=True) == []
    for mode in ("proxy", "standalone"):
        there_first, there = outcome(mode, runtime, tmp_path, final)
        assert unexplained(there, final, mode) == []
        assert unexplained(there_first, should, mode, at_first=True) == []


BUDGET_S = 1.75
"""How long the runtime waits for policies, at a creation and again at the start."""
LATE = """
import threading, time
from runtimeproxy.hooks import ContainerChange, Policy, ResourceChange
seen, lock = set(), threading.Lock()
class Late(Policy):
    name = "late"
    timeout_s = 10.0
    def container(self, container, node):
        with lock:
            is_new = container.pod.uid not in seen
            seen.add(container.pod.uid)
        if is_new:
            # Between `BUDGET_S`, when the reply goes without it, and twice that, when the program starts
            # without it: on a busy machine all of them lag.
            time.sleep(2.6)
        return ContainerChange(
            resources=ResourceChange(cpu_shares=777, cpu_quota_us=50000),
            cgroup={"cpu.cfs_burst_us": 7000},
            env={"LATE": "set"},
        )
"""


def test_a_policy_that_is_late_has_its_values_written_before_the_program_runs(
    runtime: Containerd, tmp_path: Path
) -> None:
    specs, config = specs_of("ls", tmp_path / "out", 2), f"[hooks]\nbudget_s = {BUDGET_S}\n"
    with (
        node("nri", runtime, {"late": LATE}, config) as here,
        running(here.client, specs, tmp_path) as found,
    ):
        for each in first_values(found).values():
            assert each["cpu/cpu.shares"] == "777"
            # By the ratio of normalization.
            assert each["cpu/cpu.cfs_quota_us"] == "41667"
            assert each["cpu/cpu.cfs_burst_us"] == "7000"
            # Only the message carries it.
            assert "env:LATE" not in each
        assert here.is_registered()
