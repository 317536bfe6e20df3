"""The files of the page, and the daemon's state for it as JSON, made of the messages of the API.

The page polls. It names the parts that it has by their tags, and gets the others. What is read is shared by
all clients for a second, and is read and encoded in a worker thread; the loop's thread only follows changes
of pods. Why a pod's values are what they are is asked for one pod at a time, when somebody opens it.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from google.protobuf.json_format import MessageToDict

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.core.audit_lines import time_text
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.service.api.audit_feed import entry_message
from runtimeproxy.service.api.pods import AmbiguousPodError, UnknownPodError
from runtimeproxy.service.api.status import StatusReading, read_memory, status_of
from runtimeproxy.service.http import PAGE_PATH, HttpResponse

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from google.protobuf.message import Message

    from runtimeproxy.hooks.audit import AuditEntry
    from runtimeproxy.service.api.loading import Load
    from runtimeproxy.service.api.servicer import RuntimeProxyServicer
    from runtimeproxy.service.http import HttpRequest

FRESH_S: Final = 1.0
"""How long what was read is served again: any number of browsers costs as much as one."""
IDLE_S: Final = 30.0
"""After so long without a poll changes of pods are not followed any more. A page polls every 2 s."""
READY_S: Final = 5.0
"""How long the first poll waits for all pods; 250 of them take 20 ms of CPU time."""
ENTRIES: Final = 200
"""Of decisions in the audit, newest first; the page shows no more."""
MOST_ASKING: Final = 8
"""Browsers that wait for the explanation of a pod at a time. One takes some milliseconds, and each page asks
for one after the other."""

_ASSETS: Final = {
    PAGE_PATH: ("page.html", "text/html; charset=utf-8"),
    f"{PAGE_PATH}/page.css": ("page.css", "text/css; charset=utf-8"),
    f"{PAGE_PATH}/page.js": ("page.js", "text/javascript; charset=utf-8"),
    f"{PAGE_PATH}/icon.svg": ("icon.svg", "image/svg+xml"),
}
_DATA: Final = f"{PAGE_PATH}/data"
_POD: Final = f"{PAGE_PATH}/pod"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_FIELDS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)
"""Names of pods are chosen by others: whatever they hold, the page runs its own script only, sends nothing
elsewhere, and no other site may read or embed it."""

ValueT = TypeVar("ValueT")


class NodePage:
    """Answers the page's requests; used in the event loop's thread.

    Args:
        load: Returns the servicer of the API.
        thread: Reads and encodes; one job at a time.
    """

    def __init__(self, load: Load, thread: Executor) -> None:
        self._load = load
        self._thread = thread
        self._lock = asyncio.Lock()
        self._parts = _Parts()
        self._read_s = -FRESH_S
        self._pods: _PodWatch | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._asking = 0
        self._explaining = asyncio.Lock()
        self._explained: dict[str, tuple[float, bytes]] = {}

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """The response to a request below `PAGE_PATH`."""
        run = asyncio.get_running_loop().run_in_executor
        host = request.fields.get("host", "")
        if not is_own_host(host, _own_names()):
            # A site elsewhere may give its name an address of this node, and is then the same origin.
            text = f"{host!r} is not this node: use its name, an address, or localhost."
            return _problem("421 Misdirected Request", text)
        if request.path in _ASSETS:
            name, content_type = _ASSETS[request.path]
            data = await run(self._thread, Path(__file__).with_name(name).read_bytes)
            return HttpResponse("200 OK", content_type, data, _FIELDS)
        if request.path == "/":
            return HttpResponse("302 Found", "text/plain", b"", (*_FIELDS, ("Location", PAGE_PATH)))
        if request.path not in (_DATA, _POD):
            return _problem("404 Not Found", f"The page is at {PAGE_PATH}.")
        try:
            if request.path == _POD:
                data = await self._explanation(unquote(request.query.removeprefix("id=")))
            else:
                async with self._lock:
                    await self._refresh()
                data = self._parts.unknown_to(request.query)
        except (UnknownPodError, AmbiguousPodError) as error:
            return _problem("404 Not Found", str(error))
        except RuntimeProxyError as error:
            return _problem("503 Service Unavailable", str(error))
        return HttpResponse("200 OK", "application/json", data, _FIELDS)

    def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._pods is not None:
            self._pods.close()
            self._pods = None

    async def _explanation(self, identity: str) -> bytes:
        """Why the values of a pod are what they are: what `Explain` answers, as JSON; shared for a second.

        Raises:
            UnknownPodError, AmbiguousPodError: No one pod has this id.
            RuntimeProxyError: The daemon cannot say it now.
        """
        if not identity:
            raise UnknownPodError("no pod is given")
        if self._asking >= MOST_ASKING:
            raise RuntimeProxyError("too many ask for pods just now: try again")
        loop = asyncio.get_running_loop()
        self._asking += 1
        try:
            async with self._explaining:
                self._explained = {
                    name: (read_s, data)
                    for name, (read_s, data) in self._explained.items()
                    if loop.time() - read_s < FRESH_S
                }
                if identity not in self._explained:
                    servicer: RuntimeProxyServicer = await self._load()
                    found = await servicer.explainer.explain(identity, "")
                    data = await loop.run_in_executor(self._thread, _encoded, found, "pod", "strategies")
                    self._explained[identity] = loop.time(), data
                return self._explained[identity][1]
        finally:
            self._asking -= 1

    async def _refresh(self) -> None:
        """Reads everything, if that was not done within the last second."""
        loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._idle.cancel()
        self._idle = loop.call_later(IDLE_S, self.close)
        if loop.time() - self._read_s < FRESH_S and self._pods is not None:
            return
        servicer: RuntimeProxyServicer = await self._load()
        parts = servicer.parts
        audit = parts.core.audit
        if self._pods is None or self._pods.error is not None:
            self._pods = _PodWatch(servicer)
        pods = self._pods
        await pods.wait()
        runtime = await parts.runtime.version()
        audit.flush()
        decisions = tuple(islice(reversed(audit.ring.decisions), ENTRIES))
        events = tuple(audit.ring.events)
        known_from = {
            "decisions": decisions[-1] if len(audit.ring.decisions) > ENTRIES else None,
            "events": events[0] if len(events) == audit.ring.events.maxlen else None,
        }
        node = servicer.node.response(0, parts.configuration.settings)
        changed = pods.take()
        for identity in changed:
            self._explained.pop(identity, None)
        watchers = servicer.watchers

        def status() -> api_pb2.GetStatusResponse:
            found = status_of(parts, StatusReading(runtime, read_memory(), parts.pod_names.find()))
            found.clients.watchers = watchers
            return found

        found = await self._in_thread(status)

        def put() -> None:
            self._parts.put_status(found)
            self._parts.put_node(node)
            self._parts.put_pods(changed)
            self._parts.put_audit((*decisions, *events), known_from)

        await loop.run_in_executor(self._thread, put)
        self._read_s = loop.time()

    async def _in_thread(self, make: Callable[[], ValueT]) -> ValueT:
        """Calls a function that reads the daemon's state.

        It sees numbers of different moments. It fails if a table grows just while it is read: then it is
        called in the loop's thread, where nothing changes meanwhile.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, make)
        except (RuntimeError, LookupError):
            return make()


