"""Compares saved records with the runtime's: pure rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runtimeproxy.fields.resources import Resources
from runtimeproxy.fields.tables import RESOURCE_FIELDS, UPDATABLE
from runtimeproxy.hooks.fields import RESOURCES, UNIFIED
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, overlay


def reconciled(record: ContainerRecord, seen: ContainerRecord) -> ContainerRecord:
    """A saved record, updated by the runtime's present one.

    A value that differs from the booked one was set while the proxy was away, so it counts as the kubelet's
    request, and no policy owns the field any more. Only values that both records have are compared: runtimes
    report defaults that no request had, and leave out some requested values.
    """
    found = _differences(record.booked, seen.booked)
    state = max(record.state, seen.state)
    if found is None:
        return record if state is record.state else replace(record, state=state)
    changed = {f"{RESOURCES}.{name}" for name in UPDATABLE if getattr(found, name) is not None}
    changed |= {f"{UNIFIED}[{key}]" for key in found.unified}
    owners = {field: owner for field, owner in record.owners.items() if field not in changed}
    return replace(
        record,
        requested=overlay(record.requested, found),
        booked=overlay(record.booked, found),
        owners=owners or NO_ENTRIES,
        state=state,
    )


def changed_values(before: Resources, now: Resources) -> list[dict[str, str]]:
    """The compared fields whose values differ, each with both, for the log."""
    both = {f"{RESOURCES}.{name}": (getattr(before, name), getattr(now, name)) for name in UPDATABLE}
    keys = dict.fromkeys((*before.unified, *now.unified))
    both |= {f"{UNIFIED}[{key}]": (before.unified.get(key), now.unified.get(key)) for key in keys}
    return [
        {"field": name, "from": "" if old is None else str(old), "to": "" if new is None else str(new)}
        for name, (old, new) in both.items()
        if old != new
    ]


def joined_container(saved: ContainerRecord, known: ContainerRecord) -> ContainerRecord:
    # One record of a saved one and of a container in the store without an event.
    return reconciled(saved, known) if known.recovered else newer_container(saved, known)


def joined_pod(saved: PodRecord, known: PodRecord) -> PodRecord:
    """One record of a saved one and of a sandbox in the store without an event.

    The runtime reports the resources of the sandbox's start, without later updates.
    """
    return known if saved.recovered and known.detailed else newer_pod(saved, known)


def newer_container(saved: ContainerRecord, known: ContainerRecord) -> ContainerRecord:
    return saved if saved.state >= known.state else replace(saved, state=known.state)


def newer_pod(saved: PodRecord, known: PodRecord) -> PodRecord:
    return replace(saved, state=Lifecycle.STOPPED) if known.state is Lifecycle.STOPPED else saved


def _differences(booked: Resources, reported: Resources) -> Resources | None:
    """The reported values that differ from the booked ones; None if there are none."""
    found: dict[str, Any] = {}
    for name in UPDATABLE:
        before, now = getattr(booked, name), getattr(reported, name)
        if before is not None and now is not None and not RESOURCE_FIELDS[name].is_same(before, now):
            found[name] = now
    unified = {
        key: now
        for key, now in reported.unified.items()
        if key in booked.unified and booked.unified[key] != now
    }
    return Resources(**found, unified=unified) if found or unified else None
