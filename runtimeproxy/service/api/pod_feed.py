"""WatchPods: a snapshot, then each change. Used in the event loop's thread, but for `_on_book`.

Records and books call back only while somebody watches. Changes of a moment are gathered, and one message is
made of a changed pod for all watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path
from runtimeproxy.node.snapshot import Input
from runtimeproxy.pods.checkpoint.codec import RowKind
from runtimeproxy.service.api.watching import Watcher, Watchers

if TYPE_CHECKING:
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.node.sources import OnChange, OnPodsChanged
    from runtimeproxy.service.api.pods import PodMessages

GATHER_S: Final = 0.1
"""How long changes are gathered: a pod that starts changes ten times in a moment."""
IN_A_PART: Final = 100
"""Pods in one part of a snapshot; each takes some KiB, and clients take 4 MiB by default."""
IN_A_TURN: Final = 10
"""Pods of which messages are made in one turn of the loop: calls of the kubelet are served between two
turns."""
_OF_PODS: Final = frozenset({Input.STRATEGIES, Input.POD_REQUESTS, Input.PRIORITY, Input.KUBELET})
"""Inputs of the node that messages of pods depend on."""


class _Callbacks(NamedTuple):
    """Whom records, books and node called before somebody watched."""

    on_record: Callable[[RowKind, str, bool], None] | None
    on_book: Callable[[str], None] | None
    on_node: OnChange | None
    on_live: OnPodsChanged | None


NOBODY: Final = _Callbacks(None, None, None, None)


class _ChangedBooks:
    """The cgroups whose books have changed; in any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._changed: set[str] = set()

    def add(self, cgroup: str) -> bool:
        """Returns whether it is the first one since `take`."""
        with self._lock:
            is_first = not self._changed
            self._changed.add(cgroup)
        return is_first

    def take(self) -> set[str]:
        with self._lock:
            changed, self._changed = self._changed, set()
        return changed


