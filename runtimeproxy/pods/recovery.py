"""Makes the records those of the runtime: at the start, and again at an interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from runtimeproxy.errors import described
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.inventory import (
    Inventory,
    RunningPods,
    RuntimeClient,
    RuntimeRefusedError,
    RuntimeUnavailableError,
)
from runtimeproxy.pods.reconcile import changed_values, reconciled
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord

LOG: Final = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
"""Pause after the first failed attempt; it doubles. Source: k8s.io/cri-client starts with 100 ms too."""

LONGEST_PAUSE_S: Final = 3.0
"""Longest pause between failed attempts. Source: k8s.io/cri-client."""

SECOND_LOOK_S: Final = 1.0
"""Time between two looks at a changed container; the runtime carries out an update in less."""


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """How records are compared with the runtime.

    Attributes:
        interval_s: Time between two comparisons of the whole list.
        concurrency: Number of status calls at the same time.
        second_look_s: See `SECOND_LOOK_S`.
    """

    interval_s: float = 60.0
    concurrency: int = 8
    second_look_s: float = SECOND_LOOK_S


class Recovery:
    """An inventory by the runtime's lists, then by status calls for details that lists lack.

    Args:
        settings: None means the defaults.

    Attributes:
        inventory: See above.
    """

    def __init__(
        self, inventory: Inventory, client: RuntimeClient, settings: RecoverySettings | None = None
    ) -> None:
        self.inventory = inventory
        self._store = inventory.store
        self._client = client
        self._settings = settings or RecoverySettings()
        self._unconfirmed: set[str] = set()
        self._requested = asyncio.Event()
        self._failures = FailureLog(output=LOG)
        inventory.source = self

    async def run(self) -> None:
        """Recovers, and compares again at each interval, until it is cancelled.

        A runtime that does not answer is asked again after a growing pause.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            self._requested.clear()
            try:
                await self.compare()
                await self.inventory.complete()
                await self._confirm_all()
            except RuntimeUnavailableError as error:
                # The client has logged it, once per cause and interval.
                LOG.debug("records wait for the runtime", extra={"cause": str(error), "pause_s": pause_s})
            except Exception as error:  # noqa: BLE001 - a bug costs this comparison, not the next one
                reason = described(error)
                text = f"cannot be compared with the runtime: {reason}"
                self._failures.report("the records", reason, text, error=error)
            else:
                pause_s = FIRST_PAUSE_S
                await self._rest(self._settings.interval_s)
                continue
            await self._rest(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def compare_soon(self) -> None:
        self._requested.set()

    def confirm(self, containers: Iterable[str]) -> None:
        self._unconfirmed.update(containers)

    async def compare(self) -> None:
        """Makes the records those of the runtime's lists, then asks for missing details.

        Raises:
            RuntimeUnavailableError: The runtime did not answer; known records stay.
        """
        with self._store.listing() as pods_since:
            pods = await self._client.list_pods()
            with self._store.listing() as containers_since:
                containers = await self._client.list_containers()
                self.inventory.synchronize(RunningPods(pods, containers, pods_since, containers_since))
        pod_ids = [pod.id for pod in self._store.pods if _lacks_details(pod)]
        container_ids = [found.id for found in self._store.containers if _lacks_details(found)]
        self.inventory.keep_refused({*pod_ids, *container_ids})
        await self._for_each(self._fill_pod, pod_ids)
        await self._for_each(self._fill_container, container_ids)

    async def _for_each(self, job: Callable[[str], Awaitable[None]], ids: Collection[str]) -> None:
        """Runs a job for each id in a few tasks; a runtime that is away ends them all.

        One that it refuses to tell about is asked for again with the next list.

        Raises:
            RuntimeUnavailableError: The runtime did not answer.
        """
        waiting = iter(ids)

        async def work() -> None:
            for identity in waiting:
                try:
                    await job(identity)
                except RuntimeRefusedError as error:
                    self.inventory.note_refused(identity, str(error))
                    about: dict[str, Any] = self._about_record(identity)
                    text = f"the runtime does not tell its details: {error}"
                    self._failures.report(identity, str(error), text, **about)
                except RuntimeUnavailableError:
                    raise
                except Exception:  # a bug that one record shows must not affect the others
                    LOG.exception("a record cannot be compared", extra=self._about_record(identity))

        # No task group: it leaves the task that catches its errors marked as cancelled, and Python 3.11.2,
        # which is Debian's, then takes the next timeout for the cancellation.
        count = min(self._settings.concurrency, len(ids))
        tasks = [asyncio.create_task(work()) for _ in range(count)]  # noqa: TID251  # awaited below
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
        await self._for_each(self._confirm, tuple(self._unconfirmed))

    async def _confirm(self, identity: str) -> None:
        """Stores foreign changes of a container; if a call comes in between, it is confirmed later."""
        with self._store.listing() as since:
            record = await self._reconciled(identity)
            if record is not None:
                # A change counts only if a second look finds it, too: an update may be in progress.
                await asyncio.sleep(self._settings.second_look_s)
                record = await self._reconciled(identity)
            known = self._store.containers.get(identity)
            if record is not None and known is not None:
                if not self._store.containers.fill(record, since):
                    return
                self._log_changed(known, record)
        self._unconfirmed.discard(identity)

    async def _reconciled(self, identity: str) -> ContainerRecord | None:
        """The record of a container with foreign changes; None if there are none, or no such container."""
        found, known = await self._client.container(identity), self._store.containers.get(identity)
        if found is None or known is None:
            return None
        record = reconciled(known, found)
        return record if record is not known else None

    def _log_changed(self, known: ContainerRecord, record: ContainerRecord) -> None:
        changes = changed_values(known.booked, record.booked)
        about = self._about_container(known)
        texts = (f"{each['field']} {each['from'] or '-'} -> {each['to'] or '-'}" for each in changes)
        LOG.info(
            "%s/%s: changed while the proxy was away: %s",
            about["pod"],
            known.name,
            ", ".join(texts) or "its state",
            extra={**about, "changes": changes},
        )

    def _about_record(self, identity: str) -> dict[str, str]:
        """Fields of a log line about a container or sandbox, whichever it is."""
        container, pod = self._store.containers.get(identity), self._store.pods.get(identity)
        if container is not None:
            return self._about_container(container)
        if pod is not None:
            return {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "sandbox": pod.id}
        return {"id": identity}

    def _about_container(self, container: ContainerRecord) -> dict[str, str]:
        """Fields of a log line about a container: its pod's names and both ids."""
        pod = self._store.pods.get(container.pod_id)
        return {
            "pod": f"{pod.namespace}/{pod.name}" if pod is not None else "",
            "uid": pod.uid if pod is not None else "",
            "sandbox": container.pod_id,
            "container": container.name,
            "container_id": container.id,
        }

    async def _rest(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._requested.wait()
        except TimeoutError:
            return


def _lacks_details(record: PodRecord | ContainerRecord) -> bool:
    # Stopped ones are about to be removed.
    return not record.detailed and record.state is not Lifecycle.STOPPED
