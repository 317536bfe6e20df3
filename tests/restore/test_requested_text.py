"""What the files of cgroup version 2 hold when a container has what the kubelet asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from runtimeproxy.hooks.views import Resources
from runtimeproxy.restore.plan import requested_text


@pytest.mark.parametrize(
    ("requested", "name", "expected"),
    [
        pytest.param({"cpu_shares": 1024}, "cpu.weight", "39", id="weight"),
        pytest.param({"cpu_shares": 1}, "cpu.weight", "1", id="weight-of-too-few-shares"),
        pytest.param({}, "cpu.weight", "100", id="no-shares"),
        pytest.param({"cpu_quota_us": 5000}, "cpu.max", "5000 100000", id="quota"),
        pytest.param({"cpu_quota_us": 5000, "cpu_period_us": 9000}, "cpu.max", "5000 9000", id="period"),
        pytest.param({"cpu_quota_us": -1}, "cpu.max", "max 100000", id="no-quota"),
        pytest.param({"memory_limit_bytes": 4096}, "memory.max", "4096", id="limit"),
        pytest.param({"memory_limit_bytes": -1}, "memory.max", "max", id="no-limit"),
        pytest.param(
            {"memory_limit_bytes": 4096, "memory_swap_limit_bytes": 12_288},
            "memory.swap.max",
            "8192",
            id="swap",
        ),
        pytest.param(
            {"memory_limit_bytes": 4096, "memory_swap_limit_bytes": 4096},
            "memory.swap.max",
            "0",
            id="no-swap",
        ),
        pytest.param(
            {"memory_limit_bytes": 4096, "memory_swap_limit_bytes": -1},
            "memory.swap.max",
            "max",
            id="any-swap",
        ),
        pytest.param({"memory_limit_bytes": 4096}, "memory.swap.max", "max", id="swap-that-nobody-limits"),
        pytest.param({"unified": {"cpu.weight": "7"}, "cpu_shares": 2}, "cpu.weight", "7", id="the-file"),
        pytest.param({"cpu_shares": 2}, "memory.high", "max", id="a-file-of-its-own"),
        pytest.param({"cpu_shares": 2}, "strange", None, id="not-known"),
    ],
)
def test_requested_text(requested: Mapping[str, Any], name: str, expected: str | None) -> None:
    assert requested_text(name, Resources(**requested)) == expected
