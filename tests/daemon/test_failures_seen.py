"""What `systemd/FAILURES.md` describes is seen in the metrics that it names, and in the status."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as runtimeproxy_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc as runtimeproxy_pb2_grpc
from cri_api.runtimeproxy.v1.api_pb2 import NodeInput, PolicyStatus
from runtimeproxy.service.metrics.table import METRICS
from runtimeproxy.service.signals import BYPASS_ON, UPGRADE
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod, batch_pod, pod
from tests.daemon.hook_servers import use
from tests.daemon.scraping import scrape, socket_of, wait_for
from tests.daemon.site import IMPORT_FIFO, site_folder
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import config_map, write
from tests.peers.wire import Frame, wire

DOCUMENT = Path(__file__).parents[2] / "systemd" / "FAILURES.md"
OF_PROMETHEUS = {"up", "process_start_time_seconds"}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def rows() -> dict[str, list[str]]:
    """The metrics of each row, by the text of its first cell."""
    found = {}
    for line in DOCUMENT.read_text().splitlines():
        cells = line.strip("|").split(" | ")
        if line.startswith("| ") and len(cells) == 3 and cells[0].strip() not in ("failure", "event", "---"):
            found[cells[0].strip()] = re.findall(r"`(\w+)`", cells[2])
    return found


Seen = Callable[[runtimeproxy_pb2.GetStatusResponse], bool]


def failures(status: runtimeproxy_pb2.GetStatusResponse, policy: str) -> runtimeproxy_pb2.FailureCounts:
    (found,) = (each.failures for each in status.policies if each.name == policy)
    return found


def has_node_problem(status: runtimeproxy_pb2.GetStatusResponse) -> bool:
    return bool(status.node.problems or status.node.strategy_problems)


def state_of(status: runtimeproxy_pb2.GetStatusResponse, name: str) -> NodeInput.State.ValueType:
    (found,) = (each.state for each in status.node.inputs if each.name == name)
    return found


@dataclass
class Scene:
    """What a failure is made of."""

    daemons: Daemons
    runtime: FakeRuntime
    files: CgroupFiles
    folder: Path

    def prepare(self, config: str = "") -> ProxyProcess:
        """A daemon with metrics that is not started."""
        daemon = self.daemons.prepare(config)
        self.daemons.environment["KOORD_RUNTIMEPROXY_METRICS_LISTEN"] = str(socket_of(daemon))
        return daemon

    def start(self, config: str = "") -> ProxyProcess:
        daemon = self.prepare(config)
        daemon.start()
        return daemon

    def run_batch_pod(self, client: CriClient) -> tuple[Pod, Path]:
        """A pod with values of a policy, and the file of its weight, which held 100 before."""
        made = batch_pod(client)
        parent = made.config.linux.cgroup_parent
        self.files.make(parent)
        weight = self.files.folder(parent) / "cpu.weight"
        weight.write_text("100\n")
        made.run().create().start()
        wait_until(lambda: weight.read_text() != "100\n", "the policy's weight")
        return made, weight


@pytest.fixture
def scene(daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles, socket_folder: Path) -> Scene:
    return Scene(daemons, runtime, cgroup_files, socket_folder)


def write_policy(daemon: ProxyProcess, body: str) -> None:
    daemon.policies_folder.mkdir(exist_ok=True)
    path = daemon.policies_folder / "broken.py"
    path.write_text(
        "from runtimeproxy.hooks import ContainerChange, Policy\n"
        "class Broken(Policy):\n"
        "    name = 'broken'\n"
        f"    def container(self, container, node):\n        {body}\n"
    )
    path.chmod(0o644)


# The failures


def not_loaded(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    write_policy(daemon, "return (")
    daemon.start()
    wait_for(daemon, "policy_state", state="not_loaded")
    return daemon


def raises(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    write_policy(daemon, "raise RuntimeError")
    daemon.start()
    with CriClient(daemon.socket) as client:
        pod(client).run().create()
        wait_for(daemon, "policy_failures_total", policy="broken", cause="failed")
    return daemon


def fails_for_what_runs(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    write_policy(daemon, "return 1 / len(container.id and ())")
    daemon.start()
    with CriClient(daemon.socket) as client:
        made, _ = scene.run_batch_pod(client)
        daemon.signal(signal.SIGHUP)
        wait_for(daemon, "policy_failures_total", policy="broken", hook="evaluate_container")
        assert made.container
    return daemon


def field_left_out(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        batch_pod(client).run().create().start()
        wait_for(daemon, "policy_fields_left_out_total", policy="batch-resource")
    return daemon


def bypassed(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    daemon.signal(BYPASS_ON)
    wait_for(daemon, "bypass", cause="operator")
    return daemon


def reset(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        _, weight = scene.run_batch_pod(client)
        ours = weight.read_text()
        weight.write_text("100\n")
        found = wait_for(daemon, "ledger_repairs_total", level="pod", found_by="comparison")
        assert weight.read_text() == ours
        assert found.of("ledger_overwrites_total") == 0
    return daemon


def overwritten(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        _, weight = scene.run_batch_pod(client)
        weight.write_text("77\n")
        wait_for(daemon, "ledger_overwrites_total", parameter="cpu.shares")
    return daemon


def koordlet_is_registered(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with HookServerProcess(scene.folder / "hook.sock", Behaviour()) as server:
        server.register(daemon.hook_folder, "koordlet.json", "PreCreateContainer")
        wait_for(daemon, "ledger_observed_parameters")
    return daemon


def disable(daemon: ProxyProcess) -> None:
    (daemon.folder / "config.toml").write_text("[policies.batch-resource]\nenabled = false\n")
    daemon.signal(signal.SIGHUP)


def policy_is_disabled(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        _, weight = scene.run_batch_pod(client)
        disable(daemon)
        wait_for(daemon, "ledger_given_back_total", level="pod")
        assert weight.read_text() == "100\n"
    return daemon


def changed_before_it_is_given_back(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        _, weight = scene.run_batch_pod(client)
        weight.write_text("77\n")
        # The next comparison of pods is 10 s after the one that finds this.
        wait_for(daemon, "ledger_repairs_total", level="pod")
        weight.write_text("78\n")
        disable(daemon)
        wait_for(daemon, "ledger_left_alone_total", reason="changed_since")
        assert weight.read_text() == "78\n"
    return daemon


def server_crashes(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with HookServerProcess(scene.folder / "hook.sock", Behaviour(kind="crash")) as server:
        server.register(daemon.hook_folder, "crashing.json", "PreCreateContainer")
        use(daemon, "crashing.json")
        with CriClient(daemon.socket) as client:
            pod(client).run().create()
            wait_for(daemon, "policy_failures_total", policy="crashing.json")
    return daemon


def server_fails_three_times(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with HookServerProcess(scene.folder / "hook.sock", Behaviour(kind="crash")) as server:
        server.register(daemon.hook_folder, "crashing.json", "PreCreateContainer")
        use(daemon, "crashing.json")
        with CriClient(daemon.socket) as client:
            for number in range(3):
                pod(client, f"pod-{number}").run().create()
            found = wait_for(daemon, "hook_server_skipped", server="crashing.json")
    assert found.of("hook_server_breaker_openings_total", server="crashing.json") == 1
    return daemon


def registration_is_bad(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    (daemon.hook_folder / "koordlet.json").touch()
    wait_for(daemon, "hook_server_registration_problems_total")
    return daemon


def objects_are_bad(scene: Scene, text: str) -> ProxyProcess:
    daemon = scene.prepare()
    daemon.objects_folder.mkdir()
    (daemon.objects_folder / "slo.yaml").write_text(text)
    daemon.start()
    wait_for(daemon, "node_problems")
    return daemon


def object_file_is_broken(scene: Scene) -> ProxyProcess:
    return objects_are_bad(scene, "a: [")


def object_is_bad(scene: Scene) -> ProxyProcess:
    return objects_are_bad(scene, "apiVersion: v1\nkind: Node\nmetadata: {name: 1}\n")


def object_file_is_cut(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    daemon.objects_folder.mkdir(exist_ok=True)
    file = daemon.objects_folder / "slo.yaml"
    write(file, config_map(cpu_burst_config="{}"))
    wait_for(daemon, "node_input_state", input="strategies", state="known")
    file.write_text("apiVersion: v1\ndata:\n  cpu-burst-config: '{}'\n")
    wait_for(daemon, "node_problems")
    return daemon


def key_is_bad(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    daemon.objects_folder.mkdir(exist_ok=True)
    write(daemon.objects_folder / "slo.yaml", config_map(cpu_burst_config="{nonsense"))
    wait_for(daemon, "node_problems")
    return daemon


def never_read_well(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    daemon.objects_folder.mkdir()
    (daemon.objects_folder / "slo.yaml").write_text("a: [")
    daemon.start()
    wait_for(daemon, "node_input_state", input="strategies", state="unknown")
    return daemon


def unreadable_request(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary("/runtime.v1.RuntimeService/CreateContainer")
        with pytest.raises(grpc.RpcError):
            call(b"\xff\xff\xff", timeout=CALL_TIMEOUT_S)
    wait_for(daemon, "call_problems_total", method="CreateContainer", cause="unreadable")
    return daemon


def request_is_too_large(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[proxy]\nmax_message_bytes = 65536\n")
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary("/runtime.v1.RuntimeService/CreateContainer")
        with pytest.raises(grpc.RpcError):
            call(bytes(100_000), timeout=CALL_TIMEOUT_S)
    wait_for(daemon, "refusals_total", method="CreateContainer", code="RESOURCE_EXHAUSTED")
    return daemon


def garbage(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(daemon.socket))
        client.sendall(PREFACE + wire(Frame(4, 0, 0, b""), Frame(1, 4, 1, b"\xff" * 9)))
        assert client.recv(65_536)
        wait_for(daemon, "connections_ended_total", cause="protocol_error")
    return daemon


def too_many_connections(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[proxy]\nmax_connections_per_process = 1\n")
    with CriClient(daemon.socket) as client:
        client.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(30)
            other.connect(str(daemon.socket))
            assert other.recv(1) == b""
        wait_for(daemon, "connections_refused_total", cause="process")
    return daemon


def runtime_is_away(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[proxy]\nupstream_wait_s = 0.2\n")
    scene.runtime.kill()
    with CriClient(daemon.socket) as client, pytest.raises(grpc.RpcError):
        client.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
    found = wait_for(daemon, "calls_without_upstream_total")
    assert found.of("upstream_failures_total", upstream="runtime") >= 1
    wait_until(lambda: scrape(daemon).of("runtime_up") == 0, "the runtime is away")
    return daemon


def runtime_comes_back(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    scene.runtime.kill()
    with CriClient(daemon.socket) as client:
        waiting = client.runtime.Version.future(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
        wait_until(lambda: scrape(daemon).of("runtime_up") == 0, "the runtime is away")
        scene.runtime.start()
        waiting.result(30)
        found = wait_for(daemon, "runtime_up")
    assert found.of("upstream_wait_seconds_sum", upstream="runtime") > 0
    return daemon


def killed(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    before = scrape(daemon).of("process_start_time_seconds")
    daemon.kill()
    daemon.start()
    wait_for(daemon, "records_recovered")
    assert scrape(daemon).of("process_start_time_seconds") > before
    return daemon


def checkpoint_is_damaged(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    daemon.state_folder.mkdir()
    (daemon.state_folder / "records.db").write_text("no database " * 1000)
    daemon.start()
    wait_for(daemon, "checkpoint_set_aside_total")
    return daemon


def state_cannot_be_saved(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    (daemon.state_folder / "records.db").unlink()
    daemon.state_folder.rename(daemon.folder / "moved")
    # Neither a folder nor a name for one.
    daemon.state_folder.write_text("")
    with CriClient(daemon.socket) as client:
        pod(client).run().create()
        wait_for(daemon, "checkpoint_unsaved")
    return daemon


def configuration_is_wrong(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    (daemon.folder / "config.toml").write_text("[hooks]\nbudget = 1\n")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: scrape(daemon).of("config_reload_successful") == 0, "a failed reload")
    return daemon


def successor_does_not_come_up(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    (daemon.folder / "config.toml").write_text("[hooks]\nbudget = 1\n")
    os.kill(daemon.pid, UPGRADE)
    wait_for(daemon, "upgrades_failed_total")
    return daemon


def not_loaded_in_time(scene: Scene) -> ProxyProcess:
    fifo = scene.folder / "fifo"
    os.mkfifo(fifo)
    environment = scene.daemons.environment
    environment.update(site_folder(scene.folder / "slow", slow="slow_to_import:Slow"))
    environment |= {IMPORT_FIFO: str(fifo), "KOORD_RUNTIMEPROXY_HOOKS_BUDGET_S": "0.1"}
    daemon = scene.prepare()
    daemon.spawn()
    with CriClient(daemon.socket) as client:
        client.wait_until_serving(30)
        pod(client).run()
    wait_for(daemon, "call_problems_total", method="RunPodSandbox", cause="not_loaded")
    return daemon


def cannot_be_written(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        scene.files.make(made.config.linux.cgroup_parent)
        weight = scene.files.folder(made.config.linux.cgroup_parent) / "cpu.weight"
        weight.unlink()
        # No part of a cgroup's path is followed out of the tree.
        weight.symlink_to(scene.folder / "elsewhere")
        made.run()
        wait_for(daemon, "cgroup_writes_total", parameter="cpu.shares", outcome="refused")
    return daemon


def cgroup_is_made_anew(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        made, weight = scene.run_batch_pod(client)
        weight.parent.rename(weight.parent.with_name("old"))
        scene.files.make(made.config.linux.cgroup_parent)
        wait_for(daemon, "ledger_renewed_cgroups_total", level="pod")
    return daemon


def too_many_object_files(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    daemon.objects_folder.mkdir()
    for number in range(300):
        (daemon.objects_folder / f"{number}.yaml").touch()
    daemon.start()
    wait_for(daemon, "node_problems")
    return daemon


def interpreter_crashes(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    before = scrape(daemon).of("process_start_time_seconds")
    daemon.signal(signal.SIGSEGV)
    assert daemon.wait() == -signal.SIGSEGV
    daemon.start()
    assert scrape(daemon).of("process_start_time_seconds") > before
    return daemon


def audit_file_is_a_folder(scene: Scene) -> ProxyProcess:
    daemon = scene.start(f"[audit]\nfile = '{scene.folder}'\n")
    with CriClient(daemon.socket) as client:
        batch_pod(client).run().create()
        wait_for(daemon, "audit_lines_total", outcome="lost")
    return daemon


def collector_is_away(scene: Scene) -> ProxyProcess:
    daemon = scene.start(f"[tracing]\nendpoint = '{scene.folder}/nothing.sock'\n")
    with CriClient(daemon.socket) as client:
        pod(client).run()
        wait_for(daemon, "spans_total", outcome="lost")
    return daemon


SEEN: Final[dict[str, tuple[Callable[[Scene], ProxyProcess], Seen]]] = {
    "a policy cannot be loaded": (
        not_loaded,
        lambda s: any(each.state == PolicyStatus.STATE_FAILED for each in s.policies),
    ),
    "it raises, hangs": (raises, lambda s: failures(s, "broken").raised > 0),
    "a policy fails, hangs": (fails_for_what_runs, lambda s: failures(s, "broken").raised > 0),
    "a field of its answer": (field_left_out, lambda s: failures(s, "batch-resource").left_out > 0),
    "the proxy's own code keeps failing": (bypassed, lambda s: s.bypass.is_on),
    "systemd, the kernel or the runtime": (reset, lambda s: s.ledger.counts.repairs > 0),
    "another program writes a value": (overwritten, lambda s: s.ledger.counts.overwrites > 0),
    "koordlet is registered": (koordlet_is_registered, lambda s: len(s.ledger.observed) > 0),
    "a policy is removed, disabled": (policy_is_disabled, lambda s: s.ledger.counts.given_back > 0),
    "another program has changed a value": (
        changed_before_it_is_given_back,
        lambda status: status.ledger.counts.overwrites > 0,
    ),
    "a server hangs, dies": (server_crashes, lambda s: s.hook_servers[0].failures > 0),
    "it fails three times": (server_fails_three_times, lambda s: s.hook_servers[0].is_breaker_open),
    "its registration file is bad": (
        registration_is_bad,
        lambda status: len(status.registration_problems) > 0,
    ),
    "a file is empty or broken": (object_file_is_broken, has_node_problem),
    "one object of it": (object_is_bad, has_node_problem),
    "one key of": (key_is_bad, has_node_problem),
    "a file is cut off": (object_file_is_cut, has_node_problem),
    "something was never read well": (
        never_read_well,
        lambda status: state_of(status, "strategies") == NodeInput.STATE_UNKNOWN,
    ),
    "a request cannot be parsed": (unreadable_request, lambda s: s.calls.unparsable > 0),
    "a request of an intercepted call is larger": (
        request_is_too_large,
        lambda status: status.calls.too_large > 0,
    ),
    "a client sends garbage": (garbage, lambda s: s.clients.protocol_errors > 0),
    "a client has too many": (too_many_connections, lambda s: s.clients.refused > 0),
    "it is away": (
        runtime_is_away,
        lambda status: not status.runtime.answers and status.runtime.refused_calls > 0,
    ),
    "it comes back": (runtime_comes_back, lambda s: s.runtime.answers),
    "it is killed;": (killed, lambda s: s.records.is_recovered),
    "the policies are not loaded in time": (not_loaded_in_time, lambda status: status.calls.undecided > 0),
    "a value cannot be written": (cannot_be_written, lambda status: len(status.ledger.failed_writes) > 0),
    "the node is rebooted": (cgroup_is_made_anew, lambda status: status.ledger.counts.writes > 0),
    "the folder has more than": (too_many_object_files, has_node_problem),
    "the audit's file": (
        audit_file_is_a_folder,
        lambda s: s.audit_file.lost > 0 and bool(s.audit_file.problem),
    ),
    "the collector of traces": (
        collector_is_away,
        lambda s: s.tracing.lost > 0 and "nothing.sock" in s.tracing.problem,
    ),
    "the interpreter crashes": (interpreter_crashes, lambda status: status.records.is_recovered),
    "the checkpoint is damaged": (
        checkpoint_is_damaged,
        lambda s: bool(s.records.checkpoint_set_aside),
    ),
    "the disk is full": (state_cannot_be_saved, lambda s: bool(s.records.checkpoint_problem)),
    "a wrong configuration": (configuration_is_wrong, lambda s: s.last_reload.has_failed),
    "the successor does not": (successor_does_not_come_up, lambda s: bool(s.upgrade.error)),
}
"""By the beginning of the row's first cell: what makes it happen and looks at the metrics, and how it is seen
in the status."""


NOT_MADE: Final = {
    "its code changes on disk": "needs another installed version",
    "a hook server is deregistered": "as a policy that is disabled",
    "policies want another CPU mode": "needs a kernel with group identity",
    "what was saved of sysctls": "needs sysctls of a kernel with group identity",
    "the original of a pod's file": "needs a file that cannot be read for a moment",
    "the values of more than": "needs more than ten pods whose files fail",
    "a memory limit is to fall": "needs files that the kernel counts in",
    "the CPUs of a new pod": "needs a topology: tests/daemon/test_allocations.py",
    "the CPUs allocated to a new pod": "needs a topology: tests/daemon/test_allocations.py",
    "a file, an object in a file": "takes 60 s",
    "the file system hangs": "needs a file system that hangs",
    "the folder or a file in it may not": "root may read all",
    "the kernel has no more inotify": "the node's limit counts for other tests, too",
    "a file changes all the time": "is no state: a counter that rises",
    "one connection has more than": "as a request that is too large",
    "it is killed while it writes": "the moment cannot be chosen: tests/restarts",
    "SIGTERM": "`up`: the daemon has ended",
    "a second instance": "`up`: the daemon has ended",
    "it ends for good": "`up`: the daemon has ended",
    "`koord-runtime-proxy upgrade`": "tests/daemon/test_metrics.py",
    "from version 0.1": "tests/daemon/test_from_0_1.py",
    "back to version 0.1": "`up`: the daemon has ended",
    "the successor is killed": "as a successor that does not come up",
}
"""Rows that are not made to happen here, and why."""


@pytest.mark.slow
@pytest.mark.parametrize("row", SEEN)
def test_a_failure_is_seen(scene: Scene, row: str) -> None:
    make, is_seen = SEEN[row]
    daemon = make(scene)
    with CriClient(daemon.socket) as client:
        api = runtimeproxy_pb2_grpc.RuntimeProxyStub(client.channel)

        def status_shows_it() -> bool:
            request = runtimeproxy_pb2.GetStatusRequest()
            return is_seen(api.GetStatus(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True))

        wait_until(status_shows_it, "the status")


def test_every_row_names_metrics_that_exist() -> None:
    found = rows()
    assert len(found) > 50
    for row, names in found.items():
        assert names, row
        assert set(names) <= METRICS.keys() | OF_PROMETHEUS, row


def test_every_row_is_made_to_happen_or_says_why_not() -> None:
    starts = (*SEEN, *NOT_MADE)
    for row in rows():
        assert any((row + ";").startswith(start) for start in starts), row
    for start in starts:
        assert any((row + ";").startswith(start) for row in rows()), start
