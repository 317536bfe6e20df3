"""The surroundings of an intercepted call, scripted: replies, a runtime that answers from tables."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.core.services import CoreServices, EventProblems
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import frame_message
from runtimeproxy.frontends.cri_proxy.calls.intercepted_call import InterceptedCall
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor, CallServices, CallSettings
from runtimeproxy.frontends.cri_proxy.calls.long_work import LongWork
from runtimeproxy.frontends.cri_proxy.interception import CallHandler, CallHead, Outcome
from runtimeproxy.hooks import EVERY_POD, CgroupChange, FailurePolicy, Hook, PodSelector, Policy
from runtimeproxy.hooks.algebra import resolve
from runtimeproxy.hooks.audit import AuditEntry
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.loaded import LoadedPolicy, OnResponse, bind
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.logs import FailureLog
from runtimeproxy.node.snapshot import Node
from runtimeproxy.pods.inventory import Inventory, RuntimeUnavailableError
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing.builders import container_config, pod_sandbox_config

SERVICE = "runtime.v1.RuntimeService"
POD_ID = "0123456789abcdef" * 4
CONTAINER_ID = "fedcba9876543210" * 4
PATIENT = CallSettings(budget_s=30.0, end_wait_s=30.0)
"""No call is hurried, however slow the machine is."""


class RecordedReply:
    """Keeps what a handler decided."""

    def __init__(self) -> None:
        self.forwarded: list[bytes | None] = []
        self.refused: list[tuple[int, str]] = []
        self.reserved: list[int] = []
        self.kept: list[int] = []
        self.may_keep = True
        self.has_room = True
        self.waiting: Callable[[], None] | None = None
        self._done = asyncio.Event()

    def forward(self, data: bytes | None) -> None:
        self.forwarded.append(data)
        self._done.set()

    def reserve(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        self.reserved.append(size_bytes)
        if self.has_room:
            on_granted()
        else:
            self.waiting = on_granted

    def keep(self, size_bytes: int) -> bool:
        self.kept.append(size_bytes)
        return self.may_keep

    def refuse(self, code: int, text: str) -> None:
        self.refused.append((code, text))
        self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    async def done(self) -> None:
        async with asyncio.timeout(30):
            await self._done.wait()

    def sent(self, kind: type[Message], original: bytes) -> Any:
        """The message that went to the runtime."""
        (data,) = self.forwarded
        frame = original if data is None else data
        return kind.FromString(frame[5:])


class ScriptedRuntime:
    """A `RuntimeClient` that answers from tables."""

    def __init__(self) -> None:
        self.pods: dict[str, PodRecord] = {}
        self.containers: dict[str, ContainerRecord] = {}
        self.asked: list[str] = []
        self.is_down = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def list_pods(self, labels: Mapping[str, str] | None = None) -> dict[str, PodRecord]:
        await self._asked("list_pods")
        return dict(self.pods)

    async def list_containers(self, pod_id: str = "") -> dict[str, ContainerRecord]:
        await self._asked("list_containers")
        return {key: value for key, value in self.containers.items() if pod_id in ("", value.pod_id)}

    async def pod(self, identity: str) -> PodRecord | None:
        await self._asked(f"pod {identity}")
        return next((pod for key, pod in self.pods.items() if key.startswith(identity)), None)

    async def container(self, identity: str, *, with_pod: bool = False) -> ContainerRecord | None:
        await self._asked(f"container {identity}")
        return next((found for key, found in self.containers.items() if key.startswith(identity)), None)

    async def _asked(self, question: str) -> None:
        self.asked.append(question)
        await self.answers.wait()
        if self.is_down:
            raise RuntimeUnavailableError("down")


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class RecordedLedger:
    """Keeps what was written, and fails as scripted; its own books."""

    written: list[tuple[str, dict[str, int | str]]] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    booked: list[Wanted] = field(default_factory=list)
    claimed: list[Wanted] = field(default_factory=list)
    quotas: list[tuple[str, int]] = field(default_factory=list)
    rooms: list[tuple[str, Mapping[str, int | str]]] = field(default_factory=list)
    resizes: list[tuple[str, Mapping[str, int | str]]] = field(default_factory=list)
    noted: list[tuple[str, Mapping[str, int | str]]] = field(default_factory=list)
    narrow: str = "nowhere"
    bounds: dict[str, int | str] = field(default_factory=dict)
    error: str = ""
    lets_renew: threading.Event = field(default_factory=_set_event)

    @property
    def books(self) -> RecordedLedger:
        return self

    def record(self, identity: str) -> None:
        return None

    def book(self, wanted: Wanted) -> None:
        self.booked.append(wanted)

    def change(self, wanted: Sequence[Wanted]) -> tuple[WriteResult, ...]:
        self.claimed.extend(wanted)
        return tuple(result for each in wanted for result in self._write(each))

    def start(self, wanted: Wanted) -> tuple[WriteResult, ...]:
        return self._write(wanted)

    def _write(self, wanted: Wanted) -> tuple[WriteResult, ...]:
        """What goes to files alone: the runtime writes the rest."""
        cgroup = wanted.target.cgroup
        resolved = {name: resolve(name, None, claims).value for name, claims in wanted.claims.items()}
        values = {
            name: value
            for name, value in resolved.items()
            if isinstance(value, int | str) and name not in wanted.booked
        }
        if values:
            self.written.append((cgroup, values))
        outcome = WriteOutcome.FAILED if self.error else WriteOutcome.WRITTEN
        return tuple(
            WriteResult(cgroup, key, value, outcome, None, self.error) for key, value in values.items()
        )

    def is_managed(self, cgroup: str) -> bool:
        return any(name == cgroup for name, _ in self.written)

    def repair(self, cgroup: str) -> None:
        self.lets_renew.wait(30)
        self.renewed.append(cgroup)

    def on_resized(self, cgroup: str, written: Mapping[str, int | str] = MappingProxyType({})) -> None:
        self.resizes.append((cgroup, dict(written)))
        self.repair(cgroup)

    def needs_room(self, pod_cgroup: str) -> bool:
        return pod_cgroup == self.narrow

    def make_room(self, pod_cgroup: str, values: Mapping[str, int | str]) -> None:
        self.rooms.append((pod_cgroup, dict(values)))

    def is_bounded(self, pod_cgroup: str) -> bool:
        return bool(self.bounds)

    def within_bounds(self, pod_cgroup: str, values: Mapping[str, int | str]) -> Mapping[str, int | str]:
        return {name: value for name, value in self.bounds.items() if values.get(name, value) != value}

    def before_update(self, cgroup: str, quota_us: int) -> None:
        self.quotas.append((cgroup, quota_us))

    def note_requests(self, pod_cgroup: str, requested: Mapping[str, int | str]) -> None:
        self.noted.append((pod_cgroup, dict(requested)))


class Rounds:
    """Counts evaluations of everything, and keeps the pods that are evaluated apart from these.

    With each, it keeps how many answers have been claimed before.
    """

    def __init__(self, ledger: RecordedLedger) -> None:
        self.rounds = 1
        self.undecided: set[str] = set()
        self.pods: list[str] = []
        self.claimed: list[int] = []
        self._ledger = ledger

    async def evaluate_pod(self, identity: str) -> None:
        self.pods.append(identity)
        self.claimed.append(len(self._ledger.claimed))


class RecordedFailures(FailureLog):
    """Keeps the causes."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: list[object] = []

    def report(self, source: str, cause: Hashable, text: str, **fields: Any) -> bool:
        self.causes.append(cause)
        return super().report(source, cause, text, **fields)


