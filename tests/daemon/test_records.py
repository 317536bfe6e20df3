"""Records come back from the runtime, go with the pods, and keep pods' cgroups as policies want them."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime, FakeRuntimeProcess
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod, pod
from tests.daemon.installed import SEE_IN
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

MIB = 1024 * 1024
WANTED_WEIGHT = "20\n"
"""Of the cgroup of a batch pod. Source: Linux, 512 shares as a weight of version 2."""


def seen_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """What the policy `seeing` has written, once there are so many lines."""
    return wait_until(
        lambda: (
            [json.loads(line) for line in lines]
            if path.exists() and len(lines := path.read_text().splitlines()) == count
            else None
        ),
        f"{count} lines",
    )


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_killed_daemon_knows_its_pods_again(
    daemon: ProxyProcess, runtime: FakeRuntime, socket_folder: Path
) -> None:
    seen = socket_folder / "seen"
    with CriClient(daemon.socket) as client:
        made = pod(client, annotations={SEE_IN: str(seen)}).run().create().start()
        made.update(64 * MIB)
        seen_lines(seen, 1)
        daemon.kill()
        daemon.start()
        made.update(128 * MIB)
    before, after = seen_lines(seen, 2)
    assert before["memory"] == 64 * MIB
    assert after == {**before, "memory": 128 * MIB}
    assert after["cgroup_parent"] == made.config.linux.cgroup_parent
    assert after["pod"] == ["default", "web", made.config.metadata.uid]


def test_a_pod_that_the_daemon_never_saw_is_looked_up(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, socket_folder: Path
) -> None:
    seen = socket_folder / "seen"
    daemon.wait_for_state("STATUS=7 policies; 0 pods, 0 containers;")
    with CriClient(runtime.socket_path) as direct:
        made = pod(direct, annotations={SEE_IN: str(seen)}).run().create().start()
        made.update(64 * MIB, client)
    (line,) = seen_lines(seen, 1)
    assert line["cgroup_parent"] == made.config.linux.cgroup_parent


def test_records_go_with_the_pod(daemon: ProxyProcess, client: CriClient) -> None:
    made = pod(client).run().create().start()
    daemon.wait_for_state("STATUS=7 policies; 1 pods, 1 containers")
    made.remove()
    daemon.wait_for_state("STATUS=7 policies; 0 pods, 0 containers")


def test_a_failed_remove_drops_nothing(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, socket_folder: Path
) -> None:
    seen = socket_folder / "seen"
    made = pod(client, annotations={SEE_IN: str(seen)}).run().create().start()
    runtime.on("RemovePodSandbox", error=CallError("INTERNAL", "busy"))
    request = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=made.id)
    assert client.runtime.RemovePodSandbox.future(request, timeout=30).exception() is not None
    runtime.recorded.clear()
    made.update(64 * MIB)
    seen_lines(seen, 1)
    assert "PodSandboxStatus" not in runtime.recorded.methods


def test_what_other_clients_remove_is_noticed(daemons: Daemons, runtime: FakeRuntime) -> None:
    daemon = daemons.start("[state]\nresync_interval_s = 1.0\n")
    with CriClient(daemon.socket) as client, CriClient(runtime.socket_path) as direct:
        made = pod(client).run().create().start()
        daemon.wait_for_state("STATUS=7 policies; 1 pods, 1 containers")
        made.client = direct
        made.remove()
        daemon.wait_for_state("STATUS=7 policies; 0 pods, 0 containers")


@pytest.mark.slow
def test_a_thousand_containers(daemons: Daemons, socket_folder: Path) -> None:
    arguments = ["--pods", "100", "--containers", "1000"]
    with FakeRuntimeProcess(socket_folder / "full.sock", arguments) as full:
        daemon = daemons.prepare(runtime_endpoint=str(full.socket_path))
        daemon.spawn()
        with CriClient(daemon.socket) as client:
            client.wait_until_serving(30)
            daemon.wait_for_state("STATUS=7 policies; 100 pods, 1000 containers;")
            listed = client.runtime.ListContainers(api_pb2.ListContainersRequest(), timeout=30)
            assert len(listed.containers) == 1000


class TestCgroups:
    """Pod-level values of policies are written again when another program has changed them."""

    @pytest.fixture
    def client(self, daemons: Daemons) -> Iterator[CriClient]:
        daemon = daemons.start("[state]\nresync_interval_s = 1.0\n")
        with CriClient(daemon.socket) as opened:
            yield opened

    def test_a_reset_value_is_written_again(self, client: CriClient, cgroup_files: CgroupFiles) -> None:
        made = batch_pod(client)
        parent = made.config.linux.cgroup_parent
        cgroup_files.make(parent)
        made.run()
        path = cgroup_files.folder(parent) / "cpu.weight"
        assert path.read_text() == WANTED_WEIGHT
        path.write_text("100\n")
        wait_until(lambda: path.read_text() == WANTED_WEIGHT, "the policy's value")

    def test_a_resized_pods_value_is_written_again_at_once(
        self, daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles
    ) -> None:
        """The kubelet writes the file itself, then tells the runtime, whatever that answers."""
        daemon = daemons.start("[state]\nresync_interval_s = 3600.0\n")
        with CriClient(daemon.socket) as client:
            made = batch_pod(client)
            cgroup_files.make(made.config.linux.cgroup_parent)
            made.run().create().start()
            path = cgroup_files.folder(made.config.linux.cgroup_parent) / "cpu.weight"
            requests: dict[str, Message] = {
                "UpdatePodSandboxResources": api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=made.id),
                "UpdateContainerResources": api_pb2.UpdateContainerResourcesRequest(
                    container_id=made.container
                ),
            }
            for method, request in requests.items():
                for code in ("", "UNKNOWN", "UNIMPLEMENTED"):
                    if code:
                        runtime.on(method, error=CallError(code, "not implemented yet"))
                    path.write_text("100\n")
                    with suppress(grpc.RpcError):
                        getattr(client.runtime, method)(request, timeout=CALL_TIMEOUT_S)
                    wait_until(lambda: path.read_text() == WANTED_WEIGHT, f"the value after {method}, {code}")

    def test_a_removed_pods_cgroup_is_left_alone(self, client: CriClient, cgroup_files: CgroupFiles) -> None:
        first, second = batch_pod(client, "one"), batch_pod(client, "two")
        files = []
        for made in (first, second):
            parent = made.config.linux.cgroup_parent
            cgroup_files.make(parent)
            made.run()
            files.append(cgroup_files.folder(parent) / "cpu.weight")
        first.remove()
        files[0].parent.mkdir(exist_ok=True)
        for path in files:
            path.write_text("100\n")
        wait_until(lambda: files[1].read_text() == WANTED_WEIGHT, "the value of the pod that runs")
        assert files[0].read_text() == "100\n"
