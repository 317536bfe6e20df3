"""Names of Koordinator: the ConfigMap, and labels and annotations about QoS."""

from __future__ import annotations

from typing import Final

CONFIG_MAP: Final = "slo-controller-config"
"""Of the ConfigMap. Source: Koordinator pkg/util/sloconfig/config.go."""

NETWORK_BANDWIDTH: Final = "node.koordinator.sh/network-bandwidth"
COLOCATION_STRATEGY: Final = "node.koordinator.sh/colocation-strategy"
"""Annotations of a node. Source: Koordinator apis/extension."""
CPU_NORMALIZATION_RATIO: Final = "node.koordinator.sh/cpu-normalization-ratio"
"""Annotation of a Node. Source: Koordinator apis/extension/cpu_normalization.go."""
CPU_NORMALIZATION_ENABLED: Final = "node.koordinator.sh/cpu-normalization-enabled"
"""Label of a node. Source: Koordinator apis/extension/cpu_normalization.go."""
RATIO_LABELS: Final = {
    "node.koordinator.sh/cpu-reclaim-ratio": "cpu_reclaim_threshold_percent",
    "node.koordinator.sh/memory-reclaim-ratio": "memory_reclaim_threshold_percent",
    "node.koordinator.sh/mid-static-cpu-reserved-ratio": "mid_static_cpu_reserved_percent",
    "node.koordinator.sh/mid-static-memory-reserved-ratio": "mid_static_memory_reserved_percent",
}
"""Labels of a node, with the field of `colocation-config` that each replaces. Source: node_colocation.go."""

NODE_ANNOTATIONS: Final = frozenset({NETWORK_BANDWIDTH, COLOCATION_STRATEGY})
NODE_LABELS: Final = frozenset({CPU_NORMALIZATION_ENABLED, *RATIO_LABELS})
"""The node's own words about its strategies."""

CPU_BURST: Final = "koordinator.sh/cpuBurst"
CPU_QOS: Final = "koordinator.sh/cpuQOS"
MEMORY_QOS: Final = "koordinator.sh/memoryQOS"
BLKIO_QOS: Final = "koordinator.sh/blkioQOS"
NETWORK_QOS: Final = "koordinator.sh/networkQOS"
RESCTRL: Final = "node.koordinator.sh/resctrl"
EVICTION_POLICY: Final = "koordinator.sh/eviction-policy"
EVICTION_PRIORITY: Final = "koordinator.sh/eviction-priority"
"""Annotations. Source: Koordinator apis/extension and apis/slo/v1alpha1/pod.go."""
EVICTION_ENABLED: Final = "koordinator.sh/eviction-enabled"
"""Label. Source: Koordinator apis/extension/constants.go."""

CPU_GUARD: Final = "koordinator.sh/cpuGuard"
"""Annotation of a pod, of this project: fields of `PodCpuGuard`. Koordinator has none like it."""
STARTUP_BOOST: Final = "koordinator.sh/startupBoost"
"""Annotation of this project; Koordinator has none like it."""

MAX_ANNOTATION_VALUES: Final = 512
"""About its QoS: many times as many as the largest schema has fields."""
MAX_ANNOTATION_LENGTH: Final = 16 << 10
"""In characters: many times the longest useful annotation. It is read while a call of its pod waits."""
EXTENDED_RESOURCE_SPEC: Final = "node.koordinator.sh/extended-resource-spec"
"""Annotation of a pod: its containers' batch and mid resources. Source: apis/extension/resource.go."""
RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
"""Annotation of a pod: the scheduler's allocation of CPUs. Source: apis/extension/numa_aware.go."""
