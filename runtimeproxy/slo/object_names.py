"""Labels and annotations of pods and nodes in Koordinator's domains: which ones Koordinator has.

Source: Koordinator apis/extension, and `AnnotationSoftEviction` and the like of
the descheduler; those of Koordinator's other objects are not listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Final

from runtimeproxy.slo.reading import Problem, child
from runtimeproxy.spelling import did_you_mean, nearest

MAX_NAMES: Final = 16
"""Unknown names of one object that are reported: comparing one takes up to a millisecond."""

_DOMAIN: Final = "koordinator.sh"
_OF_PODS: Final = {
    "koordinator.sh": (
        "qosClass netQoSClass priority priority-class eviction-enabled core-sched-group-id core-sched-policy"
        " gpu-isolation-provider sandbox-runtime-class cpuBurst cpuQOS memoryQOS blkioQOS networkQOS"
        " eviction-policy eviction-priority oom-score-adj oom-score-adj-spec cgroup-override"
        " cgroup-override-skip"
        " cpuGuard"
        " startupBoost"
    ),
    "node.koordinator.sh": "extended-resource-spec resctrl",
    "pod.koordinator.sh": "replace-resources",
    "runtimeproxy.koordinator.sh": "skip-hookserver",
    "config.koordinator.sh": "skip-update-resources",
    "scheduling.koordinator.sh": (
        "resource-spec resource-status numa-topology-spec device-allocated device-allocate-hint"
        " device-joint-allocate gpu-partition-spec reservation-ignored reservation-order reservation-name"
        " reservation-node reservation-allocated reservation-affinity reservation-restricted-options"
        " reservation-owners reservation-current-owner exact-match-reservation reserve-pod operating-mode"
        " preemption-policy disable-preemptible scheduler-name scheduling-hint usage-thresholds"
        " eviction-cost soft-eviction bind-gang-group-id bind-gang-member-count questioned-object-key"
        " topology-key-to-explain topology-aware-constraint sandbox-pipeline sandbox-scheduling-hint"
        " sandbox-warmpool-ref"
    ),
    "internal.scheduling.koordinator.sh": "bind-gang-group-id bind-gang-member-count",
    "gang.scheduling.koordinator.sh": (
        "name min-available waiting-time total-number mode groups timeout match-policy"
        " network-topology-index network-topology-spec"
    ),
    "quota.scheduling.koordinator.sh": "name tree-id preemptible",
    "descheduler.koordinator.sh": "passed-arbitration pod-arbitrating",
}
_OF_NODES: Final = {
    "koordinator.sh": "",
    "node.koordinator.sh": (
        "cpu-normalization-enabled cpu-normalization-ratio cpu-basic-info cpu-reclaim-ratio"
        " memory-reclaim-ratio mid-static-cpu-reserved-ratio mid-static-memory-reserved-ratio"
        " colocation-strategy network-bandwidth reservation system-qos-resource cpu-topology"
        " cpu-shared-pools be-cpu-shared-pools pod-cpu-allocs"
        " resource-amplification-ratio raw-capacity raw-allocatable limit-to-allocatable cpu-bind-policy"
        " numa-allocate-strategy numa-topology-policy gpu-vendor gpu-model gpu-driver-version"
        " gpu-partition-policy secondary-device-well-planned originExtendedAllocatable thirdPartyAllocations"
    ),
    "kubelet.koordinator.sh": "cpu-manager-policy",
    "scheduling.koordinator.sh": "usage-thresholds",
    "quota.scheduling.koordinator.sh": "tree-id",
}
"""With those of a NodeResourceTopology, which stood on nodes once."""
_KNOWN_BEGINNINGS: Final = ("scheduling.koordinator.sh/schedule-admission-",)
"""What follows is any name."""


class KnownNames:
    """The names that one kind of object has. `by_domain`: the names of each domain, separated by spaces."""

    def __init__(self, by_domain: Mapping[str, str]) -> None:
        self.names = frozenset(
            f"{domain}/{name}" for domain, names in by_domain.items() for name in names.split()
        )
        self._by_domain = by_domain
        self.guess = lru_cache(maxsize=256)(self._guess)

    def unknown(self, keys: Iterable[str]) -> Iterator[str]:
        for key in keys:
            if _DOMAIN not in key or key in self.names or key.startswith(_KNOWN_BEGINNINGS):
                continue
            domain = key.partition("/")[0]
            if domain == _DOMAIN or domain.endswith(f".{_DOMAIN}"):
                yield key

    def _guess(self, key: str) -> str:
        """The name of the same domain that was meant, or the same name of the domain that was meant."""
        domain, _, name = key.partition("/")
        if domain not in self._by_domain:
            domain = nearest(domain, self._by_domain)
            return f"{domain}/{name}" if f"{domain}/{name}" in self.names else ""
        guess = nearest(name, self._by_domain[domain].split())
        return f"{domain}/{guess}" if guess else ""


POD_NAMES: Final = KnownNames(_OF_PODS)
NODE_NAMES: Final = KnownNames(_OF_NODES)


def name_problems(known: KnownNames, *keys: Iterable[str]) -> tuple[Problem, ...]:
    return tuple(map(partial(_problem, known), islice(known.unknown(chain(*keys)), MAX_NAMES)))


def _problem(known: KnownNames, key: str) -> Problem:
    guess = known.guess(key)
    reason = f"is not a known name, and is not used{did_you_mean(guess)}"
    return Problem("", child("", key), "", reason, is_warning=True, is_unknown_name=True, guess=guess)
