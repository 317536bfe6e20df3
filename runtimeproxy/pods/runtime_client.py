"""Asks a runtime over gRPC, on a connection of its own that the event loop reads.

Not with the gRPC library: its core ends the process at a GOAWAY with the error code HTTP_1_1_REQUIRED or one
that it does not know (grpcio 1.85.1, http2_status.h).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.http2.client import CallError, UnaryCall, UnaryClient, request_block
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.records import ContainerRecord, PodRecord

if TYPE_CHECKING:
    from runtimeproxy.pods.from_cri import Question


class RuntimeUnavailableError(RuntimeProxyError):
    """The runtime did not answer: it is not there, too slow, or ended the call with an error."""


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


logger = logging.getLogger(__name__)

PARSE_ON_LOOP_BYTES: Final = 64 * 1024
"""Longer answers are parsed in a worker thread."""

SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
"""Tried in this order; both have the same messages. Source: CRI; old runtimes have only the second."""

_SILENT: Final[Mapping[int, str]] = {
    StatusCode.DEADLINE_EXCEEDED: "does not answer in time",
    StatusCode.UNAVAILABLE: "cannot be reached, or is starting",
}
"""What each of the two codes says of a runtime; all others are answers."""

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How the runtime is reached.

    Attributes:
        target: gRPC name of the endpoint, such as `unix:/run/containerd/containerd.sock`.
        list_timeout_s: Longest time for one list.
        status_timeout_s: Longest time for one status call.
    """

    target: str
    list_timeout_s: float = 30.0
    status_timeout_s: float = 5.0


