"""What front ends that carry decisions need of the core, and what is the same for all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from runtimeproxy.core.order import EventOrder
from runtimeproxy.logs import FailureLog

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtimeproxy.cgroups.writer import WriteResult
    from runtimeproxy.core.network import NetworkUpkeep
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.ledger.allocations import NodeAllocations
    from runtimeproxy.ledger.books import Wanted
    from runtimeproxy.ledger.pools import NodePools
    from runtimeproxy.ledger.starts import PodStarts
    from runtimeproxy.pods.inventory import Inventory
    from runtimeproxy.pods.records import Book
    from runtimeproxy.pods.store import PodStore
    from runtimeproxy.pods.updates import PendingUpdate

Work: TypeAlias = Callable[[], Awaitable[None]]
"""Something that takes time, before an event goes on or after it."""


class CgroupBooks(Protocol):
    """What is wanted in cgroups. Reads and writes no file."""

    def record(self, identity: str) -> Book | None:
        """The book of a cgroup; None if nothing is wanted there."""

    def book(self, wanted: Wanted) -> object:
        """Takes the answer of all policies for one cgroup."""

    def is_managed(self, cgroup: str) -> bool:
        """Whether values were written to this cgroup that are to stay there."""

    def is_bounded(self, pod_cgroup: str) -> bool:
        """Whether a bound of a pod, or above, applies to its containers."""

    def needs_room(self, pod_cgroup: str) -> bool:
        """Whether a pod's cgroup may have to be raised for a container."""

    def note_requests(self, pod_cgroup: str, requested: Mapping[str, int | str]) -> None:
        """Found in the pod's files, these values are the kubelet's own."""


class CgroupLedger(Protocol):
    """The values of cgroups; thread safe. For worker threads, unless a method says otherwise."""

    @property
    def books(self) -> CgroupBooks: ...

    def change(self, wanted: Sequence[Wanted]) -> Sequence[WriteResult]:
        """Takes the answers of all policies for some cgroups and writes what follows.

        Never raises for an error of the kernel.
        """

    def start(self, wanted: Wanted) -> Sequence[WriteResult]:
        """Writes the values of a cgroup that exists now: those of its book, or these if it has none."""

    def repair(self, cgroup: str) -> None:
        """Writes values again that another program has changed; never raises for an error of the kernel."""

    def on_resized(self, cgroup: str, written: Mapping[str, int | str] = ...) -> None:
        """The same after the kubelet has written to a pod's cgroup itself, and what, as far as known."""

    def make_room(self, pod_cgroup: str, values: Mapping[str, int | str]) -> None:
        """Raises the limits of a pod's cgroup, if they are ours, to these of a container to be created."""

    def within_bounds(self, pod_cgroup: str, values: Mapping[str, int | str]) -> Mapping[str, int | str]:
        """What bounds change of a container's values; reads and writes no file."""

    def before_update(self, cgroup: str, quota_us: int) -> None:
        """Lowers the burst of a container whose quota the next update lowers to this."""


class PodEvaluator(Protocol):
    """Asks the policies about what runs when something has changed."""

    rounds: int
    """How many evaluations of more than one pod have begun."""
    undecided: set[str]
    """Ids of pods and containers that policies were not asked about, or without all their answers."""

    async def evaluate_pod(self, identity: str) -> None:
        """Asks about one sandbox and its running containers, and writes what follows."""


@dataclass(slots=True)
class EventProblems:
    """What has gone wrong with events.

    Attributes:
        counts: How many events went on without what they should have had, by kind of event and cause.
        internal_errors: How many errors there have been in the proxy's own code.
        failures: Logs them, once per cause and interval.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    internal_errors: int = 0
    failures: FailureLog = field(default_factory=FailureLog)

    def report_bug(self, kind: str, error: Exception, when: str = "") -> None:
        # The text of an error may quote the event.
        self.internal_errors += 1
        text = f"{type(error).__name__} {when}".rstrip()
        self.failures.report(kind, text, text)


@dataclass(slots=True, kw_only=True)
class CoreServices:
    """What acts on events of pods and containers. Used in the event loop's thread, but for `ledger`.

    Attributes:
        chain: The policies; an event that is being decided keeps the chain that it began with.
        store: The records of `inventory`.
        ledger: Writes cgroup values, in worker threads.
        executor: These threads.
        evaluator: Of what runs.
        allocations: The CPUs of pods; None where the pools of shared CPUs do not depend on them.
        pools: Katalyst's pools; None where a front end has none.
        network: Brings running pods to the network's QoS; None where that is not managed.
        starts: What pods and containers have while they start; None where there is nothing.
        pending_updates: Those that the runtime has not answered, oldest first, by container.
        order: Which event waits for which.
    """

    chain: Chain
    inventory: Inventory
    ledger: CgroupLedger
    executor: Executor
    spawn: Spawn
    evaluator: PodEvaluator
    allocations: NodeAllocations | None = None
    pools: NodePools | None = None
    network: NetworkUpkeep | None = None
    starts: PodStarts | None = None
    store: PodStore = field(init=False)
    pending_updates: dict[str, list[PendingUpdate]] = field(default_factory=dict)
    order: EventOrder = field(default_factory=EventOrder)
    problems: EventProblems = field(default_factory=EventProblems)

    def __post_init__(self) -> None:
        self.store = self.inventory.store

    def catch_up(self, pod_id: str, evaluation: int) -> None:
        """Evaluates a sandbox if an evaluation of more than one pod has begun since policies decided on it.

        That one has not seen it, or not its container, or what it claimed is replaced by the older decision.

        `evaluation`: `evaluator.rounds` when the event began.
        """
        if evaluation != self.evaluator.rounds:
            self.spawn(self.evaluator.evaluate_pod(pod_id))

    def begin_start(self, uid: str, cgroup_parent: str) -> None:
        """A pod is about to be created, in this cgroup: bounds may be lifted for it."""
        if self.starts is not None:
            self.starts.openings.on_starting(uid, cgroup_parent)

    def end_start(self, uid: str) -> None:
        # The pod is not created.
        if self.starts is not None:
            self.starts.openings.on_not_created(uid)

    def priority_of(self, uid: str) -> int | None:
        """The `spec.priority` of a pod; None if it is not known."""
        live = self.chain.node.latest.live_pods.get(uid)
        return live.priority if live is not None else None

    def start_after(self, kind: str, pod_keys: tuple[str, ...], work: Work) -> None:
        """Starts work that an event has left; the next events of its pod wait for it."""
        self.order.block(pod_keys, self.spawn(self.guarded(kind, work)))

    async def guarded(self, kind: str, work: Work) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - a bug costs one event's post hooks, not the daemon
            self.problems.report_bug(kind, error, "in the work after it")

    def in_executor(self, work: Callable[..., None], *arguments: object) -> Work:
        """Work for a thread that may write files."""
        return partial(asyncio.get_running_loop().run_in_executor, self.executor, work, *arguments)