class PodFeed:
    """All watchers of pods. `messages`: makes them, of records and values."""

    def __init__(self, messages: PodMessages) -> None:
        self._messages = messages
        self._store = messages.inventory.store
        self._loop = asyncio.get_running_loop()
        self.watchers: Watchers[api_pb2.WatchPodsResponse] = Watchers(self._begin, self._cease)
        self._known: dict[str, api_pb2.Pod] = {}
        self._filling = asyncio.Lock()
        self._is_filled = False
        self._pod_of: dict[str, str] = {}
        self._changed: dict[str, None] = {}
        self._changed_books = _ChangedBooks()
        self._timer: asyncio.TimerHandle | None = None
        self._before = NOBODY

    async def watch(
        self, request: api_pb2.WatchPodsRequest
    ) -> AsyncGenerator[api_pb2.WatchPodsResponse, None]:
        """The responses to one client.

        Raises:
            SlowWatcherError: It reads too slowly.
            WatchEndedError: The daemon ends.
        """
        watcher: Watcher[api_pb2.WatchPodsResponse] = Watcher(restarts=True)
        self.watchers.add(watcher)
        try:
            while True:
                await watcher.wait()
                if watcher.needs_snapshot:
                    await self._fill()
                    # What has changed up to now is in the snapshot.
                    self._send_changes()
                    watcher.take_snapshot()
                    watcher.take()
                    for part in self._snapshot(request.namespace):
                        yield part
                    if request.snapshot_only:
                        return
                for event in watcher.take():
                    if not request.namespace or _pod_of(event).namespace == request.namespace:
                        yield event
        finally:
            self.watchers.remove(watcher)

    def _snapshot(self, namespace: str) -> list[api_pb2.WatchPodsResponse]:
        pods = [pod for pod in self._known.values() if namespace in ("", pod.namespace)]
        pods.sort(key=lambda pod: (pod.namespace, pod.name, pod.attempt, pod.sandbox_id))
        parts = [pods[at : at + IN_A_PART] for at in range(0, len(pods), IN_A_PART)] or [[]]
        return [
            api_pb2.WatchPodsResponse(snapshot=api_pb2.PodSnapshot(pods=part, has_more=number < len(parts)))
            for number, part in enumerate(parts, 1)
        ]

    def _begin(self) -> None:
        store, books, node = self._store, self._messages.ledger.books, self._messages.node
        self._before = _Callbacks(store.on_change, books.on_change, node.on_change, node.on_pods_changed)
        store.on_change, books.on_change = self._on_record, self._on_book
        node.on_change, node.on_pods_changed = self._on_node, self._on_live
        self._pod_of = {box.id: box.pod_id for box in store.containers}

    async def _fill(self) -> None:
        # Some messages in each turn of the loop: calls go on meanwhile.
        async with self._filling:
            if self._is_filled:
                return
            for number, record in enumerate(self._store.pods, 1):
                # What has changed meanwhile is made by `_send_changes`.
                if record.id not in self._known and self._store.pods.get(record.id) is record:
                    message = self._messages.of_or_none(record)
                    if message is not None:
                        self._known[record.id] = message
                if number % IN_A_TURN == 0:
                    await asyncio.sleep(0)
            self._is_filled = True

    def _cease(self) -> None:
        store, books, node = self._store, self._messages.ledger.books, self._messages.node
        store.on_change, books.on_change, node.on_change, node.on_pods_changed = self._before
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._known, self._pod_of, self._changed = {}, {}, {}
        self._is_filled = False
        self._changed_books.take()

    def _on_record(self, kind: RowKind, identity: str, is_event: bool) -> None:
        if self._before.on_record is not None:
            self._before.on_record(kind, identity, is_event)
        if kind is RowKind.CONTAINER:
            box = self._store.containers.get(identity)
            pod_id = self._pod_of.get(identity, "") if box is None else box.pod_id
            self._pod_of[identity] = pod_id
            identity = pod_id
        self._note(identity)

    def _on_book(self, cgroup: str) -> None:
        """In any thread."""
        if self._before.on_book is not None:
            self._before.on_book(cgroup)
        if self._changed_books.add(cgroup):
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._gather)

    def _on_node(self, node: Node, inputs: frozenset[Input]) -> None:
        if self._before.on_node is not None:
            self._before.on_node(node, inputs)
        if not _OF_PODS.isdisjoint(inputs):
            for pod in self._store.pods:
                self._note(pod.id)

    def _on_live(self, node: Node, uids: frozenset[str]) -> None:
        """The API server says something else of these pods."""
        if self._before.on_live is not None:
            self._before.on_live(node, uids)
        for uid in uids:
            for pod in self._store.pods.members(uid):
                self._note(pod.id)

    def _note(self, pod_id: str) -> None:
        if pod_id:
            self._changed[pod_id] = None
            self._gather()

    def _gather(self) -> None:
        if self._timer is None and self.watchers:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._send_some)

    def _send_some(self) -> None:
        """Sends some of the changed pods, and the others in later turns of the loop."""
        self._send_changes(IN_A_TURN)
        if self._changed:
            self._timer = asyncio.get_running_loop().call_later(0, self._send_some)

    def _send_changes(self, most: int | None = None) -> None:
        """Tells all watchers what has changed, of all pods or of some of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._note_books()
        changed = list(self._changed)[:most]
        for identity in changed:
            del self._changed[identity]
            record = self._store.pods.get(identity)
            before = self._known.get(identity)
            if record is None:
                if before is not None:
                    del self._known[identity]
                    for box in before.containers:
                        self._pod_of.pop(box.id, None)
                    self.watchers.put(api_pb2.WatchPodsResponse(removed=before))
                continue
            now = self._messages.of_or_none(record)
            if now is None:
                continue
            self._known[identity] = now
            if before is None:
                self.watchers.put(api_pb2.WatchPodsResponse(added=now))
            elif now != before:
                self.watchers.put(api_pb2.WatchPodsResponse(changed=now))

    def _note_books(self) -> None:
        books = self._changed_books.take()
        if not books:
            return
        paths = {cgroup_path(each) for each in books}
        parents = paths | {path[:-1] for path in paths}
        for pod in self._store.pods:
            try:
                if pod.cgroup_parent and cgroup_path(pod.cgroup_parent) in parents:
                    self._changed[pod.id] = None
            except CgroupPathError:
                continue


def _pod_of(event: api_pb2.WatchPodsResponse) -> api_pb2.Pod:
    pod: api_pb2.Pod = getattr(event, str(event.WhichOneof("event")))
    return pod
