"""Asks a runtime over gRPC, on a connection of its own that the event loop reads.

Not with the gRPC library: its core ends the process at a GOAWAY with the error code HTTP_1_1_REQUIRED or one
that it does not know (grpcio 1.85.1, http2_status.h).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar

from runtimeproxy.errors import StatusCode
from runtimeproxy.http2.client import GrpcCall, GrpcClient, RpcError, request_block
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.inventory import RuntimeRefusedError, RuntimeUnavailableError
from runtimeproxy.pods.records import ContainerRecord, PodRecord

if TYPE_CHECKING:
    from runtimeproxy.pods.from_cri import CriRequest
    from runtimeproxy.pods.inventory import RuntimeEvent


logger = logging.getLogger(__name__)

PARSE_ON_LOOP_BYTES: Final = 64 * 1024
"""Longer responses are parsed in a worker thread."""

SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
"""Tried in this order; both have the same messages. Source: CRI; old runtimes have only the second."""

_NO_ANSWER: Final[Mapping[int, str]] = {
    StatusCode.DEADLINE_EXCEEDED: "does not answer in time",
    StatusCode.UNAVAILABLE: "cannot be reached, or is starting",
}
"""The meaning of the two codes without an answer of the runtime."""

_ABOUT_ALL: Final = frozenset({"Version", "ListPodSandbox", "ListContainers"})
"""Methods that name nothing which may be missing."""

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
    """A `RuntimeClient` over gRPC; nothing is loaded or connected before the first request.

    Args:
        executor: Worker threads for imports and for long responses.
        failures: Logs that the runtime hangs or is away; None for no log.
    """

    def __init__(
        self, settings: ClientSettings, executor: Executor, failures: FailureLog | None = None
    ) -> None:
        self._settings = settings
        self._executor = executor
        self._failures = failures
        self._is_silent = False
        self._client = GrpcClient(settings.target.removeprefix("unix:").removeprefix("//"))
        self._calls: set[GrpcCall] = set()
        self._is_loaded = False
        self._service = SERVICES[0]
        self._status_has_resources = True
        # Whether containers may have CDI devices that matter, which only the verbose status tells.
        self.needs_devices: Callable[[], bool] = lambda: False

    async def list_pods(self, labels: Mapping[str, str] | None = None) -> dict[str, PodRecord]:
        await self._load()
        from runtimeproxy.pods.from_cri import list_pods

        return _present(await self._ask(list_pods(labels or {}), self._settings.list_timeout_s))

    async def list_containers(self, pod_id: str = "") -> dict[str, ContainerRecord]:
        await self._load()
        from runtimeproxy.pods.from_cri import list_containers

        return _present(await self._ask(list_containers(pod_id), self._settings.list_timeout_s))

    async def pod(self, identity: str) -> PodRecord | None:
        await self._load()
        from runtimeproxy.pods.from_cri import pod_status

        return await self._ask(pod_status(identity), self._settings.status_timeout_s)

    async def container(self, identity: str, *, with_pod: bool = False) -> ContainerRecord | None:
        await self._load()
        from runtimeproxy.pods.from_cri import container_status

        verbose = with_pod or not self._status_has_resources or self.needs_devices()
        timeout_s = self._settings.status_timeout_s
        found = await self._ask(container_status(identity, verbose=verbose), timeout_s)
        if found is not None and not found[1] and not verbose:
            # Only the verbose status of containerd before 1.7 has resources.
            self._status_has_resources = False
            found = await self._ask(container_status(identity, verbose=True), timeout_s)
        return found[0] if found is not None else None

    async def version(self, timeout_s: float) -> bytes:
        """The response to a Version call, for probing.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time.
        """
        return _present(await self._call("Version", b"", timeout_s))

    async def runtime_name(self) -> str:
        """The runtime's own name, such as `containerd` or `cri-o`.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time.
        """
        await self._load()
        from runtimeproxy.pods.from_cri import runtime_name

        return _present(await self._ask(runtime_name(), self._settings.status_timeout_s))

    async def update_container(
        self, identity: str, scalars: Mapping[str, int | str], unified: Mapping[str, str]
    ) -> None:
        """Changes resources of a running container; no error if it does not exist any more.

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

    async def stop_container(self, identity: str, grace_s: int, timeout_s: float) -> None:
        """Stops a container; no error if it does not run, or does not exist any more.

        Args:
            identity: Its id.
            grace_s: How long it may take to end before it is killed.
            timeout_s: How long the runtime may take.

        Raises:
            RuntimeUnavailableError: The runtime did not answer in time, or refused.
        """
        await self._load()
        from runtimeproxy.pods.from_cri import stop_container

        await self._call("StopContainer", stop_container(identity, grace_s), timeout_s)

    async def follow_events(self, on_event: Callable[[RuntimeEvent], None]) -> None:
        """Calls back with each event, until the runtime ends the stream.

        Raises:
            RuntimeUnavailableError: It has none, or the stream broke.
        """
        await self._load()
        from google.protobuf.message import DecodeError

        from runtimeproxy.pods.from_cri import read_event

        ended: asyncio.Future[bytes | RpcError] = asyncio.get_running_loop().create_future()

        def on_end(outcome: bytes | RpcError) -> None:
            if not ended.done():
                ended.set_result(outcome)

        def on_message(data: bytes) -> None:
            call.credit(data)
            try:
                on_event(read_event(data))
            except DecodeError as error:
                on_end(RpcError(StatusCode.INTERNAL, f"an event does not parse: {error}"))

        path = f"/{self._service}/GetContainerEvents"
        call = self._client.call(request_block(path), b"", None, on_end, on_message)
        self._calls.add(call)
        try:
            outcome = await ended
        finally:
            self._calls.discard(call)
            call.cancel()
        if isinstance(outcome, RpcError):
            raise RuntimeUnavailableError(f"GetContainerEvents: {outcome}")

    async def close(self) -> None:
        """Ends the connection; calls under way fail."""
        self._client.close()
        for call in list(self._calls):
            call.end(RpcError(StatusCode.CANCELLED, "the connection is closed"))

    async def _ask(self, request: CriRequest[ResultT], timeout_s: float) -> ResultT | None:
        """The result of a request, or None for NOT_FOUND."""
        from google.protobuf.message import DecodeError

        body = request.message.SerializeToString()
        response = await self._call(request.method, body, timeout_s)
        if response is None:
            return None
        try:
            if len(response) <= PARSE_ON_LOOP_BYTES:
                return request.result(response)
            run = asyncio.get_running_loop().run_in_executor
            return await run(self._executor, request.result, response)
        except DecodeError as error:
            raise RuntimeRefusedError(f"{request.method}: the answer does not parse") from error

    async def _call(self, method: str, request: bytes, timeout_s: float) -> bytes | None:
        """The bytes of the response, or None for NOT_FOUND; learns which of the services the runtime has."""
        outcome = await self._attempt(self._service, method, request, timeout_s)
        if isinstance(outcome, RpcError) and outcome.code == StatusCode.UNIMPLEMENTED:
            # The runtime may be replaced by another version, so the choice of the service is not final.
            other = SERVICES[1] if self._service == SERVICES[0] else SERVICES[0]
            outcome = await self._attempt(other, method, request, timeout_s)
            if isinstance(outcome, bytes) or outcome.code == StatusCode.NOT_FOUND:
                self._service = other
        if isinstance(outcome, bytes):
            return outcome
        if outcome.code == StatusCode.NOT_FOUND:
            return None
        is_away = outcome.code in _NO_ANSWER or outcome.code == StatusCode.CANCELLED
        raise (RuntimeUnavailableError if is_away else RuntimeRefusedError)(f"{method}: {outcome}")

    async def _attempt(self, service: str, method: str, request: bytes, timeout_s: float) -> bytes | RpcError:
        ended: asyncio.Future[bytes | RpcError] = asyncio.get_running_loop().create_future()

        def on_end(outcome: bytes | RpcError) -> None:
            if not ended.done():
                ended.set_result(outcome)

        call = self._client.call(request_block(f"/{service}/{method}"), request, timeout_s, on_end)
        self._calls.add(call)
        try:
            outcome = await ended
        finally:
            self._calls.discard(call)
            call.cancel()
        if self._failures is not None:
            self._log(self._failures, method, outcome)
        return outcome

    def _log(self, failures: FailureLog, method: str, outcome: bytes | RpcError) -> None:
        """Logs that the runtime hangs or is away, once per cause and interval, and that it answers again."""
        path = self._settings.target.removeprefix("unix:")
        if isinstance(outcome, RpcError) and outcome.code in _NO_ANSWER:
            self._is_silent = True
            text = f"{_NO_ANSWER[outcome.code]}: {method}: {outcome}"
            failures.report(f"runtime {path}", outcome.code, text, runtime=path, reason=str(outcome))
        elif self._is_silent:
            self._is_silent = False
            logger.info("runtime %s: answers again", path, extra={"runtime": path})

    async def _load(self) -> None:
        if not self._is_loaded:
            module = "runtimeproxy.pods.from_cri"
            await asyncio.get_running_loop().run_in_executor(self._executor, import_module, module)
            self._is_loaded = True


class NoRuntimeClient(GrpcRuntimeClient):
    """Answers that nothing runs, on a node without a container runtime."""

    async def follow_events(self, on_event: Callable[[RuntimeEvent], None]) -> None:
        await asyncio.Event().wait()

    async def _call(self, method: str, request: bytes, timeout_s: float) -> bytes | None:
        return b"" if method in _ABOUT_ALL else None


def runtime_client(
    endpoint: str, timeout_s: float, executor: Executor, failures: FailureLog | None = None
) -> GrpcRuntimeClient:
    """A client of the runtime on a socket; an empty endpoint stands for a node without one."""
    settings = ClientSettings(f"unix:{endpoint}", list_timeout_s=timeout_s, status_timeout_s=timeout_s)
    return (GrpcRuntimeClient if endpoint else NoRuntimeClient)(settings, executor, failures)


def _present(result: ResultT | None) -> ResultT:
    if result is None:
        raise RuntimeUnavailableError("the runtime answers NOT_FOUND to a request that names nothing")
    return result
