"""Pods that start, in each mode: the bound of their class is lifted meanwhile, and containers are boosted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.qosmanager.from_api import pod_of
from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    NriAdaptation,
    NriRuntimeState,
    PodCgroups,
)
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.daemon.conftest import PATIENT_NRI, Daemons
from tests.daemon.driving import Pod, batch_pod
from tests.daemon.test_modes import WITHOUT_CALLS, bound, configuration, leased_values, wait_for_plugin
from tests.daemon.test_standalone import cgroup_of, explain, status_of
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects
from tests.lab.proxy_process import ProxyProcess

BOOST: Final = {"startup-boost-config": {"clusterStrategy": {"limitPercent": 300, "maxSeconds": 600}}}
BOUND_US: Final = "20000"
LIFTED_US: Final = "120000"


@pytest.fixture
def runtime(socket_folder: Path, cgroup_files: CgroupFiles) -> Iterator[FakeRuntime]:
    """One with NRI."""
    cgroups = PodCgroups(CgroupDriver.CGROUPFS, cgroup_files)
    state = NriRuntimeState(NriAdaptation(socket_folder / "nri.sock", PATIENT_NRI), cgroups)
    with FakeRuntime(socket_folder / "runtime.sock", state=state) as running:
        yield running


def starts_of(daemon: ProxyProcess) -> api_pb2.StartsStatus:
    return status_of(daemon).ledger.starts


def quota(files: CgroupFiles, cgroup: str) -> str:
    # Empty while it is being written.
    return (files.read(cgroup, "cpu.max").split() or [""])[0]


def best_effort_starts(daemon: ProxyProcess, client: CriClient, files: CgroupFiles, mode: str) -> None:
    """Its start lifts the bound of the class, and the claim stays what it is."""
    made, cgroup = batch_pod(client, "batch"), "/kubepods/besteffort"
    files.make(made.config.linux.cgroup_parent)
    bound(daemon)
    assert quota(files, cgroup) == BOUND_US
    made.run()
    if mode == "standalone":
        # A real runtime has the sandbox's process there.
        files.make(f"{made.config.linux.cgroup_parent}/{made.id}")
    before = wait_until(lambda: starts_of(daemon) if starts_of(daemon).opened else None, "the opening")
    assert (before.opened, before.not_opened) == (1, 0)
    # Its file follows, unless this test is so slow that it is over.
    wait_until(
        lambda: quota(files, cgroup) == LIFTED_US or not starts_of(daemon).openings, "the lifted bound"
    )
    assert leased_values(daemon) == [BOUND_US]
    made.create().start()
    wait_until(lambda: quota(files, cgroup) == BOUND_US and not starts_of(daemon).openings, "the bound")
    assert starts_of(daemon).opened == 1


def service_starts(daemon: ProxyProcess, client: CriClient, files: CgroupFiles, mode: str) -> Pod:
    """Its container is boosted by file; message and book have the kubelet's limit."""
    config = pod_sandbox_config("web", qos="LS")
    config.linux.cgroup_parent = "/kubepods/burstable/podweb"
    files.make(config.linux.cgroup_parent)
    files.write(config.linux.cgroup_parent, "cpu.max", "50000 100000")
    limit = cri.LinuxContainerResources(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000)
    made = Pod(client, config, resources=limit).run().create()
    made.start()
    if mode == "nri":
        # The program did not run before.
        assert quota(files, cgroup_of(made)) in ("150000", "")
    parent = config.linux.cgroup_parent
    wait_until(lambda: {quota(files, each) for each in (cgroup_of(made), parent)} == {"150000"}, "the boost")
    assert booked_quota(client, made) == 50_000
    return made


def booked_quota(client: CriClient, made: Pod) -> int:
    status = cri.ContainerStatusRequest(container_id=made.container)
    found = client.runtime.ContainerStatus(status, timeout=CALL_TIMEOUT_S)
    return found.status.resources.linux.cpu_quota


def started(daemons: Daemons, files: CgroupFiles, folder: Path, mode: str) -> ProxyProcess:
    """A daemon that boosts starts."""
    procfs = folder / "proc"
    procfs.mkdir()
    # Of 8 CPUs all were idle since the boot.
    cpus = "".join(f"cpu{each} 0 0 0 100\n" for each in range(8))
    (procfs / "stat").write_text(f"cpu  0 0 0 800 0 0 0 0 0 0\n{cpus}")
    for qos in ("besteffort", "burstable"):
        files.make(f"/kubepods/{qos}")
    settings = f'[policies.startup-boost]\nenabled = true\n[node]\nprocfs_root = "{procfs}"\n'
    daemon = daemons.prepare(configuration(folder, mode) + settings)
    NodeObjects(daemon.objects_folder).strategies(BOOST)
    daemon.start()
    wait_until(lambda: status_of(daemon).records.is_recovered, "the records")
    if mode == "nri":
        wait_until(lambda: status_of(daemon).nri.is_connected, "the runtime")
    return daemon


def is_boosted(daemon: ProxyProcess) -> bool:
    """What the QoS manager makes of what watchers of pods are told."""
    with CriClient(daemon.socket) as client:
        request = api_pb2.WatchPodsRequest(snapshot_only=True)
        parts = api_pb2_grpc.RuntimeProxyStub(client.channel).WatchPods(request, timeout=CALL_TIMEOUT_S)
        pods = [pod_of(each)[0] for part in parts for each in part.snapshot.pods]
    return any(each.is_boosted for each in pods if each.name == "web")


