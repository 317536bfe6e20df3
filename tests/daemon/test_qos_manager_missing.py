"""A QoS manager that strategies ask for and that does not run: said until it runs, by daemon and commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.cli import main
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.failures.scene import Scene
from tests.daemon.scraping import scrape
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ManagerProcess, ProxyProcess

STRATEGIES: Final = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config, namespace: koordinator-system}
data:
  resource-threshold-config: '{"clusterStrategy": {"enable": true}}'
"""
QUICK: Final = "import runtimeproxy.ledger.leases as it; it.LEASE_S = 3.0"
"""A report counts for 3 s in place of 15."""
State = api_pb2.QosManagerStatus


@pytest.fixture
def scene(
    daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles, socket_folder: Path
) -> Iterator[Scene]:
    made = Scene(daemons, runtime, cgroup_files, socket_folder)
    with made.stack:
        yield made


def started(scene: Scene, config: str = "") -> ProxyProcess:
    daemon = scene.prepare(config, statements=QUICK)
    daemon.objects_folder.mkdir()
    (daemon.objects_folder / "slo.yaml").write_text(STRATEGIES)
    daemon.start()
    return daemon


def status_of(daemon: ProxyProcess) -> api_pb2.GetStatusResponse:
    with CriClient(daemon.socket) as client:
        api: Any = api_pb2_grpc.RuntimeProxyStub(client.channel)
        found: api_pb2.GetStatusResponse = api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
        return found


def has_state(daemon: ProxyProcess, state: State.State.ValueType) -> bool:
    return status_of(daemon).qos_manager.state == state


def manager_status(daemon: ProxyProcess, *words: str) -> tuple[int, str]:
    """What `koord-qos-manager status` says, and its exit code."""
    command = [sys.executable, "-m", "runtimeproxy.qosmanager", "--config", f"{daemon.folder}/config.toml"]
    flags = ("--koord-runtimeproxy-endpoint", str(daemon.socket))
    done = subprocess.run([*command, "status", *flags, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def running_status(daemon: ProxyProcess, pid: int) -> str:
    """What it says of a manager that runs; empty if it says something else."""
    code, text = manager_status(daemon)
    return text if code == 0 and f"process {pid}" in text else ""


@pytest.mark.slow
def test_it_is_said_until_one_runs(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = started(scene)
    wait_until(lambda: has_state(daemon, State.STATE_MISSING), "the problem")
    (problem,) = [each for each in status_of(daemon).problems if "cpu-suppress" in each]
    assert "systemctl start koord-qos-manager" in problem
    wait_until(lambda: scrape(daemon).of("qos_plugin_missing", plugin="cpu-suppress") == 1, "the metric")
    code, text = manager_status(daemon)
    assert code == 1
    assert "not running" in text
    assert "systemctl start koord-qos-manager" in text
    flags = ("--koord-runtimeproxy-endpoint", str(daemon.socket))
    assert main(("doctor", *flags)) == 1
    found = " ".join(capsys.readouterr().out.split())
    assert found.count("The strategies of this node ask for cpu-suppress") == 1
    manager = ManagerProcess(daemon.folder, daemon.folder / "config.toml", daemon.socket)
    try:
        manager.start()

        def runs() -> bool:
            # A report counts for a short time here: on a busy machine the next one may come later.
            status = status_of(daemon)
            is_missing = any("QoS manager" in each for each in status.problems)
            has_report = status.qos_manager.state == State.STATE_RUNNING and not is_missing
            return has_report and status.qos_manager.report.pid == manager.pid

        wait_until(runs, "the report")
        text = wait_until(lambda: running_status(daemon, manager.pid), "the manager's own status")
        assert "cpu-suppress" in text
        wait_until(lambda: scrape(daemon).of("qos_manager_up") == 1, "the metric")
        # Long after a hold: it is said again.
        manager.kill()
        wait_until(lambda: has_state(daemon, State.STATE_MISSING), "the problem again")
    finally:
        manager.close()


def test_nothing_is_wrong_where_the_node_has_none(scene: Scene) -> None:
    daemon = started(scene, '[qosmanager]\nmode = "none"\n')
    wait_until(lambda: has_state(daemon, State.STATE_LEFT), "the note")
    status = status_of(daemon)
    assert not status.problems
    (note,) = status.notes
    assert 'mode is "none"' in note
    assert "cpu-suppress" in note
    code, text = manager_status(daemon)
    assert (code, "not needed here" in text) == (0, True)
    code, text = manager_status(daemon, "--output", "json")
    assert (code, "STATE_LEFT" in text) == (0, True)
    assert scrape(daemon).of("qos_plugin_missing") == 0


def test_koordlet_does_it(scene: Scene) -> None:
    daemon = started(scene)
    wait_until(lambda: has_state(daemon, State.STATE_MISSING), "the problem")
    with HookServerProcess(scene.folder / "hook.sock", Behaviour()) as server:
        server.register(daemon.hook_folder, "koordlet.json", "PreCreateContainer")
        wait_until(lambda: has_state(daemon, State.STATE_LEFT), "the note")
        status = status_of(daemon)
        assert not [each for each in status.problems if "cpu-suppress" in each]
        (note,) = status.notes
        assert "koordlet is on this node" in note


def test_no_daemon(scene: Scene) -> None:
    daemon = scene.daemons.prepare("")
    code, text = manager_status(daemon)
    assert code == 3
    assert "does not answer" in text
