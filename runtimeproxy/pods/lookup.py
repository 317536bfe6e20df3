"""Looks up one record at the runtime: for a call on an unknown id, or one whose response was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Final, TypeVar

from runtimeproxy.pods.inventory import RuntimeClient, RuntimeUnavailableError
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.store import PodStore

POD_UID_LABEL: Final = "io.kubernetes.pod.uid"
"""On every sandbox and container of the kubelet. Source: k8s.io/kubelet, pkg/types."""

ResultT = TypeVar("ResultT")


class Lookups:
    """Asks the runtime for single records, each within a bound of time.

    Args:
        store: Gets the records of ids, unless there was an event of the id meanwhile.
        timeout_s: Longest time for one look-up.
    """

    def __init__(self, store: PodStore, client: RuntimeClient, timeout_s: float = 1.0) -> None:
        self._store = store
        self._client = client
        self._timeout_s = timeout_s

    async def pod(self, identity: str) -> PodRecord | None:
        """The sandbox with this id or unique prefix; None if it is unknown or the look-up takes too long."""
        with self._store.listing() as since:
            try:
                found = await self.confirm_pod(identity)
            except RuntimeUnavailableError:
                found = None
            known = self._store.pods.get(identity)
            if found is not None and (known is None or not known.detailed):
                self._store.pods.fill(found, since)
        return self._store.pods.get(identity)

    async def container(self, identity: str) -> ContainerRecord | None:
        """The container with this id or prefix; None if it is unknown or the look-up takes too long."""
        with self._store.listing() as since:
            try:
                found = await self.confirm_container(identity)
            except RuntimeUnavailableError:
                found = None
            known = self._store.containers.get(identity)
            if found is not None and (known is None or not known.detailed):
                self._store.containers.fill(self._in_its_pod(found), since)
        return self._store.containers.get(identity)

    async def confirm_pod(self, identity: str) -> PodRecord | None:
        """The present record of a sandbox; None if the runtime does not know it. Nothing is stored.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time.
        """
        return await self._bounded(self._client.pod(identity))

    async def confirm_container(self, identity: str) -> ContainerRecord | None:
        """The present record of a container; None if the runtime does not know it. Nothing is stored.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time.
        """
        return await self._bounded(self._client.container(identity, with_pod=True))

    async def pod_named(self, uid: str, attempt: int) -> PodRecord | None:
        """The sandbox of this attempt at a pod, for a call whose response was lost.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time.
        """
        listed = await self._bounded(self._client.list_pods({POD_UID_LABEL: uid}))
        return next((pod for pod in listed.values() if (pod.uid, pod.attempt) == (uid, attempt)), None)

    async def container_named(self, pod_id: str, name: str, attempt: int) -> ContainerRecord | None:
        """The container of this name and attempt, for a call whose response was lost.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time.
        """
        listed = await self._bounded(self._client.list_containers(pod_id))
        return next(
            (found for found in listed.values() if (found.name, found.attempt) == (name, attempt)), None
        )

    def _in_its_pod(self, found: ContainerRecord) -> ContainerRecord:
        """The record with the sandbox's id, by the kubelet's label if the response lacks it."""
        if found.pod_id:
            return found
        known = self._store.containers.get(found.id)
        if known is not None:
            return replace(found, pod_id=known.pod_id)
        sandboxes = self._store.pods.members(found.labels.get(POD_UID_LABEL, ""))
        return replace(found, pod_id=sandboxes[-1].id) if sandboxes else found

    async def _bounded(self, looked_up: Awaitable[ResultT]) -> ResultT:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await looked_up
        except TimeoutError as error:
            raise RuntimeUnavailableError(f"no answer within {self._timeout_s} s") from error
