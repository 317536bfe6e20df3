"""Few kills beside the CPU guard, and what status and explain say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimeproxy.qosmanager.status import is_problem
from tests.lab.deadline import wait_until
from tests.restarts.guarded import faults_after_kills, guarded_node, shown_status, switch_off

KILLS = 3
PATIENT_S = 60.0


@pytest.mark.slow
def test_a_bound_that_is_held(socket_folder: Path) -> None:
    with guarded_node(socket_folder) as node:
        bounded = node.wait_for_bound()
        # A report comes every 5 s.
        status = wait_until(
            lambda: it if "B_bad" in str((it := node.status()).qos_manager) else None, "a report", PATIENT_S
        )
        bound = f"B {int(bounded.quota) // 100}m"
        for text in shown_status(status):
            parts = "cpu-guard", bound, "F 500m", "of lab/web", "lab/web: w "
            assert [part for part in parts if part not in text] == [], text
        assert (list(status.problems), is_problem(status.qos_manager)) == ([], False)
        assert "t 20.0 ms/s (configured), e " in node.explained("web")
        batch = node.explained("batch")
        assert "cpu-guard: BE pods together: rule " in batch
        # The claim on the class, and its reason.
        assert f"plugin:cpu-guard  at most {bounded.quota}: rule 1: " in batch
        assert faults_after_kills(node, KILLS) == []
        switch_off(node)
