"""Stand-alone mode: values by file for what the kubelet runs at the runtime itself."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import KubeletQos, pod_sandbox_config
from tests.daemon.conftest import Daemons
from tests.daemon.driving import GIVES_ENV, Pod, batch_pod, policy_file
from tests.daemon.hook_servers import Servers, use
from tests.daemon.test_systemd_socket import PASSES, passed
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient, outcome_of
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects
from tests.lab.proxy_process import ManagerProcess, ProxyProcess

__all__ = ["passed"]


@pytest.fixture
def lock(socket_folder: Path) -> Path:
    return socket_folder / "front-end.lock"


@pytest.fixture
def standalone(lock: Path, cgroup_files: CgroupFiles) -> str:
    """The configuration; the kernel has the root of its cgroups from the start."""
    cgroup_files.root.mkdir(parents=True, exist_ok=True)
    return f'[daemon]\nmode = "standalone"\nlock = "{lock}"\n'


@pytest.fixture
def kubelet(runtime: FakeRuntime) -> Iterator[CriClient]:
    """A client of the runtime itself."""
    with CriClient(runtime.socket_path) as opened:
        yield opened


def status_of(daemon: ProxyProcess) -> api_pb2.GetStatusResponse:
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        return api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)


def explain(daemon: ProxyProcess, pod: str) -> api_pb2.ExplainResponse:
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        return api.Explain(api_pb2.ExplainRequest(pod=pod), timeout=CALL_TIMEOUT_S)


def run_batch(kubelet: CriClient, files: CgroupFiles, name: str = "batch") -> Pod:
    """As the kubelet does: the pod's cgroup first."""
    made = batch_pod(kubelet, name)
    files.make(made.config.linux.cgroup_parent)
    return made.run().create()


def cgroup_of(made: Pod) -> str:
    return f"{made.config.linux.cgroup_parent}/{made.container}"


TAKEN = api_pb2.SetClaimsResponse.OUTCOME_TAKEN


def bounded_best_effort() -> api_pb2.Claim:
    """A bound of the class of BE pods, as CPU suppress sets it."""
    key = api_pb2.ClaimKey(
        target=api_pb2.ClaimTarget(qos_class="BestEffort"),
        field="cpu.cfs_quota_us",
        role=api_pb2.ExplainedClaim.ROLE_AT_MOST,
    )
    return api_pb2.Claim(key=key, value="20000")


def set_claim(daemon: ProxyProcess, claim: api_pb2.Claim) -> api_pb2.SetClaimsResponse:
    request = api_pb2.SetClaimsRequest(
        owner="cpu-suppress", session="one", sequence=1, is_whole=True, claims=[claim]
    )
    with CriClient(daemon.socket.parent / "admin" / "api.sock") as client:
        admin = api_pb2_grpc.AdminStub(client.channel)
        return admin.SetClaims(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)


