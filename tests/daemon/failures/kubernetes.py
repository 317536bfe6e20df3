"""An API server that is away, forgets, or sends what cannot be used."""

from __future__ import annotations

import json
from typing import Final

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from cri_api.runtimeproxy.v1.api_pb2 import GetStatusResponse, KubernetesWatch
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.daemon.driving import Pod
from tests.daemon.failures.claims import admin_of
from tests.daemon.failures.scene import Row, Scene, has_node_problem, write_policy
from tests.kubernetes.api_server import ApiServer, Fault, refusing, sending
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
NODE_SLOS = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"
QUICK = """
import runtimeproxy.kubernetes.source as source
pace = source.USUAL_PACE._replace(first_delay_s=0.05, healthy_s=0.0, missing_s=0.0)
source.KubernetesSource.__init__.__defaults__ = (pace,)
"""


def prepare(scene: Scene, *, has_kubeconfig: bool = True) -> tuple[ApiServer, ProxyProcess]:
    """An API server that serves, and a daemon with it that is not started."""
    server = scene.stack.enter_context(ApiServer())
    kubeconfig = scene.folder / "kubeconfig"
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": server.url}}],
    }
    if has_kubeconfig:
        kubeconfig.write_text(json.dumps(document))
    config = (
        f'[kubernetes]\nenabled = true\nkubeconfig = "{kubeconfig}"\n'
        '[slo]\nstart_spread_s = 0\n[node]\nname = "node-a"\n'
    )
    return server, scene.prepare(config, statements=QUICK)


def always(scene: Scene, fault: Fault, *metrics: str) -> ProxyProcess:
    """Each answer is this fault."""
    server, daemon = prepare(scene)
    server.faults += [("", fault)] * 100_000
    daemon.start()
    wait_until(lambda: len(server.requests) > 10, "requests")
    for name in metrics:
        scene.wait_for(daemon, name, 0.0)
    return daemon


def away(scene: Scene) -> ProxyProcess:
    daemon = always(scene, refusing(503, "away"))
    found = scene.wait_for(daemon, "kubernetes_watch_up", 0.0, kind="Node")
    assert found.of("kubernetes_watch_up") == 0
    return daemon


def nonsense(scene: Scene) -> ProxyProcess:
    daemon = always(scene, sending(b'{"kind": "NodeList", "items": ['), "kubernetes_watch_up")
    found = scene.wait_for(daemon, "kubernetes_lists_total", 0.0)
    assert found.of("kubernetes_lists_total") == 0
    return daemon


def forgotten(scene: Scene) -> ProxyProcess:
    server, daemon = prepare(scene)
    server.put(NODES, "node-a", status={})
    old = json.dumps(server.listed(NODES)).encode()
    server.forget(NODES)
    server.faults.append((NODES, sending(old)))
    daemon.start()
    scene.wait_for(daemon, "kubernetes_lists_total", 2.0, kind="Node")
    return daemon


def has_read_twice(status: GetStatusResponse) -> bool:
    return any(each.kind == "Node" and each.lists >= 2 for each in status.kubernetes.watches)


def bad_object(scene: Scene) -> ProxyProcess:
    server, daemon = prepare(scene)
    server.put(PODS, "web", spec={"nodeName": "node-a", "priority": "high"})
    daemon.start()
    scene.wait_for(daemon, "node_problems")
    return daemon


def kind_is_missing(scene: Scene) -> ProxyProcess:
    server, daemon = prepare(scene)
    server.missing.add(NODE_SLOS)
    daemon.start()
    scene.wait_for(daemon, "node_input_state", input="strategies", state="withdrawn")
    return daemon


def is_absent(status: GetStatusResponse) -> bool:
    return any(each.state == KubernetesWatch.STATE_ABSENT for each in status.kubernetes.watches)


def no_kubeconfig(scene: Scene) -> ProxyProcess:
    _, daemon = prepare(scene, has_kubeconfig=False)
    daemon.start()
    found = scene.wait_for(daemon, "kubernetes_watch_up", 0.0)
    assert found.of("kubernetes_watch_up") == 0
    return daemon


def events_are_refused(scene: Scene) -> ProxyProcess:
    server, daemon = prepare(scene)
    server.answers["/events"] = (403, {"message": "events is forbidden"})
    body = "def pod(self, pod, node):\n    raise RefusalError('no')"
    write_policy(daemon, "refusing", body, imports="PodChange")
    path = daemon.policies_folder / "refusing.py"
    path.write_text("from runtimeproxy.errors import RefusalError\n" + path.read_text())
    daemon.start()
    scene.wait_for(daemon, "kubernetes_watch_up")
    with CriClient(daemon.socket) as client, pytest.raises(grpc.RpcError, match="no"):
        Pod(client, pod_sandbox_config("web")).run()
    scene.wait_for(daemon, "kubernetes_events_total", outcome="lost")
    return daemon


def eviction_is_blocked(scene: Scene) -> ProxyProcess:
    server, daemon = prepare(scene)
    body = {"details": {"causes": [{"reason": "DisruptionBudget"}]}, "message": "it would violate a budget"}
    server.answers["/eviction"] = (429, body)
    daemon.start()
    scene.wait_for(daemon, "kubernetes_watch_up")
    with CriClient(daemon.socket) as client, admin_of(daemon) as admin:
        pod = Pod(client, pod_sandbox_config("web")).run().create().start()
        request = api_pb2.EvictRequest(
            owner="memory-evict", pod_uid=pod.config.metadata.uid, reason="memory is short"
        )
        answer = admin.Evict(request, timeout=60, wait_for_ready=True)
        assert answer.outcome == api_pb2.EvictResponse.OUTCOME_REFUSED
        assert "it would violate a budget" in answer.reason
        # Now the budget allows it.
        server.answers.clear()
        answer = admin.Evict(request, timeout=60, wait_for_ready=True)
        assert answer.outcome == api_pb2.EvictResponse.OUTCOME_EVICTED
        assert answer.method == api_pb2.EvictResponse.METHOD_EVICTION_API
    assert not scene.runtime.recorded.of("StopContainer")
    scene.wait_for(daemon, "kubernetes_evictions_total", outcome="blocked")
    scene.wait_for(daemon, "kubernetes_evictions_total", outcome="evicted")
    scene.wait_for(daemon, "evictions_total", outcome="refused")
    scene.wait_for(daemon, "kubernetes_events_total", outcome="sent")
    # An Event of the eviction, and none of the refusal.
    posted = [each for each in server.requests if each.path.endswith("/events")]
    assert [each.body["reason"] for each in posted] == ["EvictedForQoS"]
    return daemon


def _has_problem(status: GetStatusResponse, text: str) -> bool:
    return any("API server" in each and text in each for each in status.problems)


ROWS: Final[dict[str, Row]] = {
    "the API server is away": Row(away, lambda status: _has_problem(status, "503: away")),
    "it sends half lines": Row(nonsense, lambda status: _has_problem(status, "is cut off")),
    "it has forgotten the version": Row(forgotten, has_read_twice),
    "an object or a pod cannot be used": Row(bad_object, has_node_problem),
    "a kind is not installed": Row(kind_is_missing, is_absent),
    "the kubeconfig, a certificate": Row(no_kubeconfig, lambda status: _has_problem(status, "there is no")),
    "a disruption budget does not allow": Row(
        eviction_is_blocked, lambda status: len(status.evictions.recent) == 2
    ),
    "Events cannot be sent": Row(events_are_refused, lambda status: status.kubernetes.events_lost > 0),
}
