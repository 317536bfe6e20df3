"""The daemon as a process: start, end, logs and status."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cri_api.runtime.v1 import api_pb2
from runtimeproxy import __version__
from tests.daemon.driving import pod
from tests.defects.conftest import MakeNode
from tests.defects.node import Node, Registrations, asked_about, update
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until

SECRET = "hunter2-is-my-pass-word"  # noqa: S105 - what must not be logged
SYSTEMD = Path(__file__).parents[2] / "systemd"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runtimeproxy", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.defect(3)
@pytest.mark.parametrize("prefix", ["", "unix://"])
def test_a_runtime_that_comes_later(new_node: MakeNode, prefix: str) -> None:
    """The process stayed, without a socket, for ever; also for an endpoint with `unix://`."""
    made = new_node(runtime_prefix=prefix)
    made.proxy.start()
    with CriClient(made.proxy.socket) as client:
        waiting = client.runtime.Version.future(
            api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S, wait_for_ready=True
        )
        assert not waiting.done()
        made.runtime.start()
        assert waiting.result().runtime_name == "fake-runtime"
        pod(client).run().create()


@pytest.mark.defect(3)
def test_a_start_that_fails_ends_the_process(new_node: MakeNode) -> None:
    made = new_node()
    made.proxy.socket.mkdir()
    made.proxy.spawn()
    assert made.proxy.wait() == 1
    assert str(made.proxy.socket) in made.log


@pytest.mark.defect(9)
def test_no_value_of_a_variable_is_logged(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """At no level; the node of all tests logs the lowest. Whole requests were logged as well."""
    hooks = ("PreCreateContainer", "PreStartContainer", "PreUpdateContainerResources", "PostStartContainer")
    server.behave("koordlet", overlay={"cpu_shares": 1024, "env": {"TOKEN": SECRET}})
    path = registrations.register(server, *hooks)

    def drive() -> None:
        made = pod(client).run()
        made.envs = {"PASSWORD": SECRET}
        update(made.create().start(), memory_limit_in_bytes=1 << 26)

    drive()
    server.behave("error", hooks=("PreCreateContainerHook",), text=f"cannot use PASSWORD={SECRET}")
    drive()
    server.behave("nonsense")
    drive()
    made = pod(client).run()
    made.envs = {"PASSWORD": SECRET}
    cut = made.create_request.SerializeToString()[:-1] + b"\xff"
    node.runtime.on("CreateContainer", response=b"")
    client.raw("/runtime.v1.RuntimeService/CreateContainer", cut)
    registrations.register(server, "PostStopContainer", failure_policy="Fail")
    wait_until(lambda: any(path.name in line and "cannot use" in line for line in node.proxy.log), "errors")
    assert '"level":"debug"' in node.log
    assert SECRET not in node.log


@pytest.mark.defect(23)
def test_sigterm_ends_it_gracefully(own_node: Node, server: HookServerProcess) -> None:
    """The call in its hands ended UNAVAILABLE, and the socket stayed."""
    server.behave("late", seconds=1.0, hooks=("PreCreateContainerHook",))
    Registrations(own_node).register(server, "PreCreateContainer")
    with CriClient(own_node.proxy.socket) as client:
        made = pod(client).run()
        held = client.runtime.CreateContainer.future(made.create_request, timeout=CALL_TIMEOUT_S)
        wait_until(lambda: asked_about(server, made), "the hook")
        assert own_node.proxy.terminate() == 0
        assert held.result().container_id
    assert not own_node.proxy.socket.exists()


@pytest.mark.defect(24)
def test_health_on_the_same_socket(own_node: Node) -> None:
    def health() -> int:
        with grpc.insecure_channel(f"unix://{own_node.proxy.socket}") as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
        return int(answer.status)

    assert health() == health_pb2.HealthCheckResponse.SERVING
    own_node.runtime.stop()
    assert health() == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.defect(24)
def test_the_flags_and_commands_that_were_missing(tmp_path: Path) -> None:
    assert command("--version").stdout.strip() == f"koord-runtime-proxy {__version__}"
    flags = ["--log-level", "error", "--log-format", "text", "--hook-config-dir", str(tmp_path)]
    checked = command("check-config", *flags)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert command("check-config", "--log-level", "loud").returncode == 2


@pytest.mark.defect(24)
def test_another_folder_for_hook_servers_and_another_level(
    new_node: MakeNode, server: HookServerProcess, new_path: Callable[[], Path]
) -> None:
    folder = new_path()
    folder.mkdir()
    server.register(folder, "hook.json", "PreRunPodSandbox")
    made = new_node(log_level="warning", arguments=("--hook-config-dir", str(folder)))
    made.runtime.start()
    made.proxy.start()
    with CriClient(made.proxy.socket) as client:
        assert asked_about(server, pod(client).run())
    assert {record["level"] for record in made.proxy.log_records} <= {"warning", "error"}


@pytest.mark.defect(24)
def test_units_are_shipped() -> None:
    """With a start in the right order, restarts and a watchdog."""
    service = (SYSTEMD / "koord-runtime-proxy.service").read_text()
    for line in ("Before=kubelet.service", "Type=notify", "Restart=always", "WatchdogSec=30s"):
        assert line in service.splitlines()
    assert (SYSTEMD / "koord-runtime-proxy.socket").is_file()


@pytest.mark.defect(26)
def test_docker_mode_is_refused_with_a_way_out() -> None:
    """Its half of the job moved containers out of their pods; cri-dockerd speaks the CRI instead."""
    done = command("--backend-runtime-mode", "Docker")
    assert done.returncode == 2
    assert "cri-dockerd" in done.stderr
    assert "--remote-runtime-service-endpoint" in done.stderr
