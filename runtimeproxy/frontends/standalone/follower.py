"""Keeps the records those of what runs, and has new pods and containers evaluated once they have started.

Used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from runtimeproxy.frontends.standalone.events import RuntimeEvents
from runtimeproxy.pods.reconcile import reconciled
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.state.state_file import StateFile

if TYPE_CHECKING:
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.ledger.evaluate import Evaluator
    from runtimeproxy.pods.inventory import Inventory, RuntimeEvent
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient

logger = logging.getLogger(__name__)

RecordT = TypeVar("RecordT", PodRecord, ContainerRecord)

FILE: Final = "standalone.json"
"""In the state folder."""
LIST_INTERVAL_S: Final = 10.0
"""How often lists are read of a runtime without events, beside changes of the cgroup tree."""
CONFIRM_INTERVAL_S: Final = 60.0
"""How often the values of all containers are compared with the runtime's: updates make no event."""


class Follower:
    """Takes events and lists.

    Args:
        evaluator: Asks the policies, and writes what follows.
        since_s: When this mode began on this node, in seconds since the epoch: the creation values of what is
            made from then on are the kubelet's own, as no message is changed in this mode.
    """

    def __init__(
        self,
        inventory: Inventory,
        evaluator: Evaluator,
        client: GrpcRuntimeClient,
        spawn: Spawn,
        since_s: float,
    ) -> None:
        self.events = RuntimeEvents(client, self.take, inventory.compare_soon)
        self._inventory = inventory
        self._store = inventory.store
        self._evaluator = evaluator
        self._client = client
        self._spawn = spawn
        # Pods of which something has changed, and those that are evaluated now.
        self._changed_pods: set[str] = set()
        self._evaluated_pods: set[str] = set()
        self._since_s = evaluator.since_s = since_s
        inventory.on_complete.insert(0, self._mark_known)

    def start(self) -> None:
        self._spawn(self.events.run())
        self._spawn(self._compare())

    def on_cgroups_changed(self) -> None:
        if not self.events.is_followed:
            self._inventory.compare_soon()

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
        pod = self._store.pods.get(pod_id)
        if pod is not None and pod.state is Lifecycle.RUNNING:
            self._changed_pods.add(pod.id)
            if pod.id not in self._evaluated_pods:
                # Not awaited: files may hang, and other pods' events must not wait for them.
                self._evaluated_pods.add(pod.id)
                self._spawn(self._evaluate(pod.id))

    async def _evaluate(self, pod_id: str) -> None:
        # The events of a pod that come meanwhile lead to one more evaluation.
        try:
            while pod_id in self._changed_pods:
                self._changed_pods.discard(pod_id)
                await self._evaluator.evaluate_pod(pod_id)
        finally:
            self._changed_pods.discard(pod_id)
            self._evaluated_pods.discard(pod_id)

    async def _take_pod(self, identity: str) -> str:
        found = await self._client.pod(identity)
        if found is None:
            self._store.remove_pod(identity)
            return ""
        known = self._store.pods.get(identity)
        if known is not None and known.detailed:
            self._store.pods.put(replace(known, state=found.state))
        else:
            self._store.pods.put(self._seen(found))
        return found.id

    async def _take_container(self, identity: str) -> str:
        found = await self._client.container(identity, with_pod=True)
        known = self._store.containers.get(identity)
        if found is None:
            self._store.containers.remove(identity)
            return ""
        if known is not None and known.detailed:
            record = replace(reconciled(known, found), state=found.state)
        else:
            record = self._seen(found)
        self._store.containers.put(record)
        pod = self._store.pods.get(record.pod_id)
        if pod is None or not pod.detailed:
            await self._take_pod(record.pod_id)
        return record.pod_id

    def _seen(self, record: RecordT) -> RecordT:
        return replace(record, recovered=record.created_s < self._since_s)

    async def _mark_known(self) -> None:
        """The same for what lists have shown."""
        pods, containers = self._store.pods, self._store.containers
        for pod in pods:
            if pod.recovered and pod.detailed and pod.created_s >= self._since_s:
                pods.revise(replace(pod, recovered=False))
        for container in containers:
            if container.recovered and container.detailed and container.created_s >= self._since_s:
                containers.revise(replace(container, recovered=False))

    async def _compare(self) -> None:
        """Reads lists of a runtime without events, and the values of all containers from time to time."""
        confirmed_s = time.monotonic()
        while True:
            await asyncio.sleep(LIST_INTERVAL_S)
            if time.monotonic() >= confirmed_s + CONFIRM_INTERVAL_S:
                confirmed_s = time.monotonic()
                self._inventory.confirm_all()
            elif not self.events.is_followed:
                self._inventory.compare_soon()


def begun_s(folder: Path) -> float:
    """When stand-alone mode began on this node, in seconds since the epoch; now, if that was never saved."""
    file = StateFile(folder / FILE, "what runs already gets no lower memory limits", version=1)
    found = file.load(lambda document: float(document["since_s"]))
    if found is not None:
        return found
    now_s = time.time()
    try:
        file.save({"since_s": now_s})
    except OSError as error:
        logger.warning("%s cannot be saved: %s", file.path, error.strerror)
    return now_s
