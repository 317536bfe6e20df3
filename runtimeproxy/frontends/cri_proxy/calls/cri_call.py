"""Intercepted calls whose request is parsed: their records, their questions to policies, their success."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

from runtimeproxy.cgroups.paths import CgroupPathError, container_path
from runtimeproxy.fields.tables import RESOURCE_PARAMETERS
from runtimeproxy.frontends.cri_proxy.calls.edit_request import given_fields
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import UnreadableMessageError
from runtimeproxy.hooks import CgroupChange, Hook, PodView, ResourceChange, Resources
from runtimeproxy.hooks.audit import NO_ORIGIN
from runtimeproxy.hooks.fields import RESOURCES, plain_cgroup_values
from runtimeproxy.ledger.answers import by_parameter, claims_of, target_of
from runtimeproxy.ledger.books import TREE, Wanted, with_fitted_claims
from runtimeproxy.pods.record_views import (
    container_in_force,
    recorded_container,
    recorded_pod,
    recorded_summary,
)
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import (
    MAX_KEPT_BYTES,
    NO_ENTRIES,
    entries_bytes,
    memory_bytes,
    read_by_policies,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices, CpuAllocations
    from runtimeproxy.hooks import ContainerView
    from runtimeproxy.hooks.changes import Change
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.fields import Field, MergedField, View
    from runtimeproxy.hooks.selector import PodTraits

SCOPE_PREFIXES: Final = {"cri-o": "crio"}
"""Prefixes of containers' ids in cgroup names, by the runtime's name. Source: CRI-O internal/config/cgmgr."""


class DueWrites(NamedTuple):
    """Cgroup values that waited for the success of a call."""

    cgroup: str
    """Empty if its path is not known."""
    values: Mapping[str, int | str]
    owners: Mapping[str, str]
    """The policies that own the values, by the names of fields."""
    hook: Hook
    """For the audit."""
    make_view: Callable[[], PodView | ContainerView]
    """Makes the view of their pod or container."""
    wanted: Wanted | None = None
    """The answer of all policies; None for a container that starts, whose book has it."""
    evaluation: int | None = None
    """What `CallServices.evaluation` was before policies gave that answer; None without one."""


def no_edit(change: Change) -> bool:
    """For calls whose message has no fields that a policy may change."""
    return False


def no_quotas() -> Mapping[str, int]:
    """For calls that do not change a CPU quota."""
    return {}


@dataclass(slots=True)
class Question:
    """One hook of a call: its input for policies, and the target of their decision.

    Attributes:
        hook: The hook point.
        pod: What selectors look at.
        make_view: Makes the view for policies; called only when a policy is to run, in any thread, without
            access to the store.
        cgroup: The cgroup for the decision's cgroup values; empty while it does not exist.
        is_deferred: Whether those values wait for the success of the call.
        edit: Applies a change to the request; returns whether that differs now. Runs in any thread.
        new_quotas_us: The CPU quotas that cgroups get when a container is updated, its pod's first.
    """

    hook: Hook
    pod: PodTraits
    make_view: Callable[[], View]
    cgroup: str = ""
    is_deferred: bool = False
    edit: Callable[[Change], bool] = no_edit
    new_quotas_us: Callable[[], Mapping[str, int]] = no_quotas


Questions: TypeAlias = Generator[Question, "Decision | None", None]
"""One question after the other; each is sent its decision, or None if no policy had to run."""


def next_question(questions: Questions, decision: Decision | None) -> Question | None:
    """Sends the decision on one question; returns the next one, None if that was the last."""
    try:
        return questions.send(decision)
    except StopIteration:
        return None


def pending_values(question: Question, decision: Decision | None) -> Mapping[str, int | str]:
    """The cgroup values of a decision that wait for the success of the call, or for a container's cgroup."""
    change = decision.change if decision is not None and not decision.unwritten else None
    if not isinstance(change, CgroupChange) or not change.cgroup:
        return NO_ENTRIES
    if question.cgroup and not question.is_deferred:
        return NO_ENTRIES
    return plain_cgroup_values(change)


def book_container(
    services: CallServices,
    pod: PodRecord | None,
    record: ContainerRecord,
    fields: Mapping[Field, MergedField],
    fitted: Mapping[str, int | str] = NO_ENTRIES,
) -> None:
    """Books what policies want of a new container, once its response is on its way.

    Args:
        services: Of all calls.
        pod: Its record; None if it is not known.
        record: Of the container.
        fields: What policies want.
        fitted: The values that its message has because of bounds above; see `within_bounds`.
    """
    if pod is not None and (fields or fitted):
        asyncio.get_running_loop().call_soon(_book_container, services, pod, record, fields, fitted)


