"""What a hook server's answer changes, by table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from cri_api.koordinator.v1alpha1.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    HugepageLimit,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from runtimeproxy.hooks import Hook
from runtimeproxy.hooks.changes import CLEAR, CgroupChange, ContainerChange, PodChange, ResourceChange
from runtimeproxy.hooks.fields import Merged
from runtimeproxy.hooks.remote.protocol import container_change, pod_change, start_change
from runtimeproxy.hooks.remote.registrations import ResponseMode
from runtimeproxy.hooks.validation import problem_of, usable
from runtimeproxy.hooks.views import ContainerView
from tests.hooks.remote.behaviours import echo, lay_over, nothing

AUTO, COMPLETE, PARTIAL = ResponseMode.AUTO, ResponseMode.COMPLETE, ResponseMode.PARTIAL

SHOWN = LinuxContainerResources(
    cpu_period=100_000,
    cpu_quota=50_000,
    cpu_shares=512,
    memory_limit_in_bytes=1 << 30,
    memory_swap_limit_in_bytes=1 << 31,
    oom_score_adj=-997,
    cpuset_cpus="0-3",
    cpuset_mems="0",
    hugepage_limits=[HugepageLimit(page_size="2MB", limit=1 << 22)],
    unified={"memory.high": "5"},
)
ENV = {"PATH": "/bin", "TOKEN": "s"}


def request(**changes: Any) -> ContainerResourceHookRequest:
    values = {
        "container_annotations": {"a": "1"},
        "container_resources": SHOWN,
        "pod_cgroup_parent": "/kubepods/besteffort/pod1",
        "container_envs": ENV,
    }
    return ContainerResourceHookRequest(**{**values, **changes})


@dataclass(frozen=True)
class Case:
    """An answer to `request()`, either an echo with an overlay or the overlay alone, and what it changes."""

    overlay: dict[str, Any] = field(default_factory=dict)
    expected: ContainerChange | None = None
    is_echo: bool = True
    answers: ResponseMode = AUTO


def resources(**fields: Any) -> ContainerChange:
    return ContainerChange(resources=ResourceChange(**fields))


CASES = {
    "an echo": Case(),
    "an echo of a server known to be complete": Case(answers=COMPLETE),
    "an echo of a server known to be partial": Case(answers=PARTIAL),
    "nothing": Case(is_echo=False),
    "nothing, complete": Case(is_echo=False, answers=COMPLETE),
    "echo, quota unlimited (V214)": Case({"cpu_quota": -1}, resources(cpu_quota_us=-1)),
    "echo, shares": Case({"cpu_shares": 2}, resources(cpu_shares=2)),
    "echo, period": Case({"cpu_period": 50_000}, resources(cpu_period_us=50_000)),
    "echo, memory": Case({"memory_limit_in_bytes": 7}, resources(memory_limit_bytes=7)),
    "echo, memory and swap unlimited (V215)": Case(
        {"memory_limit_in_bytes": -1, "memory_swap_limit_in_bytes": -1}
    ),
    "partial, memory and swap unlimited": Case(
        {"memory_limit_in_bytes": -1, "memory_swap_limit_in_bytes": -1},
        resources(memory_limit_bytes=-1, memory_swap_limit_bytes=-1),
        is_echo=False,
    ),
    "echo, cpuset": Case({"cpuset_cpus": "1"}, resources(cpuset_cpus="1")),
    "echo, cpuset cleared (V218)": Case({"cpuset_cpus": ""}, resources(cpuset_cpus=CLEAR)),
    "echo, nodes cleared": Case({"cpuset_mems": ""}, resources(cpuset_mems=CLEAR)),
    "echo, OOM score 0": Case({"oom_score_adj": 0}, resources(oom_score_adj=0)),
    "echo, OOM score": Case({"oom_score_adj": 1000}, resources(oom_score_adj=1000)),
    "echo, cpuset cleared by one known to be partial": Case({"cpuset_cpus": ""}, answers=PARTIAL),
    "echo, a key of unified added": Case(
        {"unified": {"memory.low": "1"}}, resources(unified={"memory.low": "1"})
    ),
    "echo, a key of unified replaced": Case(
        {"unified": {"memory.high": "6"}}, resources(unified={"memory.high": "6"})
    ),
    "echo, a variable added": Case({"env": {"GPU": "0"}}, ContainerChange(env={"GPU": "0"})),
    "echo, a variable replaced": Case({"env": {"PATH": "/"}}, ContainerChange(env={"PATH": "/"})),
    "echo, an annotation": Case({"annotations": {"b": "2"}}, ContainerChange(annotations={"b": "2"})),
    "echo, another parent": Case({"cgroup_parent": "/other"}, ContainerChange(cgroup_parent="/other")),
    "partial, shares": Case({"cpu_shares": 1024}, resources(cpu_shares=1024), is_echo=False),
    "partial, cpuset": Case({"cpuset_cpus": "1"}, resources(cpuset_cpus="1"), is_echo=False),
    "partial, quota": Case({"cpu_quota": -1}, resources(cpu_quota_us=-1), is_echo=False),
    "partial, OOM score": Case({"oom_score_adj": 5}, resources(oom_score_adj=5), is_echo=False),
    "partial, OOM score 0": Case({"oom_score_adj": 0}, is_echo=False),
    "partial, empty cpuset": Case({"cpuset_cpus": ""}, is_echo=False),
    "partial, a variable": Case({"env": {"GPU": "0"}}, ContainerChange(env={"GPU": "0"}), is_echo=False),
    "partial, an annotation": Case(
        {"annotations": {"b": "2"}}, ContainerChange(annotations={"b": "2"}), is_echo=False
    ),
    "partial, the same values": Case({"cpu_shares": 512, "env": {"PATH": "/bin"}}, is_echo=False),
    "shares alone of one known to be complete": Case(
        {"cpu_shares": 1024},
        resources(cpu_shares=1024, oom_score_adj=0, cpuset_cpus=CLEAR, cpuset_mems=CLEAR),
        is_echo=False,
        answers=COMPLETE,
    ),
    "a variable alone of one known to be complete": Case(
        {"env": {"GPU": "0"}},
        ContainerChange(env={"GPU": "0", "PATH": CLEAR, "TOKEN": CLEAR}),
        is_echo=False,
        answers=COMPLETE,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_container_answer(case: Case) -> None:
    shown = request()
    answer = lay_over(echo(shown) if case.is_echo else nothing(shown), case.overlay)
    assert isinstance(answer, ContainerResourceHookResponse)
    assert container_change(shown, answer, case.answers) == case.expected


def test_an_echo_may_leave_variables_out() -> None:
    shown = request()
    answer = ContainerResourceHookResponse(
        container_annotations=shown.container_annotations,
        container_resources=SHOWN,
        pod_cgroup_parent=shown.pod_cgroup_parent,
        container_envs={"PATH": "/bin"},
    )
    assert container_change(shown, answer, AUTO) == ContainerChange(env={"TOKEN": CLEAR})


EVIDENCE = {
    "period": {"cpu_period": 0},
    "quota": {"cpu_quota": 0},
    "shares": {"cpu_shares": 0},
    "memory": {"memory_limit_in_bytes": 0},
    "swap": {"memory_swap_limit_in_bytes": 0},
    "parent": {"cgroup_parent": ""},
}


@pytest.mark.parametrize("missing", EVIDENCE.values(), ids=EVIDENCE)
def test_what_lacks_one_thing_shown_is_no_echo(missing: dict[str, Any]) -> None:
    answer = lay_over(echo(request()), {**missing, "cpuset_cpus": "", "oom_score_adj": 0})
    assert isinstance(answer, ContainerResourceHookResponse)
    assert container_change(request(), answer, AUTO) is None


@pytest.mark.parametrize("field", ["unified", "hugepage_limits"])
def test_what_lacks_entries_is_no_echo(field: str) -> None:
    answer = lay_over(echo(request()), {"cpuset_cpus": ""})
    assert isinstance(answer, ContainerResourceHookResponse)
    answer.container_resources.ClearField(field)  # type: ignore[arg-type]
    assert container_change(request(), answer, AUTO) is None
    assert container_change(request(), answer, COMPLETE) == resources(cpuset_cpus=CLEAR)


def test_what_lacks_annotations_is_no_echo() -> None:
    answer = lay_over(echo(request()), {"cpuset_cpus": ""})
    answer.ClearField("container_annotations")  # type: ignore[arg-type]
    assert isinstance(answer, ContainerResourceHookResponse)
    assert container_change(request(), answer, AUTO) is None


def test_without_evidence_nothing_is_cleared() -> None:
    shown = ContainerResourceHookRequest(container_resources=LinuxContainerResources(cpuset_cpus="0"))
    answer = ContainerResourceHookResponse(container_resources=LinuxContainerResources())
    assert container_change(shown, answer, AUTO) is None
    assert container_change(shown, answer, COMPLETE) == resources(cpuset_cpus=CLEAR)


def test_a_container_shown_without_limits_is_an_echo_by_its_parent() -> None:
    shown = request(
        container_annotations={},
        container_resources=LinuxContainerResources(cpu_shares=2, cpuset_cpus="0-7"),
        container_envs={},
    )
    answer = lay_over(echo(shown), {"cpuset_cpus": ""})
    assert isinstance(answer, ContainerResourceHookResponse)
    assert container_change(shown, answer, AUTO) == resources(cpuset_cpus=CLEAR)


def test_absent_resources_leave_resources_alone() -> None:
    answer = ContainerResourceHookResponse(container_annotations={"b": "2"})
    for answers in ResponseMode:
        assert container_change(request(), answer, answers) == ContainerChange(annotations={"b": "2"})


def test_huge_pages_of_an_answer_count_nowhere() -> None:
    answer = echo(request())
    assert isinstance(answer, ContainerResourceHookResponse)
    answer.container_resources.hugepage_limits[0].limit = 1
    assert container_change(request(), answer, AUTO) is None


START_CASES = {
    "an echo": ({}, None),
    "values": (
        {
            "cpu_shares": 2,
            "cpu_quota": -1,
            "cpu_period": 10_000,
            "memory_limit_in_bytes": 9,
            "cpuset_cpus": "1",
        },
        {
            "cpu.shares": 2,
            "cpu.cfs_quota_us": -1,
            "cpu.cfs_period_us": 10_000,
            "memory.limit_in_bytes": 9,
            "cpuset.cpus": "1",
        },
    ),
    "what no cgroup file can say": ({"cpuset_cpus": "", "env": {"A": "b"}}, None),
    "a value of its processes": ({"oom_score_adj": 0}, {"oom_score_adj": 0}),
    "annotations": ({"annotations": {"b": "2"}}, None),
}


@pytest.mark.parametrize(("overlay", "expected"), START_CASES.values(), ids=START_CASES)
def test_an_answer_before_the_start(overlay: dict[str, Any], expected: dict[str, Any] | None) -> None:
    answer = lay_over(echo(request()), overlay)
    assert isinstance(answer, ContainerResourceHookResponse)
    change = start_change(request(), answer, AUTO)
    assert change == (None if expected is None else CgroupChange(cgroup=expected))


POD = PodSandboxHookRequest(
    labels={"l": "1"},
    annotations={"a": "1"},
    cgroup_parent="/kubepods/besteffort/pod1",
    resources=LinuxContainerResources(cpu_shares=2, cpu_quota=1000, cpuset_cpus="0"),
)
POD_CASES: dict[str, tuple[dict[str, Any], PodChange | None]] = {
    "an echo": ({}, None),
    "a label": ({"labels": {"m": "2"}}, PodChange(labels={"m": "2"})),
    "a label replaced": ({"labels": {"l": "2"}}, PodChange(labels={"l": "2"})),
    "an annotation": ({"annotations": {"b": "2"}}, PodChange(annotations={"b": "2"})),
    "another parent": ({"cgroup_parent": "/offline"}, PodChange(cgroup_parent="/offline")),
    "resources, also of the pod's own cgroup": (
        {"cpu_shares": 512, "cpu_quota": -1, "memory_limit_in_bytes": 1 << 27, "cpu_period": 50_000},
        PodChange(
            resources=ResourceChange(
                cpu_shares=512, cpu_quota_us=-1, memory_limit_bytes=1 << 27, cpu_period_us=50_000
            ),
            cgroup={"cpu.shares": 512, "cpu.cfs_quota_us": -1, "memory.limit_in_bytes": 1 << 27},
        ),
    ),
    "a cpuset": ({"cpuset_cpus": "1"}, PodChange(resources=ResourceChange(cpuset_cpus="1"))),
    "a cpuset cleared": ({"cpuset_cpus": ""}, PodChange(resources=ResourceChange(cpuset_cpus=CLEAR))),
}


@pytest.mark.parametrize(("overlay", "expected"), POD_CASES.values(), ids=POD_CASES)
def test_a_pod_answer(overlay: dict[str, Any], expected: PodChange | None) -> None:
    answer = lay_over(echo(POD), overlay)
    assert isinstance(answer, PodSandboxHookResponse)
    assert pod_change(POD, answer, AUTO) == expected


def test_a_partial_pod_answer_clears_nothing() -> None:
    answer = PodSandboxHookResponse(resources=LinuxContainerResources(cpu_shares=512))
    expected = PodChange(resources=ResourceChange(cpu_shares=512), cgroup={"cpu.shares": 512})
    assert pod_change(POD, answer, AUTO) == expected


NONSENSE: dict[str, dict[str, Any]] = {
    "negative shares": {"cpu_shares": -5},
    "a cpuset of words": {"cpuset_cpus": "banana"},
    "nodes of words": {"cpuset_mems": "x"},
    "a negative period": {"cpu_period": -1},
    "a quota below -1": {"cpu_quota": -2},
    "memory below -1": {"memory_limit_in_bytes": -2},
    "an OOM score": {"oom_score_adj": 5000},
    "no file of a cgroup": {"unified": {"../../etc/passwd": "1"}},
    "a variable's name": {"env": {"A=B": "c"}},
    "a parent that climbs": {"cgroup_parent": "/../x"},
    "a text with NUL": {"annotations": {"a": "\0"}},
}


@pytest.mark.parametrize("overlay", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("is_echo", [True, False], ids=["echo", "partial"])
def test_nonsense_costs_the_rest_of_an_answer_nothing(overlay: dict[str, Any], is_echo: bool) -> None:
    env = {"GOOD": "1", **overlay.get("env", {})}
    answer = lay_over(echo(request()) if is_echo else nothing(request()), {**overlay, "env": env})
    assert isinstance(answer, ContainerResourceHookResponse)
    change = container_change(request(), answer, AUTO)
    assert change is not None
    assert problem_of(Hook.PRE_CREATE_CONTAINER, change) is None
    found = usable(Hook.PRE_CREATE_CONTAINER, change, Merged(ContainerView()))
    set_fields = {str(field): value for field, value in found.fields.items() if value is not CLEAR}
    assert set_fields == {"env[GOOD]": "1"}
    if (is_echo, overlay) != (True, NONSENSE["memory below -1"]):
        assert len(found.left_out) == 1


@pytest.mark.parametrize(
    ("overlay", "expected"),
    [
        ({"cpu_quota": 834}, {"cpu_quota_us": 1_000}),
        ({"cpu_shares": 1}, {"cpu_shares": 2}),
        ({"cpuset_cpus": ",8-15"}, {"cpuset_cpus": "8-15"}),
        ({"cpuset_cpus": "0-1,\n", "cpuset_mems": " 0 "}, {"cpuset_cpus": "0-1", "cpuset_mems": "0"}),
    ],
)
def test_what_kernels_take_otherwise_is_put_so(overlay: dict[str, Any], expected: dict[str, Any]) -> None:
    answer = lay_over(nothing(request()), overlay)
    assert isinstance(answer, ContainerResourceHookResponse)
    change = container_change(request(), answer, AUTO)
    assert change is not None
    found = usable(Hook.PRE_CREATE_CONTAINER, change, Merged(ContainerView()))
    assert {field.key: value for field, value in found.fields.items()} == expected
    assert found.left_out == ()


def test_variables_of_one_answer_are_added_in_the_order_of_their_names() -> None:
    names = [f"GPU_{number}" for number in range(50)]
    for order in (names, names[::-1], names[25:] + names[:25]):
        answer = ContainerResourceHookResponse()
        for name in order:
            answer.container_envs[name] = "0"
        change = container_change(ContainerResourceHookRequest(), answer, AUTO)
        assert isinstance(change, ContainerChange)
        assert list(change.env) == sorted(names)
