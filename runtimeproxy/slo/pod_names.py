"""Labels and annotations of pods in Koordinator's domains: which ones Koordinator has.

Source: Koordinator apis/extension (policies spec 1.1, 1.2), and `AnnotationSoftEviction` and the like of the
descheduler; those of Koordinator's other objects are not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Final, Protocol

from runtimeproxy.slo.reading import Problem, child
from runtimeproxy.slo.spelling import did_you_mean, nearest

MAX_NAMES: Final = 16
"""Unknown names of one pod that are reported: comparing one takes up to a millisecond."""

_DOMAIN: Final = "koordinator.sh"
_BY_DOMAIN: Final = {
    "koordinator.sh": (
        "qosClass netQoSClass priority priority-class eviction-enabled core-sched-group-id core-sched-policy"
        " gpu-isolation-provider sandbox-runtime-class cpuBurst cpuQOS memoryQOS blkioQOS networkQOS"
        " eviction-policy eviction-priority oom-score-adj oom-score-adj-spec cgroup-override"
        " cgroup-override-skip"
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
KNOWN_NAMES: Final = frozenset(
    f"{domain}/{name}" for domain, names in _BY_DOMAIN.items() for name in names.split()
)
_KNOWN_BEGINNINGS: Final = ("scheduling.koordinator.sh/schedule-admission-",)
"""Followed by any name."""


class Named(Protocol):
    """A pod's view or record."""

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def annotations(self) -> Mapping[str, str]: ...


def name_problems(pod: Named) -> tuple[Problem, ...]:
    return tuple(islice(_unknown_names(pod), MAX_NAMES))


def _unknown_names(pod: Named) -> Iterator[Problem]:
    for key in (*pod.labels, *pod.annotations):
        if _DOMAIN not in key or key in KNOWN_NAMES or key.startswith(_KNOWN_BEGINNINGS):
            continue
        domain = key.partition("/")[0]
        if domain == _DOMAIN or domain.endswith(f".{_DOMAIN}"):
            guess = _guess(key)
            reason = f"is not a known name, and is not used{did_you_mean(guess)}"
            yield Problem("", child("", key), "", reason, is_warning=True, is_unknown_name=True, guess=guess)


@lru_cache(maxsize=256)
def _guess(key: str) -> str:
    """The name of the same domain that was meant, or the same name of the domain that was meant."""
    domain, _, name = key.partition("/")
    if domain not in _BY_DOMAIN:
        domain = nearest(domain, _BY_DOMAIN)
        return f"{domain}/{name}" if f"{domain}/{name}" in KNOWN_NAMES else ""
    guess = nearest(name, _BY_DOMAIN[domain].split())
    return f"{domain}/{guess}" if guess else ""
