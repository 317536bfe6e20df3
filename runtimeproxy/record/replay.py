"""Runs other policies over a recording, and compares their decisions with those that were made.

Each call goes through the calls of the CRI proxy, with records and node of the recording: so each decision is
that of a daemon with these policies. No runtime is asked, no file is written. Hook servers
are not called: what they set is left out of the comparison.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf import json_format

from runtimeproxy.core.services import CoreServices
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import frame_message
from runtimeproxy.frontends.cri_proxy.calls.intercepted_call import CALL_TYPES, InterceptedCall
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices, CallSettings
from runtimeproxy.frontends.cri_proxy.calls.long_work import LongWork
from runtimeproxy.frontends.cri_proxy.calls.methods import SERVICES, CallKind
from runtimeproxy.frontends.cri_proxy.interception import CallHead, Outcome
from runtimeproxy.hooks.claimants import ClaimantKind
from runtimeproxy.hooks.settings import USUAL_RULES, ChainRules
from runtimeproxy.node.snapshot import FixedNode, Node
from runtimeproxy.offline import OfflineChain
from runtimeproxy.pods.checkpoint.codec import BadRowError, RowKind, decode, owners_in
from runtimeproxy.pods.inventory import Inventory, RuntimeUnavailableError
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.record.entries import Recording, RecordingError, decision_document, message_type
from runtimeproxy.record.values import BadValueError, with_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from runtimeproxy.cgroups.writer import WriteResult
    from runtimeproxy.frontends.cri_proxy.calls.cri_call import CriCall
    from runtimeproxy.hooks.audit import AuditEntry
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.hooks.policy import Hook
    from runtimeproxy.ledger.books import Wanted

_REFUSAL: Final = "refusal"
_NO_RECORD: Final = "its pod or container is not in the recording"
_TOO_LONG: Final = "its request was too long to be recorded"
_NEW_METHOD: Final = "this version does not know the call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A field of one call, or its refusal, that would be another one."""

    number: int
    """Of the call in the recording."""
    time_s: float
    """Of the call: seconds since the epoch."""
    method: str
    namespace: str
    pod: str
    container: str
    """Empty if the call is about a pod."""
    hook: str
    field: str
    """Such as `resources.cpu_shares`; `refusal` for the refusal of the call."""
    was: str | None
    """The value that policies gave; None if they left it as the kubelet wanted it, or cleared it."""
    now: str | None
    was_by: str = ""
    """The policies; empty if they left it as it was."""
    now_by: str = ""


@dataclass(slots=True)
class Replay:
    """The result.

    Attributes:
        calls: calls that were replayed.
        differing: those of them with differences.
        differences: all of them, in the order of the recording.
        skipped: calls that were not replayed, by reason.
        server_fields: fields that hook servers had set, which are not compared.
        failures: policies that failed, by name and reason.
        first_s, last_s: the times of the first and last call; None without any.
        is_cut_off: whether the recording ends within an entry.
    """

    calls: int = 0
    differing: int = 0
    differences: list[Difference] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    server_fields: int = 0
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    first_s: float | None = None
    last_s: float | None = None
    is_cut_off: bool = False


def replay(recording: Recording, policies: Iterable[LoadedPolicy], rules: ChainRules = USUAL_RULES) -> Replay:
    """Returns what the policies would have decided otherwise.

    It runs them in an event loop of its own: not for a thread in which one runs.

    Raises:
        RecordingError: The recording cannot be read.
    """
    return asyncio.run(_Replayer(policies, rules).run(recording))


class _Set(NamedTuple):
    """The value that a decision gives a field."""

    value: str | None
    policy: str


_NOTHING_SET: Final = _Set(None, "")


