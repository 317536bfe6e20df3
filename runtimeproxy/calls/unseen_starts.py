"""Starts of containers whose end nobody saw: the cgroup values that waited for them are due all the same."""

from __future__ import annotations

from dataclasses import replace

from runtimeproxy.calls.cri_call import CallContext, DueWrites, container_cgroup
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.pods.resources import NO_ENTRIES


def take_due(context: CallContext) -> list[DueWrites]:
    """The values of containers that run and that waited for that; they wait no more."""
    due: list[DueWrites] = []
    for record in context.store.containers:
        if record.state is not Lifecycle.RUNNING or not record.pending_cgroup:
            continue
        pod = context.store.pods.get(record.pod_id)
        cgroup = container_cgroup(context, pod, record)
        if cgroup:
            due.append(DueWrites(cgroup, record.pending_cgroup, record, pod, record.owners))
            context.store.containers.put(replace(record, pending_cgroup=NO_ENTRIES))
    return due
