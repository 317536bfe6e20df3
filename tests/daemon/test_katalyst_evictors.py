"""Katalyst's evictions from end to end: daemon, QoS manager and a target of the cluster's configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod
from tests.daemon.pool_site import CPU, RECLAIMED, SHARED, PoolSite, pool_site
from tests.katalyst.objects import target
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ManagerProcess

MIB = 1 << 20
CONFIG = """
[policies.katalyst-qos]
enabled = true
[qosmanager]
interval_s = 0.2
[plugins.katalyst-cpu-suppression]
mode = "enforce"
[plugins.katalyst-cpu-load]
mode = "enforce"
[plugins.katalyst-reclaimed-pressure]
mode = "enforce"
[plugins.katalyst-memory-pressure]
mode = "enforce"
options = { numa = false }
[plugins.katalyst-rss-overuse]
mode = "enforce"
"""
EVICTIONS: Mapping[str, Any] = {
    "dryRun": ["system-memory-pressure-eviction-plugin"],
    "cpuPressureEvictionConfig": {
        "enableSuppressionEviction": True,
        "minSuppressionToleranceDuration": "0s",
        "maxSuppressionToleranceRate": 50,
        "gracePeriod": 7,
    },
    "memoryPressureEvictionConfig": {
        "enableRSSOveruseEviction": True,
        "rssOveruseRateThreshold": 1.5,
        # Any machine has less.
        "systemFreeMemoryThresholdMinimum": "900Ti",
        "systemKswapdRateThreshold": 999_999_999,
    },
    "reclaimedResourcesEvictionConfig": {
        "evictionThreshold": {RECLAIMED_MILLICPU: 2.0},
        "thresholdMetToleranceDuration": 1,
    },
}
PATIENT_S = 90.0
REQUESTS = "pod.kubernetes.io/pod-aggregated-requests"


def wanting(millicpu: int, tolerance: float = 50.0) -> dict[str, str]:
    """The annotations of a pod of `reclaimed_cores`."""
    rate = json.dumps({"suppression_tolerance_rate": str(tolerance)})
    return {**RECLAIMED, RECLAIMED_MILLICPU: str(millicpu), CPU: rate}


def asking_for(mib: int) -> dict[str, str]:
    return {**SHARED, REQUESTS: json.dumps({"memory": f"{mib}Mi"})}


class Cluster:
    """Pods and what becomes of them."""

    def __init__(self, site: PoolSite) -> None:
        self.site = site
        self.pods: dict[str, Pod] = {}

    def start(self, name: str, annotations: Mapping[str, str], used_mib: int = 1) -> None:
        pod = self.pods[name] = self.site.start(name, annotations)
        used, cgroup = used_mib * MIB, pod.config.linux.cgroup_parent
        self.site.files.write(cgroup, "memory.current", str(used))
        stat = f"anon {used}\ninactive_anon {used}\nactive_anon 0\ninactive_file 0\nunevictable 0\n"
        self.site.files.write(cgroup, "memory.stat", stat)

    def configure(self, evictions: Mapping[str, Any]) -> None:
        """Replaces the target, and waits until the daemon has it."""
        folder = self.site.daemon.objects_folder
        folder.mkdir(exist_ok=True)
        draft = folder.parent / "target.json"
        draft.write_text(json.dumps(target("gold", config={"evictionConfig": evictions})))
        before = self._version
        draft.replace(folder / "katalyst.json")
        wait_until(lambda: self._version != before, "the target", PATIENT_S)

    @property
    def _version(self) -> str:
        """Of the target that applies."""
        with CriClient(self.site.daemon.socket) as client:
            api = api_pb2_grpc.RuntimeProxyStub(client.channel)
            node = api.GetNode(api_pb2.GetNodeRequest(), timeout=CALL_TIMEOUT_S, wait_for_ready=True)
        return next((each.version for each in node.katalyst_targets if each.is_applied), "")

    def audit(self, api: Any) -> dict[tuple[str, str], api_pb2.AuditEntry]:
        """What was decided of evictions: by plugin and pod."""
        answers = api.WatchAudit(api_pb2.WatchAuditRequest(), timeout=CALL_TIMEOUT_S)
        entries = [entry for answer in answers for entry in answer.entries if entry.field == "eviction"]
        return {(each.policy.removeprefix("plugin:katalyst-"), each.pod): each for each in entries}

    def explanation(self, plugin: str) -> str:
        """By the status."""
        reports = self.site.status().qos_manager.report.plugins
        return next((each.explanation for each in reports if each.name == f"katalyst-{plugin}"), "")


@pytest.mark.slow
def test_each_plugin_by_the_configuration_of_the_cluster(
    daemons: Daemons, cgroup_files: CgroupFiles, runtime: FakeRuntime, socket_folder: Path
) -> None:
    """`reclaim` has fewer than 14 CPUs: 16 without two that are reserved, and those of `share`."""
    with pool_site(
        daemons, cgroup_files, runtime, socket_folder, options="enable_reclaim = true", more=CONFIG
    ) as site:
        cluster = Cluster(site)
        cluster.configure(EVICTIONS)
        cluster.start("over", asking_for(100), 151)
        cluster.start("at", asking_for(100), 150)
        cluster.start("unknown", SHARED, 900)
        cluster.start("touchy", wanting(9_000, tolerance=0.5))
        cluster.start("patient", wanting(9_000))
        cluster.start("silent", RECLAIMED)
        daemon = site.daemon
        manager = ManagerProcess(daemon.folder, daemon.config_file, daemon.socket, daemon.options.environment)
        with CriClient(daemon.socket) as client:
            api = api_pb2_grpc.RuntimeProxyStub(client.channel)

            def notes(pod: str) -> str:
                request = api_pb2.ExplainRequest(pod=f"default/{pod}")
                return "; ".join(api.Explain(request, timeout=CALL_TIMEOUT_S).notes)

            def is_evicted(plugin: str, pod: str) -> None:
                key = plugin, pod
                wait_until(
                    lambda: (found := cluster.audit(api).get(key)) is not None and found.after == "evicted",
                    f"{key}; {manager.log[-10:]}",
                    PATIENT_S,
                )

            def is_told(text: Callable[[], str], *parts: str) -> None:
                wait_until(lambda: all(each in text() for each in parts), f"{parts} in {text()}", PATIENT_S)

            def is_explained(plugin: str, *parts: str) -> None:
                is_told(lambda: cluster.explanation(plugin), *parts)

            try:
                manager.start()
                is_evicted("rss-overuse", "over")
                is_evicted("cpu-suppression", "touchy")
                is_explained(
                    "rss-overuse",
                    "default/silent, default/touchy, default/unknown: the memory request is not known",
                    "by AdminQoSConfiguration gold: threshold 1.5",
                )
                # A pod of `reclaimed_cores` would go for the node's memory.
                is_explained("memory-pressure", "memory of the node: ", "dry-run by evictionConfig.dryRun")
                wait_until(
                    lambda: any(plugin == "memory-pressure" for plugin, _ in cluster.audit(api)),
                    "an eviction that is computed only",
                    PATIENT_S,
                )
                # The pool has more CPUs than this machine, or they are idle.
                is_explained("cpu-load", "share")
                is_told(
                    lambda: notes("unknown"), "katalyst-rss-overuse leaves this pod out: the memory request"
                )
                is_told(
                    lambda: notes("silent"),
                    "katalyst-cpu-suppression leaves this pod out: its resource.katalyst",
                    "katalyst-reclaimed-pressure leaves this pod out: its reclaimed_millicpu",
                )
                assert "katalyst-rss-overuse" not in notes("at")
                # More than twice what the pool has: the largest request goes.
                cluster.start("greedy", wanting(40_000))
                is_evicted("reclaimed-pressure", "greedy")
                cluster.configure({"memoryPressureEvictionConfig": {"enableRSSOveruseEviction": False}})
                is_explained(
                    "rss-overuse",
                    "switched off by evictionConfig.memoryPressureEvictionConfig.enableRSSOveruseEviction",
                )
                assert manager.terminate() == 0
            finally:
                manager.close()
            found = cluster.audit(api)
        done = {key for key, entry in found.items() if entry.after == "evicted"}
        assert done.isdisjoint(
            {
                *(("rss-overuse", "at"), ("rss-overuse", "unknown"), ("cpu-suppression", "patient")),
                *((plugin, "silent") for plugin in ("cpu-suppression", "reclaimed-pressure")),
            }
        )
        assert not any(plugin == "memory-pressure" for plugin, _ in done)
        calls = runtime.recorded.of("StopContainer")
        stopped = {call.message.container_id: call.message.timeout for call in calls}
        grace_s = {name: stopped.get(cluster.pods[name].container) for name in ("over", "touchy", "greedy")}
        assert grace_s == {"over": 0, "touchy": 7, "greedy": 0}
        assert cluster.pods["at"].container not in stopped
