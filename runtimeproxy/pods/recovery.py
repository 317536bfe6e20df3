"""Makes the records those of the runtime: at the start, and again from time to time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.runtime import RuntimeClient, RuntimeUnavailableError
from runtimeproxy.pods.store import PodStore

LOG: Final = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
"""Pause after the first failed attempt; it doubles. Source: k8s.io/cri-client starts with 100 ms too."""

LONGEST_PAUSE_S: Final = 3.0
"""Longest pause between failed attempts. Source: k8s.io/cri-client."""


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """How records are compared with the runtime.

    Attributes:
        interval_s: Time between two comparisons of the whole list.
        concurrency: How many status calls are under way at once.
    """

    interval_s: float = 60.0
    concurrency: int = 4


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
        self._wanted = asyncio.Event()
        self.listed = asyncio.Event()
        self.recovered = asyncio.Event()

    async def run(self) -> None:
        """Recovers, and compares again at each interval, until it is cancelled.

        A runtime that does not answer is asked again after a growing pause.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self.compare()
            except RuntimeUnavailableError as error:
                LOG.info("records wait for the runtime", extra={"cause": str(error), "pause_s": pause_s})
                await self._rest(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            else:
                pause_s = FIRST_PAUSE_S
                self.recovered.set()
                if self._on_compared is not None:
                    await self._on_compared()
                await self._rest(self._settings.interval_s)

    def compare_soon(self) -> None:
        """Asks for a comparison now, for calls may have passed that nobody saw."""
        self._wanted.set()

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
            self._dropped(self._store.containers.merge(containers, since))
            self._note_starts(containers, since)
        self.listed.set()
        await self._fill_details()

    async def _fill_details(self) -> None:
        pods = [pod.id for pod in self._store.pods if _lacks_details(pod)]
        containers = [container.id for container in self._store.containers if _lacks_details(container)]
        await self._in_parallel([(self._fill_pod, identity) for identity in pods])
        await self._in_parallel([(self._fill_container, identity) for identity in containers])

    async def _in_parallel(self, jobs: list[tuple[Callable[[str], Awaitable[None]], str]]) -> None:
        """Works the jobs off with a few tasks; the first error ends them all."""
        waiting = iter(jobs)

        async def work() -> None:
            for job, identity in waiting:
                await job(identity)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._settings.concurrency, len(jobs))):
                    group.create_task(work())
        except* RuntimeUnavailableError as errors:
            raise RuntimeUnavailableError(str(errors.exceptions[0])) from errors

    async def _fill_pod(self, identity: str) -> None:
        with self._store.listing() as since:
            found = await self._client.pod(identity)
            if found is not None:
                self._store.pods.fill(found, since)

    async def _fill_container(self, identity: str) -> None:
        with self._store.listing() as since:
            found = await self._client.container(identity)
            known = self._store.containers.get(identity)
            if found is not None and known is not None:
                self._store.containers.fill(replace(found, pod_id=known.pod_id), since)

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
        self._wanted.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._wanted.wait()
        except TimeoutError:
            return


def _lacks_details(record: PodRecord | ContainerRecord) -> bool:
    """Whether a status call is worth its price: what has stopped is only waiting to be removed."""
    return not record.detailed and record.state is not Lifecycle.STOPPED
