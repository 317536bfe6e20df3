from __future__ import annotations

import pytest

from runtimeproxy.hooks import (
    CgroupChange,
    ContainerChange,
    ContainerView,
    MountSpec,
    NodeChange,
    PodChange,
    PodView,
    ResourceChange,
)
from runtimeproxy.hooks.changes import Change
from runtimeproxy.hooks.fields import View
from runtimeproxy.hooks.views import ClassView
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.testing import check_change


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
    assert check_change(ContainerView(), change) == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (ContainerChange(resources=ResourceChange(cpuset_cpus="3-1")), "cpuset_cpus"),
        (ContainerChange(resources=ResourceChange(oom_score_adj=2000)), "oom_score_adj"),
        (ContainerChange(env={"A=B": "c"}), "env"),
        (ContainerChange(mounts=(MountSpec(host_path="relative", container_path="/x"),)), "mounts"),
        (ContainerChange(cgroup={"cpu.weight": 10}), "cgroup[cpu.weight]: is cpu.shares here"),
        (ContainerChange(cgroup={"cpu.max": "max"}), "is cpu.cfs_quota_us or cpu.cfs_period_us here"),
        (ContainerChange(env={"A": 1}), "env[A]: is an int, not a text"),  # type: ignore[dict-item]
        (PodChange(), "returned a PodChange, not a ContainerChange or None"),
    ],
)
def test_each_problem_names_its_field(change: CgroupChange, field: str) -> None:
    (problem,) = check_change(ContainerView(), change)
    assert field in problem


@pytest.mark.parametrize(
    ("view", "change", "problem"),
    [
        (PodView(), PodChange(labels={"a": "b"}, cgroup={"cpu.shares": 2}), ()),
        (PodView(), ContainerChange(), ("returned a ContainerChange, not a PodChange or None",)),
        (ClassView(qos=KubeQoSClass.BURSTABLE), CgroupChange(cgroup={"memory.min": 0}), ()),
        (
            ClassView(qos=KubeQoSClass.BURSTABLE),
            PodChange(),
            ("returned a PodChange, not a CgroupChange or None",),
        ),
        (Node(), NodeChange(sysctl={"kernel.sched_core": 1}), ()),
        (Node(), CgroupChange(), ("returned a CgroupChange, not a NodeChange or None",)),
        (
            Node(),
            NodeChange(sysctl={"../x": 1}, cgroups={"/host": {"cpu.nice": 1}}),
            (
                "sysctl[../x]: is not the name of a sysctl",
                "cgroups[/host/cpu.nice]: is not a known cgroup parameter",
            ),
        ),
    ],
)
def test_the_view_says_what_can_be_answered(view: View, change: Change, problem: tuple[str, ...]) -> None:
    assert check_change(view, change) == problem


def test_a_node_is_one_that_a_change_has_to_suit() -> None:
    node = Node(facts=NodeFacts(online_cpus=frozenset({0})))
    change = ContainerChange(resources=ResourceChange(cpuset_cpus="0-1"))
    assert check_change(ContainerView(), change, node) == ("resources.cpuset_cpus: CPU 1 not online, only 0",)