class GrpcRuntimeClient:
    """A `RuntimeClient` over gRPC; nothing is loaded or connected before the first question."""

    def __init__(
        self, settings: ClientSettings, executor: Executor, failures: FailureLog | None = None
    ) -> None:
        """Prepares the client.

        Args:
            settings: Where the runtime is.
            executor: Worker threads for imports and for long answers.
            failures: Where it is said that the runtime hangs or is away; None for nowhere.
        """
        self._settings = settings
        self._executor = executor
        self._failures = failures
        self._is_silent = False
        self._client = UnaryClient(settings.target.removeprefix("unix:").removeprefix("//"))
        self._calls: set[UnaryCall] = set()
        self._is_loaded = False
        self._service = SERVICES[0]
        self._status_has_resources = True

    async def list_pods(self, labels: Mapping[str, str] | None = None) -> dict[str, PodRecord]:
        """All sandboxes by id, or those with all of the given labels."""
        await self._load()
        from runtimeproxy.pods.from_cri import list_pods

        return _present(await self._ask(list_pods(labels or {}), self._settings.list_timeout_s))

    async def list_containers(self, pod_id: str = "") -> dict[str, ContainerRecord]:
        """All containers by id, or those of one sandbox."""
        await self._load()
        from runtimeproxy.pods.from_cri import list_containers

        return _present(await self._ask(list_containers(pod_id), self._settings.list_timeout_s))

    async def pod(self, identity: str) -> PodRecord | None:
        """One sandbox with cgroup parent and resources; None if the runtime does not know it."""
        await self._load()
        from runtimeproxy.pods.from_cri import pod

        return await self._ask(pod(identity), self._settings.status_timeout_s)

    async def container(self, identity: str, *, with_pod: bool = False) -> ContainerRecord | None:
        """One container with its resources; None if the runtime does not know it.

        A runtime without resources in the plain status (containerd before 1.7) is asked for the verbose one.
        """
        verbose = with_pod or not self._status_has_resources
        record, complete = await self._container(identity, verbose=verbose)
        if record is not None and not complete and not verbose:
            self._status_has_resources = False
            record, _ = await self._container(identity, verbose=True)
        return record

    async def version(self, timeout_s: float) -> bytes:
        """The answer to a Version call, for probing.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time.
        """
        answer = await self._call("Version", b"", timeout_s)
        if answer is None:
            raise RuntimeUnavailableError("Version: NOT_FOUND")
        return answer

    async def runtime_name(self) -> str:
        """What the runtime calls itself, such as `containerd` or `cri-o`.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time.
        """
        await self._load()
        from runtimeproxy.pods.from_cri import runtime_name

        return _present(await self._ask(runtime_name(), self._settings.status_timeout_s))

    async def update_container(
        self, identity: str, scalars: Mapping[str, int | str], unified: Mapping[str, str]
    ) -> None:
        """Changes resources of a container that runs; one that is gone is no error.

        Args:
            identity: Its id.
            scalars: Values by field of `Resources`.
            unified: Files of cgroup version 2 by name.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time, or refused.
        """
        await self._load()
        from runtimeproxy.pods.from_cri import update_container

        request = update_container(identity, scalars, unified)
        await self._call("UpdateContainerResources", request, self._settings.status_timeout_s)

    async def close(self) -> None:
        """Ends the connection; calls that are under way fail."""
        self._client.close()
        for call in list(self._calls):
            call.end(CallError(StatusCode.CANCELLED, "the connection is closed"))

    async def _container(self, identity: str, *, verbose: bool) -> tuple[ContainerRecord | None, bool]:
        await self._load()
        from runtimeproxy.pods.from_cri import container

        found = await self._ask(container(identity, verbose=verbose), self._settings.status_timeout_s)
        return found or (None, False)

    async def _ask(self, question: Question[ResultT], timeout_s: float) -> ResultT | None:
        """The answer, or None for NOT_FOUND."""
        answer = await self._call(question.method, question.request, timeout_s)
        return None if answer is None else await self._read(question, answer)

    async def _read(self, question: Question[ResultT], answer: bytes) -> ResultT:
        from google.protobuf.message import DecodeError

        try:
            if len(answer) <= PARSE_ON_LOOP_BYTES:
                return question.read(answer)
            return await asyncio.get_running_loop().run_in_executor(self._executor, question.read, answer)
        except DecodeError as error:
            raise RuntimeUnavailableError(f"{question.method}: the answer does not parse") from error

    async def _call(self, method: str, request: bytes, timeout_s: float) -> bytes | None:
        """The bytes of the answer, or None for NOT_FOUND; learns which of the services the runtime has."""
        answer, code, text = await self._attempt(self._service, method, request, timeout_s)
        if code == StatusCode.UNIMPLEMENTED:
            # A runtime may come back as another version, so neither service is settled for good.
            other = SERVICES[1] if self._service == SERVICES[0] else SERVICES[0]
            answer, code, text = await self._attempt(other, method, request, timeout_s)
            if code in (StatusCode.OK, StatusCode.NOT_FOUND):
                self._service = other
        if code in (StatusCode.OK, StatusCode.NOT_FOUND):
            return answer
        raise RuntimeUnavailableError(f"{method}: {text}")

    async def _attempt(
        self, service: str, method: str, request: bytes, timeout_s: float
    ) -> tuple[bytes | None, int, str]:
        """The answer's bytes, the status code, and the status as text."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[bytes | CallError] = loop.create_future()

        def done(result: bytes | CallError) -> None:
            if not outcome.done():
                outcome.set_result(result)

        call = self._client.call(request_block(f"/{service}/{method}"), request, timeout_s, done)
        self._calls.add(call)
        try:
            answer = await outcome
        finally:
            self._calls.discard(call)
            call.cancel()
        if isinstance(answer, CallError):
            text = str(answer)
            self._note(method, answer.code, text)
            return None, answer.code, text
        self._note(method, StatusCode.OK, "")
        return answer, StatusCode.OK, ""

    def _note(self, method: str, code: int, text: str) -> None:
        """Logs that the runtime hangs or is away, once per cause and interval, and that it answers again."""
        if self._failures is None:
            return
        path = self._settings.target.removeprefix("unix:")
        if code in _SILENT:
            self._is_silent = True
            self._failures.report(
                f"runtime {path}", code, f"{_SILENT[code]}: {method}: {text}", runtime=path, reason=text
            )
        elif self._is_silent:
            self._is_silent = False
            logger.info("runtime %s: answers again", path, extra={"runtime": path})

    async def _load(self) -> None:
        """Loads the CRI's messages, the first time, in a worker thread."""
        if not self._is_loaded:
            await asyncio.get_running_loop().run_in_executor(self._executor, _load)
            self._is_loaded = True


def _load() -> None:
    import runtimeproxy.pods.from_cri  # noqa: F401  # the import is the purpose


def _present(answer: ResultT | None) -> ResultT:
    if answer is None:
        raise RuntimeUnavailableError("the runtime answers NOT_FOUND to a question about itself")
    return answer
