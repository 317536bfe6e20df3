"""Keeps up with one kind of objects: a list, then watches from its resourceVersion on, in a thread.

As client-go's reflector does it: bookmarks move the version on; after 410 Gone the list is read again;
what fails is tried again after a time that doubles. Source: Kubernetes API concepts, "Efficient detection of
changes"; client-go tools/cache/reflector.go.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from runtimeproxy.cgroups.pace import with_rests
from runtimeproxy.documents.reading import InputError, mapping_of, text_of, within
from runtimeproxy.errors import described
from runtimeproxy.kubernetes.client import ApiClient, ApiError
from runtimeproxy.kubernetes.json_stream import ListReader, read_events
from runtimeproxy.logs import FailureLog

logger = logging.getLogger(__name__)

GONE: Final = 410
NOT_FOUND: Final = 404
FORBIDDEN: Final = 403
GATEWAY_TIMEOUT: Final = 504
"""Also: the version is of the future, as after a restored backup."""


class WatchTimes(NamedTuple):
    """Times of a watch, in seconds."""

    first_delay_s: float = 1.0
    """After a first failure; doubles with each one that follows, and varies by half."""
    longest_delay_s: float = 60.0
    healthy_s: float = 10.0
    """A watch that lasts so long is no failure, whatever ends it."""
    pause_s: float = 150.0
    """Longest time without a byte. The API server sends a bookmark about each minute."""
    shortest_watch_s: float = 300.0
    longest_watch_s: float = 600.0
    """How long a watch may last is random between both: so clients do not come back together.
    Source: client-go, minWatchTimeout."""
    missing_s: float = 60.0
    """How long a missing kind's last objects stay valid: a server that starts does not know it yet."""


USUAL_PACE: Final = WatchTimes()


class Resource(NamedTuple):
    """The objects to keep up with."""

    kind: str
    path: str
    field_selector: str
    is_optional: bool = False
    """Whether there are clusters without this kind."""


class Sink(Protocol):
    """Takes objects, in the thread of the watch."""

    def on_listed(self, objects: Iterable[Any]) -> None:
        """Takes all objects; errors of the iteration pass through, and then nothing has changed."""

    def on_changed(self, document: Any) -> None:  # noqa: ANN401 - JSON
        """Takes an object that is new or has changed."""

    def on_deleted(self, document: Any) -> None:  # noqa: ANN401 - JSON
        """Takes the last state of an object that is gone."""


class WatchState(StrEnum):
    """The state of a watch."""

    CONNECTING = "connecting"
    WATCHING = "watching"
    WAITING = "waiting"
    ABSENT = "absent"
    """The server does not know the kind: there are no such objects."""
    STOPPED = "stopped"


