"""The connection to the daemon: its pods and node, and the claims of each plugin.

All calls go to the admin socket. Whatever fails, the connection ends, and another one is made after a pause:
a daemon that was restarted or upgraded is found again, and all that was known before is dropped. Used in
the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from runtimeproxy.errors import MESSAGE_PREFIX, RuntimeProxyError, StatusCode
from runtimeproxy.http2.client import GrpcClient, RpcError
from runtimeproxy.qosmanager.snapshot import CacheUse, Node, Pod, SnapshotSource, Strategies
from runtimeproxy.stubs import MAX_ANSWER_BYTES, async_stub

if TYPE_CHECKING:
    from cri_api.runtimeproxy.v1 import api_pb2
    from cri_api.runtimeproxy.v1.api_pb2_grpc import AdminAsyncStub, RuntimeProxyAsyncStub
    from runtimeproxy.logs import FailureLog

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 4.0
"""Between two connections; the longest leaves time to renew a lease of 15 s."""
POLL_S: Final = 1.0
"""Between two polls of the node; the answer is empty if nothing has changed."""
RESCTRL_POLL_S: Final = 5.0
"""Between two polls of the counters of resctrl: the kernel asks CPUs for each."""
RESCTRL: Final = "resctrl-mounted"
"""The feature of nodes that have them."""
CALL_S: Final = 5.0
"""How long the daemon may take to answer a question; then it is taken to be away."""

_REFUSALS: Final = frozenset(
    {
        StatusCode.NOT_FOUND,
        StatusCode.INVALID_ARGUMENT,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.UNIMPLEMENTED,
    }
)
"""Statuses of a daemon that is there. Source: api.proto."""
_TEXTS: Final = {
    StatusCode.DEADLINE_EXCEEDED: "the daemon does not answer in time",
    StatusCode.UNIMPLEMENTED: "this daemon does not serve this call of runtimeproxy.v1: it is older",
}

_CallT = TypeVar("_CallT")


class DaemonAwayError(RuntimeProxyError):
    """The daemon does not answer, or not as expected; the text says how."""


class ClaimsRefusedError(RuntimeProxyError):
    """The daemon does not take any claim of this owner; the text says why."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that the daemon knows."""

    pods: tuple[Pod, ...]
    node: Node
    strategies: Strategies
    versions: tuple[int, int, int]
    """Of pods, node and strategies; each rises with each change."""
    problems: tuple[str, ...]
    """Values that it has sent and that cannot be used."""
    source: SnapshotSource


@dataclass(slots=True)
class _Known:
    """Everything received on one connection."""

    pods: dict[str, Pod] = field(default_factory=dict)
    messages: dict[str, api_pb2.Pod] = field(default_factory=dict)
    has_pods: bool = False
    pods_version: int = 0
    node: Node | None = None
    node_message: api_pb2.GetNodeResponse | None = None
    node_version: int = 0
    generation: int = 0
    strategies: Strategies | None = None
    """None: not known, or the daemon does not know them itself yet."""
    strategies_version: int = 0
    cache_use: Mapping[str, CacheUse] = field(default_factory=dict)
    is_recovered: bool = False
    """Whether the daemon has found what runs: before, a pod that is not there may still run."""
    problems: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By the sandbox's id; of the node by an empty text."""

    @property
    def waits_for(self) -> str:
        """The first missing part; empty if all is there."""
        if not self.is_recovered:
            return "the daemon's records of what runs"
        if not self.has_pods:
            return "pods"
        if self.node is None:
            return "the node"
        return "" if self.strategies is not None else "the strategies of the node"


