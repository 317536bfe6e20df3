"""Hook servers as processes of their own, behind the daemon: what they are shown and what they decide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod, pod, shares_of
from tests.daemon.hook_servers import ALL_HOOKS, Servers, use
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess


@pytest.fixture
def servers(socket_folder: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(socket_folder, stack)


def audit(daemon: ProxyProcess, kind: str = "changed") -> list[dict[str, Any]]:
    records = [record for record in daemon.log_records if record["logger"] == "runtimeproxy.audit"]
    return [change for record in records if record["kind"] == kind for change in record["changes"]]


def test_two_servers_in_the_order_of_their_names(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, servers: Servers
) -> None:
    second = servers.start("a", overlay={"cpu_shares": 200, "env": {"SECOND": "2"}})
    first = servers.start("b", overlay={"cpu_shares": 100, "annotations": {"first": "1"}})
    second.register(daemon.hook_folder, "20-second.json", "PreCreateContainer")
    first.register(daemon.hook_folder, "10-first.json", "PreCreateContainer")
    use(daemon, "10-first.json", "20-second.json")
    made = batch_pod(client).run()
    made.envs = {"PATH": "/bin"}
    made.create()
    (shown_first,) = first.asked("PreCreateContainerHook")
    (shown_second,) = second.asked("PreCreateContainerHook")
    assert shown_first.container.container_resources.cpu_shares == 512, "of batch-resource"
    assert shown_second.container.container_resources.cpu_shares == 100
    assert shown_second.container.container_annotations["first"] == "1"
    assert dict(shown_second.container.container_envs) == {"PATH": "/bin"}
    assert shares_of(made) == 200
    conflicts = wait_until(
        lambda: [each for each in audit(daemon, "conflict") if each["policy"].endswith(".json")],
        "the conflicts' audit",
    )
    assert [(each["policy"], each["field"], each["from"], each["to"]) for each in conflicts] == [
        ("10-first.json", "resources.cpu_shares", "512", "100"),
        ("20-second.json", "resources.cpu_shares", "100", "200"),
    ]


def test_a_partial_server_changes_only_what_it_names(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, servers: Servers
) -> None:
    server = servers.start(kind="partial", overlay={"cpu_shares": 77, "env": {"ADDED": "1"}})
    server.register(daemon.hook_folder, "partial.json", "PreCreateContainer")
    use(daemon, "partial.json")
    made = pod(client).run()
    request = made.create_request
    request.config.linux.resources.CopyFrom(
        api_pb2.LinuxContainerResources(oom_score_adj=-997, cpuset_cpus="0-1", cpu_shares=512)
    )
    request.config.envs.extend(
        api_pb2.KeyValue(key=key, value=value)
        for key, value in (("B", b"\xff"), ("A", b"1"), ("Z", b"1"), ("A", b"2"))
    )
    before = api_pb2.CreateContainerRequest.FromString(request.SerializeToString())
    client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)
    (sent,) = runtime.recorded.of("CreateContainer")
    before.config.linux.resources.cpu_shares = 77
    before.config.envs.add(key="ADDED", value=b"1")
    assert sent.message == before


def test_post_hooks_run_once_per_success(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, servers: Servers
) -> None:
    server = servers.start()
    server.register(daemon.hook_folder, "post.json", *ALL_HOOKS)
    use(daemon, "post.json")
    made = pod(client).run().create()
    runtime.on("StartContainer", error=CallError("INTERNAL", "busy"), times=1)
    with pytest.raises(grpc.RpcError):
        made.start()
    made.start()
    wait_until(lambda: server.asked("PostStartContainerHook"), "the post hook")
    runtime.on("StopContainer", error=CallError("INTERNAL", "busy"), times=1)
    stop = api_pb2.StopContainerRequest(container_id=made.container)
    with pytest.raises(grpc.RpcError):
        client.runtime.StopContainer(stop, timeout=CALL_TIMEOUT_S)
    client.runtime.StopContainer(stop, timeout=CALL_TIMEOUT_S)
    made.remove()
    wait_until(lambda: server.asked("PostStopPodSandboxHook"), "the last post hook")
    asked = [each.hook for each in server.asked()]
    assert [asked.count(hook) for hook in ("PreStartContainerHook", "PostStartContainerHook")] == [2, 1]
    assert [asked.count(hook) for hook in ("PostStopContainerHook", "PostStopPodSandboxHook")] == [1, 1]


def test_an_update_is_shown_with_what_the_kubelet_asked_for(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, servers: Servers
) -> None:
    """Also in the fields that the server owns: else it would apply its formula to its own result."""
    server = servers.start(overlay={"cpu_shares": 96})
    server.register(daemon.hook_folder, "all.json", "PreCreateContainer", "PreUpdateContainerResources")
    use(daemon, "all.json")
    made = pod(client).run().create().start()
    (created,) = runtime.recorded.of("CreateContainer")
    assert created.message.config.linux.resources.cpu_shares == 96
    made.update(1 << 26)
    (asked,) = server.asked("PreCreateContainerHook")
    (shown,) = server.asked("PreUpdateContainerResourcesHook")
    assert shown.container.container_meta.id == made.container
    resources = shown.container.container_resources
    assert resources.cpu_shares == asked.container.container_resources.cpu_shares != 96
    assert resources.memory_limit_in_bytes == 1 << 26
    assert shown.container.pod_cgroup_parent == made.config.linux.cgroup_parent


def test_before_and_after_the_start_and_after_the_stop_a_server_is_shown_what_is_in_force(
    daemon: ProxyProcess, client: CriClient, servers: Servers
) -> None:
    """Its own values, too, as Koordinator's proxy shows them."""
    server = servers.start(kind="koordlet", overlay={"cpu_shares": 96, "unified": {"memory.high": "7"}})
    server.register(daemon.hook_folder, "all.json", *ALL_HOOKS)
    use(daemon, "all.json")
    made = pod(client).run().create().start()
    wait_until(lambda: server.asked("PostStartContainerHook"), "the hook after the start")
    made.update(1 << 26)
    client.runtime.StopContainer(
        api_pb2.StopContainerRequest(container_id=made.container), timeout=CALL_TIMEOUT_S
    )
    wait_until(lambda: server.asked("PostStopContainerHook"), "the hook after the stop")
    hooks = ("PreStartContainerHook", "PostStartContainerHook", "PostStopContainerHook")
    found = [server.asked(hook)[0].container.container_resources for hook in hooks]
    assert [each.cpu_shares for each in found] == [96, 96, 96]
    assert [dict(each.unified) for each in found] == [{"memory.high": "7"}] * 3
    assert found[2].memory_limit_in_bytes == 1 << 26
    (updated,) = server.asked("PreUpdateContainerResourcesHook")
    assert updated.container.container_resources.cpu_shares != 96, "an update shows the kubelet's"


