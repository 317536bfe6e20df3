"""Brings what runs to the network's QoS: addresses of pods, and each change of them. No call waits for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from runtimeproxy.cgroups.paths import path_or_none
from runtimeproxy.fields.network import CLASS_FIELD, EGRESS_FIELD, INGRESS_FIELD
from runtimeproxy.ledger.network import PodNetworkState
from runtimeproxy.pods.inventory import RuntimeUnavailableError
from runtimeproxy.pods.records import Lifecycle, PodRecord

if TYPE_CHECKING:
    from runtimeproxy.ledger.network import NetworkControl
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

VERIFY_S: Final = 60.0
"""How often the kernel's state is compared, as that of the node is."""
GATHER_S: Final = 0.05
"""What comes within this time is one change."""
IDLE_S: Final = 0.5
"""How often it is looked whether the network may be changed."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""Between two questions about a pod whose addresses the runtime did not tell, and before what has failed is
tried again; the pause doubles."""


class PodClient(Protocol):
    """Asks the runtime; see `GrpcRuntimeClient`."""

    async def pod(self, identity: str) -> PodRecord | None: ...


class NetworkUpkeep:
    """Has classes and limits of pods made as they are asked for. Used in the event loop's thread.

    Args:
        resolved: What is wanted of a pod, by its cgroup parent; after a restart before anything is written.
        executor: Runs programs, one at a time.
        is_idle: Whether the network is left alone: not all pods are evaluated, or another process decides.
    """

    def __init__(
        self,
        control: NetworkControl,
        store: PodStore,
        client: PodClient,
        resolved: Callable[[str], Mapping[str, int | str]],
        executor: Executor,
        is_idle: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.control = control
        self._store = store
        self._client = client
        self._resolved = resolved
        self._executor = executor
        self._is_idle = is_idle
        self._sleep = sleep
        self._changed = asyncio.Event()
        self._seen: frozenset[tuple[str, object]] = frozenset()
        # Of pods whose addresses the runtime did not tell: when it is asked again, and after which pause.
        self._untold: dict[str, tuple[float, float]] = {}

    async def run(self) -> None:
        """Follows changes until it is cancelled, and compares from time to time."""
        loop = asyncio.get_running_loop()

        def on_asked() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed.set)

        self.control.on_asked = on_asked
        self._changed.set()
        checked_s, pause_s = time.monotonic(), FIRST_PAUSE_S / 2
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(checked_s + VERIFY_S - time.monotonic(), 0)):
                    await self._changed.wait()
            await self._sleep(GATHER_S)
            if self._is_idle():
                await self._sleep(IDLE_S)
                continue
            is_check = time.monotonic() >= checked_s + VERIFY_S
            if is_check:
                checked_s = time.monotonic()
            self._changed.clear()
            has_failed = True
            try:
                self.take_known()
                await self._ask_addresses()
                # A pod that is gone before the next look has been seen.
                self._seen = self._present()
                sync = partial(self.control.sync, self._running(), is_check=is_check)
                if await loop.run_in_executor(self._executor, sync):
                    self._changed.set()
                has_failed = self.control.has_failed
            except Exception:  # a bug costs this attempt, not the next one
                logger.exception("network QoS of pods could not be set")
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S) if has_failed else FIRST_PAUSE_S / 2
            if has_failed:
                loop.call_later(pause_s, self._changed.set)

    def look(self) -> None:
        """Sees whether other pods run now; cheap, to be called about every second."""
        if self.control.is_on or self._seen:
            seen = self._present()
            if seen != self._seen or (self.control.is_on and any(map(self._is_due, self._asked()))):
                self._seen = seen
                self._changed.set()

    def _present(self) -> frozenset[tuple[str, object]]:
        return frozenset((pod.id, pod.addresses) for pod in self._asked())

    def _is_due(self, pod: PodRecord) -> bool:
        """Whether the runtime is to be asked for a pod's addresses now."""
        return pod.addresses is None and time.monotonic() >= self._untold.get(pod.id, (0.0, 0.0))[0]

    def _asked(self) -> Iterable[PodRecord]:
        for pod in self._store.pods:
            if pod.state is Lifecycle.RUNNING:
                path = path_or_none(pod.cgroup_parent)
                if path is not None and self.control.is_asked(path):
                    yield pod

    def take_known(self) -> None:
        """Takes what the books want, as of the process before this one: the same is not written again.

        To be called before values are compared: they would seem to have been taken away.
        """
        for pod in self._store.pods:
            path = path_or_none(pod.cgroup_parent) if pod.state is Lifecycle.RUNNING else None
            if path is not None and not self.control.is_asked(path):
                values = self._resolved(pod.cgroup_parent)
                for name in (CLASS_FIELD, EGRESS_FIELD, INGRESS_FIELD):
                    if name in values:
                        self.control.write_pod(name, path[-1], str(values[name]))

    async def _ask_addresses(self) -> None:
        """Asks once for the addresses of each pod with a class; again for those that it does not learn."""
        pods = tuple(self._asked()) if self.control.is_on else ()
        self._untold = {pod.id: self._untold[pod.id] for pod in pods if pod.id in self._untold}
        for pod in filter(self._is_due, pods):
            try:
                found = await self._client.pod(pod.id)
            except RuntimeUnavailableError:
                found = None
            known = self._store.pods.get(pod.id)
            if found is not None and found.addresses is not None and known is not None:
                self._store.pods.revise(
                    replace(known, addresses=found.addresses, is_host_network=found.is_host_network)
                )
            else:
                _, pause_s = self._untold.get(pod.id, (0.0, FIRST_PAUSE_S / 2))
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                self._untold[pod.id] = time.monotonic() + pause_s, pause_s

    def _running(self) -> tuple[PodNetworkState, ...]:
        return tuple(
            PodNetworkState(
                pod.id,
                pod.uid or pod.id,
                f"{pod.namespace}/{pod.name}",
                path,
                pod.addresses,
                pod.is_host_network,
            )
            for pod in sorted(self._store.pods, key=lambda pod: pod.created_s)
            if pod.state is Lifecycle.RUNNING and (path := path_or_none(pod.cgroup_parent)) is not None
        )
