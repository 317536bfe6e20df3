"""What the daemon knows of pods and containers: complete, current, and gone when they are."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CallError
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.daemon.driving import Pod, pod, shares_of
from tests.defects.conftest import MakeNode
from tests.defects.node import Node, Registrations, asked_about, stop_container, stop_pod, update
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient, outcome_of
from tests.lab.deadline import wait_until

MIB = 1 << 20
BUSY = CallError("INTERNAL", "busy")
POLICIES = "STATUS=5 policies"


@pytest.mark.defect(2)
def test_a_container_in_a_pod_that_was_never_seen(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """The runtime made the container, and then the process ended."""
    server.behave("koordlet", overlay={"cpu_shares": 99})
    registrations.register(server, "PreCreateContainer", "PreStartContainer")
    with CriClient(node.runtime.socket_path) as direct:
        made = pod(direct).run()
    made.client = client
    assert shares_of(made.create().start()) == 99
    asked = asked_about(server, made)
    assert {each.container.pod_cgroup_parent for each in asked} == {made.config.linux.cgroup_parent}


@pytest.mark.defect(2, 13)
def test_a_container_in_a_pod_whose_stop_failed(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    server.behave("koordlet", overlay={"cpu_shares": 99})
    registrations.register(server, "PreCreateContainer")
    made = pod(client).run()
    node.runtime.on("StopPodSandbox", error=BUSY, times=1)
    assert outcome_of(lambda: stop_pod(made)) == ("INTERNAL", "busy")
    assert shares_of(made.create()) == 99


@pytest.mark.defect(6)
@pytest.mark.parametrize("source", ["runtime", "checkpoint"])
def test_a_restart_loses_nothing(own_node: Node, server: HookServerProcess, source: str) -> None:
    """Killed without a saved state, or ended in front of a runtime that tells nothing of a container."""
    server.behave("koordlet", overlay={"cpuset_cpus": "0-1", "annotations": {"hook": "1"}})
    Registrations(own_node).register(server, "PreCreateContainer", "PreUpdateContainerResources")
    with CriClient(own_node.proxy.socket) as client:
        made = pod(client, annotations={"note": "1"}).run().create().start()
        update(made, memory_limit_in_bytes=64 * MIB)
    if source == "runtime":
        own_node.proxy.kill()
        shutil.rmtree(own_node.proxy.state_folder, ignore_errors=True)
    else:
        own_node.proxy.terminate()
        for method in ("ContainerStatus", "PodSandboxStatus"):
            own_node.runtime.on(method, error=CallError("UNIMPLEMENTED", "not told"))
    own_node.proxy.start()
    server.behave("koordlet", overlay={"cpuset_cpus": "2-3"})
    with CriClient(own_node.proxy.socket) as client:
        made.client = client
        update(made, memory_limit_in_bytes=128 * MIB)
    before, after = (each.container for each in asked_about(server, made, "PreUpdateContainerResourcesHook"))
    before.container_resources.memory_limit_in_bytes = 128 * MIB
    assert before.container_resources.cpuset_cpus == ""
    if source == "runtime":
        # The runtime tells what is in force, not what the kubelet asked for.
        before.container_resources.cpuset_cpus = "0-1"
    assert after == before
    sent = own_node.sent("UpdateContainerResources", 2).linux
    assert sent == api_pb2.LinuxContainerResources(memory_limit_in_bytes=128 * MIB, cpuset_cpus="2-3")


@pytest.mark.defect(8)
def test_many_updates_of_one_container_at_once(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """8 callers ended the process after 45 calls."""
    registrations.register(server, "PreUpdateContainerResources")
    made = pod(client).run().create().start()

    def call(number: int) -> None:
        with CriClient(node.proxy.socket) as caller:
            other = Pod(caller, made.config, container=made.container)
            for round_ in range(25):
                limit = (64 + number * 25 + round_) * MIB
                update(other, {f"caller-{number}": str(round_)}, memory_limit_in_bytes=limit)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(8))) == [None] * 8
    calls = node.runtime.recorded.wait("UpdateContainerResources", 200)
    assert len({each.message.linux.memory_limit_in_bytes for each in calls}) == 200
    update(made, cpu_shares=3)
    shown = asked_about(server, made)[-1].container.container_resources
    applied = node.runtime.state.find_container(made.container).resources
    assert shown.memory_limit_in_bytes == applied.memory_limit_in_bytes


@pytest.mark.defect(13)
def test_a_post_hook_follows_a_success_only(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """It ran when the runtime had failed, and was missing after the retry that succeeded."""
    hooks = ("PostStartContainer", "PostStopContainer", "PostStopPodSandbox")
    registrations.register(server, *hooks)
    made = pod(client).run().create()
    for call, method in (
        (made.start, "StartContainer"),
        (lambda: stop_container(made), "StopContainer"),
        (lambda: stop_pod(made), "StopPodSandbox"),
    ):
        node.runtime.on(method, error=BUSY, times=1)
        with pytest.raises(grpc.RpcError):
            call()
        assert not asked_about(server, made, f"Post{method}Hook")
        call()
        wait_until(
            lambda method=method: asked_about(server, made, f"Post{method}Hook"),  # type: ignore[misc]
            f"the hook after {method}",
        )
    assert [each.hook for each in asked_about(server, made)] == [f"{hook}Hook" for hook in hooks]
    stopped = asked_about(server, made, "PostStopContainerHook")[0].container
    assert stopped.container_meta.id == made.container
    assert stopped.pod_cgroup_parent == made.config.linux.cgroup_parent


@pytest.mark.defect(15)
def test_a_recovery_that_fails_is_tried_again(new_node: MakeNode, server: HookServerProcess) -> None:
    made = new_node()
    made.runtime.start()
    with CriClient(made.runtime.socket_path) as direct:
        old = pod(direct).run()
    for method in ("ListPodSandbox", "ListContainers"):
        made.runtime.on(method, error=BUSY, times=2)
    server.behave("koordlet", overlay={"cpu_shares": 99})
    server.register(made.proxy.hook_folder, "hook.json", "PreCreateContainer")
    made.proxy.start()
    with CriClient(made.proxy.socket) as client:
        old.client = client
        assert shares_of(old.create()) == 99
    made.wait_for_log("records recovered")
    assert asked_about(server, old)[0].container.pod_cgroup_parent == old.config.linux.cgroup_parent


@pytest.mark.defect(15, 7)
def test_a_recovery_of_long_lists(new_node: MakeNode) -> None:
    """A list above 4 MiB was never read, at no start."""
    made = new_node()
    annotations = {"large": "x" * 1_000_000}
    for number in range(5):
        made.runtime.state.run_sandbox(pod_sandbox_config(f"pod-{number}", annotations=annotations))
    made.runtime.start()
    made.proxy.start()
    made.wait_for_log("5 pods, 0 containers")


@pytest.mark.defect(16)
def test_containers_that_end_by_themselves_leave_nothing(own_node: Node) -> None:
    """Jobs and crash loops: the kubelet removes such a container and never stops it."""
    with CriClient(own_node.proxy.socket) as client:
        first = pod(client).run().create()
        own_node.proxy.wait_for_state(f"{POLICIES}; 1 pods, 1 containers")
        for attempt in range(50):
            other = Pod(client, first.config, id=first.id)
            request = other.create_request
            request.config.metadata.attempt = attempt + 1
            answer = client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)
            other.container = answer.container_id
            end_and_remove(own_node, other.start())
        end_and_remove(own_node, first.start())
        own_node.proxy.wait_for_state(f"{POLICIES}; 1 pods, 0 containers")
        stop_pod(first)
        client.runtime.RemovePodSandbox(
            api_pb2.RemovePodSandboxRequest(pod_sandbox_id=first.id), timeout=CALL_TIMEOUT_S
        )
        own_node.proxy.wait_for_state(f"{POLICIES}; 0 pods, 0 containers")


def end_and_remove(node: Node, made: Pod) -> None:
    node.runtime.state.exit_container(made.container)
    request = api_pb2.RemoveContainerRequest(container_id=made.container)
    made.client.runtime.RemoveContainer(request, timeout=CALL_TIMEOUT_S)
