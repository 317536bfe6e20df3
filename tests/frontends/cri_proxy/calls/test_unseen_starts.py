"""Deferred cgroup values when a StartContainer response was lost."""

import pytest

from runtimeproxy.core.events import take_due_writes
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings

PARENT = "/kubepods/besteffort/podu1"
VALUES = {"memory.use_priority_oom": 1}


@pytest.mark.parametrize(
    ("state", "parent", "is_due"),
    [
        pytest.param(Lifecycle.RUNNING, PARENT, True, id="runs"),
        pytest.param(Lifecycle.CREATED, PARENT, False, id="not started"),
        pytest.param(Lifecycle.STOPPED, PARENT, False, id="stopped"),
        pytest.param(Lifecycle.RUNNING, "", False, id="place not known"),
    ],
)
async def test_they_are_due_once_it_runs(
    desk: Surroundings, state: Lifecycle, parent: str, is_due: bool
) -> None:
    desk.store.pods.put(PodRecord(id=POD_ID, cgroup_parent=parent))
    waiting = ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID, state=state, pending_cgroup=VALUES)
    desk.store.containers.put(waiting)
    desk.store.containers.put(ContainerRecord(id="other", pod_id=POD_ID, state=Lifecycle.RUNNING))
    due = [(each.cgroup, each.values) for each in take_due_writes(desk.core)]
    assert due == ([(f"{PARENT}/{CONTAINER_ID}", VALUES)] if is_due else [])
    assert list(take_due_writes(desk.core)) == []
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    assert bool(record.pending_cgroup) is not is_due
