from __future__ import annotations

import pytest

from runtimeproxy.hooks import (
    CgroupChange,
    ContainerChange,
    ContainerView,
    PodChange,
    PodView,
    ResourceChange,
)
from runtimeproxy.hooks.changes import MountSpec
from runtimeproxy.testing import check_change

CREATE = "pre_create_container"


@pytest.mark.parametrize(
    "change",
    [
        None,
        ContainerChange(),
        ContainerChange(resources=ResourceChange(cpu_shares=2), env={"A": "b"}),
        ContainerChange(cgroup={"cpu.cfs_burst_us": 1000}),
    ],
)
def test_what_can_be_used_has_no_problem(change: ContainerChange | None) -> None:
    assert check_change(CREATE, ContainerView(), change) == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (ContainerChange(resources=ResourceChange(cpuset_cpus="3-1")), "cpuset_cpus"),
        (ContainerChange(resources=ResourceChange(oom_score_adj=2000)), "oom_score_adj"),
        (ContainerChange(env={"A=B": "c"}), "env"),
        (ContainerChange(mounts=(MountSpec(host_path="relative", container_path="/x"),)), "mounts"),
        (PodChange(), "PodChange"),
    ],
)
def test_each_problem_names_its_field(change: CgroupChange, field: str) -> None:
    (problem,) = check_change(CREATE, ContainerView(), change)
    assert field in problem


def test_what_answers_nothing() -> None:
    (problem,) = check_change("post_stop_container", ContainerView(), CgroupChange(cgroup={"cpu.shares": 2}))
    assert "cannot return a change" in problem


def test_hook_and_view_are_checked() -> None:
    with pytest.raises(ValueError, match="no hook 'pre_create_contaner'; did you mean pre_create_container"):
        check_change("pre_create_contaner", ContainerView(), None)
    with pytest.raises(ValueError, match="pre_run_pod_sandbox gets a PodView"):
        check_change("pre_run_pod_sandbox", ContainerView(), None)
    with pytest.raises(ValueError, match="pre_create_container gets a ContainerView"):
        check_change("pre_create_container", PodView(), None)
