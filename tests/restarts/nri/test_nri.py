"""A few restarts beside a whole kubelet; `python -m tests.restarts.nri` makes many."""

from __future__ import annotations

from typing import Final

import pytest

from tests.lab.programs import containerd_program, tools_folder
from tests.restarts.nri.lab import RUNTIMES, lab
from tests.restarts.nri.turnover import Event, restarted, turned_over
from tests.restarts.nri.verdicts import faults_of, lines_of

VERSION: Final = "1.34"
PATIENCE_S = 10.0
"""Other tests run beside this one."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.containerd,
    pytest.mark.golang,
    pytest.mark.skipif(
        not (tools_folder() / f"kubelet-{VERSION}").is_file(),
        reason="the kubelet is not built: run tests/lab/build_tools.sh versions",
    ),
]


@pytest.mark.parametrize("event", [Event.KILL, Event.RUNTIME])
def test_all_values_are_right_after_a_restart(event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    containerd_program(RUNTIMES[VERSION])
    monkeypatch.setattr("tests.restarts.nri.verdicts.RIGHT_S", PATIENCE_S)
    with lab(VERSION, with_plugin=False) as running:
        direct = turned_over(running, 4, 4)
    with lab(VERSION, with_plugin=True) as running:
        report = restarted(running, event, 2, most=6)
    print("\n".join(lines_of(report, direct)))
    assert faults_of(report, direct) == []
