"""What has become of a saved record while the proxy was away."""

from __future__ import annotations

import os
from typing import Any

import pytest

from runtimeproxy.fields.tables import CRI_FIELDS
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.reconcile import joined_container, joined_pod, reconciled
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord

MIB = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SHARES, QUOTA = "resources.cpu_shares", "resources.cpu_quota_us"
SAVED = ContainerRecord(
    id="c",
    requested=Resources(cpu_shares=1024, cpu_quota_us=200_000, memory_limit_bytes=64 * MIB),
    booked=Resources(
        cpu_shares=512, cpu_quota_us=-1, memory_limit_bytes=64 * MIB, unified={"memory.high": "max"}
    ),
    owners={
        SHARES: (Claimant("batch"),),
        QUOTA: (Claimant("cpuset"),),
        "resources.unified[memory.high]": (Claimant("batch"),),
    },
    state=Lifecycle.RUNNING,
)


def seen(**values: Any) -> ContainerRecord:
    """What the runtime says."""
    resources = Resources(**values)
    return ContainerRecord(
        id="c", requested=resources, booked=resources, state=Lifecycle.RUNNING, recovered=True
    )


@pytest.mark.parametrize(
    "reported",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"cpu_shares": 512, "cpu_quota_us": -1, "memory_limit_bytes": 64 * MIB}, id="the-same"),
        pytest.param({"cpu_period_us": 100_000, "memory_swap_limit_bytes": 64 * MIB}, id="more"),
        pytest.param({"cpu_shares": 500}, id="read-back-from-a-weight"),
        pytest.param({"memory_limit_bytes": 64 * MIB + 100}, id="less-than-a-page"),
        pytest.param({"oom_score_adj": 999}, id="bounded-at-the-creation"),
        pytest.param({"unified": {"memory.low": "1"}}, id="another-unified-file"),
    ],
)
def test_what_nobody_changed_stays(reported: dict[str, Any]) -> None:
    assert reconciled(SAVED, seen(**reported)) is SAVED


@pytest.mark.parametrize(
    ("reported", "lost"),
    [
        pytest.param({"cpu_shares": 2048}, SHARES, id="shares"),
        pytest.param({"cpu_quota_us": 50_000}, QUOTA, id="quota"),
        pytest.param({"memory_limit_bytes": 128 * MIB}, "", id="what-nobody-owns"),
        pytest.param(
            {"unified": {"memory.high": "1048576"}}, "resources.unified[memory.high]", id="a-unified-file"
        ),
    ],
)
def test_what_somebody_changed_is_the_kubelets(reported: dict[str, Any], lost: str) -> None:
    found = reconciled(SAVED, seen(**reported))
    assert set(SAVED.owners) - set(found.owners) == ({lost} if lost else set())
    for name, value in reported.items():
        for resources in (found.requested, found.booked):
            given = getattr(resources, name)
            assert given == value
    untouched = "cpu_period_us"
    assert getattr(found.requested, untouched) is None
    assert "cpu_shares" in reported or found.requested.cpu_shares == 1024


def test_an_end_that_nobody_saw_is_taken() -> None:
    ended = ContainerRecord(id="c", state=Lifecycle.STOPPED, recovered=True)
    found = reconciled(SAVED, ended)
    assert (found.state, found.owners) == (Lifecycle.STOPPED, SAVED.owners)


@pytest.mark.parametrize(
    ("name", "one", "other", "same"),
    [
        pytest.param("cpu_shares", 2, 2, True, id="equal"),
        pytest.param("cpu_shares", 1024, 998, True, id="one-weight"),
        pytest.param("cpu_shares", 1024, 512, False, id="other-shares"),
        pytest.param("cpu_shares", 1024, 1, False, id="no-shares-at-all"),
        pytest.param("memory_limit_bytes", -1, 4095, False, id="unlimited-or-not"),
        pytest.param("memory_limit_bytes", PAGE_BYTES, 2 * PAGE_BYTES - 1, True, id="one-page"),
        pytest.param("memory_limit_bytes", PAGE_BYTES, PAGE_BYTES - 1, False, id="other-page"),
        pytest.param("cpuset_cpus", "0-2", "0,1,2", True, id="one-set"),
        pytest.param("cpuset_cpus", "0-2", "0-3", False, id="other-set"),
        pytest.param("cpuset_cpus", "0-2", "some", False, id="no-set"),
        pytest.param("cpu_period_us", 100_000, 100_001, False, id="plain-number"),
    ],
)
def test_same_value(name: str, one: int | str, other: int | str, same: bool) -> None:
    assert CRI_FIELDS[name].is_same(one, other) is same


def test_a_record_that_came_from_the_file_before_gives_way_to_a_newer_row() -> None:
    before = ContainerRecord(id="c", state=Lifecycle.STOPPED)
    found = joined_container(SAVED, before)
    assert (found.owners, found.state) == (SAVED.owners, Lifecycle.STOPPED)
    assert joined_container(SAVED, ContainerRecord(id="c", state=Lifecycle.CREATED)) is SAVED


@pytest.mark.parametrize(
    ("saved", "known", "expected"),
    [
        pytest.param(
            PodRecord(id="p", owners={"a": (Claimant("b"),)}, cgroup_parent="/x"),
            PodRecord(id="p", recovered=True, cgroup_parent="/y", booked=Resources(cpu_shares=2)),
            PodRecord(id="p", owners={"a": (Claimant("b"),)}, cgroup_parent="/x"),
            id="what-was-saved",
        ),
        pytest.param(
            PodRecord(id="p", owners={"a": (Claimant("b"),)}),
            PodRecord(id="p", recovered=True, state=Lifecycle.STOPPED),
            PodRecord(id="p", owners={"a": (Claimant("b"),)}, state=Lifecycle.STOPPED),
            id="its-end",
        ),
        pytest.param(
            PodRecord(id="p", recovered=True, detailed=False),
            PodRecord(id="p", recovered=True, cgroup_parent="/y"),
            PodRecord(id="p", recovered=True, cgroup_parent="/y"),
            id="what-is-known-better",
        ),
    ],
)
def test_pods(saved: PodRecord, known: PodRecord, expected: PodRecord) -> None:
    assert joined_pod(saved, known) == expected
