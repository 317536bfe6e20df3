"""WatchAudit: the remembered entries, then those to come. Used in the event loop's thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.api_names import MODES
from runtimeproxy.hooks.audit import AuditEntry
from runtimeproxy.service.api.values import timestamp
from runtimeproxy.service.api.watching import Watcher, Watchers

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from runtimeproxy.hooks.audit import AuditRing

IN_A_MESSAGE: Final = 100
"""Entries; each takes up to 2 KiB."""


class AuditFeed:
    """All watchers of the audit. `flush`: hands entries that wait on to the ring."""

    def __init__(self, ring: AuditRing, flush: Callable[[], None]) -> None:
        self._ring = ring
        self._flush = flush
        self.watchers: Watchers[AuditEntry] = Watchers(self._begin, self._cease)

    async def watch(
        self, request: api_pb2.WatchAuditRequest
    ) -> AsyncGenerator[api_pb2.WatchAuditResponse, None]:
        """The responses to one client.

        Raises:
            SlowWatcherError: It reads too slowly.
            WatchEndedError: The daemon ends.
        """
        # A client may ask for what its last call has led to.
        self._flush()
        watcher: Watcher[AuditEntry] = Watcher(restarts=False)
        self.watchers.add(watcher)
        try:
            remembered = self._ring.entries
            if request.HasField("since") and remembered:
                yield api_pb2.WatchAuditResponse(oldest=timestamp(self._ring.complete_from_s))
            recent = [] if request.skip_recent else [each for each in remembered if matches(request, each)]
            for response in _responses(recent[-request.limit :] if request.limit else recent):
                yield response
            while request.follow:
                await watcher.wait()
                for response in _responses([each for each in watcher.take() if matches(request, each)]):
                    yield response
        finally:
            self.watchers.remove(watcher)

    def _begin(self) -> None:
        self._ring.followers[self] = self.watchers.put

    def _cease(self) -> None:
        del self._ring.followers[self]


def matches(request: api_pb2.WatchAuditRequest, entry: AuditEntry) -> bool:
    """Whether a client asks for an entry."""
    pod = request.pod
    names = (entry.pod_uid, entry.pod_name, f"{entry.pod_namespace}/{entry.pod_name}", entry.sandbox_id)
    if pod and pod not in names:
        return False
    if request.policy not in ("", entry.policy):
        return False
    if request.HasField("since") and entry.time_s < seconds(request.since):
        return False
    if request.HasField("until") and entry.time_s > seconds(request.until):
        return False
    return not request.kinds or entry.kind in request.kinds


def _responses(entries: Iterable[AuditEntry]) -> Iterable[api_pb2.WatchAuditResponse]:
    left = iter(entries)
    while part := list(islice(left, IN_A_MESSAGE)):
        yield api_pb2.WatchAuditResponse(entries=map(entry_message, part))


def seconds(time: Timestamp) -> float:
    return time.seconds + time.nanos / 1e9


def entry_message(entry: AuditEntry) -> api_pb2.AuditEntry:
    return api_pb2.AuditEntry(
        time=timestamp(entry.time_s),
        kind=entry.kind,
        hook=entry.hook,
        call=entry.call,
        trace_id=entry.trace_id,
        policy=entry.policy,
        mode=MODES[entry.mode],
        namespace=entry.pod_namespace,
        pod=entry.pod_name,
        uid=entry.pod_uid,
        sandbox_id=entry.sandbox_id,
        container=entry.container,
        container_id=entry.container_id,
        target=entry.target,
        field=entry.field,
        before=entry.old,
        after=entry.new,
        reason=entry.reason,
        note=entry.note,
    )
