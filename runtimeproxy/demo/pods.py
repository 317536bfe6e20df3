"""The pods of the demo: one of each QoS class, annotated as Koordinator's scheduler would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.builders import KubeletQos, default_resources


@dataclass(frozen=True, slots=True)
class DemoPod:
    """One pod with one container.

    Attributes:
        name: of the pod; its container is called `main`.
        qos: Koordinator's QoS class; empty for none.
        kubelet_qos: decides the cgroup parent.
        annotations: what the scheduler decided.
    """

    name: str
    qos: str
    kubelet_qos: KubeletQos
    annotations: Mapping[str, str] = field(default_factory=dict)


_CPUSET: Final = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "0"})}
_GPU: Final = {
    "scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 0}, {"minor": 1}]})
}
_BATCH: Final = {
    "node.koordinator.sh/extended-resource-spec": json.dumps(
        {
            "containers": {
                "main": {
                    "requests": {
                        "kubernetes.io/batch-cpu": "500",
                        "kubernetes.io/batch-memory": "128Mi",
                    },
                    "limits": {
                        "kubernetes.io/batch-cpu": "1000",
                        "kubernetes.io/batch-memory": "256Mi",
                    },
                }
            }
        }
    )
}

DEMO_PODS: Final = (
    DemoPod("trading", "LSE", KubeletQos.GUARANTEED, _CPUSET),
    DemoPod("search", "LSR", KubeletQos.GUARANTEED, _CPUSET),
    DemoPod("inference", "LS", KubeletQos.BURSTABLE, _GPU),
    DemoPod("spark", "BE", KubeletQos.BESTEFFORT, _BATCH),
    DemoPod("logging", "SYSTEM", KubeletQos.BURSTABLE),
    DemoPod("web", "", KubeletQos.BURSTABLE),
)
"""One pod of each class; no policy selects the last two."""


def kubelet_resources(pod: DemoPod) -> api_pb2.LinuxContainerResources:
    """The kubelet's values: one core and 256 MiB for a guaranteed pod, next to nothing for others."""
    if pod.kubelet_qos is not KubeletQos.GUARANTEED:
        return default_resources()
    return api_pb2.LinuxContainerResources(
        cpu_period=100_000,
        cpu_quota=100_000,
        cpu_shares=1024,
        memory_limit_in_bytes=256 * 1024 * 1024,
        oom_score_adj=-997,
    )
