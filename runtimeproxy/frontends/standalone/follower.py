"""Keeps the records those of what runs, and has pods and containers evaluated once the runtime has written.

What has happened is told by the runtime's events, by the kubelet's cgroup tree, or by both, whichever is the
earlier; what it is, the runtime's status says. Used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from runtimeproxy.core.questions import not_stopped
from runtimeproxy.fields.tables import SHARES
from runtimeproxy.frontends.cgroup_tree import CgroupListener
from runtimeproxy.frontends.mode_begin import mark_known
from runtimeproxy.frontends.repeated import Repeated
from runtimeproxy.frontends.standalone.events import RuntimeEvents
from runtimeproxy.ledger.answers import by_parameter, resized_pod
from runtimeproxy.pods.inventory import RuntimeEvent, RuntimeUnavailableError
from runtimeproxy.pods.reconcile import reconciled
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord

if TYPE_CHECKING:
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.frontends.cgroup_tree import CgroupTree, ContainerCgroup
    from runtimeproxy.ledger.openings import ClassOpenings
    from runtimeproxy.ledger.upkeep import Upkeep
    from runtimeproxy.pods.inventory import Inventory
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient
    from runtimeproxy.pods.store import PodStore

RecordT = TypeVar("RecordT", PodRecord, ContainerRecord)

LIST_INTERVAL_S: Final = 10.0
"""How often lists are read while neither the runtime nor the kernel reports what happens."""
CONFIRM_INTERVAL_S: Final = 60.0
"""How often the values of all containers are compared with the runtime's while the kernel does not report
writes to them: updates make no event of the runtime."""
REPORTED_CONFIRM_INTERVAL_S: Final = 900.0
"""The same while it does."""
FIRST_PAUSE_S: Final = 0.02
"""Between two questions about a new cgroup, which the runtime does not know yet; it grows by half."""
LONGEST_PAUSE_S: Final = 1.0
MOST_ASKED_S: Final = 30.0
"""How long the runtime is asked about one: containerd knows a sandbox only once all of it runs."""
REMOVALS_S: Final = 10.0
"""How long removals are gathered before the lists of a runtime without events are read: then everything is
evaluated again."""
WRITES_S: Final = 0.1
"""How long writes to a cgroup are gathered: an update writes a dozen files."""
SECOND_CHECK_S: Final = 1.0
"""Until a second comparison of a cgroup that was written to. A runtime knows an update only once the files
are written: both comparisons together end within 2 s of it."""


class Follower(CgroupListener):
    """Takes events, lists, and what happens in the cgroup tree.

    Args:
        upkeep: Asks the policies, and writes what follows.
        since_s: When this mode began on this node, in seconds since the epoch: the creation values of what is
            made from then on are the kubelet's own, as no message is changed in this mode.
        openings: Is told of pods that start; None: nothing is.

    Attributes:
        tree: Set before `start`.
    """

    tree: CgroupTree

    def __init__(
        self,
        inventory: Inventory,
        upkeep: Upkeep,
        client: GrpcRuntimeClient,
        spawn: Spawn,
        since_s: float,
        openings: ClassOpenings | None = None,
    ) -> None:
        self.events = RuntimeEvents(client, self.take, inventory.compare_soon)
        self._inventory = inventory
        self._upkeep = upkeep
        self._client = client
        self._spawn = spawn
        self._openings = openings
        self._changed_pods = Repeated()
        # Containers whose program runs, as their cgroups tell, before the runtime has said so.
        self._started: set[str] = set()
        # Those in the tree, by id, with the uid of their pod.
        self._present: dict[str, str] = {}
        self._written = Repeated()
        # Cgroups of the first scan, until lists have been read.
        self._unlisted: dict[str, ContainerCgroup] = {}
        self._has_removals = False
        upkeep.evaluator.since_s = since_s
        inventory.on_complete.insert(0, self._mark_known)

    @property
    def _store(self) -> PodStore:
        return self._inventory.store

    def start(self) -> None:
        self._spawn(self.events.run())
        self._spawn(self.tree.run())
        self._spawn(self._compare())

    # Events of the runtime.

    async def take(self, event: RuntimeEvent) -> None:
        """Brings the records up to an event, and has what runs evaluated.

        Raises:
            RuntimeUnavailableError: The runtime did not answer.
        """
        if event.is_gone:
            if self._store.containers.remove(event.id) is None:
                self._store.remove_pod(event.id)
            return
        pod_id = await self._take_pod(event.id) if event.is_pod else await self._take_container(event.id)
        self._evaluate_soon(pod_id)

    def _evaluate_soon(self, pod_id: str) -> None:
        pod = self._store.pods.get(pod_id)
        if pod is not None and pod.state is Lifecycle.RUNNING and self._changed_pods.add(pod.id):
            # Not awaited: files may hang, and other pods' events must not wait for them.
            self._spawn(self._changed_pods.run(pod.id, partial(self._evaluate, pod.id, pod.cgroup_parent)))

    async def _evaluate(self, pod_id: str, cgroup: str) -> None:
        await self._upkeep.evaluator.evaluate_pod(pod_id)
        # A container's scope was started in the pod's slice: systemd has set that again.
        await self._upkeep.repair(cgroup)

    async def _take_pod(self, identity: str) -> str:
        """Takes what the runtime says of a sandbox; returns its id, empty if it knows none."""
        found, known = await self._client.pod(identity), self._store.pods.get(identity)
        if found is None:
            if known is not None:
                self._store.remove_pod(identity)
            return ""
        if known is not None and known.detailed:
            self._store.pods.put(replace(known, state=found.state))
        else:
            self._store.pods.put(self._seen(found))
        return found.id

    async def _take_container(self, identity: str, pod_id: str = "") -> str:
        """Takes what the runtime says of a container; returns its pod's id, empty if it knows none.

        Args:
            identity: Of the container.
            pod_id: Its pod's, if that is known.
        """
        before = self._store.containers.get(identity)
        pod_id = pod_id or (before.pod_id if before is not None else "")
        found = await self._client.container(identity, with_pod=not pod_id)
        known = self._store.containers.get(identity)
        if found is None:
            if known is not None:
                self._store.containers.remove(identity)
            return ""
        found = replace(found, pod_id=found.pod_id or pod_id)
        record = self._seen(found)
        if known is not None and known.detailed:
            record = reconciled(known, found)
        if record.state is Lifecycle.CREATED and record.id in self._started:
            record = replace(record, state=Lifecycle.RUNNING)
        members = self._store.containers.members(record.pod_id)
        self._store.containers.put(record)
        pod = self._store.pods.get(record.pod_id)
        if pod is None or not pod.detailed:
            await self._take_pod(record.pod_id)
        elif known is not None and known.detailed and known.requested != record.requested:
            await self._take_resize(pod, members)
        return record.pod_id

    async def _take_resize(self, pod: PodRecord, before: Sequence[ContainerRecord]) -> None:
        """Takes what a container's resize makes of its pod: the runtime's status tells no resize of that."""
        now = self._store.containers.members(pod.id)
        resized = resized_pod(pod, not_stopped(before), not_stopped(now))
        if resized is pod:
            return
        self._store.pods.put(resized)
        sums, of_before = by_parameter(resized.requested), by_parameter(pod.requested)
        written = {name: value for name, value in sums.items() if value != of_before.get(name)}
        await self._upkeep.on_resized(pod.cgroup_parent, written)

    def _seen(self, record: RecordT) -> RecordT:
        return replace(record, recovered=record.created_s < self._upkeep.evaluator.since_s)

    # The cgroup tree.

    def on_scanned(self, found: Sequence[ContainerCgroup]) -> None:
        # What has been made since the lists were read, and what these have not had yet.
        self._unlisted.update((each.id, each) for each in found)
        self._inventory.compare_soon()

    def is_running(self, container: ContainerCgroup) -> bool:
        known = self._store.containers.get(container.id)
        return known is not None and known.state is Lifecycle.RUNNING

    def on_made(self, container: ContainerCgroup) -> None:
        # Its details are there when it starts.
        if self._openings is not None and self._is_first(container):
            self._openings.on_starting(container.pod_uid, container.cgroup.rpartition("/")[0])
        self._present[container.id] = container.pod_uid
        self._spawn(self._learn(container))

    def _is_first(self, container: ContainerCgroup) -> bool:
        """Whether nothing of its pod has run yet."""
        if container.pod_uid in self._present.values():
            return False
        pods = self._store.pods.members(container.pod_uid)
        boxes = (box for pod in pods for box in self._store.containers.members(pod.id))
        return all(box.state is Lifecycle.CREATED for box in boxes)

    def on_started(self, container: ContainerCgroup) -> None:
        known = self._store.containers.get(container.id)
        if known is None or known.state is Lifecycle.CREATED:
            self._started.add(container.id)
        if known is not None and known.state is Lifecycle.CREATED and known.detailed:
            self._store.containers.put(replace(known, state=Lifecycle.RUNNING))
            self._evaluate_soon(known.pod_id)

    def on_removed(self, container: ContainerCgroup) -> None:
        self._started.discard(container.id)
        self._present.pop(container.id, None)
        known = self._store.containers.get(container.id)
        if known is not None and known.state is not Lifecycle.STOPPED:
            # The runtime may say so only later, and never whether it is removed.
            self._store.containers.put(replace(known, state=Lifecycle.STOPPED))
        if not self.events.is_followed and not self._has_removals:
            self._has_removals = True
            self._spawn(self._compare_after_removals())

    def on_written(self, cgroup: str, container: ContainerCgroup | None) -> None:
        if self._written.add(cgroup):
            self._spawn(self._written.run(cgroup, partial(self._compare_cgroup, cgroup, container)))

    async def _learn(self, container: ContainerCgroup) -> None:
        """Asks the runtime what a new cgroup is, until it knows."""
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        until_s = loop.time() + MOST_ASKED_S
        with suppress(RuntimeUnavailableError):  # lists follow once it answers
            while container.id in self._present and loop.time() < until_s:
                pod_id = await self._take_new(container)
                if pod_id:
                    self._evaluate_soon(pod_id)
                known = self._store.containers.get(container.id)
                is_waiting = known is not None and known.state is Lifecycle.CREATED
                if pod_id and (self.tree.sees_processes or not is_waiting):
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
        self._inventory.compare_soon()

    async def _take_new(self, container: ContainerCgroup) -> str:
        """Takes what the runtime says of a new cgroup; returns the pod's id, empty if it knows nothing."""
        pods = (pod for pod in self._store.pods.members(container.pod_uid) if pod.detailed)
        pod_id = next((pod.id for pod in pods if pod.state is Lifecycle.RUNNING), "")
        if pod_id:
            return await self._take_container(container.id, pod_id)
        # The first one is the sandbox.
        return await self._take_pod(container.id) or await self._take_container(container.id)

    async def _compare_after_removals(self) -> None:
        await asyncio.sleep(REMOVALS_S)
        self._has_removals = False
        self._inventory.compare_soon()

    # Writes of others.

    async def _compare_cgroup(self, cgroup: str, container: ContainerCgroup | None) -> None:
        await asyncio.sleep(WRITES_S)
        # An update writes all values of a container, and takes others back to the runtime's.
        if await self._upkeep.is_in_force(cgroup, SHARES if container is not None else ""):
            return
        is_changed = await self._take_update(container)
        if is_changed:
            await self._upkeep.repair(cgroup)
        await asyncio.sleep(SECOND_CHECK_S)
        is_changed = await self._take_update(container) or is_changed
        # Other writes than an update of the runtime, or a reset, are another program's.
        await self._upkeep.repair(cgroup, is_explained=is_changed)

    async def _take_update(self, container: ContainerCgroup | None) -> bool:
        """Takes what the runtime says of a container that was written to; returns whether that is news."""
        before = self._store.containers.get(container.id) if container is not None else None
        if before is None:
            return False
        with suppress(RuntimeUnavailableError):
            await self._take_container(before.id)
        now = self._store.containers.get(before.id)
        if now is None or now == before:
            return False
        await self._upkeep.evaluator.evaluate_pod(now.pod_id)
        return True

    # Lists.

    async def _mark_known(self) -> None:
        """Makes of what lists have shown what events would have."""
        mark_known(self._store, self._upkeep.evaluator.since_s)
        pods, containers = self._store.pods, self._store.containers
        unlisted, self._unlisted = self._unlisted, {}
        for identity, cgroup in unlisted.items():
            if pods.get(identity) is None and containers.get(identity) is None:
                self.on_made(cgroup)
        for identity in tuple(self._started):
            known = containers.get(identity)
            if known is not None and known.detailed and known.state is Lifecycle.CREATED:
                containers.put(replace(known, state=Lifecycle.RUNNING))
            if known is not None:
                self._started.discard(identity)

    async def _compare(self) -> None:
        """Reads lists, and the values of all containers, at intervals while changes are not reported."""
        confirmed_s = time.monotonic()
        while True:
            await asyncio.sleep(LIST_INTERVAL_S)
            is_followed = self.tree.is_followed
            interval_s = REPORTED_CONFIRM_INTERVAL_S if is_followed else CONFIRM_INTERVAL_S
            if time.monotonic() >= confirmed_s + interval_s:
                confirmed_s = time.monotonic()
                self._inventory.confirm_all()
            elif not (is_followed or self.events.is_followed):
                self._inventory.compare_soon()