def _problem(status: str, text: str) -> HttpResponse:
    return HttpResponse(status, "text/plain; charset=utf-8", f"{text}\n".encode(), _FIELDS)


class _PodWatch:
    """The pods as they are now, from a watch of the API."""

    def __init__(self, servicer: RuntimeProxyServicer) -> None:
        self.error: RuntimeProxyError | None = None
        self._changed: dict[str, api_pb2.Pod | None] = {}
        self._is_settled = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(servicer))

    async def _run(self, servicer: RuntimeProxyServicer) -> None:
        try:
            await self._follow(servicer)
        except RuntimeProxyError as error:
            self.error = error
        finally:
            self._is_settled.set()

    async def _follow(self, servicer: RuntimeProxyServicer) -> None:
        known: set[str] = set()
        is_first_part = True
        async for event in servicer.pods.watch(api_pb2.WatchPodsRequest()):
            match event.WhichOneof("event"):
                case "snapshot":
                    if is_first_part:
                        self._changed |= dict.fromkeys(known)
                        known.clear()
                    found = {pod.sandbox_id: pod for pod in event.snapshot.pods}
                    self._changed |= found
                    known |= found.keys()
                    is_first_part = not event.snapshot.has_more
                    if is_first_part:
                        self._is_settled.set()
                case "removed":
                    known.discard(event.removed.sandbox_id)
                    self._changed[event.removed.sandbox_id] = None
                case kind:
                    pod: api_pb2.Pod = getattr(event, str(kind))
                    known.add(pod.sandbox_id)
                    self._changed[pod.sandbox_id] = pod

    async def wait(self) -> None:
        """Waits until all pods are known.

        Raises:
            TimeoutError: They are not known in time.
            RuntimeProxyError: They cannot be watched: the daemon ends.
        """
        async with asyncio.timeout(READY_S):
            await self._is_settled.wait()
        if self.error is not None:
            raise self.error

    def take(self) -> dict[str, api_pb2.Pod | None]:
        """The pods that have changed since the last time, by sandbox; None for those that are gone."""
        changed, self._changed = self._changed, {}
        return changed

    def close(self) -> None:
        self._task.cancel()