@pytest.mark.parametrize("has_events", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_container_gets_its_values_once_it_has_started(
    daemons: Daemons,
    runtime: FakeRuntime,
    kubelet: CriClient,
    cgroup_files: CgroupFiles,
    standalone: str,
    has_events: bool,
) -> None:
    if not has_events:
        runtime.on("GetContainerEvents", error=CallError("UNIMPLEMENTED"))
    daemon = daemons.start(standalone)
    if has_events:
        assert runtime.events.wait_for_subscribers(1, 30)
    made = run_batch(kubelet, cgroup_files)
    parent = made.config.linux.cgroup_parent
    wait_until(lambda: cgroup_files.read(parent, "memory.max") != "max", "the pod's limit")
    with pytest.raises(FileNotFoundError):
        cgroup_files.read(cgroup_of(made), "cpu.weight")
    made.start()
    wait_until(lambda: cgroup_files.read(cgroup_of(made), "memory.max") != "max", "the container's limit")
    # The runtime was asked for nothing but what runs.
    asked = {call.method for call in runtime.recorded}
    assert "UpdateContainerResources" not in asked
    status = status_of(daemon)
    assert (status.daemon.mode, status.runtime.answers) == ("standalone", True)
    assert not any(status.HasField(name) for name in ("calls", "upgrade"))
    assert not status.problems

    def owners() -> list[str]:
        # The daemon notes it once it has written all files of the pod.
        fields = {each.name: each for each in explain(daemon, made.config.metadata.uid).targets[-2].fields}
        limit = fields.get("memory.limit_in_bytes")
        return [each.owner for each in limit.claims] if limit is not None else []

    wait_until(lambda: owners()[:1] == ["batch-resource"], "whose limit it is")
    made.remove()
    wait_until(lambda: not status_of(daemon).records.pods, "no record")


def test_what_only_the_creation_can_carry_is_not_applicable(
    daemons: Daemons, kubelet: CriClient, cgroup_files: CgroupFiles, standalone: str
) -> None:
    daemon = daemons.prepare(standalone)
    policy_file(daemon, "gives_env").write_text(GIVES_ENV)
    daemon.start()
    made = run_batch(kubelet, cgroup_files).start()

    def found() -> list[api_pb2.UnappliedValue]:
        return [each for each in status_of(daemon).ledger.unapplied if each.field == "env[GIVEN]"]

    wait_until(lambda: len(found()) == 1, "the variable")
    (value,) = found()
    assert (value.cause, value.is_problem, "secret" in value.wanted) == ("not-in-mode", False, False)
    explained = explain(daemon, made.config.metadata.uid)
    reasons = {u.cause for each in explained.targets for field in each.fields for u in field.unapplied}
    assert "not-in-mode" in reasons
    # The audit has what stays so, at the next comparison of files.
    audit = wait_until(
        lambda: told if "env[GIVEN]" in (told := daemon.run("audit").stdout) else None, "audit"
    )
    assert "not-in-mode" in audit
    assert "secret" not in audit


def test_what_a_gpu_needs_is_not_applicable(
    daemons: Daemons, kubelet: CriClient, cgroup_files: CgroupFiles, standalone: str, tmp_path: Path
) -> None:
    library = tmp_path / "vgpu" / "libvgpu.so"
    library.parent.mkdir()
    library.touch()
    options = f'[policies.gpu-env.options]\nhami_library_path = "{library}"\nhami_vgpu_monitor = true\n'
    daemon = daemons.start(standalone + options)
    half = {"koordinator.sh/gpu-memory": "16Gi", "koordinator.sh/gpu-memory-ratio": "50"}
    allocated = json.dumps({"gpu": [{"minor": 1, "resources": half}]})
    config = pod_sandbox_config(
        "gpu",
        labels={"koordinator.sh/gpu-isolation-provider": "HAMi-core"},
        annotations={"scheduling.koordinator.sh/device-allocated": allocated},
    )
    made = Pod(kubelet, config)
    cgroup_files.make(config.linux.cgroup_parent)
    made.run().create().start()
    variables = {"env[NVIDIA_VISIBLE_DEVICES]", "env[LD_PRELOAD]"}
    expected = variables | {f"mounts[{library}]", "mounts[/tmp/vgpulock]"}

    def found() -> dict[str, str]:
        return {each.field: each.cause for each in status_of(daemon).ledger.unapplied}

    wait_until(lambda: found().keys() >= expected, "the fields")
    assert set(found().values()) == {"not-in-mode"}
    assert not (library.parent / "containers").exists(), "no directory for a monitor that would have no mount"
    assert not status_of(daemon).problems


def test_hook_servers_are_not_asked_and_the_status_says_so(
    daemons: Daemons, kubelet: CriClient, cgroup_files: CgroupFiles, standalone: str, socket_folder: Path
) -> None:
    daemon = daemons.start(standalone)
    with ExitStack() as stack:
        server = Servers(socket_folder, stack).start(overlay={"labels": {"a": "b"}})
        server.register(daemon.hook_folder, "koordlet.json", "PreRunPodSandbox", "PreCreateContainer")
        use(daemon, "koordlet.json")
        made = run_batch(kubelet, cgroup_files).start()
        wait_until(lambda: cgroup_files.read(cgroup_of(made), "memory.max") != "max", "the limit")
        (found,) = status_of(daemon).hook_servers
        shown = daemon.run("status").stdout
    assert found.hooks == found.hooks_not_asked == ["pre_create_container", "pre_run_pod_sandbox"]
    assert (found.calls, list(found.not_carried)) == (0, [])
    assert "mode standalone does not ask it" in shown


def test_the_bypass_and_restore(
    daemons: Daemons, kubelet: CriClient, cgroup_files: CgroupFiles, standalone: str
) -> None:
    daemon = daemons.start(standalone)
    made = run_batch(kubelet, cgroup_files).start()
    wait_until(lambda: cgroup_files.read(cgroup_of(made), "memory.max") != "max", "the limit")
    daemon.signal(signal.SIGUSR1)
    wait_until(lambda: status_of(daemon).bypass.is_on, "the bypass")
    other = run_batch(kubelet, cgroup_files, "other").start()
    wait_until(lambda: status_of(daemon).records.containers == 2, "the other one's record")
    assert cgroup_files.read(cgroup_of(other), "memory.max") == "max"
    daemon.signal(signal.SIGUSR2)
    wait_until(lambda: cgroup_files.read(cgroup_of(other), "memory.max") != "max", "the limit")
    assert daemon.terminate() == 0
    assert daemon.run("restore").returncode == 0
    assert cgroup_files.read(cgroup_of(made), "memory.max") == "max"


def test_a_restart_goes_on_with_the_records(
    daemons: Daemons, kubelet: CriClient, cgroup_files: CgroupFiles, standalone: str
) -> None:
    daemon = daemons.start(standalone)
    made = run_batch(kubelet, cgroup_files).start()
    wait_until(lambda: cgroup_files.read(cgroup_of(made), "memory.max") != "max", "the limit")
    daemon.terminate()
    late = run_batch(kubelet, cgroup_files, "late").start()
    daemon.start()
    wait_until(lambda: cgroup_files.read(cgroup_of(late), "memory.max") != "max", "the late one's limit")
    records = status_of(daemon).records
    assert (records.containers, records.recovered_containers) == (2, 0)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_the_socket_has_no_calls_of_the_kubelet(daemons: Daemons, standalone: str) -> None:
    daemon = daemons.start(standalone)
    with CriClient(daemon.socket) as client:
        request = cri.VersionRequest()
        assert (
            outcome_of(lambda: client.runtime.Version(request, timeout=CALL_TIMEOUT_S))[0] == "UNIMPLEMENTED"
        )
    recording = daemon.run("record", "--out", str(daemon.folder / "calls"))
    assert recording.returncode != 0
    assert "in mode standalone there are no calls" in recording.stderr
    upgrade = daemon.run("upgrade")
    assert (upgrade.returncode, "restart the service" in upgrade.stderr) == (5, True)
    wait_until(lambda: "upgrade refused: in mode standalone" in str(daemon.log), "the line of the log")
    assert daemon.terminate() == 0
    assert {each["level"] for each in daemon.log_records} <= {"info", "warning"}


def test_a_bound_of_a_qos_manager_is_written(
    daemons: Daemons, kubelet: CriClient, cgroup_files: CgroupFiles, standalone: str
) -> None:
    daemon = daemons.start(standalone)
    made = run_batch(kubelet, cgroup_files).start()
    wait_until(lambda: cgroup_files.read(cgroup_of(made), "cpu.max").split()[:1] == ["50000"], "the quota")
    answer = set_claim(daemon, bounded_best_effort())
    assert answer.outcome == TAKEN
    assert not answer.refused
    assert cgroup_files.read("/kubepods/besteffort", "cpu.max").split()[0] == "20000"
    assert cgroup_files.read(cgroup_of(made), "cpu.max").split()[0] == "max"


def test_a_strategy_is_applied_and_ends(
    daemons: Daemons, kubelet: CriClient, cgroup_files: CgroupFiles, standalone: str
) -> None:
    daemon = daemons.prepare(standalone)
    objects = NodeObjects(daemon.objects_folder)
    objects.strategies({"cpu-burst-config": {"clusterStrategy": {"policy": "cpuBurstOnly"}}})
    daemon.start()
    config = pod_sandbox_config("web", qos="LS", kubelet_qos=KubeletQos.BURSTABLE)
    cgroup_files.make(config.linux.cgroup_parent)
    resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512)
    made = Pod(kubelet, config, resources=resources).run().create().start()

    def burst() -> str:
        return cgroup_files.read(cgroup_of(made), "cpu.max.burst").strip()

    before = burst()
    wait_until(lambda: burst() not in ("", "0"), "the burst")

    def is_noted() -> bool:
        # The daemon notes it once it has written all files of the pod.
        fields = {each.name: each for each in explain(daemon, made.config.metadata.uid).targets[1].fields}
        field = fields.get("cpu.cfs_burst_us")
        if field is None or not field.claims:
            return False
        return (field.claims[0].owner, field.way) == ("cpu-burst", api_pb2.ExplainedField.WAY_FILE)

    wait_until(is_noted, "whose burst it is")
    objects.strategies({"cpu-burst-config": {"clusterStrategy": {"policy": "none"}}})
    wait_until(lambda: burst() in (before, "0"), "the end of the burst")