def _book_container(
    services: CallServices,
    pod: PodRecord,
    record: ContainerRecord,
    fields: Mapping[Field, MergedField],
    fitted: Mapping[str, int | str],
) -> None:
    cgroup = container_cgroup(services, pod, record)
    claims = claims_of(fields, is_container=True, is_base_known=not record.recovered)
    claims = with_fitted_claims(claims, fitted)
    if cgroup and claims:
        requested, booked = by_parameter(record.requested), by_parameter(record.booked)
        services.writer.book(Wanted(target_of(pod, record, cgroup), claims, requested, booked))


def fitted_change(fitted: Mapping[str, int | str]) -> ResourceChange:
    """The change of a container's resources to values within bounds."""
    values: dict[str, Any] = {
        field: fitted[name] for field, name in RESOURCE_PARAMETERS.items() if name in fitted
    }
    return ResourceChange(**values)


def fitted_owners(fitted: Mapping[str, int | str]) -> dict[str, str]:
    """The owner of fields that have other values because of bounds above."""
    names = (field for field, name in RESOURCE_PARAMETERS.items() if name in fitted)
    return {f"{RESOURCES}.{field}": TREE for field in names}


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
    `Question.edit` and `Question.make_view`.

    Attributes:
        request_type: Of the request.
        has_one_question: Whether `questions` yields at most one, so that its decision can be applied in the
            worker thread in which it was found.
        request: The request; edited in place.
        turn_key: Calls with the same key are decided in the order of arrival. Set by `find_records`.
        pod_key: The pod whose post hooks this call waits for; empty if unknown. Set by `find_records`.
        resized_cgroup: The pod's cgroup if the kubelet has written to it itself before it made this call,
            whatever the runtime answers; else empty. Source: kubelet 1.33, in-place resize; containerd 2.2
            answers UpdatePodSandboxResources with an error.
        is_resize: Whether the kubelet has resized the pod there; else it may have been disturbed only.
        written_there: What the kubelet has written there, by cgroup parameter, as far as the call says it.
        room_cgroup: The pod's cgroup if it may have to be raised before the runtime makes or starts a
            container; else empty.
        owns_cpus: Whether its pod may have CPUs for itself, which others leave before the call is forwarded.
        sets_quota: Whether the kubelet sets the quota of a container which, or whose pod, may have a burst of
            policies.
        disturbed_cgroup: The pod's cgroup if the call's success may have reset values there; else empty.
            Source: systemd realizes a slice again, with its own properties, when a scope starts in it.
        due_writes: The cgroup values to write now that the call has succeeded.
        is_long: Whether work on the request takes long, and so belongs into a worker thread.
        origin: Names the call in the audit.
    """

    request_type: ClassVar[type[Message]]
    has_one_question: ClassVar[bool] = True

    request: Message
    turn_key = ""
    pod_key = ""
    resized_cgroup = ""
    is_resize = True
    written_there: Mapping[str, int | str] = NO_ENTRIES
    room_cgroup = ""
    owns_cpus = False
    sets_quota = False
    disturbed_cgroup = ""
    due_writes: tuple[DueWrites, ...] = ()
    is_long = False
    origin = NO_ORIGIN

    def __init__(self, services: CallServices, request: Message) -> None:
        self.services = services
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

    def questions(self) -> Questions:
        """The questions before the runtime sees the call."""
        yield from ()

    def ride(self, decision: Decision | None) -> bool:
        """Makes the edits that other decisions make due; returns whether there were any.

        Args:
            decision: On the call's only question, already part of the request; None if no policy had to run.
        """
        return False

    def room(self) -> Mapping[str, int | str]:
        """The values of a container that its pod's cgroup has to have room for, by cgroup parameter."""
        return NO_ENTRIES

    async def take_cpus(self, allocations: CpuAllocations) -> None:
        """Takes the pod's own CPUs, and waits until others have left them; may be cancelled."""
        return

    def new_quotas_us(self) -> Mapping[str, int]:
        """The CPU quotas that cgroups get by this call, its pod's first."""
        return no_quotas()

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

    def on_end(self) -> None:
        """The call has ended in any way, before `on_success` if it succeeded. Also for one not sent."""
        return

    @abstractmethod
    def on_success(self, response: bytes) -> None:
        """Brings the records up to date.

        Raises:
            google.protobuf.message.DecodeError: The response cannot be parsed.
        """

    def on_failure(self) -> None:
        """Brings the records up to date with what the kubelet has done before it made the call."""
        return

    def on_cancelled(self) -> bool:
        """As `on_failure`, for a call that has ended before it was decided, and of which nothing is written.

        Returns:
            Whether the records have changed, so that policies have to be asked again.
        """
        return False

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """The keys under which the next calls of the pod look for this call's post hooks."""
        self.find_records()
        return (self.pod_key,)

    def post_questions(self) -> Questions:
        """The questions after success."""
        yield from ()

    @abstractmethod
    async def confirm(self) -> bool:
        """Asks the runtime for the outcome of a call without a response, and updates the records.

        Returns:
            Whether it succeeded.

        Raises:
            RuntimeUnavailableError: The runtime did not answer; the records stay as they are.
        """


