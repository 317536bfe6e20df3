"""Metrics, dashboard and alert rules belong together."""

from __future__ import annotations

from pathlib import Path

from tests.service.metrics.reference import table

MONITORING = Path(__file__).parents[2] / "systemd" / "monitoring"


def test_every_metric_is_documented() -> None:
    """Written by `python -m tests.service.metrics.reference`."""
    _, head, rest = (MONITORING / "README.md").read_text().partition("| metric |")
    assert head + rest == table() + "\n"
