"""What answers of hook servers do to a request, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CallError
from tests.daemon.driving import Pod, pod
from tests.defects.conftest import MakeNode
from tests.defects.node import Node, Registrations, asked_about, update
from tests.defects.watching import WATCH_IN, watching_site
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient, outcome_of
from tests.lab.deadline import wait_until

GIB = 1 << 30
KUBELETS = api_pb2.LinuxContainerResources(
    cpu_period=100_000,
    cpu_quota=50_000,
    cpu_shares=512,
    memory_limit_in_bytes=GIB,
    oom_score_adj=-997,
    cpuset_cpus="0-3",
    cpuset_mems="0",
    hugepage_limits=[api_pb2.HugepageLimit(page_size="2MB", limit=4 << 20)],
    unified={"memory.oom.group": "1"},
)
"""The request of the lab example."""


def created(made: Pod, request: api_pb2.CreateContainerRequest) -> Pod:
    """Creates the container of a changed request."""
    answer = made.client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)
    made.container = answer.container_id
    return made


def with_resources(client: CriClient, resources: api_pb2.LinuxContainerResources = KUBELETS) -> Pod:
    made = pod(client).run()
    request = made.create_request
    request.config.linux.resources.CopyFrom(resources)
    return created(made, request)


def with_envs(client: CriClient, envs: list[api_pb2.KeyValue]) -> Pod:
    made = pod(client).run()
    request = made.create_request
    del request.config.envs[:]
    request.config.envs.extend(envs)
    return created(made, request)


@pytest.mark.defect(5)
def test_an_answer_with_one_field_changes_one_field(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """The score became 0 and the cpuset empty."""
    server.behave("partial", overlay={"cpu_shares": 1024})
    registrations.register(server, "PreCreateContainer")
    with_resources(client)
    expected = api_pb2.LinuxContainerResources()
    expected.CopyFrom(KUBELETS)
    expected.cpu_shares = 1024
    assert node.sent("CreateContainer").config.linux.resources == expected


@pytest.mark.defect(5)
def test_an_echo_can_clear_a_cpuset(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """koordlet does so for pods of class BestEffort, and means it."""
    server.behave("koordlet", overlay={"cpuset_cpus": ""})
    registrations.register(server, "PreCreateContainer")
    with_resources(client)
    expected = api_pb2.LinuxContainerResources()
    expected.CopyFrom(KUBELETS)
    expected.cpuset_cpus = ""
    assert node.sent("CreateContainer").config.linux.resources == expected


@pytest.mark.defect(11)
@pytest.mark.parametrize("kind", ["koordlet", "partial"])
def test_an_added_variable_moves_no_other(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess, kind: str
) -> None:
    """They were replaced as a whole, in another order each time, duplicates gone."""
    server.behave(kind, overlay={"env": {"GPU": "0"}})
    registrations.register(server, "PreCreateContainer")
    names = ["PATH", "Z", "A", "M", "B", "A", "Y", "C"]
    envs = [api_pb2.KeyValue(key=name, value=str(at).encode()) for at, name in enumerate(names)]
    for _ in range(5):
        node.runtime.recorded.clear()
        with_envs(client, envs)
        assert list(node.sent("CreateContainer").config.envs) == [
            *envs,
            api_pb2.KeyValue(key="GPU", value=b"0"),
        ]


@pytest.mark.defect(11)
@pytest.mark.parametrize("failure_policy", ["Ignore", "Fail"])
def test_a_value_that_is_no_text_keeps_no_policy_off(
    node: Node,
    client: CriClient,
    registrations: Registrations,
    server: HookServerProcess,
    failure_policy: str,
) -> None:
    """The hook was not reached: no policy with Ignore, no such container ever with Fail."""
    server.behave("koordlet", overlay={"cpu_shares": 1024})
    registrations.register(server, "PreCreateContainer", failure_policy=failure_policy)
    envs = [api_pb2.KeyValue(key="RAW", value=b"\xff\x00\xfe"), api_pb2.KeyValue(key="A", value=b"1")]
    made = with_envs(client, envs)
    request = node.sent("CreateContainer")
    assert request.config.linux.resources.cpu_shares == 1024
    assert list(request.config.envs) == envs
    assert dict(asked_about(server, made)[0].container.container_envs) == {"A": "1"}


@pytest.mark.defect(14)
def test_an_update_of_one_field_stays_one_field(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """And what a hook changes; the annotations that the update itself has stay too."""
    registrations.register(server, "PreCreateContainer", "PreUpdateContainerResources")
    made = with_resources(client)
    update(made, {"updated": "1"}, memory_limit_in_bytes=2 * GIB)
    sent = node.sent("UpdateContainerResources")
    assert sent.linux == api_pb2.LinuxContainerResources(memory_limit_in_bytes=2 * GIB)
    assert dict(sent.annotations) == {"updated": "1"}
    server.behave("koordlet", overlay={"cpu_shares": 77, "annotations": {"hook": "1"}})
    update(made, {"updated": "2"}, memory_limit_in_bytes=GIB)
    sent = node.sent("UpdateContainerResources", 2)
    assert sent.linux == api_pb2.LinuxContainerResources(memory_limit_in_bytes=GIB, cpu_shares=77)
    assert dict(sent.annotations) == {"updated": "2", "hook": "1"}


@pytest.mark.defect(14)
def test_hooks_see_an_update_with_all_that_is_in_force(
    client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    registrations.register(server, "PreUpdateContainerResources")
    made = with_resources(client)
    update(made, memory_limit_in_bytes=2 * GIB)
    (asked,) = asked_about(server, made)
    shown = asked.container.container_resources
    assert (shown.memory_limit_in_bytes, shown.cpu_quota, shown.cpuset_cpus) == (2 * GIB, 50_000, "0-3")
    assert shown.oom_score_adj == -997


@pytest.mark.defect(14)
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"oom_score_adj": -500}, id="score"),
        pytest.param({"memory_swap_limit_in_bytes": -1}, id="swap without a limit"),
        pytest.param({"memory_limit_in_bytes": -1}, id="memory without a limit"),
        pytest.param({"hugepage_limits": [api_pb2.HugepageLimit(page_size="2MB", limit=0)]}, id="huge pages"),
    ],
)
def test_an_update_loses_nothing(
    node: Node,
    client: CriClient,
    registrations: Registrations,
    server: HookServerProcess,
    fields: dict[str, Any],
) -> None:
    server.behave("koordlet", overlay={"cpu_shares": 77})
    registrations.register(server, "PreUpdateContainerResources")
    made = with_resources(client)
    update(made, **fields)
    expected = api_pb2.LinuxContainerResources(cpu_shares=77, **fields)
    assert node.sent("UpdateContainerResources").linux == expected


@pytest.mark.defect(14)
def test_nothing_of_a_failed_update_stays(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """The value that the runtime had refused was sent again with the next update."""
    registrations.register(server, "PreUpdateContainerResources")
    made = with_resources(client)
    node.runtime.on("UpdateContainerResources", error=CallError("INVALID_ARGUMENT", "no"), times=1)
    assert outcome_of(lambda: update(made, cpu_quota=11_100)) == ("INVALID_ARGUMENT", "no")
    update(made, memory_limit_in_bytes=2 * GIB)
    assert node.sent("UpdateContainerResources", 2).linux.cpu_quota == 0
    assert asked_about(server, made)[-1].container.container_resources.cpu_quota == 50_000


@pytest.mark.defect(21)
def test_all_that_the_protocol_has_is_sent(
    client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """Attempt, overhead and resources of the pod never were."""
    registrations.register(server, "PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources")
    made = pod(client, annotations={"note": "1"})
    made.config.metadata.attempt = 3
    made.config.linux.overhead.cpu_quota = 1_000
    made.config.linux.resources.memory_limit_in_bytes = GIB
    request = api_pb2.RunPodSandboxRequest(config=made.config, runtime_handler="kata")
    made.id = client.runtime.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id
    update(made.create(), memory_limit_in_bytes=GIB)
    run, create, updated = asked_about(server, made)
    meta = made.config.metadata
    for each in (run.pod, create.container, updated.container):
        shown = each.pod_meta
        assert (shown.name, shown.uid, shown.namespace) == (meta.name, meta.uid, meta.namespace)
        assert shown.attempt == 3
    assert run.pod.runtime_handler == "kata"
    assert run.pod.labels == made.config.labels
    assert run.pod.annotations == made.config.annotations
    assert run.pod.cgroup_parent == made.config.linux.cgroup_parent
    assert run.pod.overhead.cpu_quota == 1_000
    assert run.pod.resources.memory_limit_in_bytes == GIB
    for asked in (create.container, updated.container):
        assert (asked.container_meta.name, asked.container_meta.attempt) == ("main", 0)
        assert asked.pod_resources.memory_limit_in_bytes == GIB
        assert asked.pod_labels == made.config.labels
        assert asked.pod_annotations == made.config.annotations
        assert asked.pod_cgroup_parent == made.config.linux.cgroup_parent
    assert updated.container.container_meta.id == made.container
    assert dict(create.container.container_envs) == {}


@pytest.mark.defect(21)
def test_resources_for_the_pod_count(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """The answer's field was never read."""
    server.behave("partial", overlay={"memory_limit_in_bytes": 1 << 27})
    registrations.register(server, "PreRunPodSandbox")
    made = pod(client)
    made.config.linux.resources.memory_limit_in_bytes = GIB
    node.cgroup_files.make(made.config.linux.cgroup_parent)
    made.run()
    assert node.sent("RunPodSandbox").config.linux.resources.memory_limit_in_bytes == 1 << 27
    file = node.cgroup_files.folder(made.config.linux.cgroup_parent) / "memory.max"
    assert file.read_text().strip() == str(1 << 27)


@pytest.mark.defect(21)
def test_calls_that_had_no_hook_have_one(new_node: MakeNode, new_path: Callable[[], Path]) -> None:
    """For policies of this process; the protocol of hook servers has no such messages."""
    node = new_node(environment=watching_site(new_path()))
    node.runtime.start()
    node.proxy.start()
    lines = new_path()
    with CriClient(node.proxy.socket) as client:
        made = pod(client, annotations={WATCH_IN: str(lines)}).run().create()
        request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=made.id)
        request.resources.cpu_shares = 512
        client.runtime.UpdatePodSandboxResources(request, timeout=CALL_TIMEOUT_S)
        removal = api_pb2.RemoveContainerRequest(container_id=made.container)
        client.runtime.RemoveContainer(removal, timeout=CALL_TIMEOUT_S)
        made.remove()
    expected = [
        "pod  None",
        f"pod {made.id} 512",
        f"on_removed {made.container} main",
    ]

    def has_all() -> bool:
        # An evaluation of running pods, as after the start, may ask once more about the pod.
        written = iter(lines.read_text().splitlines())
        return all(line in written for line in expected)

    wait_until(has_all, "all calls")
