"""What `explain` says of a pod is what the runtime received, and what the files of its cgroups hold."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from hypothesis import example, given, settings

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.fields.tables import CRI_FIELDS, LISTS, PARAMETERS, RESOURCE_PARAMETERS
from runtimeproxy.service.api.explain import NOT_RECORDED, Explainer
from runtimeproxy.service.api.pods import PodMessages
from runtimeproxy.simulate.reading import pod_calls
from tests.simulate.test_agreement import (
    Differences,
    Stand,
    container_differences,
    sandbox_differences,
    stand,
)
from tests.simulate.wishes import pods

__all__ = ["stand"]

Claim = api_pb2.ExplainedClaim
Field = api_pb2.ExplainedField
WAIT_S = 30.0


def explained(stand: Stand, pod_id: str) -> api_pb2.ExplainResponse:
    """The explanation of a pod, when nothing is to be written any more."""
    parts, loop = stand.parts, stand.proxy._loop
    core = parts.core
    messages = PodMessages(core.inventory, core.ledger, core.node)
    assert loop is not None

    async def explain() -> api_pb2.ExplainResponse:
        assert await parts.front_end.services.core.order.wait_for_post_hooks(pod_id, loop.time() + WAIT_S)
        return await Explainer(messages, core.policies, core.leased, executor).explain(pod_id, "")

    with ThreadPoolExecutor(1) as executor:
        return asyncio.run_coroutine_threadsafe(explain(), loop).result(WAIT_S)


def requested_values(resources: cri.LinuxContainerResources) -> dict[str, str]:
    """By cgroup parameter."""
    values = {
        parameter: getattr(resources, CRI_FIELDS[name].cri)
        for name, parameter in RESOURCE_PARAMETERS.items()
        if name in CRI_FIELDS
    }
    return {name: str(value) for name, value in {**values, **resources.unified}.items() if value}


def text_of(field: Field, name: str) -> str | None:
    # The stubs know the names of optional fields, and `name` is one of them.
    value: str | None = getattr(field, name) if field.HasField(name) else None  # type: ignore[arg-type]
    return value


def check_files(stand: Stand, target: api_pb2.ExplainedTarget) -> None:
    """Each file holds what is said of it, and what was resolved, or the explanation says why not."""
    files = stand.proxy.fake_runtime.state.cgroups.files
    formats = stand.parts.core.ledger.books.formats
    assert files is not None
    for field in target.fields:
        if not field.file:
            continue
        try:
            held: str | None = files.read(target.cgroup, field.file)
        except FileNotFoundError:
            held = None
        assert (text_of(field, "observed") or "").rstrip("\n") == (held or ""), field
        if field.problem:
            continue
        if field.HasField("applied"):
            assert field.applied == field.observed_value == field.resolved, field
            assert not field.is_different, field
        if field.HasField("resolved"):
            value = field.resolved if field.name in LISTS else int(field.resolved)
            assert formats.matches(field.name, value, field.observed), field


def check_message(target: api_pb2.ExplainedTarget, sent: Any, got: Any, differences: Differences) -> None:
    """Fields of the message that the runtime received otherwise than they were sent are explained."""
    fields = {
        each.name: each
        for each in target.fields
        if not each.file and any(claim.effect != Claim.EFFECT_DRY_RUN for claim in each.claims)
    }
    changed = {name: after for name, (_, after) in differences.items() if not is_parameter(name)}
    assert fields.keys() >= changed.keys()
    for name, field in fields.items():
        group, _, key = name.removesuffix("]").partition("[")
        if group in ("labels", "annotations"):
            assert text_of(field, "applied") == getattr(got, group).get(key), field
        elif group in ("env", "mounts"):
            assert field.applied == NOT_RECORDED
        elif group == "cdi_devices":
            assert field.applied == key
        elif group == "cgroup_parent":
            assert field.applied == got.linux.cgroup_parent
        else:
            values = [resource_of(each.linux.resources, name) for each in (sent, got)]
            assert [text_of(field, "requested"), text_of(field, "applied")] == values, field


def resource_of(resources: cri.LinuxContainerResources, name: str) -> str | None:
    group, _, key = name.removeprefix("resources.").removesuffix("]").partition("[")
    if group == "unified":
        return resources.unified.get(key)
    return str(getattr(resources, CRI_FIELDS[group].cri) or "") or None


def is_parameter(name: str) -> bool:
    return name.removeprefix("resources.") in RESOURCE_PARAMETERS


def check_container(
    stand: Stand, target: api_pb2.ExplainedTarget, sent: cri.ContainerConfig, got: cri.ContainerConfig
) -> None:
    asked, received = requested_values(sent.linux.resources), requested_values(got.linux.resources)
    fields = {each.name: each for each in target.fields}
    for name in asked.keys() | received.keys():
        if asked.get(name) != received.get(name):
            assert fields[name].claims, name
    for name, field in fields.items():
        if name in PARAMETERS:
            assert text_of(field, "requested") == asked.get(name), field
        if field.file:
            assert text_of(field, "booked") == received.get(name), field
    check_message(target, sent, got, container_differences(sent, got))
    check_files(stand, target)


def check(stand: Stand, manifest: dict[str, Any]) -> None:
    runtime, received = stand.proxy.runtime, stand.proxy.fake_runtime.recorded
    (calls,) = pod_calls(json.dumps(manifest).encode(), "pod.json", stand.parts.core.node.latest)
    received.clear()
    # As the kubelet does, before the sandbox.
    files = stand.proxy.fake_runtime.state.cgroups.files
    assert files is not None
    files.make(calls.config.linux.cgroup_parent)
    try:
        request = cri.RunPodSandboxRequest(config=calls.config)
        pod_id = runtime.RunPodSandbox(request, timeout=30).pod_sandbox_id
    except grpc.RpcError:
        return
    sandbox = received.wait("RunPodSandbox")[-1].message.config
    started = []
    for container in calls.containers:
        creation = cri.CreateContainerRequest(
            pod_sandbox_id=pod_id, config=container.config, sandbox_config=calls.config
        )
        try:
            made = runtime.CreateContainer(creation, timeout=30)
        except grpc.RpcError:
            continue
        got = received.wait("CreateContainer")[-1].message.config
        runtime.StartContainer(cri.StartContainerRequest(container_id=made.container_id), timeout=30)
        started.append((made.container_id, container.config, got))
    pod, *others = explained(stand, pod_id).targets
    check_message(pod, calls.config, sandbox, sandbox_differences(calls.config, sandbox))
    check_files(stand, pod)
    by_id = {each.container_id: each for each in others if each.container_id}
    assert len(by_id) == len(started)
    for container_id, sent, got in started:
        check_container(stand, by_id[container_id], sent, got)


DRY_RUN_ONLY = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "dry-run-only",
        "namespace": "default",
        "uid": "00000000-0000-0000-0001-000000000000",
        "labels": {},
        "annotations": {"test/dry": '{"a": {"resources": {"cpu_period_us": "clear"}}}'},
    },
    "spec": {"containers": [{"name": "a", "image": "busybox", "env": []}], "initContainers": []},
}
"""A field that only a policy in dry-run would change."""


WISHES = '{"a": {"resources": {"cpu_period_us": {"at_most": 100000}, "cpu_quota_us": 1000}}}'
UNAPPLIED_ONLY = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "unapplied-only",
        "namespace": "default",
        "uid": "00000000-0000-0000-0002-000000000000",
        "labels": {},
        "annotations": {"test/first": WISHES},
    },
    "spec": {
        "containers": [
            {"name": "a", "image": "busybox", "env": [], "resources": {"requests": {"cpu": "2500m"}}}
        ],
        "initContainers": [],
    },
}
"""A field that a policy would change in a way that it cannot have, and that the kubelet asks for."""


@pytest.mark.slow
@given(pods())
@example(DRY_RUN_ONLY)
@example(UNAPPLIED_ONLY)
@settings(max_examples=100)
def test_an_explanation_is_what_happened(stand: Stand, manifest: dict[str, Any]) -> None:
    check(stand, manifest)
