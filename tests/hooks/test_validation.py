"""What policies may not answer."""

from __future__ import annotations

from typing import Any

import pytest

from runtimeproxy.hooks import (
    CLEAR,
    CgroupChange,
    ContainerChange,
    DeviceSpec,
    Hook,
    MountSpec,
    PodChange,
    ResourceChange,
)
from runtimeproxy.hooks.validation import problem_of
from tests.hooks.flat import CREATE, RUN


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cpu_shares", (2, 1024, 262_144, CLEAR), (-1, 0, 1, 262_145, "5", True, 5.0)),
        ("cpu_quota_us", (-1, 1_000, 2**40, CLEAR), (0, 999, -2, -1.0, 2**44, "max")),
        ("cpu_period_us", (1_000, 1_000_000), (0, 999, 1_000_001, -1)),
        ("memory_limit_bytes", (-1, 1, 2**62, CLEAR), (0, -2, -1.0, 2**63, "1Gi")),
        ("memory_swap_limit_bytes", (-1, 1), (0, -2)),
        ("oom_score_adj", (-1_000, 0, 1_000), (-1_001, 1_001, "0")),
        ("cpuset_cpus", ("0", "0-3,8", CLEAR), ("", "3-1", "a", 0, "0-3;x", b"0")),
        ("cpuset_mems", ("0-1", CLEAR), ("", "x")),
    ],
)
def test_ranges_of_resources(name: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    for value in good:
        assert problem_of(CREATE, ContainerChange(resources=ResourceChange(**{name: value}))) is None
    for value in bad:
        problem = problem_of(CREATE, ContainerChange(resources=ResourceChange(**{name: value})))
        assert problem is not None
        assert f"resources.{name}" in problem


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cpu.shares", (2,), (0, "2")),
        ("cpu.cfs_quota_us", (-1, 1_000), (0, 500)),
        ("memory.limit_in_bytes", (-1, 1), (0,)),
        ("cpu.bvt_warp_ns", (-1, 2), (-2, 3)),
        ("cpu.idle", (0, 1), (2,)),
        ("cpuset.cpus", ("0-1",), ("", "x")),
        ("memory.high", (-1, 0), (-2,)),
        ("some.other_file", (5, -1, "text"), (1.5, None, "two\nlines", "nul\0", 2**63, b"x", True)),
    ],
)
def test_ranges_of_cgroup_values(name: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    for value in good:
        assert problem_of(RUN, PodChange(cgroup={name: value})) is None
    for value in bad:
        assert f"cgroup[{name}]" in (problem_of(RUN, PodChange(cgroup={name: value})) or "")


NOWHERE: Any = object()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(ContainerChange(cgroup={"../cpu.shares": 2}), id="cgroup-path"),
        pytest.param(
            ContainerChange(cgroup={"release_agent": "/bin/sh"}), id="cgroup-file-without-controller"
        ),
        pytest.param(ContainerChange(cgroup=NOWHERE), id="cgroup-no-mapping"),
        pytest.param(ContainerChange(reason=NOWHERE), id="reason-no-text"),
        pytest.param(ContainerChange(resources=NOWHERE), id="resources-no-change"),
        pytest.param(ContainerChange(resources=ResourceChange(unified={"a/b": "1"})), id="unified-path"),
        pytest.param(ContainerChange(resources=ResourceChange(unified=NOWHERE)), id="unified-no-mapping"),
        pytest.param(ContainerChange(annotations={"": "x"}), id="annotation-without-name"),
        pytest.param(ContainerChange(annotations={"a": NOWHERE}), id="annotation-no-text"),
        pytest.param(ContainerChange(annotations={"a": "\ud800"}), id="annotation-not-utf-8"),
        pytest.param(ContainerChange(env={"A=B": "x"}), id="env-name-with-equals"),
        pytest.param(ContainerChange(env={"A": "x\0"}), id="env-nul"),
        pytest.param(ContainerChange(env=NOWHERE), id="env-no-mapping"),
        pytest.param(ContainerChange(cgroup_parent=""), id="empty-cgroup-parent"),
        pytest.param(ContainerChange(cgroup_parent="/"), id="root-cgroup-parent"),
        pytest.param(ContainerChange(cgroup_parent="/a/../b"), id="cgroup-parent-goes-up"),
        pytest.param(ContainerChange(cgroup_parent=NOWHERE), id="cgroup-parent-no-text"),
        pytest.param(
            ContainerChange(mounts=(MountSpec(host_path="a", container_path="/b"),)), id="relative-mount"
        ),
        pytest.param(ContainerChange(mounts=NOWHERE), id="mounts-no-tuple"),
        pytest.param(ContainerChange(mounts=(NOWHERE,)), id="mount-no-spec"),
        pytest.param(
            ContainerChange(devices=(DeviceSpec(host_path="/a", container_path="/b", permissions="x"),)),
            id="device-permissions",
        ),
        pytest.param(ContainerChange(devices=NOWHERE), id="devices-no-tuple"),
        pytest.param(CgroupChange(cgroup={"cpu.shares": 1}), id="plain-cgroup-change"),
        pytest.param(PodChange(), id="change-of-a-pod"),
        pytest.param("text", id="text"),
        pytest.param({}, id="dict"),
    ],
)
def test_nonsense_is_a_problem(change: object) -> None:
    assert problem_of(CREATE, change)


@pytest.mark.parametrize(
    ("hook", "change"),
    [
        (RUN, PodChange(labels={"a": "b"}, cgroup_parent="/a", resources=ResourceChange(cpu_shares=2))),
        (RUN, CgroupChange(cgroup={"cpu.shares": 2})),
        (
            CREATE,
            ContainerChange(
                mounts=(MountSpec(host_path="/a", container_path="/b"),), env={"A": "", "B": CLEAR}
            ),
        ),
        (
            CREATE,
            ContainerChange(devices=(DeviceSpec(host_path="/a", container_path="/b", permissions="wr"),)),
        ),
        (Hook.POST_START_CONTAINER, CgroupChange(cgroup={"cpu.idle": 1})),
        (Hook.PRE_STOP_POD_SANDBOX, CgroupChange(cgroup={"cpu.idle": 1})),
    ],
)
def test_what_makes_sense_is_none(hook: Hook, change: object) -> None:
    assert problem_of(hook, change) is None


@pytest.mark.parametrize("hook", [Hook.POST_STOP_CONTAINER, Hook.PRE_REMOVE_POD_SANDBOX])
def test_some_hooks_answer_nothing(hook: Hook) -> None:
    assert problem_of(hook, CgroupChange()) == f"{hook} answers nothing"


@pytest.mark.parametrize("hook", [RUN, Hook.POST_UPDATE_POD_SANDBOX_RESOURCES])
def test_a_container_change_is_no_answer_about_a_pod(hook: Hook) -> None:
    assert problem_of(hook, ContainerChange()) == "answered a ContainerChange"


def test_problems_quote_no_environment_values() -> None:
    problem = problem_of(CREATE, ContainerChange(env={"TOKEN": "hunter2\0"}))
    assert problem is not None
    assert "TOKEN" in problem
    assert "hunter2" not in problem
