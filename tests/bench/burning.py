"""A policy that computes: what a bad third-party policy does to the calls that pass."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from runtimeproxy.hooks import PodChange, PodView, Policy

LABEL = "bench/burn"
"""Pods with this label make the policy compute."""
BURN_S = 0.25


class BurningPolicy(Policy):
    """Computes in pure Python, which holds the interpreter's lock as long as it is let."""

    name: ClassVar[str] = "bench-burning"
    timeout_s: ClassVar[float] = 5.0

    def pre_run_pod_sandbox(self, pod: PodView) -> PodChange | None:
        """Burns CPU time and changes nothing."""
        ends = time.monotonic() + BURN_S
        number = 1
        while LABEL in pod.labels and time.monotonic() < ends:
            number = number * 6_364_136_223_846_793_005 % 2**64
        return None


def install(folder: Path) -> dict[str, str]:
    """Makes the policy an installed distribution's entry point.

    Returns:
        The environment in which a process finds it.
    """
    described = folder / "bench_burning-0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-burning\nVersion: 0\n")
    (described / "entry_points.txt").write_text(
        "[runtimeproxy.policies]\nbench-burning = tests.bench.burning:BurningPolicy\n"
    )
    return {"PYTHONPATH": str(folder)}