def test_a_qos_manager_runs_beside_it(daemons: Daemons, standalone: str) -> None:
    daemon = daemons.prepare(standalone)
    strategy = {"resource-threshold-config": {"clusterStrategy": {"enable": True}}}
    NodeObjects(daemon.objects_folder).strategies(strategy)
    daemon.start()
    manager = ManagerProcess(daemon.folder, daemon.config_file, daemon.socket, daemon.options.environment)
    try:
        manager.start()
        running = api_pb2.QosManagerStatus.STATE_RUNNING
        wait_until(lambda: status_of(daemon).qos_manager.state == running, "the manager's report")
        found = status_of(daemon)
        assert (found.daemon.mode, found.qos_manager.report.pid) == ("standalone", manager.pid)
        assert "cpu-suppress" in {each.name for each in found.qos_manager.report.plugins}
    finally:
        manager.close()


def test_a_socket_from_systemd_serves_the_api(
    daemons: Daemons, passed: socket.socket, standalone: str
) -> None:
    descriptor = passed.fileno()
    wrapper = (sys.executable, "-c", PASSES, str(descriptor))
    daemon = daemons.prepare(standalone, wrapper=wrapper, inherited=(descriptor,))
    daemon.start()
    with CriClient(Path(passed.getsockname())) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        status = api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
    assert (status.daemon.mode, status.daemon.endpoint) == ("standalone", passed.getsockname())
    assert daemon.terminate() == 0
    assert Path(passed.getsockname()).exists()


