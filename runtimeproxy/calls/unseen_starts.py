"""Starts of containers whose end nobody saw: the cgroup values that waited for them are due all the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runtimeproxy.calls.operation import CallContext, container_cgroup
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.pods.resources import NO_ENTRIES


def take_due(context: CallContext) -> list[tuple[str, Mapping[str, int | str]]]:
    """The cgroups of containers that run, with the values that waited for that; they wait no more."""
    due: list[tuple[str, Mapping[str, int | str]]] = []
    for record in context.store.containers:
        if record.state is not Lifecycle.RUNNING or not record.pending_cgroup:
            continue
        cgroup = container_cgroup(context, context.store.pods.get(record.pod_id), record)
        if cgroup:
            due.append((cgroup, record.pending_cgroup))
            context.store.containers.put(replace(record, pending_cgroup=NO_ENTRIES))
    return due