class _Parts:
    """The parts of the answer as JSON, each with a tag that is another one for another content."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[str, bytes]] = {}
        self._node: api_pb2.GetNodeResponse | None = None
        self._pods: dict[str, bytes] = {}
        self._entries: dict[AuditEntry, bytes] = {}

    def put_status(self, status: api_pb2.GetStatusResponse) -> None:
        self._put("status", _encoded(status))

    def put_node(self, node: api_pb2.GetNodeResponse) -> None:
        # A node that has not changed is the same object.
        if node is not self._node:
            self._node = node
            self._put("node", _encoded(node, "plugin_strategies", "labels", "annotations"))

    def put_pods(self, changed: Mapping[str, api_pb2.Pod | None]) -> None:
        for identity, pod in changed.items():
            if pod is None:
                self._pods.pop(identity, None)
            else:
                self._pods[identity] = _encoded(pod, "strategies", "labels", "annotations")
        if changed or "pods" not in self._parts:
            self._put("pods", _array(self._pods.values()))

    def put_audit(self, entries: Iterable[AuditEntry], known_from: Mapping[str, AuditEntry | None]) -> None:
        """Takes audit entries, and the first of each sort before which others are missing, if any are."""
        newest_first = sorted(entries, key=lambda each: each.time_s, reverse=True)
        self._entries = {
            each: self._entries.get(each) or _encoded(entry_message(each)) for each in newest_first
        }
        self._put("audit", _array(self._entries[each] for each in newest_first))
        times = {name: time_text(each.time_s) for name, each in known_from.items() if each is not None}
        self._put("auditFrom", json.dumps(times).encode())

    def unknown_to(self, query: str) -> bytes:
        """The parts whose tags are not in `known=TAG.TAG`, and the tags of all."""
        known = set(query.removeprefix("known=").split("."))
        parts = tuple(self._parts.items())
        tags = json.dumps([tag for _, (tag, _) in parts]).encode()
        found = (b'"%b":%b' % (name.encode(), data) for name, (tag, data) in parts if tag not in known)
        return b"{" + b",".join((b'"tags":%b' % tags, *found)) + b"}"

    def _put(self, name: str, data: bytes) -> None:
        digest = hashlib.blake2b(data, digest_size=8, person=name.encode())
        self._parts[name] = (digest.hexdigest(), data)


def _encoded(message: Message, *unused: str) -> bytes:
    """A message as JSON, without fields that the page does not show."""
    if unused:
        whole, message = message, type(message)()
        message.CopyFrom(whole)
        for name in unused:
            message.ClearField(name)
    fields: dict[str, Any] = MessageToDict(message)
    return json.dumps(fields, separators=(",", ":")).encode()


def _array(items: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"


def _own_names() -> frozenset[str]:
    name = os.uname().nodename.lower()
    return frozenset((name, name.partition(".")[0]))


_BRACKETED: Final = re.compile(r"\[([0-9a-f:.]+)\](?::[0-9]*)?")
"""An IPv6 address in a URL's authority, with a port or without. Source: RFC 3986, 3.2.2."""


def is_own_host(host: str, names: frozenset[str]) -> bool:
    """Whether a header field `Host` names this node in a way that no other site can.

    Args:
        host: An address or a name, with a port or without.
        names: The names of this node, in lower case.
    """
    name = host.strip().lower()
    if bracketed := _BRACKETED.fullmatch(name):
        name = bracketed[1]
    elif name.count(":") == 1:
        name, _, port = name.partition(":")
        if port and not (port.isascii() and port.isdigit()):
            return False
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