ALONE = """
from runtimeproxy.hooks import CgroupChange, NodeChange, Policy
from runtimeproxy.qos import KubeQoSClass

class Alone(Policy):
    name = "alone"
    def node(self, node):
        return NodeChange(cgroups={"/apps/web": {"memory.low": 4096}})
    def qos_class(self, qos, pods, node):
        return CgroupChange(cgroup={"memory.high": 8192}) if qos is KubeQoSClass.BURSTABLE else None
"""
"""A policy for a host application and a QoS class."""


def test_without_a_runtime_host_applications_and_qos_classes_get_their_values(
    daemons: Daemons, cgroup_files: CgroupFiles, standalone: str
) -> None:
    daemon = daemons.prepare(standalone, runtime_endpoint="")
    policy_file(daemon, "alone").write_text(ALONE)
    for cgroup in ("/apps/web", "/kubepods/burstable", "/kubepods/besteffort"):
        cgroup_files.make(cgroup)
    daemon.start()
    wait_until(lambda: cgroup_files.read("/apps/web", "memory.low") == "4096", "the application's value")
    wait_until(lambda: cgroup_files.read("/kubepods/burstable", "memory.high") == "8192", "the class's value")
    claim = bounded_best_effort()
    wait_until(lambda: set_claim(daemon, claim).outcome == TAKEN, "the claim")
    assert cgroup_files.read("/kubepods/besteffort", "cpu.max").split()[0] == "20000"
    status = status_of(daemon)
    assert (status.runtime.endpoint, status.runtime.answers) == ("", False)
    assert not status.problems
    assert status.records.is_recovered
    shown = daemon.run("status")
    assert shown.returncode == 0
    assert "host applications and QoS classes alone" in shown.stdout
    assert daemon.terminate() == 0
    assert {each["level"] for each in daemon.log_records} <= {"info"}
    assert daemon.run("restore").returncode == 0
    assert cgroup_files.read("/kubepods/burstable", "memory.high") == "max"


