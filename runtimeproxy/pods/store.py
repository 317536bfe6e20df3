"""The records of this node, by id and by the pod's uid. Used in the event loop's thread only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from runtimeproxy.pods.checkpoint.codec import Kind, Saved
from runtimeproxy.pods.reconcile import joined_container, joined_pod, newer_container, newer_pod
from runtimeproxy.pods.records import ContainerRecord, PodRecord


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What a list of the runtime changes in the store."""

    add: frozenset[str]
    """Ids that the store does not have yet."""
    drop: frozenset[str]
    """Ids that the runtime does not have any more."""


def untouched(identity: str, since: int, events: Mapping[str, int]) -> bool:
    """Whether nothing happened to an id after sequence number `since`.

    Args:
        identity: A full id.
        since: The sequence number at the time when the runtime was asked.
        events: Sequence number of the last event of each id; a removal may be known under a prefix of the id.
    """
    if events.get(identity, 0) > since:
        return False
    return not any(seen > since and identity.startswith(known) for known, seen in events.items())


def plan_merge(
    listed: Collection[str], known: Mapping[str, int], tombstones: Mapping[str, int], since: int
) -> MergePlan:
    """Compares a list of the runtime with the store; whatever happened after the list was asked for wins.

    Args:
        listed: The ids in the runtime's list.
        known: The ids in the store, each with the sequence number of its last event.
        tombstones: Removed ids (or unique prefixes of ids), each with the sequence number of the removal.
        since: The sequence number at the time when the list was asked for.
    """
    recent = {identity: seen for identity, seen in tombstones.items() if seen > since}
    add = {identity for identity in listed if identity not in known and untouched(identity, since, recent)}
    present = set(listed)
    drop = {identity for identity, seen in known.items() if identity not in present and seen <= since}
    return MergePlan(frozenset(add), frozenset(drop))


FULL_ID_CHARS: Final = 64
"""An id of this length is no prefix of another. Source: containerd and CRI-O, 32 random bytes in hex."""


class _Identified(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def detailed(self) -> bool: ...


RecordT = TypeVar("RecordT", bound=_Identified)


class Shelf(Generic[RecordT]):
    """Records of one kind by id, each with the sequence number of its last event."""

    def __init__(self, next_event: Callable[[], int]) -> None:
        self._next_event = next_event
        self._records: dict[str, RecordT] = {}
        self._events: dict[str, int] = {}
        self._tombstones: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._group_of: Callable[[RecordT], str] = lambda record: ""
        self._groups: dict[str, dict[str, None]] = {}
        self._changed: Callable[[str, bool], None] | None = None
        self.keep_tombstones = False

    def grouped_by(self, group_of: Callable[[RecordT], str]) -> Shelf[RecordT]:
        """Sets what `members` looks records up by; to be called before the first record."""
        self._group_of = group_of
        return self

    def tell(self, changed: Callable[[str, bool], None]) -> None:
        """Sets what is told each id that is new, changed or gone, and whether a call is the reason."""
        self._changed = changed

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RecordT]:
        return iter(tuple(self._records.values()))

    def get(self, identity: str) -> RecordT | None:
        """The record with this id or with an id of which this is the only prefix; None if there is none."""
        found = self._records.get(identity)
        if found is not None or not identity or len(identity) >= FULL_ID_CHARS:
            return found
        matches = [record for known, record in self._records.items() if known.startswith(identity)]
        return matches[0] if len(matches) == 1 else None

    def members(self, group: str) -> tuple[RecordT, ...]:
        """The records of one group, oldest first."""
        return tuple(self._records[identity] for identity in self._groups.get(group, ()))

    def put(self, record: RecordT) -> None:
        """Something happened to this record: it is now as given."""
        self._events[record.id] = self._next_event()
        self._tombstones.pop(record.id, None)
        self._set(record)
        self._tell(record.id, is_event=True)

    def remove(self, identity: str) -> RecordT | None:
        """The runtime has removed this id, or the one of which this is the only prefix."""
        found = self.get(identity)
        self._bury(found.id if found else identity)
        return found

    def fill(self, record: RecordT, since: int) -> bool:
        """Takes what the runtime said of one id, unless something happened to it after event `since`."""
        if not untouched(record.id, since, self._recent(record.id)):
            return False
        self._events.setdefault(record.id, 0)
        self._set(record)
        self._tell(record.id, is_event=False)
        return True

    def take(
        self,
        saved: RecordT,
        since: int,
        joined: Callable[[RecordT, RecordT], RecordT],
        *,
        outdated: int = 0,
    ) -> bool:
        """Takes a record of the checkpoint, unless something happened to its id in this process.

        Args:
            saved: The record.
            since: The sequence number at the time when the checkpoint was asked for.
            joined: Makes one record of the saved one and of that in the store.
            outdated: The sequence number up to which events of this process do not count.

        Returns:
            Whether that changed anything.
        """
        if self._events.get(saved.id, 0) > outdated or not untouched(saved.id, since, self._tombstones):
            return False
        known = self._records.get(saved.id)
        record = saved if known is None else joined(saved, known)
        if record == known:
            return False
        self._events.setdefault(saved.id, 0)
        if self.keep_tombstones:
            # A list that was answered before another process made it does not drop it.
            self._taken[saved.id] = self._next_event()
        self._set(record)
        if record != saved:
            self._tell(saved.id, is_event=False)
        return True

    def merge(self, listed: Mapping[str, RecordT], since: int) -> tuple[RecordT, ...]:
        """Takes a whole list of the runtime, asked for at `since`; returns the dropped records."""
        known: Mapping[str, int] = self._events
        if self._taken:
            known = {identity: max(seen, self._taken.get(identity, 0)) for identity, seen in known.items()}
        plan = plan_merge(listed.keys(), known, self._tombstones, since)
        for identity in plan.add:
            self.fill(listed[identity], since)
        dropped = [self._records[identity] for identity in plan.drop]
        for record in dropped:
            self._bury(record.id)
        return tuple(dropped)

    def forget_tombstones(self) -> None:
        """No list of the runtime is awaited any more."""
        self._tombstones.clear()
        self._taken.clear()

    def _recent(self, identity: str) -> Mapping[str, int]:
        seen = self._events.get(identity)
        return self._tombstones if seen is None else {identity: seen}

    def _set(self, record: RecordT) -> None:
        before = self._records.get(record.id)
        if before is not None and self._group_of(before) != self._group_of(record):
            self._ungroup(before)
        self._records[record.id] = record
        self._groups.setdefault(self._group_of(record), {})[record.id] = None

    def _tell(self, identity: str, *, is_event: bool) -> None:
        if self._changed is not None:
            self._changed(identity, is_event)

    def _ungroup(self, record: RecordT) -> None:
        group = self._group_of(record)
        members = self._groups.get(group)
        if members is not None:
            members.pop(record.id, None)
            if not members:
                del self._groups[group]

    def _bury(self, identity: str) -> None:
        found = self._records.pop(identity, None)
        self._events.pop(identity, None)
        if found is not None:
            self._ungroup(found)
        self._tell(identity, is_event=True)
        event = self._next_event()
        if self.keep_tombstones:
            self._tombstones[identity] = event