class Surroundings:
    """An interceptor with everything around it; to be closed."""

    def __init__(self, settings: CallSettings = PATIENT, lookup_timeout_s: float = 30.0) -> None:
        self.store = PodStore()
        self.runtime = ScriptedRuntime()
        self.ledger = RecordedLedger()
        self.audit: list[AuditEntry] = []
        self.unsettled = 0
        self.skip_label: tuple[str, str] | None = None
        self.workers = Workers()
        self._executor = ThreadPoolExecutor(2)
        self._tasks: set[asyncio.Task[None]] = set()
        self.interceptor = CallInterceptor(settings, self.compare_soon)
        self.failures = RecordedFailures()
        self.inventory = Inventory(self.store)
        self.inventory.source = self
        self.core = CoreServices(
            chain=Chain((), self.workers),
            inventory=self.inventory,
            ledger=self.ledger,
            executor=self._executor,
            spawn=self._spawn,
            evaluator=Rounds(self.ledger),
            problems=EventProblems(failures=self.failures),
        )
        self.services = CallServices(
            settings=settings,
            core=self.core,
            lookups=Lookups(self.store, self.runtime, lookup_timeout_s),
            long_work=LongWork(self._executor),
        )

    @property
    def waiting_keys(self) -> int:
        """Keys for which something waits."""
        return len(self.core.order)

    @property
    def tasks(self) -> int:
        """Background tasks that are not done."""
        return len(self._tasks)

    async def load(self, *policies: Policy | ServerInTable, **settings: PolicySettings) -> Chain:
        """Uses these policies; settings go by the policies' names, with `_` for `-`."""
        loaded = [
            policy.loaded()
            if isinstance(policy, ServerInTable)
            else bind(policy, settings.get(policy.name.replace("-", "_")))
            for policy in policies
        ]
        chain = Chain(loaded, self.workers, sink=self.audit.append, skip_label=self.skip_label)
        self.core.chain = chain
        self.interceptor.start(partial(InterceptedCall, self.services))
        return chain

    def call(
        self,
        method: str,
        request: Message | bytes,
        *,
        timeout_s: float | None = 120.0,
        encoding: str = "identity",
        reply: RecordedReply | None = None,
    ) -> HeldForTest:
        """An intercepted call whose request has come; bytes are taken for a whole frame."""
        frame = request if isinstance(request, bytes) else frame_message(request.SerializeToString())
        reply = reply or RecordedReply()
        path = f"/{SERVICE}/{method}"
        assert self.interceptor.intercepts(path)
        handler = self.interceptor.open(CallHead(path, timeout_s, encoding), reply)
        handler.on_message(frame)
        return HeldForTest(handler, reply, frame)

    async def run_pod(self, config: api_pb2.PodSandboxConfig, pod_id: str) -> HeldForTest:
        """RunPodSandbox with success."""
        call = self.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=config))
        await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=pod_id))
        return call

    async def create(
        self,
        pod_id: str,
        pod: api_pb2.PodSandboxConfig,
        config: api_pb2.ContainerConfig,
        container_id: str,
    ) -> HeldForTest:
        """CreateContainer with success."""
        request = api_pb2.CreateContainerRequest(pod_sandbox_id=pod_id, config=config, sandbox_config=pod)
        call = self.call("CreateContainer", request)
        await call.succeeded(api_pb2.CreateContainerResponse(container_id=container_id))
        return call

    async def idle(self) -> None:
        """Waits for all background tasks."""
        async with asyncio.timeout(30):
            while self._tasks:
                await asyncio.wait(tuple(self._tasks))

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await self.idle()
        self.workers.close()
        self._executor.shutdown()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def compare_soon(self) -> None:
        self.unsettled += 1

    def confirm(self, containers: Iterable[str]) -> None:
        """Nothing: that `compare_soon` is called, too, is counted."""


