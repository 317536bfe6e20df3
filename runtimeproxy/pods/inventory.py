"""The pods and containers that run on this node, whoever tells it: records only, no message of the CRI.

There is one entry for each way to learn it: `Inventory.synchronize` for all that runs now, as the runtime's
lists or NRI's Synchronize have it, and `Inventory.load` for the checkpoint, which is confirmed later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from runtimeproxy.cgroups.paths import CgroupPathError, container_path, has_container_cgroups
from runtimeproxy.errors import RuntimeProxyError, described
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord

if TYPE_CHECKING:
    from runtimeproxy.pods.checkpoint.codec import Saved
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

SCOPE_PREFIXES: Final = {"cri-o": "crio"}
"""Prefixes of containers' ids in cgroup names, by the runtime's name. Source: CRI-O internal/config/cgmgr."""


class RuntimeUnavailableError(RuntimeProxyError):
    """The runtime did not answer: it is not there, too slow, or ended the call with an error."""


class RuntimeRefusedError(RuntimeUnavailableError):
    """The runtime is there, and ended the call with an error: this may be about one sandbox or container."""


class RuntimeClient(Protocol):
    """Asks the runtime, on a connection of its own. All methods raise RuntimeUnavailableError."""

    async def list_pods(self, labels: Mapping[str, str] | None = None) -> dict[str, PodRecord]:
        """All sandboxes by id, or those with all of the given labels."""

    async def list_containers(self, pod_id: str = "") -> dict[str, ContainerRecord]:
        """All containers by id, or those of one sandbox."""

    async def pod(self, identity: str) -> PodRecord | None:
        """One sandbox with cgroup parent and resources; None if the runtime does not know it."""

    async def container(self, identity: str, *, with_pod: bool = False) -> ContainerRecord | None:
        """One container with its resources; None if the runtime does not know it.

        Args:
            identity: Its id or a unique prefix.
            with_pod: Whether the sandbox's id is needed: that answer costs the runtime more.
        """


class RunningPods(NamedTuple):
    """All pods and containers of the node, by id: what is not among them is gone."""

    pods: Mapping[str, PodRecord]
    containers: Mapping[str, ContainerRecord]
    pods_since: int
    """The store's sequence number when the pods were asked for; later events take precedence."""
    containers_since: int


class RuntimeEvent(NamedTuple):
    """Something has happened to a sandbox or container."""

    id: str
    is_pod: bool
    is_gone: bool
    """Whether it was removed; it may be either then."""


class InventorySource(Protocol):
    """Asks what runs, from time to time."""

    def compare_soon(self) -> None:
        """Asks now: something may have passed unobserved."""

    def confirm(self, containers: Iterable[str]) -> None:
        """Has the values of these records compared with the runtime's after the next inventory."""


class Inventory:
    """Keeps the records those of what runs. Used in the event loop's thread.

    Args:
        store: The records.

    Attributes:
        store: See above.
        recovered: Set once the records are those of what runs.
        source: Asks for them, by the runtime's lists in all modes; None in a replay.
        runtime_name: The runtime's own name; empty if that is not known.
        confirms_by_status: Whether the runtime's status of a container has the values of its specification.
        on_complete: Awaited, in turn, after each whole inventory; an error of one is logged.
    """

    def __init__(self, store: PodStore) -> None:
        self.store = store
        self.recovered = asyncio.Event()
        self.source: InventorySource | None = None
        self.runtime_name = ""
        self.confirms_by_status = True
        self._refused: dict[str, str] = {}
        self.on_complete: list[Callable[[], Awaitable[None]]] = []
        self._failures = FailureLog(output=logger)

    def synchronize(self, running: RunningPods) -> None:
        """Makes the records those of all that runs; `complete` follows once they have their details.

        Records that are known stay as they are, but for a container that has started meanwhile; of new ones
        `RunningPods` may have the details (`detailed`) or not.
        """
        containers = self.store.containers
        _log_dropped(self.store.pods.merge(running.pods, running.pods_since))
        before = len(containers)
        dropped = containers.merge(running.containers, running.containers_since)
        _log_dropped(dropped)
        if added := len(containers) - before + len(dropped):
            logger.info("the runtime has containers that the records lack", extra={"containers": added})
        # The list shows a start whose response was lost.
        for known in containers:
            found = running.containers.get(known.id)
            if found is not None and known.state is Lifecycle.CREATED is not found.state:
                containers.fill(replace(known, state=found.state), running.containers_since)

    def note_refused(self, identity: str, reason: str) -> None:
        # The runtime does not tell the details of a sandbox or container.
        self._refused[identity] = reason

    def keep_refused(self, ids: Collection[str]) -> None:
        # Those that lack details still.
        self._refused = {each: reason for each, reason in self._refused.items() if each in ids}

    def refused(self) -> Iterator[tuple[PodRecord | None, ContainerRecord | None, str]]:
        """The sandboxes and containers whose details the runtime does not tell, and why.

        A sandbox comes without a container, and a container with its pod if that is known.
        """
        for identity, reason in self._refused.items():
            container, pod = self.store.containers.get(identity), self.store.pods.get(identity)
            if container is not None and not container.detailed:
                yield self.store.pods.get(container.pod_id), container, reason
            elif pod is not None and not pod.detailed:
                yield pod, None, reason

    async def complete(self) -> None:
        """All records are there, with what is known of them."""
        self.recovered.set()
        for call in self.on_complete:
            try:
                await call()
            except Exception as error:  # noqa: BLE001 - it must not affect the others, or the next inventory
                reason, bug = described(error), None if isinstance(error, TimeoutError) else error
                self._failures.report("the work after a list of what runs", reason, reason, error=bug)

    def load(self, saved: Saved, since: int, *, outdated: int = 0) -> None:
        """Takes the records of a checkpoint, and has them confirmed; see `PodStore.load`."""
        loaded = self.store.load(saved, since, outdated=outdated)
        if self.source is not None and self.confirms_by_status:
            self.source.confirm(loaded)

    def compare_soon(self) -> None:
        if self.source is not None:
            self.source.compare_soon()

    def confirm_all(self) -> None:
        # Calls may have passed without records.
        if self.source is not None and self.confirms_by_status:
            self.source.confirm(container.id for container in self.store.containers)
        self.compare_soon()

    def cgroup_of(self, pod: PodRecord | None, container: ContainerRecord) -> str:
        """The cgroup of a container; empty if its path is not known, or it has none of its own."""
        if pod is None or not pod.cgroup_parent or not has_container_cgroups(pod.runtime_handler):
            return ""
        prefix = SCOPE_PREFIXES.get(self.runtime_name, "")
        try:
            return "/" + "/".join(container_path(pod.cgroup_parent, container.id, prefix=prefix))
        except CgroupPathError:
            return ""


def _log_dropped(records: Iterable[PodRecord | ContainerRecord]) -> None:
    for record in records:
        logger.debug("the runtime no longer has it", extra={"id": record.id})