class ContainerCall(CriCall):
    """A call on an existing container; without a record it has no questions."""

    def __init__(self, services: CallServices, request: Message, container_id: str) -> None:
        super().__init__(services, request)
        self.container_id = container_id

    @property
    def record(self) -> ContainerRecord | None:
        """The container's present record."""
        return self.services.store.containers.get(self.container_id)

    @property
    def pod(self) -> PodRecord | None:
        """Its sandbox's present record."""
        record = self.record
        return self.services.store.pods.get(record.pod_id) if record is not None else None

    def find_records(self) -> bool:
        record = self.record
        if record is None:
            self.turn_key = self.container_id
            return False
        self.turn_key, self.pod_key = record.id, record.pod_id
        pod = self.pod
        return record.detailed and pod is not None and pod.detailed

    async def fetch_records(self) -> None:
        record, lookups = self.record, self.services.lookups
        if record is None or not record.detailed:
            await lookups.container(self.container_id)
        record, pod = self.record, self.pod
        if record is not None and record.pod_id and not (pod is not None and pod.detailed):
            await lookups.pod(record.pod_id)

    def question(self, hook: Hook, record: ContainerRecord, updated: Resources | None = None) -> Question:
        """A question about the container; `updated` are the resources that an update asks for."""
        return container_question(self.services, hook, record, self.pod, updated)


class PodCall(CriCall):
    """A call on an existing sandbox; without a record it has no questions."""

    def __init__(self, services: CallServices, request: Message, pod_id: str) -> None:
        super().__init__(services, request)
        self.pod_id = pod_id

    @property
    def record(self) -> PodRecord | None:
        """The sandbox's present record."""
        return self.services.store.pods.get(self.pod_id)

    def find_records(self) -> bool:
        record = self.record
        self.turn_key = self.pod_key = record.id if record is not None else self.pod_id
        return record is not None and record.detailed

    async def fetch_records(self) -> None:
        await self.services.lookups.pod(self.pod_id)


def container_question(
    services: CallServices,
    hook: Hook,
    record: ContainerRecord,
    pod: PodRecord | None,
    updated: Resources | None = None,
) -> Question:
    """A question about a recorded container; `updated` are the resources that an update asks for.

    Without an update its values are those in force.
    """
    cgroup = "" if record.state is Lifecycle.CREATED else container_cgroup(services, pod, record)

    def make_view() -> ContainerView:
        view = PodView() if pod is None else recorded_pod(pod)
        if updated is None:
            return container_in_force(record, view)
        return recorded_container(record, view, updated)

    return Question(hook, PodView() if pod is None else recorded_summary(pod), make_view, cgroup)


def pod_question(hook: Hook, record: PodRecord, *, has_cgroup: bool = True) -> Question:
    """A question about a recorded pod; `has_cgroup` says whether its cgroup is there to be written to."""
    cgroup = record.cgroup_parent if has_cgroup else ""
    return Question(hook, recorded_summary(record), partial(recorded_pod, record), cgroup)


def container_cgroup(services: CallServices, pod: PodRecord | None, container: ContainerRecord) -> str:
    """The cgroup of a container; empty if its path is not known."""
    if pod is None or not pod.cgroup_parent:
        return ""
    prefix = SCOPE_PREFIXES.get(services.runtime_name, "")
    try:
        return "/" + "/".join(container_path(pod.cgroup_parent, container.id, prefix=prefix))
    except CgroupPathError:
        return ""


def slice_of(pod: PodRecord | None) -> str:
    """The pod's cgroup if it is a systemd slice; empty if not, or if it is not known."""
    parent = pod.cgroup_parent if pod is not None else ""
    return parent if parent.endswith(".slice") else ""


def merged_owners(
    before: Mapping[str, str],
    sent: Resources,
    decided: Mapping[str, str],
    released: Collection[str] = (),
) -> Mapping[str, str]:
    """The owner of each field after an update; fields that the kubelet sent and no policy set have none.

    Args:
        before: The owners before it.
        sent: The resources from the kubelet.
        decided: The owners of the fields that policies set now.
        released: The fields that no policy sets any more.
    """
    if not before and not decided:
        return NO_ENTRIES
    gone = given_fields(sent).union(released)
    owners = {name: owner for name, owner in before.items() if name not in gone}
    owners.update(decided)
    return owners or NO_ENTRIES