class DaemonConnection:
    """One connection, from its first answer to its first failure."""

    def __init__(self, admin: AdminAsyncStub, reads: RuntimeProxyAsyncStub) -> None:
        self.admin = admin
        self.reads = reads
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done with the reason when the connection is to end."""

    async def call(
        self,
        method: Callable[..., Awaitable[_CallT]],
        *arguments: Any,  # noqa: ANN401 - those of the method
        **options: Any,  # noqa: ANN401 - those of the method
    ) -> _CallT:
        """Makes a call and waits for its response.

        Raises:
            DaemonAwayError: the daemon is away; the connection ends.
            ClaimsRefusedError: it refuses the call as such.
        """
        if self.lost.done():
            raise DaemonAwayError(self.lost.result())
        try:
            return await method(*arguments, **options)
        except RpcError as error:
            reason = _TEXTS.get(error.code) or error.text.removeprefix(MESSAGE_PREFIX) or error.code.name
            if error.code in _REFUSALS:
                raise ClaimsRefusedError(reason) from error
            self.end(reason)
            raise DaemonAwayError(self.lost.result()) from error

    def end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)


class DaemonClient:
    """Finds the daemon, and follows its pods and node."""

    def __init__(self, path: str, failures: FailureLog) -> None:
        self._path = path
        self._failures = failures
        self._known = _Known()
        self._observed: Observed | None = None
        self._connection: DaemonConnection | None = None
        self.problem = "not connected yet"
        """Why nothing is known, for people; empty if all is."""
        self.changed = asyncio.Event()
        """Set after each change of what is known, and when the daemon is lost; the reader clears it."""

    @property
    def connection(self) -> DaemonConnection | None:
        """The present one; None while the daemon is away."""
        connection = self._connection
        return connection if connection is not None and not connection.lost.done() else None

    @property
    def observed(self) -> Observed | None:
        """None while the daemon is away, or does not know everything yet."""
        known = self._known
        if self.connection is None or known.waits_for:
            return None
        # `waits_for` is empty.
        assert known.node is not None  # noqa: S101
        assert known.node_message is not None  # noqa: S101
        assert known.strategies is not None  # noqa: S101
        versions = known.pods_version, known.node_version, known.strategies_version
        before = self._observed
        if before and before.versions == versions and before.source.node is known.node_message:
            return before
        pods = sorted(known.pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.sandbox_id))
        problems = tuple(text for _, texts in sorted(known.problems.items()) for text in texts)
        messages: Sequence[api_pb2.Pod] = [known.messages[pod.sandbox_id] for pod in pods]
        if before and before.versions[0] == known.pods_version:
            # Plugins in other processes are sent only what is another object.
            messages = before.source.pods
        source = SnapshotSource(messages, known.node_message)
        self._observed = Observed(tuple(pods), known.node, known.strategies, versions, problems, source)
        return self._observed

    @property
    def cache_use(self) -> Mapping[str, CacheUse]:
        """See `Snapshot.cache_use`."""
        return self._known.cache_use

    async def run(self) -> None:
        """Connects again and again; never ends by itself."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                async with self._connected() as connection:
                    reason = await self._serve(connection)
            except DaemonAwayError as error:
                reason = str(error)
            was_whole = not self._known.waits_for
            self._connection = None
            self._forget()
            self._set_problem(reason)
            # The end of a daemon fails calls under way in several ways: it is one cause.
            cause = "end" if was_whole else reason
            self._failures.report("daemon", cause, f"{self._path}: {reason}; nothing is computed meanwhile")
            pause_s = FIRST_PAUSE_S if was_whole else min(pause_s * 2, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    def _forget(self) -> None:
        """Drops everything; versions go on, so that no reader takes the next state for the last."""
        last = self._known
        self._known = _Known(
            pods_version=last.pods_version + 1,
            node_version=last.node_version + 1,
            strategies_version=last.strategies_version + 1,
        )

    def _set_problem(self, problem: str) -> None:
        self.problem = problem
        self.changed.set()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[DaemonConnection]:
        from cri_api.runtimeproxy.v1 import api_pb2

        services = api_pb2.DESCRIPTOR.services_by_name
        client = GrpcClient(self._path, MAX_ANSWER_BYTES, reconnects=False)
        try:
            yield DaemonConnection(
                async_stub(client, services["Admin"]), async_stub(client, services["RuntimeProxy"])
            )
        finally:
            client.abort()

    async def _serve(self, connection: DaemonConnection) -> str:
        """Follows pods and node until the connection fails; returns why."""
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = {
            loop.create_task(work(connection))
            for work in (self._follow_recovery, self._follow_pods, self._follow_node, self._follow_resctrl)
        }
        try:
            self._connection = connection
            waiting: set[asyncio.Future[object]] = {*tasks, connection.lost}  # type: ignore[arg-type]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    if not isinstance(error, DaemonAwayError | ClaimsRefusedError):
                        raise error
                    connection.end(str(error))
            connection.end("the daemon ended the connection")
            return connection.lost.result()
        finally:
            connection.end("the connection was closed")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _follow_recovery(self, connection: DaemonConnection) -> None:
        from cri_api.runtimeproxy.v1 import api_pb2

        request = api_pb2.GetStatusRequest()
        while not self._known.is_recovered:
            status = await connection.call(connection.reads.GetStatus, request, timeout=CALL_S)
            self._known.is_recovered = status.records.is_recovered
            self._note_progress()
            if not self._known.is_recovered:
                await asyncio.sleep(POLL_S)
        await connection.lost

    async def _follow_pods(self, connection: DaemonConnection) -> None:
        from cri_api.runtimeproxy.v1 import api_pb2

        while True:
            stream = aiter(connection.reads.WatchPods(api_pb2.WatchPodsRequest()))
            parts: list[api_pb2.Pod] = []
            try:
                while (event := await connection.call(anext, stream, None)) is not None:
                    self._on_pod_event(event, parts)
            except ClaimsRefusedError as error:
                # The daemon cuts a watcher off that reads too slowly: it has to begin again.
                self._failures.report("daemon", "watch", f"the watch of pods begins again: {error}")
                await asyncio.sleep(FIRST_PAUSE_S)
                continue
            connection.end("the daemon ended the watch of pods")
            return

    def _on_pod_event(self, event: api_pb2.WatchPodsResponse, parts: list[api_pb2.Pod]) -> None:
        known = self._known
        kind = event.WhichOneof("event")
        if kind == "snapshot":
            parts.extend(event.snapshot.pods)
            if event.snapshot.has_more:
                return
            known.pods.clear()
            known.messages.clear()
            known.problems = {key: value for key, value in known.problems.items() if not key}
            for message in parts:
                self._take_pod(message)
            parts.clear()
            known.has_pods = True
        elif kind is not None:
            self._take_pod(getattr(event, kind), is_removed=kind == "removed")
        known.pods_version += 1
        self._note_progress()

    def _take_pod(self, message: api_pb2.Pod, *, is_removed: bool = False) -> None:
        from cri_api.runtimeproxy.v1 import api_pb2
        from runtimeproxy.qosmanager.from_api import pod_of

        known, sandbox_id = self._known, message.sandbox_id
        known.problems.pop(sandbox_id, None)
        if is_removed or message.state != api_pb2.Pod.STATE_READY:
            known.pods.pop(sandbox_id, None)
            known.messages.pop(sandbox_id, None)
            return
        known.pods[sandbox_id], problems = pod_of(message)
        known.messages[sandbox_id] = message
        if problems:
            name = known.pods[sandbox_id].full_name
            known.problems[sandbox_id] = tuple(f"{name}: {each}" for each in problems)

    async def _follow_node(self, connection: DaemonConnection) -> None:
        from cri_api.runtimeproxy.v1 import api_pb2

        while True:
            request = api_pb2.GetNodeRequest(known_generation=self._known.generation)
            message = await connection.call(connection.reads.GetNode, request, timeout=CALL_S)
            if not message.is_unchanged:
                self._take_node(message)
            await asyncio.sleep(POLL_S)

    async def _follow_resctrl(self, connection: DaemonConnection) -> None:
        from cri_api.runtimeproxy.v1 import api_pb2
        from runtimeproxy.qosmanager.from_api import cache_use_of

        known, request = self._known, api_pb2.GetResctrlRequest()
        while True:
            if known.node_message is not None and RESCTRL in known.node_message.features:
                message = await connection.call(connection.reads.GetResctrl, request, timeout=CALL_S)
                known.cache_use = cache_use_of(message)
            else:
                known.cache_use = {}
            self.changed.set()
            await asyncio.sleep(RESCTRL_POLL_S if known.node_message is not None else POLL_S)

    def _take_node(self, message: api_pb2.GetNodeResponse) -> None:
        from cri_api.runtimeproxy.v1 import api_pb2
        from runtimeproxy.qosmanager.from_api import node_of

        known = self._known
        node, strategies, problems = node_of(message)
        known.generation, known.node_message = message.generation, message
        unknown = {each.name for each in message.inputs if each.state == api_pb2.NodeInput.STATE_UNKNOWN}
        if "strategies" not in unknown and strategies != known.strategies:
            known.strategies = strategies
            known.strategies_version += 1
        if node != known.node:
            known.node = node
            known.node_version += 1
        known.problems[""] = problems
        self._note_progress()

    def _note_progress(self) -> None:
        waits_for = self._known.waits_for
        if not waits_for and self.problem:
            logger.info("the daemon answers: %d pods", len(self._known.pods))
        self._set_problem(f"waits for {waits_for}" if waits_for else "")