def test_pod_level_resources_count(
    daemon: ProxyProcess, client: CriClient, cgroup_files: CgroupFiles, servers: Servers
) -> None:
    server = servers.start(overlay={"cpu_shares": 512, "memory_limit_in_bytes": 1 << 27})
    server.register(daemon.hook_folder, "pod.json", "PreRunPodSandbox")
    use(daemon, "pod.json")
    made = pod(client)
    parent = made.config.linux.cgroup_parent
    cgroup_files.make(parent)
    made.run()
    folder = cgroup_files.folder(parent)
    assert (folder / "memory.max").read_text().strip() == str(1 << 27)
    assert (folder / "cpu.weight").read_text().strip() == "20"


def test_a_pod_with_the_skip_label_is_not_asked_about(
    daemon: ProxyProcess, client: CriClient, servers: Servers
) -> None:
    server = servers.start(kind="error")
    server.register(daemon.hook_folder, "strict.json", *ALL_HOOKS, failure_policy="Fail")
    use(daemon, "strict.json")
    made = pod(client)
    made.config.labels["runtimeproxy.koordinator.sh/skip-hookserver"] = "true"
    made.run().create().start().remove()
    assert not server.asked()


def test_an_echo_of_an_update_sends_nothing_more(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, servers: Servers
) -> None:
    server = servers.start(kind="koordlet", overlay={"cpu_shares": 96})
    server.register(daemon.hook_folder, "all.json", "PreCreateContainer", "PreUpdateContainerResources")
    use(daemon, "all.json")
    made = pod(client).run().create().start()
    made.update(1 << 26)
    (sent,) = runtime.recorded.of("UpdateContainerResources")
    assert sent.message.linux == api_pb2.LinuxContainerResources(memory_limit_in_bytes=1 << 26)