class Watch:
    """Keeps up with a resource from `start` to `stop`."""

    def __init__(
        self,
        client: ApiClient,
        resource: Resource,
        sink: Sink,
        pace: WatchTimes = USUAL_PACE,
        failures: FailureLog | None = None,
    ) -> None:
        self.resource = resource
        self.state = WatchState.CONNECTING
        self.problem = ""
        """Why it is not up to date; empty if it is."""
        self.lists = 0
        self.events = 0
        """How many times all objects were read, and how many changes."""
        self.heard_s: float | None = None
        """Time of the last answer of the server, in seconds since the epoch."""
        self._client = client
        self._sink = sink
        self._pace = pace
        self._failures = failures or FailureLog()
        self._version = ""
        """Of the last object or bookmark that was read; empty before the first list."""
        self._needs_list = True
        self._is_version_lost = False
        """Whether the server cannot answer for that version any more."""
        self._missing_since_s: float | None = None
        self._began_s = 0.0
        self._failed = 0
        self._stopping = threading.Event()
        name = f"kubernetes-{resource.kind}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        # A read that is under way is ended by closing the client.
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._began_s = time.monotonic()
            self._stopping.wait(self._follow())
        self.state = WatchState.STOPPED

    def _follow(self) -> float:
        """Watches until something ends it, after a list if need be; returns how long to wait then."""
        try:
            if self._needs_list:
                with_rests(self._list)
            with_rests(self._watch)
        except ApiError as error:
            return self._on_api_error(error)
        except InputError as error:
            # What cannot be read has no version to go on from.
            self._needs_list = True
            return self._fail(f"the answer {error}")
        except Exception as error:
            logger.debug("kubernetes: internal error", exc_info=True)
            self._needs_list = True
            return self._fail(f"internal error: {described(error)}")
        self._failed = 0
        return 0.0

    def _list(self) -> None:
        if not self.problem:
            self.state = WatchState.CONNECTING
        # From the server's cache, as kubelets do it: at least as new as what is known.
        version = "" if self._is_version_lost else self._version or "0"
        query = {"fieldSelector": self.resource.field_selector}
        if version:
            query["resourceVersion"] = version
        reader = ListReader()
        with self._client.get(self.resource.path, query) as response:
            self._sink.on_listed(reader.read(response.pieces()))
        self._version = reader.resource_version
        self._needs_list = self._is_version_lost = False
        self._missing_since_s = None
        self.lists += 1
        self.heard_s = time.time()

    def _watch(self) -> None:
        pace = self._pace
        lasts_s = random.uniform(pace.shortest_watch_s, pace.longest_watch_s)  # noqa: S311 - no secret
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "fieldSelector": self.resource.field_selector,
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(lasts_s))),
        }
        with self._client.get(self.resource.path, query, is_watch=True, pause_s=pace.pause_s) as response:
            self.state, self.problem = WatchState.WATCHING, ""
            self.heard_s = time.time()
            for event in read_events(response.pieces()):
                self._take(mapping_of(event))
                self.heard_s = time.time()
        if time.monotonic() - self._began_s < min(pace.healthy_s, lasts_s / 2):
            raise ApiError("the server ends watches at once")

    def _take(self, event: Any) -> None:  # noqa: ANN401 - JSON
        kind = event.get("type")
        document = mapping_of(event.get("object"))
        if kind == "ERROR":
            code = document.get("code")
            status = code if isinstance(code, int) else 0
            raise ApiError(f"{status}: {str(document.get('message'))[:256]}", status)
        with within("metadata"):
            metadata = mapping_of(document.get("metadata"))
            with within("resourceVersion"):
                version = text_of(metadata.get("resourceVersion"))
        if kind in ("ADDED", "MODIFIED"):
            self._sink.on_changed(document)
            self.events += 1
        elif kind == "DELETED":
            self._sink.on_deleted(document)
            self.events += 1
        if version:
            self._version = version

    def _on_api_error(self, error: ApiError) -> float:
        """Prepares the next try; returns how long to wait for it."""
        status, resource, reason = error.status, self.resource, str(error)
        if status in (GONE, GATEWAY_TIMEOUT):
            self._is_version_lost, self._needs_list = self._needs_list, True
            if status == GONE and self._has_been_healthy():
                # Nothing is wrong: the server remembers changes for some minutes only.
                return 0.0
        elif status == NOT_FOUND and resource.is_optional:
            reason = f"the server has no {resource.kind}: its CustomResourceDefinition is not installed"
            if self._is_missing():
                delay_s = self._fail(reason, is_logged=False)
                self.state, self.problem = WatchState.ABSENT, ""
                return delay_s
        elif status == FORBIDDEN:
            reason += "; see systemd/kubernetes/rbac.yaml"
        return max(self._fail(reason), error.retry_after_s or 0.0)

    def _is_missing(self) -> bool:
        """Whether the server has not known the kind for some time: then there are no such objects."""
        now_s = time.monotonic()
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        if now_s - self._missing_since_s < self._pace.missing_s:
            return False
        self._sink.on_listed(())
        return True

    def _fail(self, reason: str, *, is_logged: bool = True) -> float:
        """Notes a failure; returns how long to wait."""
        if self._has_been_healthy():
            self._failed = 0
        pace = self._pace
        delay_s = min(pace.first_delay_s * 2.0 ** min(self._failed, 30), pace.longest_delay_s)
        self._failed += 1
        if not self._stopping.is_set():
            self.problem, self.state = reason, WatchState.WAITING
            if is_logged:
                self._failures.report(f"kubernetes {self.resource.kind}", reason, reason)
        return delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def _has_been_healthy(self) -> bool:
        return time.monotonic() - self._began_s >= self._pace.healthy_s
