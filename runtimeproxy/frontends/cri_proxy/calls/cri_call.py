"""Intercepted calls whose request is parsed: their records, and the work before and after the runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from runtimeproxy.core.questions import NO_WORK, container_question
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import UnreadableMessageError
from runtimeproxy.hooks.audit import NO_ORIGIN
from runtimeproxy.pods.resources import (
    MAX_KEPT_BYTES,
    NO_ENTRIES,
    entries_bytes,
    memory_bytes,
    read_by_policies,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from runtimeproxy.core.questions import Question
    from runtimeproxy.core.services import Work
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.hooks import Hook, Resources
    from runtimeproxy.pods.records import ContainerRecord, PodRecord


class TooMuchToKeepError(UnreadableMessageError):
    """A pod or container with more annotations, or longer names, than the API server allows."""


def kept_bytes(request: Message) -> int:
    """How much of a request records keep.

    Raises:
        TooMuchToKeepError: Of a pod or container that is more than the API server allows.
    """
    message: Any = request
    singles = (getattr(message, name, None) for name in ("config", "sandbox_config"))
    parts = [message, *(part for part in singles if part is not None)]
    parts += getattr(message, "container_configs", ())
    size_bytes = 0
    for part in parts:
        linux = getattr(part, "linux", None)
        others = [getattr(part, "metadata", None), getattr(linux, "resources", None)]
        others.append(getattr(linux, "overhead", None))
        sizes = [
            entries_bytes(getattr(part, "annotations", NO_ENTRIES)),
            entries_bytes(getattr(part, "labels", NO_ENTRIES)),
            len(getattr(linux, "cgroup_parent", ""))
            + sum(each.ByteSize() for each in others if each is not None),
        ]
        if max(sizes) > MAX_KEPT_BYTES:
            raise TooMuchToKeepError("it has more annotations or longer names than the API server allows")
        size_bytes += sum(sizes)
    return size_bytes


def check_room(request: Message, room_bytes: int) -> None:
    """Whether the records have room for what a request asks to create, and that policies can read of it.

    Raises:
        TooMuchToKeepError: They have not.
    """
    message: Any = request
    parts = [message.config] if hasattr(message, "config") else []
    for part in (*parts, *getattr(message, "container_configs", ())):
        least_bytes = memory_bytes(part.labels) + memory_bytes(read_by_policies(part.annotations))
        if least_bytes > room_bytes:
            raise TooMuchToKeepError("the records of all pods have no room for its labels and annotations")


class CriCall(ABC):
    """One intercepted call whose request is parsed.

    It may be made in any thread. Its methods run in the event loop's thread, but for `prepare`,
    `Question.edit` and `Question.make_view`. They are called in the order in which they stand here.

    Attributes:
        core: What acts on events.
        request: The request; edited in place.
        turn_key: Calls with the same key are decided in the order of arrival. Set by `find_records`.
        pod_key: The pod whose post hooks this call waits for; empty if unknown. Set by `find_records`.
        is_long: Whether work on the request takes long, and so belongs into a worker thread.
        origin: Names the call in the audit.
    """

    request_type: ClassVar[type[Message]]

    request: Message
    turn_key = ""
    pod_key = ""
    is_long = False
    origin = NO_ORIGIN

    def __init__(self, services: CallServices, request: Message) -> None:
        self.core = services.core
        self.lookups = services.lookups
        self.request = request

    @abstractmethod
    def find_records(self) -> bool:
        """Looks the records up and sets the keys; returns whether all records for the questions are there."""

    async def fetch_records(self) -> None:
        """Asks the runtime for records that the store lacks."""
        return

    def correct(self) -> bool:
        """Makes the edits that follow from earlier decisions; returns whether there were any."""
        return False

    def before(self) -> Sequence[Question]:
        """The questions before the runtime sees the call, in their order."""
        return ()

    def adjust(self) -> bool:
        """Makes the edits that follow from records and bounds once all is decided; returns as `correct`."""
        return False

    def preparations(self, until_s: float) -> Sequence[Work]:
        """The work that the runtime's answer depends on; `until_s` is the end of the call's time."""
        return NO_WORK

    def on_sent(self) -> None:
        """The request, edited or not, goes to the runtime now."""
        return

    def prepare(self) -> None:
        """Does work in advance for `on_success`, in any thread and without access to the store.

        Optional for short requests; a long one is always prepared before it is sent.
        """
        return

    def release(self) -> None:
        """Drops the parts of a long request that are no longer needed once it is prepared."""
        return

    def on_cancelled(self) -> bool:
        """The call has ended before it was decided, by a refusal, or before the runtime had it.

        Returns:
            Whether the records have changed, so that policies have to be asked again.
        """
        return False

    def on_end(self) -> Sequence[Work]:
        """The call has ended in any way, before `on_success` if it succeeded. Also for one not sent.

        Returns:
            The work that is due however it has ended, as the kubelet has written before it made the call.
        """
        return NO_WORK

    @abstractmethod
    def on_success(self, response: bytes) -> Sequence[Work]:
        """Brings the records up to date; returns the work that is due now.

        Raises:
            google.protobuf.message.DecodeError: The response cannot be parsed.
        """

    def on_failure(self) -> Sequence[Work]:
        """Brings the records up to date with what the kubelet has done before it made the call."""
        return NO_WORK

    @abstractmethod
    async def confirm(self) -> Sequence[Work] | None:
        """Asks the runtime for the outcome of a call without a response, and updates the records.

        Returns:
            As `on_success`; None if it did not succeed.

        Raises:
            RuntimeUnavailableError: The runtime did not answer; the records stay as they are.
        """

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """The keys under which the next calls of the pod look for this call's work after the answer."""
        self.find_records()
        return (self.pod_key,)

    def after(self) -> Sequence[Question]:
        """The questions after success."""
        return ()


class ContainerCall(CriCall):
    """A call on an existing container; without a record it has no questions."""

    def __init__(self, services: CallServices, request: Message, container_id: str) -> None:
        super().__init__(services, request)
        self.container_id = container_id

    @property
    def record(self) -> ContainerRecord | None:
        return self.core.store.containers.get(self.container_id)

    @property
    def pod(self) -> PodRecord | None:
        record = self.record
        return self.core.store.pods.get(record.pod_id) if record is not None else None

    def find_records(self) -> bool:
        record = self.record
        if record is None:
            self.turn_key = self.container_id
            return False
        self.turn_key, self.pod_key = record.id, record.pod_id
        pod = self.pod
        return record.detailed and pod is not None and pod.detailed

    async def fetch_records(self) -> None:
        record = self.record
        if record is None or not record.detailed:
            await self.lookups.container(self.container_id)
        record, pod = self.record, self.pod
        if record is not None and record.pod_id and not (pod is not None and pod.detailed):
            await self.lookups.pod(record.pod_id)

    def question(self, hook: Hook, record: ContainerRecord, updated: Resources | None = None) -> Question:
        return container_question(self.core.inventory, hook, record, self.pod, updated)


class PodCall(CriCall):
    """A call on an existing sandbox; without a record it has no questions."""

    def __init__(self, services: CallServices, request: Message, pod_id: str) -> None:
        super().__init__(services, request)
        self.pod_id = pod_id

    @property
    def record(self) -> PodRecord | None:
        return self.core.store.pods.get(self.pod_id)

    def find_records(self) -> bool:
        record = self.record
        self.turn_key = self.pod_key = record.id if record is not None else self.pod_id
        return record is not None and record.detailed

    async def fetch_records(self) -> None:
        await self.lookups.pod(self.pod_id)
