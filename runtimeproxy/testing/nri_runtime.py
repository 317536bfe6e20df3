"""The fake runtime's side of NRI: plugins connect to a real socket and are asked about what happens.

As in containerd: plugins are asked one after the other, in the order of their indices, one request at a time
on the whole node. One that does not answer in time, or breaks the protocol, is dropped, and the request goes
on without it, unless it validates; an error of a plugin fails the request. A plugin that connects is
configured and synchronized first.

Source: github.com/containerd/nri v0.12.5, pkg/adaptation; validators as in v0.12.3, which containerd 2.4 has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from cri_api.nri.v1alpha1 import api_pb2 as nri
from runtimeproxy.errors import StatusCode
from runtimeproxy.frontends.nri.connection import (
    INDEX_VARIABLE,
    NAME_VARIABLE,
    SOCKET_VARIABLE,
    ConnectionLostError,
    NriConnection,
    use_inherited,
)
from runtimeproxy.frontends.nri.connection import CallError as NriCallError
from runtimeproxy.frontends.nri.ttrpc import (
    Request,
    Side,
)
from runtimeproxy.testing.behaviours import CallError
from runtimeproxy.testing.nri_hostile import Hostile, HostilePeer
from runtimeproxy.testing.nri_record import WAIT_S, NriCall, NriOptions, NriRecord

T = TypeVar("T")
ReplyT = TypeVar("ReplyT", bound=Message)

_NAME: Final = re.compile(r"[-+.\w]+", re.ASCII)
_INDEX: Final = re.compile(r"[0-9]{2}")

_END_S: Final = 5.0

_OWN_CALLS: Final = frozenset(
    {
        *(nri.CREATE_CONTAINER, nri.UPDATE_CONTAINER, nri.STOP_CONTAINER),
        *(nri.UPDATE_POD_SANDBOX, nri.VALIDATE_CONTAINER_ADJUSTMENT),
    }
)
"""Events that had a call of their own before NRI 0.12."""


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-nri", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and waits for it.

        Raises:
            ConnectionLostError: The loop has ended.
        """
        loop = self._loop
        if loop is None:
            work.close()
            raise ConnectionLostError("the runtime has ended")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Calls a function in the loop, and waits for it; does nothing when the loop has ended."""

        async def work() -> None:
            function(*arguments)

        with contextlib.suppress(ConnectionLostError):
            self.run(work())

    def stop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class Synchronized(Protocol):
    """What plugins are told of when they connect, and what they update."""

    def listed(self) -> tuple[list[nri.PodSandbox], list[nri.Container]]:
        """Returns all pods, and all containers that have not ended."""
        ...

    def apply_updates(self, updates: Iterable[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        """Updates containers; returns the updates that have failed."""
        ...


@dataclass(eq=False)
class _Plugin:
    """A plugin, from the connection on.

    Attributes:
        name: Index and name, once it is registered.
        events: Mask of what it is asked about.
        registered: Done when it has said its name; fails when the connection ends before.
    """

    connection: NriConnection
    name: str = "plugin"
    events: int = 0
    policy: nri.FailurePolicy = field(default_factory=nri.FailurePolicy)
    registered: Future[None] = field(default_factory=Future)

    def wants(self, event: nri.Event.ValueType) -> bool:
        """Whether it is asked about an event."""
        return bool(self.events >> (event - 1) & 1)


class _StartError(Exception):
    """A plugin cannot be taken; the text says why."""


class NriAdaptation:
    """The socket, and the plugins behind it.

    Attributes:
        socket_path: Absolute path of the socket.
        options: Those of the next start.
        record: What has happened.
        hostile: How the next connections are treated, each in its turn, in place of being served.
        on_synchronized: Called between the synchronization of a plugin and its first event: what is made then
            is in no message to the plugin.
    """

    def __init__(
        self, socket_path: Path | str, options: NriOptions | None = None, *, record: bool = True
    ) -> None:
        """Prepares a socket; nothing happens before ``start``.

        Args:
            socket_path: Where to listen; an existing file is replaced.
            options: How the runtime does NRI; ``None`` for a new one.
            record: Whether calls are recorded.
        """
        self.socket_path = Path(socket_path).absolute()
        self.options = options or NriOptions()
        self.record = NriRecord(keeps_calls=record)
        self.hostile: deque[Hostile] = deque()
        self.on_synchronized: Callable[[], None] = lambda: None
        self._loop = _LoopThread()
        self._server: asyncio.Server | None = None
        self._connections: set[NriConnection | HostilePeer] = set()
        self._is_empty: asyncio.Event
        self._plugins: list[_Plugin] = []
        # Those of the end of the last event: one that has gone since then is asked, and fails a creation.
        self._validators: list[_Plugin] = []
        # Held during each request; the second one while a plugin is started.
        self._serial = threading.Lock()
        self._starting = threading.Lock()

    @property
    def plugins(self) -> list[str]:
        """Index and name of each plugin that is asked, in order."""
        return [each.name for each in list(self._plugins)]

    def wait_for_plugins(self, *names: str, timeout_s: float = WAIT_S) -> None:
        """Waits until exactly these plugins are asked, in this order; raises TimeoutError."""
        what = f"plugins {', '.join(names) or 'none'}"
        try:
            self.record.wait_for(lambda: self.plugins == list(names), what, timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; there are {', '.join(self.plugins) or 'none'}") from None

    def start(self, state: Synchronized) -> None:
        """Listens; plugins are told of this state."""
        self._loop.start()
        self._loop.run(self._listen(state))

    def stop(self) -> None:
        """Cuts all connections and removes the socket; nothing happens if it does not listen."""
        if self._server is not None:
            self._loop.run(self._end())
            self._loop.stop()

    def drop(self, name: str) -> None:
        """Ends the connection of a plugin, as after an answer that was late."""
        for plugin in list(self._plugins):
            if plugin.name == name:
                self._drop(plugin, "dropped by the test")

    def launch(
        self, state: Synchronized, command: Sequence[str], index: str, name: str
    ) -> subprocess.Popen[bytes]:
        """Starts a plugin as the runtime's child, with a connected socket; this is its name and index."""
        own, inherited = socket.socketpair()
        said = {
            SOCKET_VARIABLE: str(inherited.fileno()),
            NAME_VARIABLE: name,
            INDEX_VARIABLE: index,
        }
        # S603: the command is the test's.
        process = subprocess.Popen(  # noqa: S603
            list(command), env={**os.environ, **said}, pass_fds=[inherited.fileno()]
        )
        inherited.close()
        self._loop.run(use_inherited(own.detach(), self._serve(state, f"{index}-{name}")))
        return process

    def ask(self, event: nri.Event.ValueType, request: Message, reply_type: type[ReplyT]) -> list[ReplyT]:
        """Asks all plugins that want an event; returns the replies.

        Raises:
            CallError: A plugin has refused.
        """
        replies: list[ReplyT] = []
        self.ask_each(event, lambda: request, reply_type, lambda _, reply: replies.append(reply))
        return replies

    def ask_each(
        self,
        event: nri.Event.ValueType,
        request: Callable[[], Message],
        reply_type: type[ReplyT],
        on_reply: Callable[[str, ReplyT], None],
    ) -> None:
        """Asks all plugins that want an event, each with what the one before has left.

        `on_reply` is called with the plugin and its reply, before the next one is asked.

        Raises:
            CallError: A plugin has refused.
        """
        with self._serial:
            for plugin in list(self._plugins):
                if plugin.wants(event) and plugin.connection.is_open:
                    reply = self._relay(plugin, event, request(), reply_type)
                    if reply is not None:
                        on_reply(plugin.name, reply)
            if event != nri.CREATE_CONTAINER:
                self._note_validators()

    def validate(self, request: nri.ValidateContainerAdjustmentRequest) -> None:
        """Asks all validators about what plugins have made of a container.

        Raises:
            CallError: One of them rejects it, or has not answered, whatever its failure policy.
        """
        reply_type = nri.ValidateContainerAdjustmentResponse
        with self._serial:
            try:
                for plugin in self._validators:
                    reply = self._relay(plugin, nri.VALIDATE_CONTAINER_ADJUSTMENT, request, reply_type)
                    if reply is not None and reply.reject:
                        raise CallError("UNKNOWN", f"validator rejected container adjustment: {reply.reason}")
            finally:
                self._note_validators()

    def _note_validators(self) -> None:
        self._validators = [
            each for each in list(self._plugins) if each.wants(nri.VALIDATE_CONTAINER_ADJUSTMENT)
        ]

    def _relay(
        self, plugin: _Plugin, event: nri.Event.ValueType, request: Message, reply_type: type[ReplyT]
    ) -> ReplyT | None:
        method = method_name(event)
        try:
            if self.options.has_event_calls or event in _OWN_CALLS:
                try:
                    return self._call(plugin, method, request, reply_type)
                except NriCallError as error:
                    if error.code != StatusCode.UNIMPLEMENTED or event in _OWN_CALLS:
                        raise
            self._call(plugin, "StateChange", _state_change(event, request), nri.Empty)
        except (TimeoutError, ConnectionLostError) as error:
            text = f"plugin {plugin.name} did not answer {method}: {str(error) or 'late'}"
            if not (isinstance(error, TimeoutError) and plugin.policy.keep_connected):
                self._drop(plugin, text)
            if plugin.policy.fail_request or event == nri.VALIDATE_CONTAINER_ADJUSTMENT:
                raise CallError("UNKNOWN", text) from None
        except NriCallError as error:
            raise CallError("UNKNOWN", error.reason) from None
        except DecodeError as error:
            raise CallError("UNKNOWN", f"{method}: {error}") from None
        return None

    def _call(
        self,
        plugin: _Plugin,
        method: str,
        request: Message,
        reply_type: type[ReplyT],
        timeout_s: float | None = None,
    ) -> ReplyT:
        """Calls a plugin; the time is that of the options unless it is given."""
        if timeout_s is None:
            timeout_s = self.options.request_timeout_s
        # Later plugins change it.
        asked = type(request).FromString(raw := request.SerializeToString())
        began_s, found, error = time.monotonic(), list[ReplyT](), ""
        try:
            payload = self._loop.run(plugin.connection.call(method, raw, timeout_s))
            found.append(reply_type.FromString(payload))
        except (NriCallError, ConnectionLostError, TimeoutError, DecodeError) as failure:
            error = str(failure) or type(failure).__name__
            raise
        finally:
            reply = found[0] if found else None
            self.record.add(NriCall(plugin.name, method, asked, reply, error, time.monotonic() - began_s))
        return found[0]

    def _drop(self, plugin: _Plugin, reason: str) -> None:
        self.record.add_problem(reason)
        if plugin in self._plugins:
            self._plugins.remove(plugin)
        self._loop.call(plugin.connection.close, reason)

    async def _listen(self, state: Synchronized) -> None:
        self.socket_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket_path.unlink(missing_ok=True)
        self._is_empty = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: self._accept(state), str(self.socket_path))

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.socket_path.unlink(missing_ok=True)
        self._plugins.clear()
        self._validators.clear()
        for connection in list(self._connections):
            connection.close()
        # The loop makes a task of a client that it has just accepted.
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(tasks, timeout=_END_S)
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._is_empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), _END_S)

    def _accept(self, state: Synchronized) -> asyncio.Protocol:
        if self.hostile:
            peer = HostilePeer(self.hostile.popleft(), self._forget)
            self._connections.add(peer)
            return peer
        return self._serve(state)

    def _serve(self, state: Synchronized, name: str = "") -> NriConnection:
        """Makes the runtime's end of a connection; the name is that of a plugin that was launched."""
        connection = NriConnection(
            Side.RUNTIME,
            lambda request: self._on_request(plugin, request, state, name),
            lambda reason: self._on_closed(plugin, reason),
        )
        plugin = _Plugin(connection)
        self._connections.add(connection)
        _in_thread(self._start_plugin, plugin, state)
        return connection

    def _forget(self, connection: NriConnection | HostilePeer) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    def _on_closed(self, plugin: _Plugin, reason: str) -> None:
        self._forget(plugin.connection)
        if not plugin.registered.done():
            plugin.registered.set_exception(ConnectionLostError(reason))
        if plugin in self._plugins:
            self._plugins.remove(plugin)
            self.record.add_problem(f"plugin {plugin.name} is gone: {reason}")
        self.record.notify()

    def _on_request(self, plugin: _Plugin, request: Request, state: Synchronized, launched: str) -> None:
        if request.method == "RegisterPlugin":
            self._register(plugin, request, launched)
        elif request.method == "UpdateContainers":
            # Waits until the request that is handled has ended, as in containerd.
            _in_thread(self._update, plugin, request, state)
        else:
            plugin.connection.refuse(request, StatusCode.UNIMPLEMENTED, f"method {request.method}")

    def _register(self, plugin: _Plugin, request: Request, launched: str) -> None:
        asked = nri.RegisterPluginRequest.FromString(request.payload)
        problem = ""
        if plugin.registered.done():
            problem = "the plugin is registered"
        elif not launched and not _NAME.fullmatch(asked.plugin_name):
            problem = f"invalid plugin name {asked.plugin_name!r}"
        elif not launched and not _INDEX.fullmatch(asked.plugin_idx):
            problem = f"invalid plugin index {asked.plugin_idx!r}"
        name = launched or f"{asked.plugin_idx}-{asked.plugin_name}"
        self.record.add(NriCall(name, request.method, asked, None, problem, 0))
        if problem:
            plugin.connection.refuse(request, StatusCode.UNKNOWN, problem)
            if not plugin.registered.done():
                plugin.registered.set_exception(_StartError(problem))
            return
        plugin.name = name
        plugin.connection.respond(request, b"")
        plugin.registered.set_result(None)

    def _start_plugin(self, plugin: _Plugin, state: Synchronized) -> None:
        """Configures and synchronizes a plugin as soon as it is registered; one plugin after the other."""
        options = self.options
        with self._starting:
            try:
                plugin.registered.result(options.registration_timeout_s)
                self._configure(plugin, options)
                self._synchronize(plugin, state, options)
            except (
                *(TimeoutError, ConnectionLostError, NriCallError, CallError, DecodeError, _StartError),
            ) as error:
                self._drop(plugin, f"plugin {plugin.name} was not started: {str(error) or 'late'}")
                return
            self.on_synchronized()
            self._plugins.append(plugin)
            self._plugins.sort(key=lambda each: each.name[:2])
            self._note_validators()
            if not plugin.connection.is_open:
                self._on_closed(plugin, "while it was started")
        self.record.notify()

    def _configure(self, plugin: _Plugin, options: NriOptions) -> None:
        request = nri.ConfigureRequest(
            config=options.config,
            runtime_name=options.runtime_name,
            runtime_version=options.runtime_version,
            registration_timeout=round(options.registration_timeout_s * 1000),
            request_timeout=round(options.request_timeout_s * 1000),
            NRI_version=options.nri_version,
        )
        reply = self._call(plugin, "Configure", request, nri.ConfigureResponse)
        if unknown := reply.events & ~options.events:
            raise _StartError(f"invalid plugin events: {unknown:#x}")
        plugin.events = reply.events or options.events
        plugin.policy = reply.failure_policy

    def _synchronize(self, plugin: _Plugin, state: Synchronized, options: NriOptions) -> None:
        with self._serial:
            until_s = time.monotonic() + options.request_timeout_s
            updates: Iterable[nri.ContainerUpdate] = ()
            for request in _pieces(*state.listed(), options.max_message_bytes):
                left_s = max(0.001, until_s - time.monotonic())
                reply = self._call(plugin, "Synchronize", request, nri.SynchronizeResponse, left_s)
                if request.more and (reply.update or not reply.more):
                    raise _StartError("plugin does not handle split sync requests")
                updates = reply.update
            for failed in state.apply_updates(updates):
                self.record.add_problem(f"update of {failed.container_id} failed")

    def _update(self, plugin: _Plugin, request: Request, state: Synchronized) -> None:
        began_s = time.monotonic()
        asked = nri.UpdateContainersRequest.FromString(request.payload)
        reply = nri.UpdateContainersResponse(failed=self._apply(asked.update, state))
        taken_s = time.monotonic() - began_s
        self.record.add(NriCall(plugin.name, request.method, asked, reply, "", taken_s))
        self._loop.call(plugin.connection.respond, request, reply.SerializeToString())

    def _apply(
        self, updates: Iterable[nri.ContainerUpdate], state: Synchronized
    ) -> list[nri.ContainerUpdate]:
        with self._serial:
            return state.apply_updates(updates)


