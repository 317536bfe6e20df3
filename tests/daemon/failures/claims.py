"""Claims whose owner is gone, and claims and evictions that cannot be carried out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CallError
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.daemon.driving import Pod, batch_pod
from tests.daemon.failures.scene import Row, Scene
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects
from tests.lab.proxy_process import ProxyProcess

CLASS: Final = "/kubepods/besteffort"
SHORT_LEASE: Final = "import runtimeproxy.ledger.leases as it; it.LEASE_S = 2.0"


@contextmanager
def admin_of(daemon: ProxyProcess) -> Iterator[Any]:
    socket = daemon.folder / "admin" / "api.sock"
    wait_until(socket.exists, "the admin socket")
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield api_pb2_grpc.AdminStub(channel)


def suppress(admin: Any, sequence: int, *, field: str = "cpu.cfs_quota_us", is_whole: bool = False) -> Any:
    key = api_pb2.ClaimKey(
        target=api_pb2.ClaimTarget(qos_class="BestEffort"),
        field=field,
        role=api_pb2.ExplainedClaim.ROLE_AT_MOST,
    )
    request = api_pb2.SetClaimsRequest(
        owner="cpu-suppress",
        session="one",
        sequence=sequence,
        is_whole=is_whole,
        claims=[api_pb2.Claim(key=key, value="50000")],
    )
    return admin.SetClaims(request, timeout=30, wait_for_ready=True)


def suppressed(scene: Scene, client: CriClient, admin: Any) -> None:
    """A class with a bound."""
    batch_pod(client).run()
    scene.files.make(CLASS)
    suppress(admin, 1, is_whole=True)
    assert quota(scene) == "50000"


def quota(scene: Scene) -> str:
    return (scene.files.read(CLASS, "cpu.max").split() or [""])[0]


def lapse(scene: Scene) -> ProxyProcess:
    daemon = scene.start(statements=SHORT_LEASE)
    with CriClient(daemon.socket) as client, admin_of(daemon) as admin:
        suppressed(scene, client, admin)
        scene.wait_for(daemon, "claim_lapses_total", owner="cpu-suppress")
        scene.wait_for(daemon, "claim_lease_state", owner="cpu-suppress", state="held")
        assert quota(scene) == "50000"
    return daemon


def asked_for_suppress(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare(statements=SHORT_LEASE)
    daemon.objects_folder.mkdir()
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: slo-controller-config, namespace: x}\ndata:\n"
    text += '  resource-threshold-config: \'{"clusterStrategy": {"enable": true}}\'\n'
    (daemon.objects_folder / "slo.yaml").write_text(text)
    daemon.start()
    return daemon


def manager_is_missing(scene: Scene) -> ProxyProcess:
    daemon = asked_for_suppress(scene)
    scene.wait_for(daemon, "qos_plugin_missing", plugin="cpu-suppress")
    scene.wait_for_zero(daemon, "qos_manager_up")
    return daemon


def plugin_fails(scene: Scene, name: str = "cpu-suppress", problem: str = "it still hangs") -> ProxyProcess:
    daemon = scene.start()
    plugin = api_pb2.QosPluginStatus(name=name, mode=api_pb2.MODE_ENFORCE, is_wanted=True, problem=problem)
    report_to(daemon, api_pb2.QosManagerReport(version="1", pid=7, plugins=[plugin]))
    scene.wait_for(daemon, "qos_plugin_failing", plugin=name)
    return daemon


def guard_is_blind(scene: Scene) -> ProxyProcess:
    return plugin_fails(scene, "cpu-guard", "BE pods are not bounded, as it cannot be read what others wait")


def malachite_is_away(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    problem = (
        "2 of 2 groups of values are read from the kernel's files: Malachite at http://localhost:9002: away"
    )
    report_to(daemon, api_pb2.QosManagerReport(version="1", pid=7, metrics_problem=problem))
    scene.wait_for(daemon, "qos_metrics_fallback")
    return daemon


def report_to(daemon: ProxyProcess, report: api_pb2.QosManagerReport) -> None:
    with admin_of(daemon) as admin:
        request = api_pb2.ReportQosManagerRequest(report=report)
        admin.ReportQosManager(request, timeout=30, wait_for_ready=True)


def restart(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client, admin_of(daemon) as admin:
        suppressed(scene, client, admin)
    daemon.kill()
    daemon.start()
    scene.wait_for(daemon, "claim_lease_state", owner="cpu-suppress", state="restored")
    assert quota(scene) == "50000"
    return daemon


def refused_claim(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client, admin_of(daemon) as admin:
        batch_pod(client).run()
        assert suppress(admin, 1, field="memory.high", is_whole=True).refused
        scene.wait_for(daemon, "claims_refused_total", owner="cpu-suppress", cause="not-allowed")
    return daemon


def gap(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client, admin_of(daemon) as admin:
        suppressed(scene, client, admin)
        suppress(admin, 7)
        scene.wait_for(daemon, "claim_requests_total", owner="cpu-suppress", outcome="send-whole-set")
    return daemon


def evict(admin: Any, uid: str) -> Any:
    request = api_pb2.EvictRequest(owner="memory-evict", pod_uid=uid, reason="memory")
    return admin.Evict(request, timeout=60, wait_for_ready=True)


def evict_batch_pod(scene: Scene, daemon: ProxyProcess) -> Any:
    with CriClient(daemon.socket) as client, admin_of(daemon) as admin:
        pod = batch_pod(client).run().create().start()
        scene.wait_for(daemon, "records_recovered")
        scene.looked.discard("records_recovered")
        return evict(admin, pod.config.metadata.uid)


def failed_eviction(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    scene.runtime.on("StopContainer", error=CallError("INTERNAL", "stuck"))
    evict_batch_pod(scene, daemon)
    scene.wait_for(daemon, "evictions_total", owner="memory-evict", outcome="failed")
    return daemon


def refused_eviction(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[eviction]\nmost_pods = 0\n")
    evict_batch_pod(scene, daemon)
    scene.wait_for(daemon, "evictions_total", owner="memory-evict", outcome="refused")
    return daemon


def unknown_evictions(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    daemon.state_folder.mkdir(parents=True)
    (daemon.state_folder / "evictions.json").write_text('{"version": 1, "evic')
    daemon.start()
    answer = evict_batch_pod(scene, daemon)
    assert answer.outcome == api_pb2.EvictResponse.OUTCOME_REFUSED
    scene.wait_for(daemon, "evictions_total", owner="memory-evict", outcome="refused")
    return daemon


def unsaved_evictions(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    # No file can replace a folder.
    (daemon.state_folder / "evictions.json").mkdir()
    assert evict_batch_pod(scene, daemon).outcome == api_pb2.EvictResponse.OUTCOME_EVICTED
    scene.wait_for(daemon, "evictions_unsaved")
    return daemon


def owner_of(status: api_pb2.GetStatusResponse) -> api_pb2.ClaimOwner:
    (found,) = (each for each in status.claim_owners if each.name == "cpu-suppress")
    return found


def starts_cannot_be_used(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    assert daemon.terminate() == 0
    for name in ("boosts.json", "openings.json"):
        (daemon.state_folder / name).write_text("[")
    daemon.start()
    scene.wait_for(daemon, "state_unusable", 2)
    return daemon


def boosts_cannot_be_saved(scene: Scene) -> ProxyProcess:
    procfs = scene.folder / "proc"
    procfs.mkdir()
    (procfs / "stat").write_text("cpu  0 0 0 100 0 0 0 0 0 0\ncpu0 0 0 0 100\n")
    daemon = scene.prepare(f'[policies.startup-boost]\nenabled = true\n[node]\nprocfs_root = "{procfs}"\n')
    boost = {"startup-boost-config": {"clusterStrategy": {"limitPercent": 150}}}
    NodeObjects(daemon.objects_folder).strategies(boost)
    (daemon.state_folder / "boosts.json").mkdir(parents=True)
    daemon.start()
    with CriClient(daemon.socket) as client:
        limit = cri.LinuxContainerResources(cpu_quota=50_000, cpu_period=100_000)
        Pod(client, pod_sandbox_config("web", qos="LS"), resources=limit).run().create().start()
    scene.wait_for(daemon, "startup_boosts", 1)
    return daemon


def openings_cannot_be_saved(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    (daemon.state_folder / "openings.json").mkdir(parents=True)
    daemon.start()
    with CriClient(daemon.socket) as client, admin_of(daemon) as admin:
        suppressed(scene, client, admin)
        batch_pod(client, "another").run()
        scene.wait_for(daemon, "class_openings")
    return daemon


ROWS: Final = {
    "what was saved of start-up boosts": Row(
        starts_cannot_be_used,
        lambda s: all(
            f"{name}.json is not usable" in str(s.records.unusable_files) for name in ("boosts", "openings")
        ),
    ),
    "start-up boosts cannot be saved": Row(
        boosts_cannot_be_saved, lambda s: "boosts.json" in s.ledger.starts.boost_problem
    ),
    "openings cannot be saved": Row(
        openings_cannot_be_saved, lambda s: bool(s.ledger.starts.opening_problem)
    ),
    "strategies ask for a plugin": Row(
        manager_is_missing, lambda s: "systemctl start koord-qos-manager" in str(s.problems)
    ),
    "a plugin of a running QoS manager": Row(plugin_fails, lambda s: "it still hangs" in str(s.problems)),
    "the plugin `cpu-guard` can read": Row(
        guard_is_blind, lambda s: "cannot be read what others wait" in str(s.problems)
    ),
    "Malachite is away": Row(malachite_is_away, lambda s: "kernel's files: Malachite at" in str(s.notes)),
    "no request has renewed": Row(
        lapse, lambda status: owner_of(status).state == api_pb2.ClaimOwner.STATE_HELD
    ),
    "the daemon is killed or restarted;": Row(
        restart, lambda status: owner_of(status).state == api_pb2.ClaimOwner.STATE_RESTORED
    ),
    "a claim cannot be used": Row(refused_claim, lambda status: owner_of(status).refused == 1),
    "a request of a session is lost": Row(gap, lambda status: owner_of(status).requests == 2),
    "a container of a pod to be evicted": Row(
        failed_eviction, lambda status: status.evictions.failed == 1 and bool(status.problems)
    ),
    "a pod is to be evicted whose class": Row(refused_eviction, lambda status: status.evictions.refused == 1),
    "what was saved of evictions": Row(
        unknown_evictions, lambda status: any("is not known; none is" in each for each in status.problems)
    ),
    "evictions cannot be saved": Row(
        unsaved_evictions, lambda status: any("cannot be saved" in each for each in status.problems)
    ),
}
