"""What held calls have in common: the records they touch, the questions to policies, what success means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from runtimeproxy.calls.field_presence import given_fields
from runtimeproxy.cgroups import CgroupPathError, container_path
from runtimeproxy.hooks import CgroupChange, ContainerView, Hook, PodView, Resources
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.selector import PodTraits
    from runtimeproxy.pods.lookup import Lookups
    from runtimeproxy.pods.store import PodStore


ResultT = TypeVar("ResultT")


class Elsewhere(Protocol):
    """Runs what takes long in a worker thread."""

    def __call__(self, work: Callable[[], ResultT], /) -> Awaitable[ResultT]:
        """What the work returns."""


class UpdateUnderWay(NamedTuple):
    """An update of a container that the runtime has not answered."""

    sent: Resources
    """What the kubelet sent."""
    carried: Resources
    """The same with what policies made of it."""


@dataclass(slots=True)
class CallContext:
    """What the held calls of one daemon share.

    Attributes:
        store: The records.
        lookups: Asks the runtime for single records.
        scope_prefix: What the runtime puts before a container's id in cgroup names; see `container_path`.
        updates_under_way: Updates that the runtime has not answered, oldest first, by container.
    """

    store: PodStore
    lookups: Lookups
    scope_prefix: str = ""
    updates_under_way: dict[str, list[UpdateUnderWay]] = field(default_factory=dict)


class DueWrites(NamedTuple):
    """Cgroup values of a container that now has its cgroup."""

    cgroup: str
    """Empty if its place is not known."""
    values: Mapping[str, int | str]
    container: ContainerRecord
    pod: PodRecord | None
    owners: Mapping[str, str]
    """The policies that want them, by the names of fields."""


def no_edit(change: CgroupChange) -> bool:
    """For calls whose message carries nothing that a policy may change."""
    return False


@dataclass(slots=True)
class Question:
    """What the policies are asked about a call, and where their answer goes.

    Attributes:
        hook: The hook point.
        pod: The pod that the question is about, as far as that decides who is concerned.
        edit: Applies an answer to the request; returns whether that changed anything. Runs in any thread.
        cgroup: The cgroup that the answer's cgroup values are for; empty while it does not exist.
        details: What policies are shown of a container, and the cgroup of that. Asked for only once it is
            clear that a policy is concerned; None means the pod itself. Runs in any thread and sees no store.
        pod_view: What policies are shown of the pod, if `pod` is not that already; as `details`.
    """

    hook: Hook
    pod: PodTraits
    edit: Callable[[CgroupChange], bool] = no_edit
    cgroup: str = ""
    details: Callable[[], tuple[ContainerView, str]] | None = None
    pod_view: Callable[[], PodView] | None = None

    def view(self) -> PodView | ContainerView:
        """What policies are shown; from here on `cgroup` is what it says."""
        if self.details is None:
            return cast("PodView", self.pod) if self.pod_view is None else self.pod_view()
        view, self.cgroup = self.details()
        return view


Questions: TypeAlias = Generator[Question, "Decision | None", None]
"""One question after the other; each gets the decision on it, or None if nobody wanted to be asked."""


def answered(questions: Questions, decision: Decision | None) -> Question | None:
    """Tells the decision on one question; returns the next question, None if that was the last."""
    try:
        return questions.send(decision)
    except StopIteration:
        return None


class Operation(ABC):
    """One held call whose request is understood.

    It may be made in any thread. All its methods run in the event loop's thread; `Question.edit` and what
    `preparation` returns in another.

    Attributes:
        request_type: Of the request.
        request: The request; edited in place.
        pending: Cgroup values that wait for the container's cgroup.
        pending_owners: The policies that want them, by the names of fields.
        elsewhere: Runs what takes long; None if the request is short, and all of it takes microseconds.
    """

    request_type: ClassVar[type[Message]]

    asks_once: ClassVar[bool] = True
    """Whether there is at most one question, so that its answer can be carried out where it was found."""

    request: Message

    def __init__(self, context: CallContext, request: Message) -> None:
        self.context = context
        self.request = request
        self.pending: dict[str, int | str] = {}
        self.pending_owners: dict[str, str] = {}
        self.elsewhere: Elsewhere | None = None

    @property
    @abstractmethod
    def turn_key(self) -> str:
        """Calls with the same key are decided in the order of arrival."""

    @property
    @abstractmethod
    def pod_key(self) -> str:
        """The pod whose post hooks this call waits for; empty if it is not known."""

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """The keys under which the next calls of the pod will look for this one's post hooks."""
        return (self.pod_key,)

    @property
    def is_complete(self) -> bool:
        """Whether the store has the records that the questions need."""
        return True

    async def complete(self) -> None:
        """Looks up the records that the questions need, if the store does not have them."""
        return

    @abstractmethod
    def questions(self) -> Questions:
        """What to ask before the runtime sees the call."""

    def carry(self) -> bool:
        """Edits that earlier decisions demand of this request; returns whether there were any."""
        return False

    @property
    def must_carry(self) -> bool:
        """Whether `carry` has something to do."""
        return False

    def sent(self) -> None:
        """The request, edited or not, goes to the runtime now."""
        return

    def preparation(self) -> Callable[[], None] | None:
        """What does in advance what `succeeded` can need, in any thread; None if that is nothing.

        May be left out; but a long request is always prepared before it is sent.
        """
        return None

    def release(self) -> None:
        """Drops what is no longer needed of a long request that is prepared and about to be sent."""
        return

    def over(self) -> None:
        """The call has ended, however it did; before `succeeded` if it did that. Also for one not sent."""
        return

    @abstractmethod
    def succeeded(self, response: bytes) -> None:
        """Brings the records up to date.

        Raises:
            google.protobuf.message.DecodeError: The response cannot be understood.
        """

    def afterwards(self) -> Questions:
        """What to ask after success."""
        yield from ()

    def due_writes(self) -> DueWrites | None:
        """The cgroup values whose time has come with the call's success; None if there are none."""
        return None

    @property
    def disturbed_cgroup(self) -> str:
        """The pod's cgroup, if values that were written there may be lost by the call's success.

        Source: systemd realizes a slice again, with the slice's own properties, when a scope starts below it.
        """
        return ""

    @property
    def resized_cgroup(self) -> str:
        """The pod's cgroup, if the kubelet has written to it itself and tells the runtime so by this call.

        Whatever the runtime answers. Source: kubelet 1.33, in-place resize; containerd 2.2 answers
        UpdatePodSandboxResources with an error.
        """
        return ""

    @abstractmethod
    async def confirm(self) -> bool:
        """Asks the runtime how a call ended whose end was not seen, and settles the records.

        Returns:
            Whether it succeeded.

        Raises:
            RuntimeUnavailableError: The runtime did not answer; the records stay as they are.
        """


def container_cgroup(context: CallContext, pod: PodRecord | None, container: ContainerRecord) -> str:
    """The cgroup of a container; empty if its place is not known."""
    if pod is None or not pod.cgroup_parent:
        return ""
    try:
        path = container_path(pod.cgroup_parent, container.id, prefix=context.scope_prefix)
    except CgroupPathError:
        return ""
    return "/" + "/".join(path)


def slice_of(pod: PodRecord | None) -> str:
    """The pod's cgroup if it is a slice of systemd's; empty if not, or if it is not known."""
    parent = pod.cgroup_parent if pod is not None else ""
    return parent if parent.endswith(".slice") else ""


def merged_owners(
    before: Mapping[str, str], sent: Resources, decided: Mapping[str, str]
) -> Mapping[str, str]:
    """Who owns which field after an update: what the kubelet sent and nobody claimed is its own again.

    Args:
        before: The owners so far.
        sent: What the kubelet sent.
        decided: The owners of the fields that policies claimed now.
    """
    if not before and not decided:
        return NO_ENTRIES
    fields = given_fields(sent)
    kept = {name: owner for name, owner in before.items() if name not in fields}
    kept.update(decided)
    return kept or NO_ENTRIES