def _in_thread(function: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, name="fake-nri-plugin", daemon=True).start()


def method_name(event: nri.Event.ValueType) -> str:
    """The name of the call for an event."""
    return "".join(word.title() for word in nri.Event.Name(event).split("_"))


def _state_change(event: nri.Event.ValueType, request: Any) -> nri.StateChangeEvent:  # noqa: ANN401 - as above
    container = request.container if "container" in request.DESCRIPTOR.fields_by_name else None
    return nri.StateChangeEvent(event=event, pod=request.pod, container=container)


def _pieces(
    pods: Sequence[nri.PodSandbox], containers: Sequence[nri.Container], max_bytes: int
) -> Iterator[nri.SynchronizeRequest]:
    """Gives the messages of a synchronization, none of more than so many bytes unless one entry is."""
    piece, size_bytes = nri.SynchronizeRequest(), 0
    for entry in (*pods, *containers):
        # With the tag, the length and `more`.
        entry_bytes = entry.ByteSize() + 10
        if size_bytes and size_bytes + entry_bytes > max_bytes:
            piece.more = True
            yield piece
            piece, size_bytes = nri.SynchronizeRequest(), 0
        if isinstance(entry, nri.PodSandbox):
            piece.pods.append(entry)
        elif isinstance(entry, nri.Container):
            piece.containers.append(entry)
        size_bytes += entry_bytes
    yield piece
