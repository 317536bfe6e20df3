"""Records of pods, containers and cgroups. Values of environment variables are never recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind, Owners
from runtimeproxy.hooks.views import Resources
from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.node.snapshot import LivePod
from runtimeproxy.pods.resources import (
    NO_ENTRIES,
    NO_RESOURCES,
    OF_THE_KUBELET,
    kept_annotations,
)

MOST_ADDRESSES: Final = 16
"""Of one pod, which are kept: more than networks of one have."""
NO_CHANGES: Final[Mapping[str, str | None]] = MappingProxyType({})
"""The one empty mapping of changes that all records share."""


def _no_entries() -> Mapping[str, Any]:
    return NO_ENTRIES


def _no_changes() -> Mapping[str, str | None]:
    return NO_CHANGES


class Lifecycle(IntEnum):
    """The state of a sandbox or container; a sandbox is never CREATED."""

    CREATED = 0
    RUNNING = 1
    STOPPED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """A pod sandbox that the runtime has."""

    id: str
    name: str = ""
    namespace: str = ""
    uid: str = ""
    attempt: int = 0
    labels: Mapping[str, str] = field(default_factory=_no_entries)
    """As sent to the runtime, with the changes of policies."""
    annotations: Mapping[str, str] = field(default_factory=_no_entries)
    """As sent to the runtime, with the changes of policies, but for `LAST_APPLIED`."""
    label_changes: Mapping[str, str | None] = field(default_factory=_no_changes)
    """Changes of policies; None removes a label."""
    annotation_changes: Mapping[str, str | None] = field(default_factory=_no_changes)
    """Changes of policies; None removes an annotation."""
    runtime_handler: str = ""
    cgroup_parent: str = ""
    """The sandbox's cgroup; empty when it is not known."""
    overhead: Resources = NO_RESOURCES
    requested: Resources = NO_RESOURCES
    """The values of all requests of the kubelet."""
    booked: Resources = NO_RESOURCES
    """What the specification in the runtime holds: the values of all requests to it."""
    owners: Owners = field(default_factory=_no_entries)
    """Of the fields that policies have changed."""
    addresses: tuple[str, ...] | None = None
    """Its IP addresses; empty: it is in the node's network. None: the runtime has not told them yet."""
    is_host_network: bool = False
    """Whether it is in the node's network namespace; only as good as `addresses` is known."""
    priority: int | None = None
    """`spec.priority`; None if it is not known."""
    state: Lifecycle = Lifecycle.RUNNING
    detailed: bool = True
    """Whether cgroup parent and resources are known; a list of the runtime has neither."""
    recovered: bool = False
    """Whether it comes from the runtime itself: then the changes of policies are not known."""
    trimmed: bool = False
    """Whether labels or annotations were left out, since all records together have a bound."""
    created_s: float = field(default=0.0, compare=False)
    """When the runtime made it, in seconds since the epoch; 0.0 if that is not known."""
    katalyst: KatalystQos | None = field(default=None, compare=False)
    """What its annotations of Katalyst's say, where these are in use; follows from them, and is not saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """A container that the runtime has."""

    id: str
    pod_id: str = ""
    name: str = ""
    attempt: int = 0
    labels: Mapping[str, str] = field(default_factory=_no_entries)
    annotations: Mapping[str, str] = field(default_factory=_no_entries)
    """As sent to the runtime, with the changes of policies."""
    requested: Resources = NO_RESOURCES
    """The values of all requests of the kubelet; after a restart those that the runtime reports."""
    booked: Resources = NO_RESOURCES
    """What the specification in the runtime holds: the values of all requests to it."""
    owners: Owners = field(default_factory=_no_entries)
    """Of the fields that policies have changed."""
    cpu_claims: tuple[str, ...] = ()
    """The CDI devices of the kubelet's request that stand for DRA claims on CPUs."""
    pending_cgroup: Mapping[str, int | str] = field(default_factory=_no_entries)
    """Cgroup values to be written when the container is started, because its cgroup exists only then."""
    evaluation: int = 0
    """How many evaluations of everything had begun when policies decided on it; not saved."""
    state: Lifecycle = Lifecycle.CREATED
    detailed: bool = True
    """Whether the resources are known; a list of the runtime has none."""
    recovered: bool = False
    """Whether it comes from the runtime itself: then the changes of policies are not known."""
    trimmed: bool = False
    """As `PodRecord.trimmed`."""
    created_s: float = field(default=0.0, compare=False)
    """As `PodRecord.created_s`."""


