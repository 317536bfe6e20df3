"""Resources: reading them from messages and JSON, and laying updates over them."""

from __future__ import annotations

from typing import Any

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.resources import (
    NO_RESOURCES,
    overlay,
    read_resources,
    resources_from_json,
    resources_from_spec,
)

LinuxResources = api_pb2.LinuxContainerResources


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(LinuxResources(), NO_RESOURCES, id="nothing"),
        pytest.param(LinuxResources(cpu_shares=0, cpuset_cpus=""), NO_RESOURCES, id="zero-is-nothing"),
        pytest.param(LinuxResources(cpu_quota=-1), Resources(cpu_quota_us=-1), id="unlimited-is-a-value"),
        pytest.param(
            LinuxResources(
                cpu_period=100_000,
                cpu_quota=50_000,
                cpu_shares=512,
                memory_limit_in_bytes=1,
                memory_swap_limit_in_bytes=2,
                oom_score_adj=-997,
                cpuset_cpus="0-3",
                cpuset_mems="0",
                hugepage_limits=[api_pb2.HugepageLimit(page_size="2MB", limit=4)],
                unified={"memory.high": "7"},
            ),
            Resources(
                cpu_period_us=100_000,
                cpu_quota_us=50_000,
                cpu_shares=512,
                memory_limit_bytes=1,
                memory_swap_limit_bytes=2,
                oom_score_adj=-997,
                cpuset_cpus="0-3",
                cpuset_mems="0",
                hugepage_limits_bytes=(("2MB", 4),),
                unified={"memory.high": "7"},
            ),
            id="everything",
        ),
    ],
)
def test_read_resources(message: api_pb2.LinuxContainerResources, expected: Resources) -> None:
    assert read_resources(message) == expected


def test_reading_an_absent_message_does_not_make_it_present() -> None:
    config = api_pb2.ContainerConfig()
    assert read_resources(config.linux.resources) is NO_RESOURCES
    assert not config.HasField("linux")


@pytest.mark.parametrize(
    ("base", "newer", "expected"),
    [
        pytest.param(Resources(cpu_shares=2), NO_RESOURCES, Resources(cpu_shares=2), id="nothing-newer"),
        pytest.param(NO_RESOURCES, Resources(cpu_shares=2), Resources(cpu_shares=2), id="nothing-before"),
        pytest.param(
            Resources(cpu_shares=2, cpu_quota_us=5000, cpuset_cpus="0"),
            Resources(cpu_shares=1024, cpuset_cpus="1-2"),
            Resources(cpu_shares=1024, cpu_quota_us=5000, cpuset_cpus="1-2"),
            id="field-by-field",
        ),
        pytest.param(
            Resources(unified={"a.b": "1", "c.d": "2"}),
            Resources(unified={"c.d": "3", "e.f": "4"}),
            Resources(unified={"a.b": "1", "c.d": "3", "e.f": "4"}),
            id="unified-by-key",
        ),
        pytest.param(
            Resources(hugepage_limits_bytes=(("2MB", 1), ("1GB", 2))),
            Resources(hugepage_limits_bytes=(("2MB", 3),)),
            Resources(hugepage_limits_bytes=(("2MB", 3), ("1GB", 2))),
            id="hugepages-by-size",
        ),
    ],
)
def test_overlay(base: Resources, newer: Resources, expected: Resources) -> None:
    assert overlay(base, newer) == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param({}, NO_RESOURCES, id="nothing"),
        pytest.param(
            {"cpu_quota": -1, "cpuset_cpus": "0"}, Resources(cpu_quota_us=-1, cpuset_cpus="0"), id="numbers"
        ),
        pytest.param(
            {"cpu_quota": "-1", "cpu_shares": "12"}, Resources(cpu_quota_us=-1, cpu_shares=12), id="quoted"
        ),
        pytest.param(
            {"hugepage_limits": [{"page_size": "2MB", "limit": 4}, "x"], "unified": {"a.b": "1", "c": 2}},
            Resources(hugepage_limits_bytes=(("2MB", 4),), unified={"a.b": "1"}),
            id="lists-and-maps",
        ),
        pytest.param(
            {
                "cpu_quota": [],
                "cpu_shares": True,
                "cpuset_cpus": 3,
                "unified": [],
                "hugepage_limits": {},
                "cpu_period": "9x",
            },
            NO_RESOURCES,
            id="other-types-are-nothing",
        ),
        pytest.param({"cpu_shares": "9" * 5000}, NO_RESOURCES, id="no-number-of-64-bits"),
        pytest.param(
            {"cpu_shares": 2**63, "memory_limit_in_bytes": "9" * 19}, NO_RESOURCES, id="just-above-64-bits"
        ),
    ],
)
def test_resources_from_json(document: dict[str, Any], expected: Resources) -> None:
    assert resources_from_json(document) == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param({}, NO_RESOURCES, id="nothing"),
        pytest.param(
            {
                "cpu": {"shares": 2, "quota": -1, "period": 100_000, "cpus": "0-1", "mems": "0"},
                "memory": {"limit": 5, "swap": 6},
                "hugepageLimits": [{"pageSize": "2MB", "limit": 4}],
                "unified": {"a.b": "1"},
            },
            Resources(
                cpu_shares=2,
                cpu_quota_us=-1,
                cpu_period_us=100_000,
                cpuset_cpus="0-1",
                cpuset_mems="0",
                memory_limit_bytes=5,
                memory_swap_limit_bytes=6,
                hugepage_limits_bytes=(("2MB", 4),),
                unified={"a.b": "1"},
            ),
            id="everything",
        ),
        pytest.param({"cpu": 3, "memory": None}, NO_RESOURCES, id="other-types-are-nothing"),
    ],
)
def test_resources_from_spec(document: dict[str, Any], expected: Resources) -> None:
    assert resources_from_spec(document) == expected
