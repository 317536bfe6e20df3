"""An API server of a few kinds, on a real socket: lists, watches, versions, and faults on command."""

from __future__ import annotations

import json
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.lab.deadline import wait_until

Fault = Callable[["Handler"], None]
"""Answers a request in place of the server."""


@dataclass
class Request:
    """A request that has come in."""

    method: str
    path: str
    query: dict[str, str]
    token: str
    body: Any = None
    content_type: str = ""

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass
class _Collection:
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Version and event."""
    forgotten: int = 0
    """Up to this version changes are no longer known."""


class ApiServer:
    """Serves from `with` to the end of its block.

    Attributes:
        tokens: Those that are accepted; None for all, none included.
        faults: Each answers one request, the oldest first.
        requests: All requests.
        missing: Paths that the server does not know.
        answers: Of POST and PATCH by the end of the path: status and body.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tokens: set[str] | None = None
        self.faults: deque[tuple[str, Fault]] = deque()
        self.requests: list[Request] = []
        self.missing: set[str] = set()
        self.answers: dict[str, tuple[int, Any]] = {}
        self._collections: dict[str, _Collection] = {}
        self._version = 100
        self._breaks = 0
        self.changed = threading.Condition()
        self.is_closing = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._server.api = self  # type: ignore[attr-defined]
        if tls is not None:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.is_tls = tls is not None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with self.changed:
            self.is_closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kubeconfig(self, folder: Path) -> Path:
        """Writes a kubeconfig of this server, without a user, into a folder; as JSON, which is YAML."""
        path = folder / "kubeconfig"
        document = {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": ""}}],
            "clusters": [{"name": "x", "cluster": {"server": self.url}}],
        }
        path.write_text(json.dumps(document))
        return path

    def put(self, path: str, name: str, **parts: Any) -> None:
        """Makes or changes an object."""
        with self.changed:
            collection = self._collections.setdefault(path, _Collection())
            self._version += 1
            metadata = {"name": name, "uid": f"uid-{name}", **parts.pop("metadata", {})}
            document = {**parts, "metadata": {**metadata, "resourceVersion": str(self._version)}}
            kind = "MODIFIED" if name in collection.objects else "ADDED"
            collection.objects[name] = document
            self._note(collection, kind, document)

    def delete(self, path: str, name: str) -> None:
        with self.changed:
            collection = self._collections[path]
            self._version += 1
            document = collection.objects.pop(name)
            document["metadata"]["resourceVersion"] = str(self._version)
            self._note(collection, "DELETED", document)

    def bookmark(self, path: str) -> None:
        """Sends a version without a change."""
        with self.changed:
            self._version += 1
            document = {"kind": "Pod", "metadata": {"resourceVersion": str(self._version)}}
            self._note(self._collections.setdefault(path, _Collection()), "BOOKMARK", document)

    def forget(self, path: str) -> None:
        """Forgets what has changed so far, as after a compaction."""
        with self.changed:
            self._version += 1
            collection = self._collections.setdefault(path, _Collection())
            collection.changes.clear()
            collection.forgotten = self._version

    def break_watches(self) -> None:
        """Loses the connections of all watches."""
        with self.changed:
            self._breaks += 1
            self.changed.notify_all()

    @property
    def breaks(self) -> int:
        """How many times all watches were lost."""
        return self._breaks

    def _note(self, collection: _Collection, kind: str, document: dict[str, Any]) -> None:
        collection.changes.append((self._version, {"type": kind, "object": json.loads(json.dumps(document))}))
        self.changed.notify_all()

    def listed(self, path: str) -> dict[str, Any]:
        with self.changed:
            items = list(self._collections.setdefault(path, _Collection()).objects.values())
            return {"kind": "TestList", "metadata": {"resourceVersion": str(self._version)}, "items": items}

    def changes_after(self, path: str, version: int) -> tuple[int, list[dict[str, Any]]] | None:
        """The newest version and what has changed since one; None if that is forgotten."""
        collection = self._collections.setdefault(path, _Collection())
        if version < collection.forgotten:
            return None
        return self._version, [event for at, event in collection.changes if at > version]

    def wait_for(self, path: str, *, is_watch: bool, count: int = 1) -> list[Request]:
        """The requests of a kind, once there are so many."""

        def found() -> list[Request] | None:
            all_ = [each for each in self.requests if each.path == path and each.is_watch is is_watch]
            return all_ if len(all_) >= count else None

        return wait_until(found, f"{count} requests for {path}")