class _Replayer:
    """One replay."""

    def __init__(self, policies: Iterable[LoadedPolicy], rules: ChainRules) -> None:
        self._result = Replay()
        self._offline = OfflineChain(policies, rules, self._on_audit)
        self._executor = ThreadPoolExecutor(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._node = Node()
        store = PodStore()
        self._services = CallServices(
            settings=CallSettings(budget_s=rules.budget_s),
            core=CoreServices(
                chain=self._offline.chain,
                inventory=Inventory(store),
                ledger=_NoFiles(),
                executor=self._executor,
                spawn=self._spawn,
                evaluator=_NoEvaluations(),
            ),
            lookups=Lookups(store, _NoRuntime()),
            long_work=LongWork(self._executor),
        )
        # Calls without a response so far, by number.
        self._open: dict[int, CriCall] = {}

    async def run(self, recording: Recording) -> Replay:
        try:
            for kind, body in recording.entries():
                try:
                    await self._take(kind, body)
                except (KeyError, TypeError, ValueError, BadValueError, json_format.ParseError) as error:
                    raise RecordingError(f"has an entry {kind!r} that cannot be read: {error}") from error
            # The audit of the last decision has its turn after it.
            await asyncio.sleep(0)
        finally:
            self._offline.close()
            self._executor.shutdown()
        self._result.is_cut_off = recording.is_cut_off
        return self._result

    async def _take(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind == "node":
            self._node = with_fields(self._node, body)
            self._services.core.chain.node = FixedNode(self._node)
        elif kind == "record":
            self._take_record(body)
        elif kind == "call":
            await self._take_call(body)
        elif kind == "response":
            self._take_response(body)

    def _take_record(self, body: Mapping[str, Any]) -> None:
        kind = RowKind[str(body["kind"]).upper()]
        try:
            record = decode(kind, body["id"], json.dumps(body["body"]))
        except BadRowError as error:
            raise ValueError(str(error)) from error
        store = self._services.core.store
        if isinstance(record, PodRecord):
            store.pods.put(record)
        elif isinstance(record, ContainerRecord):
            store.containers.put(record)

    async def _take_call(self, body: Mapping[str, Any]) -> None:
        result, number, time_s = self._result, int(body["number"]), float(body["time"])
        if body["method"] not in set(CallKind):
            result.skipped[_NEW_METHOD] += 1
            return
        if "request" not in body:
            result.skipped[_TOO_LONG] += 1
            return
        kind = CallKind(body["method"])
        request = message_type(f"{kind}Request")()
        json_format.ParseDict(body["request"], request, ignore_unknown_fields=True)
        # As the kubelet made it, for one that is refused now: the recording may go on with its container.
        call = CALL_TYPES[kind](self._services, request)
        is_known = call.find_records() or kind is CallKind.CREATE_CONTAINER
        result.first_s, result.last_s = result.first_s or time_s, time_s
        decided = await self._decide(kind, request) if is_known else _Decided()
        self._open[number] = decided.call or call
        if not is_known and body["decisions"]:
            result.skipped[_NO_RECORD] += 1
            return
        result.calls += 1
        about = {
            "number": number,
            "time_s": time_s,
            "method": kind.value,
            **_names(self._services.core.store, request),
        }
        found = list(self._compared(about, body["decisions"], decided.documents))
        result.differences += found
        result.differing += bool(found)

    async def _decide(self, kind: CallKind, request: Message) -> _Decided:
        """Has the request decided as if it came from the kubelet; nothing is done with the result."""
        decided = _Decided()
        self._services.recorder = decided
        path = f"/{SERVICES[0]}/{kind}"
        handler = InterceptedCall(self._services, CallHead(path, None, "identity"), decided)
        handler.on_message(frame_message(request.SerializeToString()))
        await decided.is_over.wait()
        decided.call = handler.call
        return decided

    def _take_response(self, body: Mapping[str, Any]) -> None:
        call = self._open.pop(int(body["number"]), None)
        if call is None:
            return
        call.on_end()
        outcome = Outcome(body["outcome"])
        if outcome is Outcome.FAILED:
            call.on_failure()
        elif outcome is Outcome.SUCCEEDED and "message" in body:
            response = message_type(f"{type(call).__name__}Response")()
            json_format.ParseDict(body["message"], response, ignore_unknown_fields=True)
            call.on_success(response.SerializeToString())

    def _compared(
        self,
        about: Mapping[str, Any],
        recorded: Sequence[Mapping[str, Any]],
        replayed: Sequence[Mapping[str, Any]],
    ) -> Iterator[Difference]:
        """Yields what differs between the decisions on a call."""
        was, now = _flat(recorded), _flat(replayed)
        for place in dict.fromkeys((*was, *now)):
            _, hook, name = place
            old, new = was.get(place), now.get(place)
            if old is not None and any(each.kind is ClaimantKind.SERVER for each in owners_in(old.policy)):
                self._result.server_fields += 1
            elif old is None or new is None or old.value != new.value:
                old, new = old or _NOTHING_SET, new or _NOTHING_SET
                yield Difference(
                    **about,
                    hook=hook,
                    field=name,
                    was=old.value,
                    now=new.value,
                    was_by=old.policy,
                    now_by=new.policy,
                )

    def _on_audit(self, entry: AuditEntry) -> None:
        if entry.kind in ("failed", "invalid"):
            self._result.failures[entry.policy, entry.reason] += 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Decided:
    """In place of relay and recorder: what is decided on one call."""

    started_s = 0.0
    calls = 0

    def __init__(self) -> None:
        self.documents: list[Mapping[str, Any]] = []
        self.call: CriCall | None = None
        self.is_over = asyncio.Event()

    def begin(self, kind: CallKind, frame: bytes, encoding: str) -> _Decided:
        return self

    def on_decision(self, hook: Hook, decision: Decision) -> None:
        self.documents.append(decision_document(hook, decision))

    def on_decided(self) -> None:
        return

    def on_response(self, outcome: Outcome, frame: bytes) -> None:
        return

    def forward(self, data: bytes | None) -> None:
        self.is_over.set()

    def refuse(self, code: int, text: str) -> None:
        self.is_over.set()

    def reserve(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        on_granted()

    def keep(self, size_bytes: int) -> bool:
        return True


def _flat(decisions: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str, str], _Set]:
    """The values of decisions by the number of the decision, hook and field."""
    found: dict[tuple[int, str, str], _Set] = {}
    for number, each in enumerate(decisions):
        hook = str(each["hook"])
        if _REFUSAL in each:
            found[number, hook, _REFUSAL] = _Set(each[_REFUSAL], each.get("policy", ""))
        for name, value in each.get("fields", {}).items():
            found[number, hook, name] = _Set(value["value"], value["policy"])
    return found


def _names(store: PodStore, request: Any) -> dict[str, str]:  # noqa: ANN401 - a message
    """Namespace and name of the pod, and name of the container, that a request is about."""
    fields = request.DESCRIPTOR.fields_by_name
    container = ""
    pod_id = getattr(request, "pod_sandbox_id", "")
    if "container_id" in fields:
        record = store.containers.get(request.container_id)
        container = record.name if record is not None else request.container_id
        pod_id = record.pod_id if record is not None else ""
    elif "sandbox_config" in fields:
        container = request.config.metadata.name
    config = next((getattr(request, name) for name in ("sandbox_config", "config") if name in fields), None)
    metadata = config.metadata if config is not None else None
    if metadata is not None and metadata.name and hasattr(metadata, "namespace"):
        return {"namespace": metadata.namespace, "pod": metadata.name, "container": container}
    pod = store.pods.get(pod_id) if pod_id else None
    names = (pod.namespace, pod.name) if pod is not None else ("", pod_id)
    return {"namespace": names[0], "pod": names[1], "container": container}


class _NoRuntime:
    """In place of the runtime: it is never there."""

    async def list_pods(self, labels: Mapping[str, str] | None = None) -> dict[str, PodRecord]:
        raise RuntimeUnavailableError("a replay has no runtime")

    async def list_containers(self, pod_id: str = "") -> dict[str, ContainerRecord]:
        raise RuntimeUnavailableError("a replay has no runtime")

    async def pod(self, identity: str) -> PodRecord | None:
        raise RuntimeUnavailableError("a replay has no runtime")

    async def container(self, identity: str, *, with_pod: bool = False) -> ContainerRecord | None:
        raise RuntimeUnavailableError("a replay has no runtime")


class _NoEvaluations:
    """In place of what asks about running pods."""

    rounds = 0

    def __init__(self) -> None:
        self.undecided: set[str] = set()

    async def evaluate_pod(self, identity: str) -> None:
        return


class _NoFiles:
    """In place of the books and files of cgroups."""

    @property
    def books(self) -> _NoFiles:
        return self

    def record(self, identity: str) -> None:
        return

    def book(self, wanted: Wanted) -> None:
        return

    def change(self, wanted: Sequence[Wanted]) -> Sequence[WriteResult]:
        return ()

    def start(self, wanted: Wanted) -> Sequence[WriteResult]:
        return ()

    def is_managed(self, cgroup: str) -> bool:
        return False

    def repair(self, cgroup: str) -> None:
        return

    def on_resized(self, cgroup: str, written: Mapping[str, int | str] | None = None) -> None:
        return

    def needs_room(self, pod_cgroup: str) -> bool:
        return False

    def make_room(self, pod_cgroup: str, values: Mapping[str, int | str]) -> None:
        return

    def is_bounded(self, pod_cgroup: str) -> bool:
        return False

    def within_bounds(self, pod_cgroup: str, values: Mapping[str, int | str]) -> Mapping[str, int | str]:
        return {}

    def before_update(self, cgroup: str, quota_us: int) -> None:
        return

    def note_requests(self, pod_cgroup: str, requested: Mapping[str, int | str]) -> None:
        return
