"""What the calls on an existing container, and on an existing sandbox, have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtimeproxy.calls.cri_call import CallContext, Operation, Question, container_cgroup
from runtimeproxy.calls.to_views import recorded_container, recorded_pod, recorded_sketch
from runtimeproxy.hooks import PodView
from runtimeproxy.pods.records import Lifecycle

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from runtimeproxy.hooks import ContainerView, Hook, Resources
    from runtimeproxy.pods.records import ContainerRecord, PodRecord


class ContainerCall(Operation):
    """A call on a container that exists; without a record there is nothing to show to policies."""

    def __init__(self, context: CallContext, request: Message, container_id: str) -> None:
        super().__init__(context, request)
        self.container_id = container_id

    @property
    def turn_key(self) -> str:
        """The container's id."""
        record = self.record
        return record.id if record is not None else self.container_id

    @property
    def record(self) -> ContainerRecord | None:
        """What is remembered of the container now."""
        return self.context.store.containers.get(self.container_id)

    @property
    def pod(self) -> PodRecord | None:
        """What is remembered of its sandbox now."""
        record = self.record
        return self.context.store.pods.get(record.pod_id) if record is not None else None

    @property
    def pod_key(self) -> str:
        """The sandbox's id."""
        record = self.record
        return record.pod_id if record is not None else ""

    @property
    def is_complete(self) -> bool:
        """Whether the container and its sandbox are known."""
        return _is_detailed(self.record) and _is_detailed(self.pod)

    async def complete(self) -> None:
        """Looks up the container, then its sandbox."""
        lookups = self.context.lookups
        if not _is_detailed(self.record):
            await lookups.container(self.container_id)
        record = self.record
        if record is not None and record.pod_id and not _is_detailed(self.pod):
            await lookups.pod(record.pod_id)

    def question(self, hook: Hook, record: ContainerRecord, updated: Resources | None = None) -> Question:
        """A question about the container; `updated` is what an update under way asks for."""
        pod, cgroup = self.pod, self.cgroup(record)

        def details() -> tuple[ContainerView, str]:
            shown = PodView() if pod is None else recorded_pod(pod)
            return recorded_container(record, shown, updated), cgroup

        return Question(hook, PodView() if pod is None else recorded_sketch(pod), details=details)

    def cgroup(self, record: ContainerRecord) -> str:
        """The container's cgroup; empty until the container is started."""
        if record.state is Lifecycle.CREATED:
            return ""
        return container_cgroup(self.context, self.pod, record)


class PodCall(Operation):
    """A call on a sandbox that exists; without a record there is nothing to show to policies."""

    def __init__(self, context: CallContext, request: Message, pod_id: str) -> None:
        super().__init__(context, request)
        self.pod_id = pod_id

    @property
    def turn_key(self) -> str:
        """The sandbox's id."""
        return self.pod_key

    @property
    def record(self) -> PodRecord | None:
        """What is remembered of the sandbox now."""
        return self.context.store.pods.get(self.pod_id)

    @property
    def pod_key(self) -> str:
        """The sandbox's id."""
        record = self.record
        return record.id if record is not None else self.pod_id

    @property
    def is_complete(self) -> bool:
        """Whether the sandbox is known."""
        return _is_detailed(self.record)

    async def complete(self) -> None:
        """Looks up the sandbox."""
        if not self.is_complete:
            await self.context.lookups.pod(self.pod_id)


def _is_detailed(record: PodRecord | ContainerRecord | None) -> bool:
    return record is not None and record.detailed
