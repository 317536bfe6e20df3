"""What all held calls of one daemon share, and its settings."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from runtimeproxy.calls.call_order import Lanes
from runtimeproxy.calls.cri_call import CallContext, Operation, Question
from runtimeproxy.calls.grpc_framing import DEFAULT_MAX_MESSAGE_BYTES
from runtimeproxy.calls.long_work import LongWork
from runtimeproxy.calls.methods import CallKind
from runtimeproxy.hooks import FailurePolicy
from runtimeproxy.logs import FailureLog

if TYPE_CHECKING:
    from runtimeproxy.cgroups import WriteResult
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.hooks.selector import PodTraits

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Starts a background task that the caller need not keep alive."""

Operations: TypeAlias = Mapping[CallKind, type[Operation]]


INTERNAL_ERROR: Final = "internal_error"
"""Counts what should never happen: errors in the proxy's own code."""


class CgroupWriter(Protocol):
    """Writes cgroup values; synchronous and thread safe."""

    def write(
        self, cgroup: str, values: Mapping[str, int | str], once: Collection[str] = ()
    ) -> Sequence[WriteResult]:
        """Writes values to one cgroup; never raises for what the kernel says.

        Args:
            cgroup: The cgroup.
            values: By parameter.
            once: Those that are not written again when somebody changes them.
        """

    def is_managed(self, cgroup: str) -> bool:
        """Whether values were written to this cgroup that are to stay there; for the event loop's thread."""

    def reapply(self, cgroup: str) -> None:
        """Writes again those that are no longer there; never raises for what the kernel says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """How held calls are treated.

    Attributes:
        budget_s: Longest time that a call is held; a quarter of its deadline, if that is less.
        end_wait_s: How long Stop and Remove wait for other calls and hooks of their pod.
        on_unreadable: Whether a request that cannot be understood is forwarded as it came or refused.
        on_failure: Whether a call is forwarded as it came or refused if the proxy itself fails: policies that
            are not loaded in time, an error in its own code.
        skip_label: Key and value of the label of pods that no policy is asked about; None for none.
        max_message_bytes: Longest request, decompressed.
    """

    budget_s: float = 2.0
    end_wait_s: float = 1.0
    on_unreadable: FailurePolicy = FailurePolicy.IGNORE
    on_failure: FailurePolicy = FailurePolicy.IGNORE
    skip_label: tuple[str, str] | None = None
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES

    def hold_s(self, timeout_s: float | None) -> float:
        """How long a call with this deadline may be held."""
        return self.budget_s if timeout_s is None else min(self.budget_s, timeout_s / 4)


@dataclass(slots=True)
class Desk:
    """Shared by all held calls; used in the event loop's thread, but for `writer`.

    Attributes:
        settings: How held calls are treated.
        context: Records and look-ups.
        writer: Writes cgroup values, in worker threads.
        executor: Worker threads for what takes long.
        spawn: Starts background tasks.
        unsettled: Called when the end of a call could be learnt neither from its answer nor from the runtime.
        lanes: The order of calls.
        failures: Logs what goes wrong, each cause once per interval.
        counts: How often what happened, by a fixed set of names.
        long_work: Worker threads for long requests.
        operations: The classes of calls; None until they are loaded.
        chain: The policies; None until they are loaded.
        chain_loaded: Set with the first chain.
    """

    settings: CallSettings
    context: CallContext
    writer: CgroupWriter
    executor: Executor
    spawn: Spawn
    unsettled: Callable[[], None]
    long_work: LongWork
    lanes: Lanes = field(default_factory=Lanes)
    failures: FailureLog = field(default_factory=FailureLog)
    counts: Counter[str] = field(default_factory=Counter)
    operations: Operations | None = None
    chain: Chain | None = None
    chain_loaded: asyncio.Event = field(default_factory=asyncio.Event)

    def skips(self, pod: PodTraits) -> bool:
        """Whether no policy is asked about this pod."""
        label = self.settings.skip_label
        if label is None:
            return False
        key, value = label
        if pod.annotations.get(key) == value != pod.labels.get(key):
            name = f"{pod.namespace}/{pod.name}"
            self.failures.report(
                "skip label", name, f"{name} has {key} as an annotation: only a label counts"
            )
        return pod.labels.get(key) == value

    async def load(self) -> Operations:
        """The classes of calls; the first time protobuf is loaded in a worker thread."""
        if self.operations is None:
            self.operations = await asyncio.get_running_loop().run_in_executor(self.executor, _load)
        return self.operations

    async def policies(self, until_s: float) -> Chain | None:
        """The policies, once they are loaded; None if they are not by this time of the loop's clock."""
        if self.chain is None:
            try:
                async with asyncio.timeout_at(until_s):
                    await self.chain_loaded.wait()
            except TimeoutError:
                return None
        return self.chain

    def policies_for(self, chain: Chain, question: Question) -> Sequence[LoadedPolicy]:
        """The policies that a question has to be put to; costs no thread."""
        if not chain.has_policies(question.hook) or self.skips(question.pod):
            return ()
        return chain.policies_for(question.hook, question.pod)


def _load() -> Operations:
    from runtimeproxy.calls.operations import OPERATIONS

    return OPERATIONS
