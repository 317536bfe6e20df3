"""What Katalyst's pools see of the records: kept up to date record by record, as most of them stay."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.katalyst.pool_operations import LiveContainer, ObservedPod
from runtimeproxy.katalyst.pools import NO_CPUS
from runtimeproxy.pods.record_views import recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.units import SHARES_PER_CPU, parse_cpu_list

if TYPE_CHECKING:
    from runtimeproxy.hooks.views import PodView
    from runtimeproxy.katalyst.placement import PodFacts
    from runtimeproxy.pods.store import PodStore


_MOST_CHANGED: Final = 4096
"""Ids of records that wait for a look; with more, all are looked at."""


class ObservedPods:
    """The pods that run, as the pools see them. Used in the event loop's thread.

    Args:
        facts_of: What a pod asks for.
    """

    def __init__(self, store: PodStore, facts_of: Callable[[PodView], PodFacts]) -> None:
        self._store = store
        self._facts_of = facts_of
        self._live: dict[str, ObservedPod] = {}
        # By the id of the sandbox, and that of each container's sandbox.
        self._observed: dict[str, _Observed] = {}
        self._pod_of: dict[str, str] = {}
        # Ids of sandboxes and containers; None: all.
        self._changed: set[str] | None = None

    @property
    def live(self) -> Mapping[str, ObservedPod]:
        """By uid, as of the last `follow`."""
        return MappingProxyType(self._live)

    @property
    def has_changed(self) -> bool:
        """Whether `follow` has something to look at."""
        return self._changed is None or bool(self._changed)

    def on_record(self, identity: str) -> None:
        """A record of a sandbox or container is new, another one, or gone."""
        if self._changed is not None:
            self._changed.add(identity)
            if len(self._changed) > _MOST_CHANGED:
                self._changed = None

    def look_again(self) -> None:
        """Whatever pods ask for may be something else by now."""
        self._changed = None

    def follow(self) -> frozenset[str]:
        """Looks at the records that have changed; returns the uids of the pods that may be others."""
        store, changed, self._changed = self._store, self._changed, set()
        if changed is None:
            self._observed.clear()
            self._pod_of.clear()
            before, self._live = self._live, {}
            return self._look_at(pod.id for pod in store.pods) | before.keys()
        sandboxes: set[str] = set()
        for identity in changed:
            box = store.containers.get(identity)
            # A prefix of another id finds that one.
            is_there = box is not None and box.id == identity
            sandbox = box.pod_id if box is not None and is_there else self._pod_of.get(identity, identity)
            sandboxes.add(sandbox)
        return self._look_at(sorted(sandboxes))

    def _look_at(self, sandboxes: Iterable[str]) -> frozenset[str]:
        uids: set[str] = set()
        for identity in sandboxes:
            before = self._observed.pop(identity, None)
            for member in before.members if before is not None else ():
                self._pod_of.pop(member.id, None)
            pod = self._store.pods.get(identity)
            if before is not None:
                uids.add(before.record.uid)
            if pod is not None and pod.id == identity and pod.uid and pod.state is Lifecycle.RUNNING:
                uids.add(pod.uid)
                self._observed[identity] = self._observe(pod, before)
                self._pod_of.update((each.id, identity) for each in self._observed[identity].members)
        for uid in uids:
            observed = (self._observed.get(each.id) for each in self._store.pods.members(uid))
            found = [each.pod for each in observed if each is not None]
            if found:
                self._live[uid] = found[0] if len(found) == 1 else _joined(found)
            else:
                self._live.pop(uid, None)
        return frozenset(uids)

    def _observe(self, pod: PodRecord, before: _Observed | None) -> _Observed:
        members = self._store.containers.members(pod.id)
        if before is not None and before.is_of(pod, members):
            return before
        is_same = before is not None and before.record is pod
        facts = before.pod.facts if before is not None and is_same else self._facts_of(recorded_pod(pod))
        containers = tuple(live_container(each) for each in members if each.state is not Lifecycle.STOPPED)
        is_sure = pod.katalyst is not None or not pod.trimmed
        return _Observed(pod, members, ObservedPod(facts, containers, is_sure))


class _Observed(NamedTuple):
    """What the pools see of a sandbox's records."""

    record: PodRecord
    members: tuple[ContainerRecord, ...]
    pod: ObservedPod

    def is_of(self, record: PodRecord, members: Sequence[ContainerRecord]) -> bool:
        """Whether these records are the same ones: another state of one is another object."""
        is_same = self.record is record and len(self.members) == len(members)
        return is_same and all(map(operator.is_, self.members, members))


def _joined(sandboxes: Sequence[ObservedPod]) -> ObservedPod:
    """A pod with several sandboxes, as one."""
    containers = tuple(box for each in sandboxes for box in each.containers)
    return ObservedPod(sandboxes[0].facts, containers, all(each.is_sure for each in sandboxes))


def live_container(record: ContainerRecord) -> LiveContainer:
    cpus = _parsed_cpus(record.booked.cpuset_cpus or "")
    return LiveContainer(record.name, record.id, millicpu_of(record.requested.cpu_shares), cpus=cpus)


@lru_cache(maxsize=64)
def _parsed_cpus(text: str) -> frozenset[int]:
    with suppress(ValueError):
        return parse_cpu_list(text)
    return NO_CPUS


_NO_REQUEST_SHARES: Final = 2
"""What the kubelet sends for no request. Source: pkg/kubelet/cm/helpers_linux.go, MinShares."""


def millicpu_of(shares: int | None) -> int | None:
    """Return the CPU request that shares stand for; None: not known.

    Exact for requests of 3 to 256000 millicores. Source: kubelet pkg/kubelet/cm/helpers_linux.go,
    MilliCPUToShares, turned round.
    """
    if not shares:
        return None
    return 0 if shares <= _NO_REQUEST_SHARES else -(-shares * 1000 // SHARES_PER_CPU)
