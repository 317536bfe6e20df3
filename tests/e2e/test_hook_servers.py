"""What hook servers in another process decide, in the kernel's files of real containers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtime.v1.api_pb2 import LinuxContainerResources
from tests.e2e.conftest import OF_MANY_TESTS
from tests.e2e.koordinator import cpuset, qos
from tests.e2e.values import ALL_CPUS, MIB, on_this_machine
from tests.hooks.remote.behaviours import OVERLAY
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cgroup_v1 import CgroupValues
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod, update_resources
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

HOOKS = (
    "PreRunPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PostStartContainer",
    "PreUpdateContainerResources",
    "PostStopContainer",
    "PostStopPodSandbox",
)
FILE = "koordlet.json"
ASKED = LinuxContainerResources(
    cpu_period=100000,
    cpu_quota=50000,
    cpu_shares=512,
    memory_limit_in_bytes=64 * MIB,
    oom_score_adj=500,
    cpuset_cpus="0",
)
"""What the kubelet asks for, with the cpuset of its CPU manager."""
UNCHANGED = CgroupValues(512, 50000, 64 * MIB, "0")


@pytest.fixture(scope="session")
def hooked_folder(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


@pytest.fixture(scope="session")
def server(hooked_folder: Path) -> Iterator[HookServerProcess]:
    with HookServerProcess(hooked_folder / "hook.sock") as running:
        yield running


@pytest.fixture(scope="session")
def hooked(containerd: Containerd, folder: Path, server: HookServerProcess) -> Iterator[ProxyProcess]:
    """A proxy that asks the server."""
    options = ProxyOptions(str(containerd.socket), config=OF_MANY_TESTS)
    own = ProxyProcess(Path(tempfile.mkdtemp(dir=folder)), options)
    server.register(own.hook_folder, FILE, *HOOKS)
    with own as running:
        wait_until(lambda: any("hook server" in line and "is used" in line for line in running.log), FILE)
        yield running


@pytest.fixture
def client(hooked: ProxyProcess, server: HookServerProcess) -> Iterator[CriClient]:
    server.behave("koordlet")
    with CriClient(hooked.socket) as connected:
        yield connected


def pod(overlay: Mapping[str, Any], kube_qos: KubeQos = "burstable", **more: Any) -> PodSpec:
    container = ContainerSpec(resources=ASKED, env=(("FIRST", "1"), ("SECOND", "2")))
    annotations = {OVERLAY: json.dumps(overlay)} if overlay else {}
    return PodSpec("hooked", kube_qos, containers=(container,), annotations=annotations, **more)


def oom_score_adj(running: RunningPod) -> int:
    return int(Path(f"/proc/{running.main_pid()}/oom_score_adj").read_text())


def environment(running: RunningPod) -> list[str]:
    """Of the container's process, without what the runtime adds.

    After the runtime's answer the process may still be runc's own, which has not come to its exec.
    """
    file = Path(f"/proc/{running.main_pid()}/environ")

    def executed() -> str:
        text = file.read_bytes().decode()
        return "" if "_LIBCONTAINER_" in text else text

    entries = wait_until(executed, "the container's own process").split("\0")
    return [each for each in entries if each and each.partition("=")[0] not in {"PATH", "HOSTNAME", "HOME"}]


OVERLAYS: dict[str, tuple[dict[str, Any], CgroupValues]] = {
    "nothing": ({}, UNCHANGED),
    "a cpuset": ({"cpuset_cpus": "1"}, CgroupValues(512, 50000, 64 * MIB, "1")),
    "a cpuset cleared": ({"cpuset_cpus": ""}, CgroupValues(512, 50000, 64 * MIB, ALL_CPUS)),
    "no quota": ({"cpu_quota": -1}, CgroupValues(512, -1, 64 * MIB, "0")),
    "shares, quota and memory": (
        {"cpu_shares": 256, "cpu_quota": 25000, "memory_limit_in_bytes": 32 * MIB},
        CgroupValues(256, 25000, 32 * MIB, "0"),
    ),
}


@pytest.mark.parametrize(("overlay", "expected"), OVERLAYS.values(), ids=OVERLAYS)
def test_what_koordlet_answers(
    overlay: dict[str, Any], expected: CgroupValues, client: CriClient, logs: Path
) -> None:
    with running_pod(client, pod(overlay), logs) as running:
        assert running.values() == on_this_machine(expected)
        assert oom_score_adj(running) == 500
        assert environment(running) == ["FIRST=1", "SECOND=2"]


PARTIAL: dict[str, tuple[dict[str, Any], CgroupValues]] = {
    "nothing": ({}, UNCHANGED),
    "an empty cpuset": ({"cpuset_cpus": ""}, UNCHANGED),
    "shares": ({"cpu_shares": 256}, CgroupValues(256, 50000, 64 * MIB, "0")),
    "a cpuset": ({"cpuset_cpus": "1"}, CgroupValues(512, 50000, 64 * MIB, "1")),
}


@pytest.mark.parametrize(("overlay", "expected"), PARTIAL.values(), ids=PARTIAL)
def test_a_partial_answer(
    overlay: dict[str, Any],
    expected: CgroupValues,
    client: CriClient,
    server: HookServerProcess,
    logs: Path,
) -> None:
    server.behave("partial", overlay={"env": {"ADDED": "3"}})
    with running_pod(client, pod(overlay), logs) as running:
        assert running.values() == on_this_machine(expected)
        assert oom_score_adj(running) == 500
        assert environment(running) == ["FIRST=1", "SECOND=2", "ADDED=3"]


def test_an_update_keeps_what_the_server_set(
    client: CriClient, server: HookServerProcess, logs: Path
) -> None:
    with running_pod(client, pod({"cpu_shares": 256}), logs) as running:
        update_resources(
            client, running.container_id(), LinuxContainerResources(memory_limit_in_bytes=96 * MIB)
        )
        assert running.values() == CgroupValues(256, 50000, 96 * MIB, "0")
        shown = server.asked("PreUpdateContainerResourcesHook")[-1].container
        assert shown.container_meta.id == running.container_id()
        assert shown.container_resources.cpu_quota == 50000
        assert shown.container_resources.memory_limit_in_bytes == 96 * MIB


def test_the_server_runs_after_the_policies_of_the_proxy(
    client: CriClient, server: HookServerProcess, logs: Path
) -> None:
    container = ContainerSpec(resources=ASKED)
    spec = PodSpec("both", "guaranteed", qos("LSR"), cpuset("1"), (container,))
    with running_pod(client, spec, logs) as running:
        shown = server.asked("PreCreateContainerHook")[-1].container.container_resources
        assert (shown.cpuset_cpus, shown.cpu_quota) == ("1", -1)
        assert running.values() == CgroupValues(512, -1, 64 * MIB, "1")


def test_values_before_the_start_are_in_the_cgroup(
    client: CriClient, server: HookServerProcess, logs: Path
) -> None:
    server.behave(
        "partial", hooks=("PreStartContainerHook",), overlay={"cpu_shares": 300, "cpuset_cpus": "1"}
    )
    with running_pod(client, pod({}), logs) as running:
        # They are written when the runtime has answered, as the cgroup is there then.
        wait_until(lambda: running.values().cpu_shares == 300, "the shares")


def test_nobody_is_kept_from_running_by_a_server_that_fails(
    client: CriClient, server: HookServerProcess, logs: Path
) -> None:
    for kind in ("nonsense", "undecodable", "error"):
        server.behave(kind)
        with running_pod(client, pod({}), logs) as running:
            assert running.values() == UNCHANGED
