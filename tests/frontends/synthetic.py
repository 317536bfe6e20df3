"""A front end that only tests declare: it carries resources of containers, and nothing of sandboxes.

Its messages are calls of its methods, from a kubelet that is the test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from runtimeproxy.background import ThreadPools
from runtimeproxy.config.settings import Settings
from runtimeproxy.core.core import Core
from runtimeproxy.core.events import book_container, on_started, write_decision, write_due
from runtimeproxy.core.policies import Spawn
from runtimeproxy.core.questions import Question, decide, decided_values
from runtimeproxy.fields.tables import RESOURCE_FIELDS
from runtimeproxy.frontends.front_end import FrontEnd
from runtimeproxy.hooks import ContainerChange, Hook
from runtimeproxy.hooks.carried import CarriedFields
from runtimeproxy.hooks.changes import Change
from runtimeproxy.hooks.fields import RESOURCES
from runtimeproxy.listener import listen
from runtimeproxy.pods.record_views import recorded_container, recorded_pod, recorded_summary
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.runtime_client import GrpcRuntimeClient

BUDGET_S = 30.0
WAIT_S = 60.0

ResultT = TypeVar("ResultT")


class Synthetic(FrontEnd):
    """Decides before pods and containers are created, on what the test says that it carries.

    Attributes:
        carried: Fields of a container in its message.
        changes: What was to be carried, in the order of the decisions.
    """

    mode = "synthetic"
    serves_kubelet = False
    carried: ClassVar[frozenset[str]] = frozenset({RESOURCES})
    core: Core
    _loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.changes: list[Change | None] = []

    @classmethod
    def carried_fields(cls) -> CarriedFields:
        return CarriedFields(
            cls.mode,
            {
                Hook.PRE_RUN_POD_SANDBOX: (),
                Hook.PRE_CREATE_CONTAINER: cls.carried,
                Hook.POST_START_CONTAINER: (),
            },
        )

    @property
    def summaries(self) -> tuple[str, str]:
        return "", self.mode

    def open(self, settings: Settings, own_socket: str) -> None:
        self.listener = listen(settings.proxy.endpoint)

    async def join(
        self, core: Core, client: GrpcRuntimeClient, settings: Settings, threads: ThreadPools, spawn: Spawn
    ) -> None:
        self.core = core
        self._loop = asyncio.get_running_loop()

    def decide(self) -> None:
        pass

    async def end(self) -> None:
        pass

    # The messages, from the test's thread

    def wait_for(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def run_pod(self, draft: PodRecord, run: Callable[[], str]) -> PodRecord:
        """Decides on a pod, has the runtime run it, which returns its id, and records it."""
        return self.wait_for(self._run_pod(draft, run))

    async def _run_pod(self, draft: PodRecord, run: Callable[[], str]) -> PodRecord:
        summary = recorded_summary(draft)
        question = Question(
            Hook.PRE_RUN_POD_SANDBOX, summary, lambda: recorded_pod(draft), draft.cgroup_parent
        )
        decision = await decide(self.core.policies.chain, question, BUDGET_S)
        assert decision is not None
        self.changes.append(decision.change)
        await write_decision(self.core.services, decision, draft.cgroup_parent)
        identity = await asyncio.to_thread(run)
        record = replace(draft, id=identity, owners=decision.owners, created_s=time.time())
        self.core.store.pods.put(record)
        return record

    def create(
        self, pod: PodRecord, draft: ContainerRecord, create: Callable[[ContainerRecord], str]
    ) -> ContainerRecord:
        """Decides on a container, has the runtime create it with its booked values, and records it."""
        return self.wait_for(self._create(pod, draft, create))

    async def _create(
        self, pod: PodRecord, draft: ContainerRecord, create: Callable[[ContainerRecord], str]
    ) -> ContainerRecord:
        view = recorded_container(draft, recorded_pod(pod))
        question = Question(Hook.PRE_CREATE_CONTAINER, recorded_summary(pod), lambda: view)
        decision = await decide(self.core.policies.chain, question, BUDGET_S)
        assert decision is not None
        self.changes.append(decision.change)
        decided, change = decided_values(decision), decision.change
        given = change.resources if isinstance(change, ContainerChange) else None
        values = {name: getattr(given, name, None) for name in RESOURCE_FIELDS}
        booked = replace(draft.requested, **{name: each for name, each in values.items() if each is not None})
        draft = replace(draft, booked=booked, owners=decided.owners, pending_cgroup=decided.pending)
        record = replace(draft, id=await asyncio.to_thread(create, draft), created_s=time.time())
        self.core.store.containers.put(record)
        book_container(self.core.services, pod, record, decided.fields or {})
        return record

    def start(self, record: ContainerRecord) -> None:
        """Records that a container has started, and writes what has waited for that."""
        self.wait_for(self._start(record))

    async def _start(self, record: ContainerRecord) -> None:
        if (due := on_started(self.core.services, record)) is not None:
            await write_due(self.core.services, due)
        assert all(
            each.state is Lifecycle.RUNNING for each in self.core.store.containers.members(record.pod_id)
        )

    def evaluate(self, pod: PodRecord) -> None:
        """Has it evaluated as when a strategy has changed."""
        self.wait_for(self.core.upkeep.evaluator.evaluate_pod(pod.id))


class WithoutLimits(Synthetic):
    """One that does not carry the limit of memory, either."""

    carried = frozenset(f"{RESOURCES}.{name}" for name in RESOURCE_FIELDS if name != "memory_limit_bytes")