def test_the_qos_classes_of_a_kubelet_that_starts_later(
    daemons: Daemons, cgroup_files: CgroupFiles, standalone: str
) -> None:
    daemon = daemons.prepare(standalone, runtime_endpoint="")
    policy_file(daemon, "alone").write_text(ALONE)
    cgroup_files.make("/apps/web")
    daemon.start()
    wait_until(lambda: cgroup_files.read("/apps/web", "memory.low") == "4096", "the application's value")
    cgroup_files.make("/kubepods/burstable")
    wait_until(lambda: cgroup_files.read("/kubepods/burstable", "memory.high") == "8192", "the class's value")


def test_a_runtime_that_never_comes_keeps_nothing_from_host_applications(
    daemons: Daemons, cgroup_files: CgroupFiles, standalone: str, tmp_path: Path
) -> None:
    daemon = daemons.prepare(standalone, runtime_endpoint=str(tmp_path / "none.sock"))
    policy_file(daemon, "alone").write_text(ALONE)
    cgroup_files.make("/apps/web")
    daemon.start()
    wait_until(lambda: cgroup_files.read("/apps/web", "memory.low") == "4096", "the application's value")
    wait_until(
        lambda: any("runtime does not answer" in each for each in status_of(daemon).problems), "the problem"
    )
    assert daemon.run("status").returncode == 1


def test_an_update_of_the_kubelet_is_followed(
    daemons: Daemons, kubelet: CriClient, cgroup_files: CgroupFiles, standalone: str
) -> None:
    """By what it writes: no event of the runtime tells it."""
    daemon = daemons.prepare(standalone)
    strategy = {"policy": "cpuBurstOnly", "cpuBurstPercent": 100}
    NodeObjects(daemon.objects_folder).strategies({"cpu-burst-config": {"clusterStrategy": strategy}})
    daemon.start()
    config = pod_sandbox_config("web", qos="LS", kubelet_qos=KubeletQos.BURSTABLE)
    cgroup_files.make(config.linux.cgroup_parent)
    resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512)
    made = Pod(kubelet, config, resources=resources).run().create().start()
    wait_until(lambda: cgroup_files.read(cgroup_of(made), "cpu.max.burst") == "50000", "the burst")
    linux = cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=80_000, cpu_shares=1024)

    def update() -> bool:
        # Writes of before its cgroup is watched are the runtime's, at the start.
        request = cri.UpdateContainerResourcesRequest(container_id=made.container, linux=linux)
        kubelet.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)
        return cgroup_files.read(cgroup_of(made), "cpu.max.burst") == "80000"

    wait_until(update, "the burst of the new quota")


def test_what_the_runtime_puts_back_is_written_again(
    daemons: Daemons, kubelet: CriClient, cgroup_files: CgroupFiles, standalone: str
) -> None:
    daemons.start(standalone)
    made = run_batch(kubelet, cgroup_files).start()

    def has_quota() -> bool:
        # Empty while it is being written.
        return cgroup_files.read(cgroup_of(made), "cpu.max").split()[:1] == ["50000"]

    wait_until(has_quota, "the quota")
    written = 0

    def is_repaired() -> bool:
        nonlocal written
        if has_quota():
            written += 1
            cgroup_files.write(cgroup_of(made), "cpu.max", "max 100000")
            cgroup_files.write(cgroup_of(made), "cpu.weight", "1")
        return written > 1

    wait_until(is_repaired, "the second quota")
