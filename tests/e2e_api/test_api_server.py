"""Watches, Events and evictions on a real API server, with the rights of the daemon's account."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.config.settings import KubernetesSettings
from runtimeproxy.kubernetes.access import load_access
from runtimeproxy.kubernetes.client import ApiClient, ApiError
from runtimeproxy.kubernetes.events import PodEvent
from runtimeproxy.kubernetes.eviction import ApiEvictionOutcome, ApiEvictor
from runtimeproxy.kubernetes.source import KubernetesSource
from runtimeproxy.kubernetes.watch import WatchState, WatchTimes
from runtimeproxy.node.api_server import ApiServerInputs
from runtimeproxy.node.objects import Kind, Reader
from tests.e2e_api.conftest import NODE, config_map, crd, pod
from tests.lab.deadline import wait_until
from tests.lab.kube_api_server import NAMESPACE, KubeApiServer

QUICK = WatchTimes(first_delay_s=0.1, longest_delay_s=1.0, healthy_s=1.0, missing_s=0.5)


class Watched:
    """A source under watch, and what it has given."""

    def __init__(self, kubeconfig: Path) -> None:
        self.inputs = ApiServerInputs("API server")
        settings = KubernetesSettings(enabled=True, kubeconfig=str(kubeconfig))
        self.source = KubernetesSource(settings, NODE, self.inputs, QUICK)
        self.source.start()

    def wait(self, condition: Callable[[ApiServerInputs], object], what: str) -> None:
        def is_so() -> bool:
            self.inputs.look(0.0, Reader(NODE))
            return bool(condition(self.inputs))

        try:
            wait_until(is_so, what)
        except TimeoutError:
            raise AssertionError(f"{what}: {self.source.problems} {self.inputs.problems}") from None

    def wait_for_state(self, state: WatchState, *kinds: str) -> None:
        for watch in self.source.watches:
            if not kinds or watch.resource.kind in kinds:
                what = f"{watch.resource.kind} {state}"
                wait_until(lambda watch=watch: watch.state is state or None, what)  # type: ignore[misc]


@pytest.fixture
def watched(kubeconfig: Path) -> Iterator[Watched]:
    found = Watched(kubeconfig)
    yield found
    found.source.close()


def text_of(inputs: ApiServerInputs) -> list[str]:
    return [each.text for each in inputs.found.config.values()]


def names_of(inputs: ApiServerInputs) -> list[str]:
    return sorted(each.name for each in inputs.pods.values())


def test_all_kinds_with_the_rights_of_the_manifest(cluster: KubeApiServer, watched: Watched) -> None:
    # Before their definitions are there, the kinds are absent; afterwards they come by themselves.
    watched.wait_for_state(WatchState.ABSENT, Kind.TOPOLOGY, Kind.NODE_SLO)
    for definition in (
        crd("topology.node.k8s.io", "v1alpha1", "NodeResourceTopology"),
        crd("slo.koordinator.sh", "v1alpha1", "NodeSLO"),
    ):
        if definition["spec"]["group"] == "topology.node.k8s.io":
            definition["metadata"]["annotations"] = {"api-approved.kubernetes.io": "https://example.org"}
        cluster.admin.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    watched.wait_for_state(WatchState.WATCHING)
    for path, kind, version in (
        ("slo.koordinator.sh", "NodeSLO", "v1alpha1"),
        ("topology.node.k8s.io", "NodeResourceTopology", "v1alpha1"),
    ):
        for name in (NODE, "node-b"):
            document = {"apiVersion": f"{path}/{version}", "kind": kind, "metadata": {"name": name}}
            cluster.apply(json.dumps({**document, "spec": {"of": name}}))
    watched.wait(lambda found: found.found.node_slo, "NodeSLO")
    watched.wait(lambda found: found.found.topology, "NodeResourceTopology")
    slo = watched.inputs.found.node_slo
    assert slo is not None
    assert slo.spec == {"of": NODE}
    cluster.upsert(config_map(x="1"))
    watched.wait(lambda found: text_of(found) == ["1"], "the ConfigMap")
    node = watched.inputs.found.node
    assert node is not None
    assert node.allocatable["cpu"] == 4000
    assert watched.source.problems == ()


def test_pods_of_this_node_as_they_change(cluster: KubeApiServer, watched: Watched) -> None:
    watched.wait_for_state(WatchState.WATCHING, "Pod")
    cluster.apply(json.dumps(pod("mine")))
    cluster.apply(json.dumps(pod("other", node="node-b")))
    watched.wait(lambda found: "mine" in names_of(found), "the pod")
    assert "other" not in names_of(watched.inputs)
    (live,) = (each for each in watched.inputs.pods.values() if each.name == "mine")
    assert live.requests == {"app": {"cpu": 500, "memory": 2**30}}
    assert live.priority == 0  # of the admission plugin Priority
    cluster.replace(pod("mine", annotations={"a": "b"}))
    watched.wait(lambda found: found.pods[live.uid].annotations == {"a": "b"}, "the annotation")
    cluster.delete(pod("mine"))
    watched.wait(lambda found: "mine" not in names_of(found), "the end")
    cluster.delete(pod("other"))


def test_a_server_that_is_killed_and_comes_back(cluster: KubeApiServer, watched: Watched) -> None:
    cluster.upsert(config_map(x="before"))
    watched.wait(lambda found: text_of(found) == ["before"], "the ConfigMap")
    cluster.kill()
    watched.wait_for_state(WatchState.WAITING)
    assert text_of(watched.inputs) == ["before"]
    assert watched.source.problems
    cluster.start()
    cluster.upsert(config_map(x="after"))
    watched.wait(lambda found: text_of(found) == ["after"], "the change")
    watched.wait_for_state(WatchState.WATCHING)
    assert watched.source.problems == ()


def test_410_after_a_compaction(cluster: KubeApiServer, kubeconfig: Path) -> None:
    cluster.upsert(config_map(x="1"))
    with cluster.admin.get("/api/v1/namespaces", {}) as response:
        list(response.pieces())
    old = cluster.get(config_map())["metadata"]["resourceVersion"]
    for count in range(5):
        cluster.upsert(config_map(x=f"2.{count}"))
    cluster.forget()
    # The server's own cache of changes goes with it.
    cluster.kill()
    cluster.start()
    watched = Watched.__new__(Watched)
    watched.inputs = ApiServerInputs("API server")
    settings = KubernetesSettings(enabled=True, kubeconfig=str(kubeconfig))
    watched.source = KubernetesSource(settings, NODE, watched.inputs, QUICK)
    (watch,) = (each for each in watched.source.watches if each.resource.kind == Kind.CONFIG_MAP)
    watch._version, watch._needs_list = old, False
    seen: list[int] = []
    on_error = watch._on_api_error
    watch._on_api_error = lambda error: (seen.append(error.status), on_error(error))[1]  # type: ignore[method-assign,func-returns-value]
    watched.source.start()
    try:
        watched.wait(lambda found: text_of(found) == ["2.4"], "the newest one")
        assert seen == [410]
        assert watch.lists == 1
    finally:
        watched.source.close()


def test_a_token_that_is_revoked_and_replaced(
    cluster: KubeApiServer, kubeconfig: Path, token_file: Path
) -> None:
    client = ApiClient(lambda: load_access(kubeconfig))
    query = {"fieldSelector": f"metadata.name={NODE}"}
    with client.get("/api/v1/nodes", query) as response:
        assert b"".join(response.pieces())
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "koord-runtime-proxy", "namespace": NAMESPACE},
    }
    cluster.delete(account)
    cluster.apply(json.dumps(account))

    def is_refused() -> bool:
        try:
            client.get("/api/v1/nodes", query).__exit__(None, None, None)
        except ApiError as error:
            return error.status == 401
        return False

    wait_until(is_refused, "the old token is refused")
    token_file.write_text(cluster.account_token("koord-runtime-proxy"))
    with client.get("/api/v1/nodes", query) as response:
        assert b"".join(response.pieces())
    client.close()


def test_the_account_may_do_nothing_else(cluster: KubeApiServer, kubeconfig: Path) -> None:
    client = ApiClient(lambda: load_access(kubeconfig))
    for path in ("/api/v1/secrets", f"/api/v1/namespaces/{NAMESPACE}/configmaps", "/api/v1/namespaces"):
        with pytest.raises(ApiError, match="is forbidden") as caught:
            client.get(path, {})
        assert caught.value.status == 403
    client.close()


def test_evictions_honour_disruption_budgets(cluster: KubeApiServer, kubeconfig: Path) -> None:
    cluster.apply(json.dumps(pod("kept")))
    uid = cluster.get(pod("kept"))["metadata"]["uid"]
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.replace({**pod("kept"), "status": status}, "status")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    cluster.apply(json.dumps(budget))

    def allow(disruptions: int) -> None:
        """As the disruption controller does it, which does not run here."""
        counts = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "observedGeneration": 1}
        cluster.replace({**budget, "status": {**counts, "disruptionsAllowed": disruptions}}, "status")

    client = ApiClient(lambda: load_access(kubeconfig))
    evictor = ApiEvictor(client)
    allow(0)
    result = evictor.evict("default", "kept", uid)
    assert result.outcome is ApiEvictionOutcome.BLOCKED
    assert "disruption budget" in result.reason
    assert cluster.get(pod("kept"))["metadata"].get("deletionTimestamp") is None
    allow(1)
    assert evictor.evict("default", "kept", uid, dry_run=True).outcome is ApiEvictionOutcome.EVICTED
    allow(1)
    assert evictor.evict("default", "kept", "another-uid").outcome is ApiEvictionOutcome.GONE
    assert cluster.get(pod("kept"))["metadata"].get("deletionTimestamp") is None
    allow(1)
    assert evictor.evict("default", "kept", uid).outcome is ApiEvictionOutcome.EVICTED
    assert cluster.get(pod("kept"))["metadata"]["deletionTimestamp"]
    cluster.delete(pod("kept"))
    assert evictor.evict("default", "kept", uid).outcome is ApiEvictionOutcome.GONE
    client.close()


def test_events_are_taken_and_counted(cluster: KubeApiServer, watched: Watched) -> None:
    recorder = watched.source.events
    assert recorder is not None
    recorder.report(PodEvent("default", "web", "uid-1", "RefusedByPolicy", "policy strict: no room"))
    wait_until(lambda: recorder.sent or None, "the Event")
    query = {"fieldSelector": "involvedObject.uid=uid-1"}

    def events() -> list[dict[str, Any]]:
        with cluster.admin.get("/api/v1/namespaces/default/events", query) as response:
            found: list[dict[str, Any]] = json.loads(b"".join(response.pieces()))["items"]
        return found

    (event,) = events()
    assert (event["reason"], event["count"]) == ("RefusedByPolicy", 1)
    name = event["metadata"]["name"]
    patch = {"count": 2, "lastTimestamp": "2026-01-01T00:00:00Z"}
    client = ApiClient(lambda: load_access(Path(watched.source._client._access.source)))  # type: ignore[union-attr]
    path = f"/api/v1/namespaces/default/events/{name}"
    client.send("PATCH", path, patch, "application/merge-patch+json")
    client.close()
    assert events()[0]["count"] == 2