def test_what_a_server_sets_in_a_pods_cgroup_is_its_own_business(
    daemons: Daemons, cgroup_files: CgroupFiles, servers: Servers
) -> None:
    """It is written once, and not over what the server itself writes later, until the server is gone."""
    daemon = daemons.start("[state]\nresync_interval_s = 1.0\n")
    server = servers.start(kind="partial", overlay={"cpu_shares": 300})
    registration = server.register(daemon.hook_folder, "koordlet.json", "PreRunPodSandbox")
    use(daemon, "koordlet.json")
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        parent = made.config.linux.cgroup_parent
        cgroup_files.make(parent)
        made.run()
        weight, quota = (cgroup_files.folder(parent) / name for name in ("cpu.weight", "cpu.max"))
        assert weight.read_text() == "12\n", "of the server, which runs after the policies"
        assert daemon.terminate() == 0
        weight.write_text("77\n")
        quota.write_text("max 100000\n")
        daemon.start()  # which compares all files at once
        # Whoever sets it again, the comparison or an evaluation at the start, looks at all values of the pod.
        wait_until(lambda: quota.read_text() != "max 100000\n", "the quota of the policy")
        assert weight.read_text() == "77\n"
        registration.unlink()
        wait_until(lambda: weight.read_text() == "20\n", "the policy's value, which is the next one")


def test_a_server_that_divides_a_quota_divides_it_once(daemons: Daemons, servers: Servers) -> None:
    daemon = daemons.start()
    server = servers.start(quota_divisor=1.2)
    server.register(daemon.hook_folder, "koordlet.json", "PreCreateContainer", "PreUpdateContainerResources")
    use(daemon, "koordlet.json")
    with CriClient(daemon.socket) as client:
        made = pod(client).run()
        request = made.create_request
        request.config.linux.resources.cpu_quota = 200_000
        made.container = client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S).container_id
        for memory_bytes in (1 << 28, 1 << 29):
            made.update(memory_bytes)
            assert quota_of(client, made.container) == 166_667
    daemon.restart()
    use(daemon, "koordlet.json")
    with CriClient(daemon.socket) as client:
        made.update(1 << 30, client)
        assert quota_of(client, made.container) == 166_667
        resize = api_pb2.UpdateContainerResourcesRequest(container_id=made.container)
        resize.linux.cpu_quota = 100_000
        client.runtime.UpdateContainerResources(resize, timeout=CALL_TIMEOUT_S)
        made.update(1 << 28, client)
        assert quota_of(client, made.container) == 83_334
    shown = [each.container.container_resources for each in server.asked()]
    assert [each.cpu_quota for each in shown] == [200_000] * 4 + [100_000] * 2


def quota_of(client: CriClient, container: str) -> int:
    request = api_pb2.ContainerStatusRequest(container_id=container)
    return client.runtime.ContainerStatus(request, timeout=CALL_TIMEOUT_S).status.resources.linux.cpu_quota


@pytest.mark.parametrize("failure_policy", ["Fail", "Ignore"])
def test_a_pod_without_a_cgroup_parent_starts_though_values_cannot_be_placed(
    daemon: ProxyProcess, client: CriClient, servers: Servers, failure_policy: str
) -> None:
    server = servers.start(overlay={"cpu_shares": 100})
    server.register(daemon.hook_folder, "koordlet.json", "PreRunPodSandbox", failure_policy=failure_policy)
    use(daemon, "koordlet.json")
    made = pod(client)
    made.config.linux.cgroup_parent = ""
    assert made.run().id
    assert wait_until(lambda: audit(daemon, "left-out") or audit(daemon, "changed"), "the report")
