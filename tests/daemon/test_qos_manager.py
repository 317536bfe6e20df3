"""The QoS manager and the daemon as processes: either ends, restarts or is upgraded, and no value jumps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc, plugin_pb2, plugin_pb2_grpc
from runtimeproxy.ledger.leased import UNRENEWED
from runtimeproxy.ledger.leases import LEASE_S
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod
from tests.daemon.failures.scene import Scene
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.procfs import rss_bytes
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ManagerProcess, ProxyProcess

CLASS = "/kubepods/besteffort"
STRATEGIES = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config, namespace: koordinator-system}
data:
  resource-threshold-config: '{"clusterStrategy": {"enable": false}}'
"""
CONFIG = """\
[qosmanager]
interval_s = 0.1
[owners.own]
allow = ["cpu.cfs_quota_us at_most qos-class"]
hold_s = %d
[plugins.own]
endpoint = "%s"
mode = "%s"
"""


class Bounding(plugin_pb2_grpc.QoSPluginServicer):
    """Bounds BE pods to `quota_us`, or as long as that is 0 to what it held before."""

    def __init__(self) -> None:
        self.quota_us = 0
        self.held: list[str] = []
        self._last = ""

    def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        return plugin_pb2.DescribeResponse(interval=Duration(nanos=100_000_000))

    def Decide(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.is_first:
            self._last = request.held[0].value if request.held else ""
            self.held.append(self._last)
        value = str(self.quota_us or self._last)
        key = api_pb2.ClaimKey(
            target=api_pb2.ClaimTarget(qos_class="BestEffort"),
            field="cpu.cfs_quota_us",
            role=api_pb2.ExplainedClaim.ROLE_AT_MOST,
        )
        claims = [api_pb2.Claim(key=key, value=value, reason="as the test says")] if value else []
        return plugin_pb2.DecideResponse(claims=claims)


@contextmanager
def served(path: Path) -> Iterator[Bounding]:
    service = Bounding()
    server = grpc.server(ThreadPoolExecutor(1))
    plugin_pb2_grpc.add_QoSPluginServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield service
    server.stop(None).wait()


@pytest.fixture
def plugin(socket_folder: Path) -> Iterator[Bounding]:
    """A plugin that decides as the test says."""
    with served(socket_folder / "own.sock") as made:
        yield made


def prepared(daemon: ProxyProcess) -> ProxyProcess:
    """A daemon that knows its strategies."""
    daemon.objects_folder.mkdir()
    (daemon.objects_folder / "slo.yaml").write_text(STRATEGIES)
    return daemon


@contextmanager
def managed(daemon: ProxyProcess, files: CgroupFiles) -> Iterator[ManagerProcess]:
    """Starts the daemon and a manager, whose plugin bounds BE pods."""
    manager = ManagerProcess(daemon.folder, daemon.config_file, daemon.socket, daemon.options.environment)
    try:
        daemon.start()
        with CriClient(daemon.socket) as client:
            batch_pod(client).run()
        files.make(CLASS)
        manager.start()
        wait_until(lambda: quota_of(files) == "50000", f"a bound; {manager.log[-10:]}")
        yield manager
    finally:
        manager.close()


def quota_of(files: CgroupFiles) -> str:
    return (files.read(CLASS, "cpu.max").split() or [""])[0]


def other_text(file: Path, before: str) -> str:
    """The text of a file, once it is another one."""
    return wait_until(lambda: it if (it := file.read_text()) != before else None, f"a change of {file}")


def claims_status(daemon: ProxyProcess) -> api_pb2.ClaimOwner:
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        status = api.GetStatus(api_pb2.GetStatusRequest(), timeout=30)
    (found,) = (each for each in status.claim_owners if each.name == "own")
    return found


@pytest.mark.slow
def test_either_may_end_at_any_time_and_no_value_jumps(
    daemons: Daemons, socket_folder: Path, cgroup_files: CgroupFiles, plugin: Bounding
) -> None:
    config = CONFIG % (300, f"{socket_folder}/own.sock", "enforce")
    daemon = prepared(daemons.prepare(config))
    manager = ManagerProcess(daemon.folder, daemon.config_file, daemon.socket, daemon.options.environment)
    seen: list[str] = []

    def quota() -> str:
        value = quota_of(cgroup_files)
        # A plain file is empty for a moment while it is written.
        if value and seen[-1:] != [value]:
            seen.append(value)
        return value

    def becomes(value: str) -> None:
        wait_until(lambda: quota() == value, f"a quota of {value}; {manager.log[-10:]}")

    with ExitStack() as stack:
        stack.callback(manager.close)
        plugin.quota_us = 50_000
        # The manager is first, and waits.
        manager.start()
        manager.wait_for_state("STATUS=no daemon: ")
        daemon.start()
        with CriClient(daemon.socket) as client:
            batch_pod(client).run()
        cgroup_files.make(CLASS)
        becomes("50000")

        # The manager is killed: the next one begins with what counts.
        plugin.quota_us = 0
        manager.kill()
        manager.start()
        wait_until(lambda: plugin.held[-1:] == ["50000"], "the claims from before")
        assert quota() == "50000"
        plugin.quota_us = 40_000
        becomes("40000")

        # The daemon is killed, and comes back.
        daemon.kill()
        assert quota() == "40000"
        daemon.start()
        plugin.quota_us = 35_000
        becomes("35000")

        # The daemon is restarted.
        daemon.restart()
        assert quota() == "35000"
        plugin.quota_us = 30_000
        becomes("30000")

        # The daemon is upgraded.
        stack.enter_context(Family(daemon)).upgrade()
        plugin.quota_us = 20_000
        becomes("20000")

        # The manager ends as systemd ends it: what counts goes on counting.
        assert manager.terminate() == 0
        assert quota() == "20000"
        manager.start()
        plugin.quota_us = 10_000
        becomes("10000")

        # The plugin is switched off.
        daemon.config_file.write_text(CONFIG % (300, f"{socket_folder}/own.sock", "off"))
        manager.signal(signal.SIGHUP)
        becomes("max")
        values = ["50000", "40000", "35000", "30000", "20000", "10000", "max"]
        assert seen[seen.index("50000") :] == values
        assert rss_bytes(manager.pid) < 60 << 20


@pytest.mark.slow
def test_without_a_hold_a_dead_managers_claims_end_with_the_lease(
    daemons: Daemons, socket_folder: Path, cgroup_files: CgroupFiles, plugin: Bounding
) -> None:
    daemon = prepared(daemons.prepare(CONFIG % (0, f"{socket_folder}/own.sock", "enforce")))
    plugin.quota_us = 50_000
    with managed(daemon, cgroup_files) as manager:
        manager.kill()
        killed_s = time.monotonic()
        wait_until(lambda: quota_of(cgroup_files) == "max", "the end of the lease", LEASE_S + 60)
        # The last request may be a heartbeat old, and more on a busy machine.
        assert time.monotonic() - killed_s > LEASE_S / 3
        status = claims_status(daemon)
        assert (status.state, status.claims) == (api_pb2.ClaimOwner.STATE_NONE, 0)


@pytest.mark.slow
def test_a_reload_takes_another_endpoint_and_no_value_jumps(
    daemons: Daemons, socket_folder: Path, cgroup_files: CgroupFiles, plugin: Bounding
) -> None:
    daemon = prepared(daemons.prepare(CONFIG % (300, f"{socket_folder}/own.sock", "enforce")))
    plugin.quota_us = 50_000
    with managed(daemon, cgroup_files) as manager, served(socket_folder / "other.sock") as other:
        daemon.config_file.write_text(CONFIG % (300, f"{socket_folder}/other.sock", "enforce"))
        manager.signal(signal.SIGHUP)
        # The other one begins with what counts, and says the same.
        wait_until(lambda: other.held == ["50000"], "the claims from before")
        assert quota_of(cgroup_files) == "50000"
        plugin.quota_us, other.quota_us = 30_000, 40_000
        wait_until(lambda: quota_of(cgroup_files) == "40000", f"its own value; {manager.log[-10:]}")

        # It is gone from the configuration, and with it what it has claimed.
        text = daemon.config_file.read_text()
        daemon.config_file.write_text(text[: text.index("[plugins.own]")])
        manager.signal(signal.SIGHUP)
        wait_until(lambda: quota_of(cgroup_files) == "max", f"its release; {manager.log[-10:]}")

        # It is back: the manager has been told of it before.
        daemon.config_file.write_text(text)
        manager.signal(signal.SIGHUP)
        wait_until(lambda: quota_of(cgroup_files) == "40000", f"its value again; {manager.log[-10:]}")
        assert not [line for line in manager.log if "restart to apply" in line]

        # One that is new waits for a restart, and that is said.
        daemon.config_file.write_text(f'{text}[plugins.more]\nendpoint = "/more.sock"\n')
        manager.signal(signal.SIGHUP)
        wait_until(lambda: [line for line in manager.log if "restart to apply" in line], "a warning")


@pytest.mark.slow
def test_a_daemon_that_is_killed_again_and_again_holds_no_dead_managers_bound(
    daemons: Daemons,
    runtime: FakeRuntime,
    cgroup_files: CgroupFiles,
    socket_folder: Path,
    plugin: Bounding,
) -> None:
    scene = Scene(daemons, runtime, cgroup_files, socket_folder)
    short = "import runtimeproxy.ledger.leases as it; it.LEASE_S, it.MOST_HOLD_S = 5.0, 5.0"
    config = CONFIG % (300, f"{socket_folder}/own.sock", "enforce")
    daemon = prepared(scene.prepare(config, statements=short))
    plugin.quota_us = 50_000
    with managed(daemon, cgroup_files) as manager:
        manager.kill()
        killed_s = time.monotonic()
        saved, kills = daemon.state_folder / UNRENEWED, 0
        while quota_of(cgroup_files) != "max":
            assert kills < 20
            daemon.kill()
            # A plain file that was about to be written may be empty; the kernel's holds what it did before.
            if quota_of(cgroup_files) == "":
                cgroup_files.write(CLASS, "cpu.max", "50000 100000")
            if quota_of(cgroup_files) == "max":  # it ended just before
                break
            # While none serves nothing changes.
            assert quota_of(cgroup_files) == "50000"
            kills += 1
            before = saved.read_text() if saved.exists() else ""
            daemon.start()
            # It is ended as soon as a second of it has counted, or what was held has ended.
            began = other_text(saved, before)

            def has_counted(began: str = began) -> bool:
                return saved.read_text() != began or quota_of(cgroup_files) == "max"

            wait_until(has_counted, "a second that has counted, or the end")
        # Lease and hold are 10 s. Each life counts a second at least, and at most one more than it serves.
        assert kills <= 10
        assert kills + time.monotonic() - killed_s > 9


def test_a_wrong_configuration_ends_the_start(socket_folder: Path) -> None:
    config = socket_folder / "config.toml"
    config.write_text("[plugins.cpu-burst.options]\nstep = 1\n")
    command = [sys.executable, "-m", "runtimeproxy.qosmanager", "--config", str(config)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KOORD_")}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    text = f"{config}: plugins.cpu-burst.options.step: unknown key; this plugin has no options"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"koord-qos-manager: configuration error: {text}\n"
