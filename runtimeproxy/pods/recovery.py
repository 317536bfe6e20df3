"""Makes the records those of the runtime: at the start, and again from time to time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from runtimeproxy.pods.reconcile import changed_values, reconciled
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.runtime_client import RuntimeClient, RuntimeUnavailableError
from runtimeproxy.pods.store import PodStore

LOG: Final = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
"""Pause after the first failed attempt; it doubles. Source: k8s.io/cri-client starts with 100 ms too."""

LONGEST_PAUSE_S: Final = 3.0
"""Longest pause between failed attempts. Source: k8s.io/cri-client."""

SECOND_LOOK_S: Final = 1.0
"""How long after the first look a change counts; an update of a container takes the runtime less."""


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """How records are compared with the runtime.

    Attributes:
        interval_s: Time between two comparisons of the whole list.
        concurrency: How many status calls are under way at once.
    """

    interval_s: float = 60.0
    concurrency: int = 8


class Recovery:
    """Fills the store from the runtime's lists, then from status calls for what lists do not say.

    Attributes:
        listed: Set once all pods and containers are known, though not yet in detail.
        recovered: Set once the first whole comparison, details included, is done.
    """

    def __init__(
        self,
        store: PodStore,
        client: RuntimeClient,
        settings: RecoverySettings | None = None,
        on_drop: Callable[[PodRecord | ContainerRecord], None] | None = None,
        on_compared: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Prepares the recovery.

        Args:
            store: Gets the records.
            client: The runtime.
            settings: None means the defaults.
            on_drop: Is told about each record whose pod or container the runtime no longer has.
            on_compared: What follows each whole comparison of `run`.
        """
        self._store = store
        self._client = client
        self._settings = settings or RecoverySettings()
        self._on_drop = on_drop
        self._on_compared = on_compared
        self._unconfirmed: set[str] = set()
        self._wanted = asyncio.Event()
        self.listed = asyncio.Event()
        self.recovered = asyncio.Event()

    async def run(self) -> None:
        """Recovers, and compares again at each interval, until it is cancelled.

        A runtime that does not answer is asked again after a growing pause.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            self._wanted.clear()
            try:
                await self.compare()
                self.recovered.set()
                if self._on_compared is not None:
                    await self._on_compared()
                await self._confirm_all()
            except RuntimeUnavailableError as error:
                # The client has logged it, once per cause and interval.
                LOG.debug("records wait for the runtime", extra={"cause": str(error), "pause_s": pause_s})
                await self._rest(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S
                await self._rest(self._settings.interval_s)

    def compare_soon(self) -> None:
        """Asks for a comparison now, for calls may have passed that nobody saw."""
        self._wanted.set()

    def confirm(self, containers: Iterable[str]) -> None:
        """Has the runtime asked, after the next comparison, what has become of saved records meanwhile."""
        self._unconfirmed.update(containers)

    async def compare(self) -> None:
        """Makes the records those of the runtime's lists, then asks for the details that are missing.

        Raises:
            RuntimeUnavailableError: The runtime did not answer; what is known stays.
        """
        with self._store.listing() as since:
            pods = await self._client.list_pods()
            self._dropped(self._store.pods.merge(pods, since))
        with self._store.listing() as since:
            containers = await self._client.list_containers()
            before = len(self._store.containers)
            dropped = self._store.containers.merge(containers, since)
            self._dropped(dropped)
            self._tell_added(len(self._store.containers) - before + len(dropped))
            self._note_starts(containers, since)
        self.listed.set()
        await self._fill_details()

    async def _fill_details(self) -> None:
        pods = [(self._fill_pod, pod.id) for pod in self._store.pods if _lacks_details(pod)]
        containers = [
            (self._fill_container, found.id) for found in self._store.containers if _lacks_details(found)
        ]
        await self._in_parallel([*pods, *containers])

    async def _in_parallel(self, jobs: list[tuple[Callable[[str], Awaitable[None]], str]]) -> None:
        """Works the jobs off with a few tasks; a runtime that is away ends them all.

        Raises:
            RuntimeUnavailableError: The runtime did not answer.
        """
        waiting = iter(jobs)

        async def work() -> None:
            for job, identity in waiting:
                try:
                    await job(identity)
                except RuntimeUnavailableError:
                    raise
                except Exception:  # a defect that one record shows must not keep the others from coming
                    LOG.exception("a record cannot be compared", extra=self._about_record(identity))

        # No task group: it leaves the task that catches its errors marked as cancelled, and Python 3.11.2,
        # which is Debian's, then takes the next timeout for the cancellation.
        count = min(self._settings.concurrency, len(jobs))
        tasks = [asyncio.create_task(work()) for _ in range(count)]  # noqa: TID251  # awaited below
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _about_record(self, identity: str) -> dict[str, str]:
        """Fields of a line about a container or sandbox, whichever it is."""
        container, pod = self._store.containers.get(identity), self._store.pods.get(identity)
        if container is not None:
            return self._about(container)
        if pod is not None:
            return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "sandbox": pod.id}
        return {"id": identity}

    async def _fill_pod(self, identity: str) -> None:
        with self._store.listing() as since:
            found, known = await self._client.pod(identity), self._store.pods.get(identity)
            if found is not None and known is not None and not known.detailed:
                self._store.pods.fill(found, since)

    async def _fill_container(self, identity: str) -> None:
        with self._store.listing() as since:
            found = await self._client.container(identity)
            known = self._store.containers.get(identity)
            if found is not None and known is not None and not known.detailed:
                self._store.containers.fill(replace(found, pod_id=known.pod_id), since)

    async def _confirm_all(self) -> None:
        known = map(self._store.containers.get, self._unconfirmed)
        alive = {found.id for found in known if found is not None and found.state is not Lifecycle.STOPPED}
        self._unconfirmed &= alive
        await self._in_parallel([(self._confirm, identity) for identity in tuple(self._unconfirmed)])

    async def _confirm(self, identity: str) -> None:
        """Takes what somebody else has changed; if a call comes in between, it is asked again later."""
        with self._store.listing() as since:
            found = await self._client.container(identity)
            known = self._store.containers.get(identity)
            if found is not None and known is not None:
                record = reconciled(known, found)
                if record is not known and not await self._take_changed(identity, since):
                    return
        self._unconfirmed.discard(identity)

    async def _take_changed(self, identity: str, since: int) -> bool:
        """Takes a change if it is still there a moment later: an update may be under way at the runtime."""
        await asyncio.sleep(SECOND_LOOK_S)
        found, known = await self._client.container(identity), self._store.containers.get(identity)
        if found is None or known is None:
            return True
        record = reconciled(known, found)
        if not self._store.containers.fill(record, since):
            return False
        self._tell_changed(known, record)
        return True

    def _tell_changed(self, known: ContainerRecord, record: ContainerRecord) -> None:
        """Says whose values somebody else has changed, and which."""
        changes = changed_values(known.applied, record.applied)
        about = self._about(known)
        texts = (f"{each['field']} {each['from'] or '-'} -> {each['to'] or '-'}" for each in changes)
        LOG.info(
            "%s/%s: changed while nobody looked: %s",
            about["pod"],
            known.name,
            ", ".join(texts) or "its state",
            extra={**about, "changes": changes},
        )

    def _about(self, container: ContainerRecord) -> dict[str, str]:
        """Fields of a line about a container: its pod's names and both ids."""
        pod = self._store.pods.get(container.pod_id)
        return {
            "pod": f"{pod.namespace}/{pod.name}" if pod is not None else "",
            "uid": pod.uid if pod is not None else "",
            "sandbox": container.pod_id,
            "container": container.name,
            "container_id": container.id,
        }

    def _tell_added(self, count: int) -> None:
        if count:
            LOG.info("the runtime has containers that the records lack", extra={"containers": count})

    def _note_starts(self, listed: Mapping[str, ContainerRecord], since: int) -> None:
        """A start whose end nobody saw shows in the list."""
        for known in self._store.containers:
            found = listed.get(known.id)
            if found is not None and known.state is Lifecycle.CREATED is not found.state:
                self._store.containers.fill(replace(known, state=found.state), since)

    def _dropped(self, records: tuple[PodRecord | ContainerRecord, ...]) -> None:
        for record in records:
            LOG.debug("the runtime has it no longer", extra={"id": record.id})
            if self._on_drop is not None:
                self._on_drop(record)

    async def _rest(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._wanted.wait()
        except TimeoutError:
            return


def _lacks_details(record: PodRecord | ContainerRecord) -> bool:
    """Whether a status call is worth its price: what has stopped is only waiting to be removed."""
    return not record.detailed and record.state is not Lifecycle.STOPPED
