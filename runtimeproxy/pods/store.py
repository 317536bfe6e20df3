"""The records of this node, by id and by the pod's uid. Used in the event loop's thread only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Final, Generic, TypeVar

from runtimeproxy.hooks.levels import PodLevels
from runtimeproxy.pods.checkpoint.codec import RowKind, Saved
from runtimeproxy.pods.reconcile import joined_container, joined_pod, newer_container, newer_pod
from runtimeproxy.pods.record_views import recorded_summary
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, compact, memory_bytes, read_by_policies

FULL_ID_CHARS: Final = 64
"""An id of this length is never a prefix. Source: containerd and CRI-O, 32 random bytes in hex."""


MAX_BYTES: Final = 64 * 1024 * 1024
"""Of the texts of all records. A node has some hundred pods at most, whose records have some KiB each."""

_LARGEST_PART: Final = 8
"""No record takes more than one eighth of what is left, so that a few pods leave room for all others."""


RecordT = TypeVar("RecordT", PodRecord, ContainerRecord)


def record_bytes(record: PodRecord | ContainerRecord) -> int:
    """The memory of the texts in a record that authors of pods and clients decide on."""
    maps: list[Mapping[str, str | None]] = [record.labels, record.annotations, record.requested.unified]
    if record.booked is not record.requested:
        maps.append(record.booked.unified)
    texts = [record.name]
    if isinstance(record, PodRecord):
        maps += record.label_changes, record.annotation_changes
        texts += record.namespace, record.uid, record.cgroup_parent, record.runtime_handler
    return sum(map(memory_bytes, filter(None, maps))) + sum(map(sys.getsizeof, texts))


def fitted(record: RecordT, room_bytes: int) -> RecordT:
    """The record if there is room for it, else without annotations that no policy reads, else without any.

    That may still be larger than the room: names and changes of policies stay.
    """
    if record_bytes(record) <= room_bytes:
        return record
    record = replace(record, annotations=compact(read_by_policies(record.annotations)), trimmed=True)
    if record_bytes(record) <= room_bytes:
        return record
    return replace(record, labels=NO_ENTRIES, annotations=NO_ENTRIES)


class RecordIndex(Generic[RecordT]):
    """The records of one kind by id and by group, each with the sequence number of its last event.

    Args:
        group_of: The group of a record, for `members`.
    """

    def __init__(self, store: PodStore, kind: RowKind, group_of: Callable[[RecordT], str]) -> None:
        self._store = store
        self._kind = kind
        self._group_of: Callable[[RecordT], str] = group_of
        self._records: dict[str, RecordT] = {}
        self._sizes_bytes: dict[str, int] = {}
        self._events: dict[str, int] = {}
        self._groups: dict[str, dict[str, None]] = {}
        # Only while an answer of the runtime is awaited; see `PodStore.listing`.
        self._tombstones: dict[str, int] = {}
        self._loaded: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RecordT]:
        return iter(tuple(self._records.values()))

    def get(self, identity: str) -> RecordT | None:
        """The record with this id, or the only one whose id starts with it; None if there is none."""
        found = self._records.get(identity)
        if found is not None or not identity or len(identity) >= FULL_ID_CHARS:
            return found
        matches = [record for known, record in self._records.items() if known.startswith(identity)]
        return matches[0] if len(matches) == 1 else None

    def members(self, group: str) -> tuple[RecordT, ...]:
        return tuple(self._records[identity] for identity in self._groups.get(group, ()))

    def put(self, record: RecordT) -> None:
        """Stores a record after an observed event."""
        store = self._store
        store.event += 1
        self._events[record.id] = store.event
        self._tombstones.pop(record.id, None)
        self._set(record)
        if store.on_change is not None:
            store.on_change(self._kind, record.id, True)

    def revise(self, record: RecordT) -> None:
        # A record that says more is no observed event.
        if record.id in self._records:
            self._set(record)
            if self._store.on_change is not None:
                self._store.on_change(self._kind, record.id, False)

    def remove(self, identity: str) -> RecordT | None:
        """Drops the record with this id, or the only one whose id starts with it; returns it."""
        found = self.get(identity)
        self._drop(found.id if found else identity)
        return found

    def fill(self, record: RecordT, since: int) -> bool:
        """Stores an answer of the runtime, unless there was an event of this id after event `since`.

        Returns:
            Whether it was stored.
        """
        seen = self._events.get(record.id)
        if not untouched(record.id, since, self._tombstones if seen is None else {record.id: seen}):
            return False
        self._events.setdefault(record.id, 0)
        self._set(record)
        if self._store.on_change is not None:
            self._store.on_change(self._kind, record.id, False)
        return True

    def load(
        self,
        saved: RecordT,
        since: int,
        joined: Callable[[RecordT, RecordT], RecordT],
        *,
        outdated: int = 0,
    ) -> bool:
        """Stores a record of the checkpoint, unless there was an event of its id in this process.

        `since`: the sequence number at the time when the checkpoint was read. `joined`: makes one record of
        the saved one and of that in the store. `outdated`: the sequence number up to which events of this
        process do not count.

        Returns:
            Whether the store has changed.
        """
        if self._events.get(saved.id, 0) > outdated or not untouched(saved.id, since, self._tombstones):
            return False
        known = self._records.get(saved.id)
        record = saved if known is None else joined(saved, known)
        if record == known:
            return False
        self._events.setdefault(saved.id, 0)
        if self._store.listings:
            # A list that was answered before another process made it does not drop it.
            self._store.event += 1
            self._loaded[saved.id] = self._store.event
        self._set(record)
        if record != saved and self._store.on_change is not None:
            self._store.on_change(self._kind, saved.id, False)
        return True

    def merge(self, listed: Mapping[str, RecordT], since: int) -> tuple[RecordT, ...]:
        """Merges a whole list of the runtime, asked for at event `since`; returns the dropped records."""
        known: Mapping[str, int] = self._events
        if self._loaded:
            known = {identity: max(seen, self._loaded.get(identity, 0)) for identity, seen in known.items()}
        added, gone = plan_merge(listed.keys(), known, self._tombstones, since)
        for identity in added:
            self.fill(listed[identity], since)
        dropped = [self._records[identity] for identity in gone]
        for record in dropped:
            self._drop(record.id)
        return tuple(dropped)

    def forget_tombstones(self) -> None:
        """Forgets the removals: no answer of the runtime is awaited any more."""
        self._tombstones.clear()
        self._loaded.clear()

    def _set(self, record: RecordT) -> None:
        store = self._store
        if store.levels is not None:
            record = store.with_level(record)
        store.kept_bytes -= self._sizes_bytes.get(record.id, 0)
        size_bytes = record_bytes(record)
        if size_bytes > store.room_bytes:
            record = fitted(record, store.room_bytes)
            size_bytes = record_bytes(record)
        self._sizes_bytes[record.id] = size_bytes
        store.kept_bytes += size_bytes
        group = self._group_of(record)
        before = self._records.get(record.id)
        if before is not None and self._group_of(before) != group:
            self._ungroup(before)
        self._records[record.id] = record
        self._groups.setdefault(group, {})[record.id] = None

    def _ungroup(self, record: RecordT) -> None:
        group = self._group_of(record)
        members = self._groups[group]
        del members[record.id]
        if not members:
            del self._groups[group]

    def _drop(self, identity: str) -> None:
        found = self._records.pop(identity, None)
        self._events.pop(identity, None)
        if found is not None:
            self._store.kept_bytes -= self._sizes_bytes.pop(identity)
            self._ungroup(found)
        if self._store.on_change is not None:
            self._store.on_change(self._kind, identity, True)
        self._store.event += 1
        if self._store.listings:
            self._tombstones[identity] = self._store.event


class PodStore:
    """All pods and containers that the proxy knows.

    Each observed event gets the next sequence number. While a list of the runtime is awaited, removals leave
    tombstones, so that the list does not bring back a container that was removed meanwhile.

    Attributes:
        pods: Pods by id; `members(uid)` are the sandboxes of one pod.
        containers: Containers by id; `members(pod id)` are those of one sandbox.
        event: Sequence number of the last event.
        listings: Number of answers of the runtime that are awaited.
        max_bytes: Most memory of the texts of all records.
        kept_bytes: Their memory now.
        on_change: Called with each new, changed or removed id, and whether an observed call is the cause.
        levels: How pods get a level of Katalyst's; None: they have none.
        kubelet_root: The kubelet's outermost cgroup where no runtime tells of pods; else empty: they show it.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.kept_bytes = 0
        self.pods: RecordIndex[PodRecord] = RecordIndex(self, RowKind.POD, attrgetter("uid"))
        self.containers: RecordIndex[ContainerRecord] = RecordIndex(
            self, RowKind.CONTAINER, attrgetter("pod_id")
        )
        self.event = 0
        self.listings = 0
        self.kubelet_root = ""
        self.levels: PodLevels | None = None
        self.on_change: Callable[[RowKind, str, bool], None] | None = None

    @property
    def room_bytes(self) -> int:
        return (self.max_bytes - self.kept_bytes) // _LARGEST_PART

    @property
    def trimmed(self) -> int:
        return sum(each.trimmed for each in self.pods) + sum(each.trimmed for each in self.containers)

    def load(self, saved: Saved, since: int, *, outdated: int = 0) -> tuple[str, ...]:
        """Stores the records of a checkpoint, but for ids with an event in this process.

        `since`: the sequence number at the time when it was read; see `listing`. `outdated`: the sequence
        number from which on another process decided: earlier events of this one do not count. 0 if there was
        no other process.

        Returns:
            The ids of the containers that were stored.
        """
        pod_of, container_of = (newer_pod, newer_container) if outdated else (joined_pod, joined_container)
        for pod in saved.pods:
            self.pods.load(pod, since, pod_of, outdated=outdated)
        return tuple(
            container.id
            for container in saved.containers
            if self.containers.load(container, since, container_of, outdated=outdated)
        )

    def use_levels(self, levels: PodLevels | None) -> None:
        """Gives all pods their levels anew; None: they have none any more."""
        if levels == self.levels:
            return
        self.levels = levels
        for pod in self.pods:
            self.pods.revise(replace(pod, katalyst=None))

    def with_level(self, record: RecordT) -> RecordT:
        """The record of a pod with its level; that of a container as it is."""
        if self.levels is None or not isinstance(record, PodRecord):
            return record
        if record.trimmed and record.katalyst is not None:
            # Its annotations are no longer all there.
            return record
        found = self.levels.of(recorded_summary(record))
        return record if found == record.katalyst else replace(record, katalyst=found)

    def remove_pod(self, identity: str) -> PodRecord | None:
        """Drops a removed sandbox, and its containers with it."""
        pod = self.pods.remove(identity)
        if pod is not None:
            for container in self.containers.members(pod.id):
                self.containers.remove(container.id)
        return pod

    @contextmanager
    def listing(self) -> Iterator[int]:
        """Surrounds a request to the runtime; gives the sequence number to merge its answer with."""
        self.listings += 1
        try:
            yield self.event
        finally:
            self.listings -= 1
            if not self.listings:
                self.pods.forget_tombstones()
                self.containers.forget_tombstones()


def untouched(identity: str, since: int, events: Mapping[str, int]) -> bool:
    """Whether there was no event of an id after sequence number `since`.

    `since`: the sequence number at the time when the runtime was asked. `events`: sequence number of the last
    event of each id; a removal may be known under a prefix of the id.
    """
    if events.get(identity, 0) > since:
        return False
    return not any(seen > since and identity.startswith(known) for known, seen in events.items())


def plan_merge(
    listed: Collection[str], known: Mapping[str, int], tombstones: Mapping[str, int], since: int
) -> tuple[set[str], set[str]]:
    """Compares a list of the runtime with the store; events after the request take precedence.

    `known`: the ids in the store, each with the sequence number of its last event. `tombstones`: removed ids
    (or unique prefixes of ids), each with the sequence number of the removal. `since`: the sequence number at
    the time of the request.

    Returns:
        The ids that the store lacks, and the ids that the runtime no longer has.
    """
    recent = {identity: seen for identity, seen in tombstones.items() if seen > since}
    added = {identity for identity in listed if identity not in known and untouched(identity, since, recent)}
    present = set(listed)
    gone = {identity for identity, seen in known.items() if identity not in present and seen <= since}
    return added, gone