class PodStore:
    """All pods and containers that the proxy knows.

    Every observed event gets the next sequence number. While a list of the runtime is awaited, removals leave
    tombstones, so that a container which goes meanwhile does not come back with the list.

    Attributes:
        pods: Pods by id; `members(uid)` are the sandboxes of one pod.
        containers: Containers by id; `members(pod id)` are those of one sandbox.
    """

    def __init__(self) -> None:
        self._event = 0
        self._listings = 0
        self.pods: Shelf[PodRecord] = Shelf[PodRecord](self._next).grouped_by(lambda record: record.uid)
        self.containers: Shelf[ContainerRecord] = Shelf[ContainerRecord](self._next).grouped_by(
            lambda record: record.pod_id
        )

    def tell(self, changed: Callable[[Kind, str, bool], None]) -> None:
        """Sets what is told each id that is new, changed or gone, and whether a call is the reason."""
        self.pods.tell(partial(changed, Kind.POD))
        self.containers.tell(partial(changed, Kind.CONTAINER))

    def take(self, saved: Saved, since: int, *, outdated: int = 0) -> tuple[str, ...]:
        """Takes what the checkpoint holds, unless something happened to it in this process.

        Args:
            saved: What the checkpoint holds.
            since: The sequence number at the time when it was asked for; see `listing`.
            outdated: The sequence number from which on another process decided: what this one knew then does
                not count. 0 if none did.

        Returns:
            The ids of the containers that were taken.
        """
        pod_of, container_of = (newer_pod, newer_container) if outdated else (joined_pod, joined_container)
        for pod in saved.pods:
            self.pods.take(pod, since, pod_of, outdated=outdated)
        return tuple(
            container.id
            for container in saved.containers
            if self.containers.take(container, since, container_of, outdated=outdated)
        )

    @property
    def event(self) -> int:
        """Sequence number of the last observed event."""
        return self._event

    def remove_pod(self, identity: str) -> PodRecord | None:
        """The runtime has removed a sandbox, and with it its containers."""
        pod = self.pods.remove(identity)
        if pod is not None:
            for container in self.containers.members(pod.id):
                self.containers.remove(container.id)
        return pod

    @contextmanager
    def listing(self) -> Iterator[int]:
        """Around a question to the runtime: gives the sequence number to merge the answer with."""
        self._listings += 1
        self.pods.keep_tombstones = self.containers.keep_tombstones = True
        try:
            yield self._event
        finally:
            self._listings -= 1
            if not self._listings:
                self._end_of_listings()

    def _end_of_listings(self) -> None:
        for shelf in (self.pods, self.containers):
            shelf.keep_tombstones = False
            shelf.forget_tombstones()

    def _next(self) -> int:
        self._event += 1
        return self._event