@dataclass
class HeldForTest:
    """One call on its way."""

    handler: CallHandler
    reply: RecordedReply
    frame: bytes

    async def succeeded(self, response: Message) -> None:
        """Waits for the decision; then the runtime answers."""
        await self.reply.done()
        assert not self.reply.refused
        self.handler.on_response(Outcome.SUCCEEDED, frame_message(response.SerializeToString()))

    async def ended(self, outcome: Outcome) -> None:
        """Waits for the decision; then the call ends without an answer."""
        await self.reply.done()
        self.handler.on_response(outcome, b"")

    async def sent(self, kind: type[Message]) -> Any:
        """The message that goes to the runtime."""
        await self.reply.done()
        return self.reply.sent(kind, self.frame)


Answer: TypeAlias = CgroupChange | None


class TablePolicy(Policy):
    """Answers from a table and keeps what it was shown; made with `policy`."""

    timeout_s: ClassVar[float] = 30.0
    answers: ClassVar[Mapping[str, Answer | Callable[[Any], Answer]]]
    seen: list[tuple[str, Any]]


def policy(
    name: str = "test", *, selector: PodSelector = EVERY_POD, **answers: Answer | Callable[[Any], Answer]
) -> TablePolicy:
    """A policy that implements just these methods."""

    def made(method: str) -> Callable[[TablePolicy, Any, Node], Answer]:
        def answer(self: TablePolicy, view: Any, node: Node) -> Answer:
            self.seen.append((method, view))
            found = self.answers[method]
            return found(view) if callable(found) else found

        return answer

    methods = {method: made(method) for method in answers}
    attributes = {"name": name, "selector": selector, "answers": answers, **methods}
    found: TablePolicy = type("Table", (TablePolicy,), attributes)()
    found.seen = []
    return found


@dataclass
class ServerInTable:
    """A hook server in this process, as the chain sees it; its hooks answer from a table."""

    answers: Mapping[Hook, Answer | Callable[[Any], Answer]]
    name: str = "server.json"
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    seen: list[tuple[str, Any]] = field(default_factory=list)

    def loaded(self) -> LoadedPolicy:
        return LoadedPolicy(
            name=self.name,
            origin="server",
            policy=Policy(),
            priority=100,
            timeout_s=30.0,
            failure_policy=self.failure_policy,
            remote_hooks={hook: partial(_Request, self, hook) for hook in self.answers},
        )


@dataclass
class _Request:
    server: ServerInTable
    hook: Hook
    view: Any

    def send(self, timeout_s: float, on_response: OnResponse, /) -> asyncio.Handle:
        self.server.seen.append((str(self.hook), self.view))
        return asyncio.get_running_loop().call_soon(on_response, self._answer, False)

    def _answer(self, view: Any) -> Answer:
        found = self.server.answers[self.hook]
        return found(view) if callable(found) else found


def server(
    answers: Mapping[Hook, Answer | Callable[[Any], Answer]],
    failure_policy: FailurePolicy = FailurePolicy.IGNORE,
) -> ServerInTable:
    return ServerInTable(answers, failure_policy=failure_policy)


def waited(event: threading.Event) -> None:
    """The answer of a policy that hangs until the event."""
    event.wait(30)


def create(
    envs: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> api_pb2.CreateContainerRequest:
    """A container in the pod of all tests."""
    config = container_config(envs={"PATH": "/bin"} if envs is None else envs, annotations=annotations or {})
    return api_pb2.CreateContainerRequest(
        pod_sandbox_id=POD_ID, config=config, sandbox_config=pod_sandbox_config()
    )