def another_pod_waits(daemon: ProxyProcess, boosted: str) -> None:
    """The guard says so, which is no matter for the boost of the pod that waits."""
    for number, (uid, is_left) in enumerate(((boosted, True), ("another", False)), 1):
        request = api_pb2.SetClaimsRequest(
            owner="cpu-guard", session="s", sequence=number, is_whole=True, waiting_pods=[uid]
        )
        with CriClient(daemon.socket.parent / "admin" / "api.sock") as client:
            admin = api_pb2_grpc.AdminStub(client.channel)
            admin.SetClaims(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
        if is_left:
            assert starts_of(daemon).boosts


@pytest.mark.parametrize(
    "mode", ["proxy", *(pytest.param(each, marks=pytest.mark.slow) for each in WITHOUT_CALLS)]
)
def test_starts(
    daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles, socket_folder: Path, mode: str
) -> None:
    daemon = started(daemons, cgroup_files, socket_folder, mode)
    objects = NodeObjects(daemon.objects_folder)
    if mode == "nri":
        wait_for_plugin(runtime)
    with CriClient(daemon.socket if mode == "proxy" else runtime.socket_path) as client:
        made = service_starts(daemon, client, cgroup_files, mode)
        best_effort_starts(daemon, client, cgroup_files, mode)
        field = next(
            each
            for target in explain(daemon, made.config.metadata.uid).targets
            for each in target.fields
            if target.container and each.name == "cpu.cfs_quota_us"
        )
        (claim,) = field.claims
        assert (claim.owner, claim.value, field.booked) == ("plugin:startup-boost", "100000", "50000")
        assert claim.reason.startswith("CPU quota 50000 x 300 % (cluster strategy of startup-boost-config")
        (boost,) = starts_of(daemon).boosts
        assert (boost.target, boost.given_millicores) == ("default/web/main", 1000)
        # An update of the kubelet's sets the runtime's quota again, and not that of the book.
        made.update(memory_bytes=256 << 20)
        wait_until(lambda: quota(cgroup_files, cgroup_of(made)) == "150000", "the boost after an update")
        assert booked_quota(client, made) == 50_000
        # A process that is killed leaves it to the next one.
        daemon.kill()
        daemon.start()
        wait_until(
            lambda: [each.given_millicores for each in starts_of(daemon).boosts] == [1000], "the boost"
        )
        assert quota(cgroup_files, cgroup_of(made)) in ("150000", "")
        wait_until(lambda: is_boosted(daemon), "what watchers are told of the boost")
        if mode == "proxy":
            another_pod_waits(daemon, made.config.metadata.uid)
        else:
            objects.strategies({"startup-boost-config": {}})
        wait_until(lambda: quota(cgroup_files, cgroup_of(made)) == "50000", "the end of the boost")
        wait_until(lambda: quota(cgroup_files, "/kubepods/burstable/podweb") == "50000", "that of the pod")
        wait_until(lambda: not starts_of(daemon).boosts, "the end of the boost in the status")
        wait_until(lambda: not is_boosted(daemon), "what watchers are told")


RESTARTS: Final = int(os.environ.get("RESTARTS", "20"))
"""Of containers, in all. `RESTARTS=1000 pytest -k restarts tests/daemon/test_starts.py` by hand."""
AT_ONCE: Final = 5
"""Containers of one pod; a boost more than the node's idle CPUs have room for."""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["proxy"])
def test_none_of_many_restarts_is_missed(
    daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles, socket_folder: Path, mode: str
) -> None:
    """Each start has its boost, or the status has the reason; the daemon is killed meanwhile."""
    daemon = started(daemons, cgroup_files, socket_folder, mode)
    config = pod_sandbox_config("web", qos="LS")
    config.linux.cgroup_parent = "/kubepods/burstable/podweb"
    files, limit = cgroup_files, cri.LinuxContainerResources(cpu_quota=50_000, cpu_period=100_000)
    files.make(config.linux.cgroup_parent)
    kinds: Counter[str] = Counter()

    def kind_of(made: Pod) -> str:
        if quota(files, cgroup_of(made)) == "150000":
            return "boost"
        waiting = {each.container_id: each.waits for each in starts_of(daemon).boosts}
        return waiting.get(made.container, "")

    with CriClient(daemon.socket if mode == "proxy" else runtime.socket_path) as client:
        sandbox = Pod(client, config).run().id
        for number in range(RESTARTS // AT_ONCE):
            if number == 3:
                daemon.kill()
                daemon.start()
                wait_until(lambda: status_of(daemon).records.is_recovered, "the records")
                if mode == "nri":
                    wait_until(lambda: status_of(daemon).nri.is_connected, "the runtime")
            boxes = [Pod(client, config, resources=limit, id=sandbox) for _ in range(AT_ONCE)]
            for each in boxes:
                each.create().start()
            for each in boxes:
                kinds[wait_until(partial(kind_of, each), "a boost, or a reason")] += 1
            for each in boxes:
                request = cri.RemoveContainerRequest(container_id=each.container)
                client.runtime.RemoveContainer(request, timeout=CALL_TIMEOUT_S)
            wait_until(lambda: not starts_of(daemon).boosts, "the end of all boosts")
    # All have one name in one pod: three in ten minutes.
    assert kinds["boost"] == 3
    assert sum(kinds.values()) == RESTARTS
    assert kinds.keys() <= {"boost", "often", "no-room"}
