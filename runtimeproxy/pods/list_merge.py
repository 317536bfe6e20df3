"""Which entries of a runtime's list may enter the store: pure rules over ids and sequence numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


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
