"""The API server in the daemon: the watches of this node's objects, Events and evictions together."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.background import BackgroundThreads
from runtimeproxy.kubernetes.access import load_access
from runtimeproxy.kubernetes.client import ApiClient
from runtimeproxy.kubernetes.events import EventRecorder
from runtimeproxy.kubernetes.eviction import ApiEvictionOutcome, ApiEvictionResult, ApiEvictor
from runtimeproxy.kubernetes.watch import USUAL_PACE, Resource, Watch, WatchState, WatchTimes
from runtimeproxy.logs import FailureLog
from runtimeproxy.node.api_server import ApiServerInputs, KatalystSink, ObjectSink, PodSink
from runtimeproxy.node.objects import KATALYST_KINDS, Kind
from runtimeproxy.slo.names import CONFIG_MAP

if TYPE_CHECKING:
    from runtimeproxy.config.settings import KubernetesSettings
    from runtimeproxy.hooks.audit import AuditEntry

logger = logging.getLogger(__name__)

CLOSE_S: Final = 1.0
"""How long the end of the process waits for all threads together."""
PODS: Final = "Pod"


def resources_of(node_name: str, settings: KubernetesSettings) -> dict[str, Resource]:
    """The watched resources by kind: this node's objects only, and Katalyst's for any node."""
    own = f"metadata.name={node_name}"
    config_maps = f"/api/v1/namespaces/{settings.config_namespace}/configmaps"
    topologies = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
    # Source: Koordinator apis/slo/v1alpha1; topology.node.k8s.io/v1alpha1 of the scheduler plugins.
    found: tuple[Resource, ...] = (
        Resource(Kind.NODE, "/api/v1/nodes", own),
        Resource(Kind.TOPOLOGY, topologies, own, is_optional=True),
        Resource(Kind.NODE_SLO, "/apis/slo.koordinator.sh/v1alpha1/nodeslos", own, is_optional=True),
        Resource(Kind.CONFIG_MAP, config_maps, f"metadata.name={CONFIG_MAP}"),
        Resource(PODS, "/api/v1/pods", f"spec.nodeName={node_name}"),
    )
    if settings.katalyst_targets:
        found += tuple(
            Resource(kind, f"/apis/config.katalyst.kubewharf.io/v1alpha1/{plural}", "", is_optional=True)
            for kind, plural in _KATALYST.items()
        )
    return {each.kind: each for each in found}


_KATALYST: Final = {Kind.TARGET: "adminqosconfigurations", Kind.CUSTOM_CONFIG: "katalystcustomconfigs"}
"""Source: katalyst-api pkg/apis/config/v1alpha1/register.go."""


class KubernetesSource:
    """Watches this node's objects, reports Events, and evicts pods. Its threads are its own."""

    def __init__(
        self,
        settings: KubernetesSettings,
        node_name: str,
        inputs: ApiServerInputs,
        pace: WatchTimes = USUAL_PACE,
    ) -> None:
        kubeconfig = Path(settings.kubeconfig) if settings.kubeconfig else None
        self.node_name = node_name
        self.inputs = inputs
        self._client = client = ApiClient(partial(load_access, kubeconfig))
        self._failures = FailureLog()
        self._pods = PodSink(inputs, node_name)
        self.watches: tuple[Watch, ...] = tuple(
            Watch(client, resource, self._sink(kind), pace, self._failures)
            for kind, resource in resources_of(node_name, settings).items()
        )
        self.events = EventRecorder(client, node_name) if settings.events else None
        self.evictor = ApiEvictor(client) if settings.evictions else None
        self._evictions = BackgroundThreads(1, "kubernetes-evictions")

    def _sink(self, kind: str) -> ObjectSink | PodSink | KatalystSink:
        if kind == PODS:
            return self._pods
        if kind in KATALYST_KINDS:
            return KatalystSink(self.inputs, Kind(kind))
        name = CONFIG_MAP if kind == Kind.CONFIG_MAP else self.node_name
        return ObjectSink(self.inputs, Kind(kind), name)

    @property
    def server(self) -> str:
        return self._client.server

    @property
    def problems(self) -> tuple[str, ...]:
        by_problem: dict[str, list[str]] = {}
        for watch in self.watches:
            if watch.problem:
                by_problem.setdefault(watch.problem, []).append(watch.resource.kind)
        return tuple(f"{', '.join(kinds)}: {problem}" for problem, kinds in by_problem.items())

    @property
    def summary(self) -> str:
        """A part of the status line; empty if all is up to date."""
        away = [each.resource.kind for each in self.watches if each.state is WatchState.WAITING]
        return f"API server: no {', '.join(away)}" if away else ""

    def start(self) -> None:
        for watch in self.watches:
            watch.start()
        if self.events is not None:
            self.events.start()

    def close(self) -> None:
        """Ends the threads, for a bounded time."""
        for watch in self.watches:
            watch.stop()
        self._client.close()
        threads = len(self.watches) + 1
        for watch in self.watches:
            watch.join(CLOSE_S / threads)
        if self.events is not None:
            self.events.close(CLOSE_S / threads)
        self._evictions.shutdown(cancel_futures=True)

    def on_audit(self, entry: AuditEntry) -> None:
        if self.events is not None:
            self.events.on_audit(entry)

    async def evict(self, namespace: str, name: str, uid: str) -> ApiEvictionResult:
        """Evicts a pod by the API server; never raises. In the loop's thread. The uid is the runtime's."""
        if self.evictor is None:
            return ApiEvictionResult(ApiEvictionOutcome.REFUSED, "kubernetes.evictions is false")
        live = self.inputs.pods.get(uid)
        if live is not None and live.is_static:
            text = "it is a static pod, which the kubelet would start again"
            return ApiEvictionResult(ApiEvictionOutcome.REFUSED, text)
        evict = partial(self.evictor.evict, namespace, name, uid)
        return await asyncio.get_running_loop().run_in_executor(self._evictions, evict)