class Handler(BaseHTTPRequestHandler):
    """Answers one connection's requests."""

    protocol_version = "HTTP/1.1"

    @property
    def api(self) -> ApiServer:
        found: ApiServer = self.server.api  # type: ignore[attr-defined]
        return found

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):  # the client has gone
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the class
        pass

    def do_GET(self) -> None:
        request = self._request()
        if not self._is_faulty(request):
            if request.is_watch:
                self._watch(request)
            else:
                self.answer(200, self.api.listed(request.path))

    def do_POST(self) -> None:
        request = self._request()
        if not self._is_faulty(request):
            found = (each for end, each in self.api.answers.items() if request.path.endswith(end))
            self.answer(*next(found, (201, {"kind": "Status", "status": "Success"})))

    do_PATCH = do_POST  # noqa: N815 - of the class

    def _request(self) -> Request:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length", 0))
        request = Request(
            self.command,
            parts.path,
            {key: values[0] for key, values in parse_qs(parts.query).items()},
            self.headers.get("Authorization", "").removeprefix("Bearer "),
            json.loads(self.rfile.read(length)) if length else None,
            self.headers.get("Content-Type", ""),
        )
        with self.api.changed:
            self.api.requests.append(request)
        return request

    def _is_faulty(self, request: Request) -> bool:
        api = self.api
        with api.changed:
            found = next((each for each in api.faults if each[0] in ("", request.path)), None)
            if found is not None:
                api.faults.remove(found)
        if found is not None:
            found[1](self)
        elif api.tokens is not None and request.token not in api.tokens:
            self.refuse(401, "Unauthorized")
        elif request.path in api.missing:
            self.refuse(404, "the server could not find the requested resource")
        else:
            return False
        return True

    def answer(self, status: int, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, message: str, **headers: str) -> None:
        self.answer(status, {"kind": "Status", "code": status, "message": message}, **headers)

    def begin_chunks(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _watch(self, request: Request) -> None:
        api, version = self.api, int(request.query["resourceVersion"])
        breaks = api.breaks
        self.begin_chunks()
        while True:
            with api.changed:
                found = api.changes_after(request.path, version)
                if found is not None and not found[1]:
                    if api.is_closing or api.breaks != breaks:
                        self.close_connection = True
                        return
                    api.changed.wait(10)
                    continue
            if found is None:
                gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
                self.chunk(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                self.chunk(b"")
                return
            version, events = found
            for event in events:
                self.chunk(json.dumps(event).encode() + b"\n")


def refusing(status: int, message: str = "no", **headers: str) -> Fault:
    return lambda handler: handler.refuse(status, message, **headers)


def sending(data: bytes) -> Fault:
    """A response in chunks that ends with this."""

    def fault(handler: Handler) -> None:
        handler.begin_chunks()
        handler.chunk(data)
        handler.chunk(b"")

    return fault


def cutting(data: bytes) -> Fault:
    """A response in chunks whose connection is lost after this."""

    def fault(handler: Handler) -> None:
        handler.begin_chunks()
        handler.chunk(data)
        handler.close_connection = True

    return fault


def hanging(handler: Handler) -> None:
    """No answer before the server ends."""
    with handler.api.changed:
        handler.api.changed.wait_for(lambda: handler.api.is_closing)
    handler.close_connection = True