@dataclass(frozen=True, slots=True)
class ManagedValue:
    """A value that version 0.1 has written to a file of a cgroup."""

    wanted: int | str
    original: int | str | None = None
    """The content of the file before, or a foreign value written since; None if it is not known."""
    reapply: bool = True
    """Whether it is written again when it has changed: no longer once other policies are in use."""


@dataclass(frozen=True, slots=True)
class CgroupRecord:
    """The values that version 0.1 has written to the files of a cgroup; only read."""

    id: str
    """The cgroup's path below a controller's mount, with a slash in front."""
    values: Mapping[str, ManagedValue]
    """By parameter."""


class Level(IntEnum):
    """The kind of a cgroup; parents first."""

    NODE = 0
    QOS_CLASS = 1
    POD = 2
    CONTAINER = 3


class Original(NamedTuple):
    """The content of a file before the first value was written to it."""

    text: str | None
    """Raw, byte for byte; None if it is not known."""
    inode: int = 0
    """Of the cgroup's folder: another one is another cgroup of the same name. 0 if it is not known."""


class Entry(NamedTuple):
    """One parameter of one cgroup."""

    claims: tuple[Claim, ...] = ()
    """Of policies, hook servers and the like; without any the value is to be given back."""
    resolved: int | str | None = None
    """What the file is to hold; None as long as that is not known."""
    requested: int | str | None = None
    """Of a container: what the kubelet asked the runtime for; None for nothing, and for files that the CRI
    does not have. Of a pod: what the requests of its containers come to, which applies where the original of
    its file is not known; None if that is not known either."""
    booked: int | str | None = None
    """What the runtime's specification of the container holds; None for nothing."""
    is_once: bool = False
    """Whether it is written once and then observed only: a hook server's value of a pod."""
    is_settling: bool = False
    """Whether the next look writes such a value again, since systemd resets the slice that it was for."""

    @property
    def owners(self) -> tuple[Claimant, ...]:
        return tuple(dict.fromkeys(claim.owner for claim in self.claims))

    @property
    def leases(self) -> tuple[tuple[str, str], ...]:
        # All that is saved of these claims, whose values move.
        return tuple((str(claim.owner), claim.role.value) for claim in self.claims if is_leased(claim))


def is_leased(claim: Claim) -> bool:
    return claim.owner.kind is ClaimantKind.PLUGIN


def as_saved(entry: Entry) -> Entry:
    """An entry without the values that claims with a lease move: what the checkpoint has of it."""
    if not any(map(is_leased, entry.claims)):
        return entry
    claims = tuple(
        Claim(each.owner, each.role, None, each.priority) if is_leased(each) else each
        for each in entry.claims
    )
    return entry._replace(claims=claims, resolved=None)


@dataclass(frozen=True, slots=True)
class Book:
    """The claims and values of a cgroup, and what its files held before."""

    id: str
    """The cgroup's path below a controller's mount, with a slash in front."""
    level: Level = Level.POD
    entries: Mapping[str, Entry] = field(default_factory=_no_entries)
    """By parameter, in its version 1 name."""
    originals: Mapping[str, Original] = field(default_factory=_no_entries)
    """By the name of the file, which may carry several parameters."""
    boot_id: str = ""
    """Of the kernel that all this is about: after a reboot nothing of it counts."""


def with_live(record: PodRecord, live: LivePod) -> PodRecord:
    """The record with priority and annotations as the API server has them now.

    What policies have changed stays changed. Of a recovered record that is not known, so none is removed.
    """
    kept = {
        key: text
        for key, text in record.annotations.items()
        if record.recovered or key.startswith(OF_THE_KUBELET)
    }
    annotations: dict[str, str | None] = {**kept, **live.annotations, **record.annotation_changes}
    present = kept_annotations({key: text for key, text in annotations.items() if text is not None})
    if present == record.annotations:
        return record if live.priority == record.priority else replace(record, priority=live.priority)
    return replace(record, annotations=present, priority=live.priority)


Record: TypeAlias = PodRecord | ContainerRecord | CgroupRecord | Book
