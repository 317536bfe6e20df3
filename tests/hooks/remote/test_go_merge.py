"""What koordlet answers comes to the same as with Koordinator's own proxy."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_api.koordinator.v1alpha1.api_pb2 import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
)
from runtimeproxy.hooks import ContainerView, Hook, PodView, Resources
from runtimeproxy.hooks.remote.protocol import container_change, container_request, pod_change, pod_request
from runtimeproxy.hooks.remote.registrations import ResponseMode
from runtimeproxy.hooks.validation import problem_of
from tests.hooks.flat import apply
from tests.hooks.remote.behaviours import echo, lay_over
from tests.hooks.remote.go_merge import merge_container, merge_map, merge_pod, update_resource

MIB = 1 << 20


def our_container(
    view: ContainerView, response: ContainerResourceHookResponse, answers: ResponseMode, hook: Hook
) -> ContainerResourceHookRequest:
    """What the server would be shown after its own answer."""
    change = container_change(container_request(view), response, answers)
    if change is None:
        return container_request(view)
    assert problem_of(hook, change) is None
    changed = apply(view, change, hook)
    assert isinstance(changed, ContainerView)
    return container_request(changed)


MAPS = {
    "nothing and nothing": (None, {}, {}),
    "nothing": ({}, None, {}),
    "replaced": ({"k1": "v1"}, {"k1": "v2"}, {"k1": "v2"}),
    "added": ({"k1": "v1"}, {"k2": "v2"}, {"k1": "v1", "k2": "v2"}),
}


@pytest.mark.parametrize(("a", "b", "expected"), MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("answers", list(ResponseMode))
def test_maps(
    a: dict[str, str] | None, b: dict[str, str] | None, expected: dict[str, str], answers: ResponseMode
) -> None:
    view = ContainerView(annotations=a or {})
    response = ContainerResourceHookResponse(container_annotations=b or {})
    ours = our_container(view, response, answers, Hook.PRE_CREATE_CONTAINER)
    assert dict(ours.container_annotations) == merge_map(a, b) == expected


BEFORE = Resources(
    cpu_period_us=1_000,
    cpu_quota_us=2_000,
    cpu_shares=500,
    oom_score_adj=10,
    memory_limit_bytes=300,
    memory_swap_limit_bytes=100,
    cpuset_cpus="0-64",
    cpuset_mems="0-2",
    unified={"memory.low": "1"},
)
ANSWERED = LinuxContainerResources(
    cpu_period=2_000,
    cpu_quota=4_000,
    cpu_shares=1_000,
    oom_score_adj=20,
    memory_limit_in_bytes=600,
    memory_swap_limit_in_bytes=200,
    cpuset_cpus="0-31",
    cpuset_mems="0-4",
    unified={"memory.high": "2"},
)


@pytest.mark.parametrize("answers", list(ResponseMode))
def test_all_resources(answers: ResponseMode) -> None:
    """Source: koord-runtime-proxy, utils_test.go, updateResource."""
    view = ContainerView(current=BEFORE)
    response = ContainerResourceHookResponse(container_resources=ANSWERED)
    expected = LinuxContainerResources()
    expected.CopyFrom(ANSWERED)
    expected.unified.update({"memory.low": "1"})
    ours = our_container(view, response, answers, Hook.PRE_CREATE_CONTAINER)
    assert ours.container_resources == expected
    assert update_resource(container_request(view).container_resources, ANSWERED) == expected


@pytest.mark.parametrize("hook", [Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER_RESOURCES])
def test_a_container(hook: Hook) -> None:
    """Source: koord-runtime-proxy, container_test.go, UpdateRequest of create and update."""
    view = ContainerView(
        annotations={"A": "1"},
        pod=PodView(cgroup_parent="/kubepods/besteffort"),
        current=Resources(cpu_period_us=1_000, cpu_shares=500, oom_score_adj=10, unified={"a.b": "1"}),
    )
    response = ContainerResourceHookResponse(
        container_annotations={"B": "2"},
        container_resources=LinuxContainerResources(
            cpu_period=2_000, cpu_shares=100, oom_score_adj=20, unified={"b.c": "2"}
        ),
        pod_cgroup_parent="/offline/besteffort",
    )
    ours = our_container(view, response, ResponseMode.AUTO, hook)
    assert ours.container_resources == LinuxContainerResources(
        cpu_period=2_000, cpu_shares=100, oom_score_adj=20, unified={"a.b": "1", "b.c": "2"}
    )
    assert dict(ours.container_annotations) == {"A": "1", "B": "2"}
    is_created = hook is Hook.PRE_CREATE_CONTAINER
    assert ours.pod_cgroup_parent == ("/offline/besteffort" if is_created else "/kubepods/besteffort")


def test_a_pod() -> None:
    """Source: koord-runtime-proxy, pod_test.go, UpdateRequest."""
    view = PodView(labels={"A": "1"}, annotations={"A": "1"}, cgroup_parent="/kubepods/besteffort")
    response = PodSandboxHookResponse(
        labels={"B": "2"}, annotations={"B": "2"}, cgroup_parent="/offline/besteffort"
    )
    assert our_pod(view, response) == PodSandboxHookRequest(
        pod_meta=pod_request(view).pod_meta,
        labels={"A": "1", "B": "2"},
        annotations={"A": "1", "B": "2"},
        cgroup_parent="/offline/besteffort",
    )


def our_pod(view: PodView, response: PodSandboxHookResponse) -> PodSandboxHookRequest:
    change = pod_change(pod_request(view), response, ResponseMode.AUTO)
    if change is None:
        return pod_request(view)
    assert problem_of(Hook.PRE_RUN_POD_SANDBOX, change) is None
    changed = apply(view, change, Hook.PRE_RUN_POD_SANDBOX)
    assert isinstance(changed, PodView)
    return pod_request(changed)


NAMES = st.text("ABCDE_", min_size=1, max_size=4)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
ENTRIES = st.dictionaries(NAMES, TEXTS, max_size=4)
UNIFIED = st.dictionaries(st.sampled_from(["memory.high", "memory.low", "cpu.weight"]), TEXTS, max_size=2)
QUOTAS = st.one_of(st.just(-1), st.integers(1_000, 10**6))
SHARES = st.integers(2, 262_144)
LIMITS = st.integers(1, 1 << 40)
CPUSETS = st.sampled_from(["0", "0-3", "1,5-7"])
PARENTS = st.sampled_from(["/kubepods/besteffort/pod1", "kubepods-burstable-pod1.slice"])
RESOURCES = st.builds(
    Resources,
    cpu_period_us=st.none() | st.just(100_000),
    cpu_quota_us=st.none() | QUOTAS,
    cpu_shares=st.none() | SHARES,
    memory_limit_bytes=st.none() | LIMITS | st.just(-1),
    memory_swap_limit_bytes=st.none() | LIMITS | st.just(-1),
    oom_score_adj=st.none() | st.integers(-1000, 1000),
    cpuset_cpus=st.none() | CPUSETS,
    cpuset_mems=st.none() | CPUSETS,
    hugepage_limits_bytes=st.sampled_from([(), (("2MB", 4 * MIB),)]),
    unified=UNIFIED,
)
CONTAINERS = st.builds(
    ContainerView,
    name=st.just("main"),
    pod=st.builds(PodView, name=st.just("pod"), labels=ENTRIES, annotations=ENTRIES, cgroup_parent=PARENTS),
    annotations=ENTRIES,
    env=st.dictionaries(NAMES, TEXTS.map(str.encode), max_size=4),
    current=RESOURCES,
)
PODS = st.builds(PodView, labels=ENTRIES, annotations=ENTRIES, cgroup_parent=PARENTS)
OVERLAYS = st.fixed_dictionaries(
    {},
    optional={
        "cpuset_cpus": CPUSETS | st.just(""),
        "cpu_quota": QUOTAS,
        "cpu_shares": SHARES,
        "memory_limit_in_bytes": LIMITS | st.just(-1),
        "env": ENTRIES,
    },
)
"""What koordlet sets. Source: Koordinator pkg/koordlet/runtimehooks/protocol/container_context.go."""


@given(view=CONTAINERS, overlay=OVERLAYS, answers=st.sampled_from([ResponseMode.AUTO, ResponseMode.COMPLETE]))
@settings(deadline=None)
def test_what_koordlet_answers_for_a_container(
    view: ContainerView, overlay: dict[str, Any], answers: ResponseMode
) -> None:
    shown = container_request(view)
    response = lay_over(echo(shown), overlay)
    assert isinstance(response, ContainerResourceHookResponse)
    ours = our_container(view, response, answers, Hook.PRE_CREATE_CONTAINER)
    assert ours == merge_container(shown, response)


@given(
    view=CONTAINERS, overlay=OVERLAYS, secret=st.binary(min_size=1).filter(lambda each: not _is_utf8(each))
)
@settings(deadline=None)
def test_a_variable_that_is_not_utf8_stays(
    view: ContainerView, overlay: dict[str, Any], secret: bytes
) -> None:
    view = replace(view, env=MappingProxyType({**view.env, "raw": secret}))
    shown = container_request(view)
    assert "raw" not in shown.container_envs
    response = lay_over(echo(shown), overlay)
    assert isinstance(response, ContainerResourceHookResponse)
    change = container_change(shown, response, ResponseMode.AUTO)
    assert change is None or "raw" not in change.env


@given(view=PODS, overlay=st.fixed_dictionaries({}, optional={"labels": ENTRIES, "annotations": ENTRIES}))
@settings(deadline=None)
def test_what_koordlet_answers_for_a_pod(view: PodView, overlay: dict[str, Any]) -> None:
    response = lay_over(echo(pod_request(view)), overlay)
    assert isinstance(response, PodSandboxHookResponse)
    assert our_pod(view, response) == merge_pod(pod_request(view), response)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
