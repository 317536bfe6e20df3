"""The `Interceptor` of the relay: says which calls are held, and makes a handler for each."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from runtimeproxy.calls.cri_call import CallContext
from runtimeproxy.calls.desk import CallSettings, CgroupWriter, Desk, Spawn
from runtimeproxy.calls.intercepted_call import HeldCall
from runtimeproxy.calls.long_work import LongWork
from runtimeproxy.calls.methods import BY_PATH

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.calls.cri_call import DueWrites
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.interception import CallHandler, CallHead, Reply

SCOPE_PREFIXES: Final = {"cri-o": "crio"}
"""What runtimes put before a container's id in cgroup names. Source: CRI-O internal/config/cgmgr."""


class CallInterceptor:
    """Holds the ten calls that policies may change.

    Attributes:
        bypass: While it is set, new calls pass unheld; the records are then only as new as the last
            comparison with the runtime.
    """

    def __init__(
        self,
        context: CallContext,
        writer: CgroupWriter,
        *,
        executor: Executor,
        spawn: Spawn,
        long_work: LongWork | None = None,
        settings: CallSettings | None = None,
        unsettled: Callable[[], None] | None = None,
    ) -> None:
        """Takes what the daemon has; calls that come before the policies are loaded wait for them, bounded.

        Args:
            context: Records and look-ups.
            writer: Writes cgroup values, in worker threads.
            executor: A few worker threads, for loading and cgroup files.
            spawn: Starts background tasks.
            long_work: Worker threads for long requests; None for those of `executor`.
            settings: None means the defaults.
            unsettled: Called when neither a call's answer nor the runtime told how the call ended; the
                records should be compared with the runtime then.
        """
        self._desk = Desk(
            settings or CallSettings(),
            context,
            writer,
            executor,
            spawn,
            unsettled or _nothing_to_do,
            long_work or LongWork(executor),
        )
        self.bypass = False

    @property
    def counts(self) -> Mapping[str, int]:
        """How often what happened: refused, looked_up, unreadable, too_large, undecided, internal_error."""
        return self._desk.counts

    def holds(self, path: str) -> bool:
        """Whether calls of this `:path` are held."""
        return path in BY_PATH and not self.bypass

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        """The handler of a held call."""
        return HeldCall(self._desk, BY_PATH[head.path], head, reply)

    def use(self, chain: Chain) -> None:
        """The policies from now on; calls that are being decided keep theirs."""
        self._desk.chain = chain
        self._desk.chain_loaded.set()

    def runtime_is(self, name: str) -> None:
        """What the runtime calls itself, for the names of containers' cgroups; containerd if nobody says."""
        self._desk.context.scope_prefix = SCOPE_PREFIXES.get(name, "")

    def configure(self, settings: CallSettings) -> None:
        """The settings from now on."""
        self._desk.settings = settings

    async def write_due(self, due: DueWrites) -> None:
        """Writes and audits cgroup values of a container whose start nobody saw."""
        from runtimeproxy.calls.post_hooks import write_due

        await write_due(self._desk, due)

    async def load(self) -> None:
        """Loads protobuf and the CRI's messages in a worker thread, so that no call has to wait for it."""
        await self._desk.load()


def _nothing_to_do() -> None:
    return
