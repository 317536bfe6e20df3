"""The values to write so that a node is as the kubelet requested: pure rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from runtimeproxy.cgroups.paths import cgroup_id, cgroup_path
from runtimeproxy.cgroups.writer import FileText
from runtimeproxy.fields.tables import (
    CRI_FIELDS,
    LISTS,
    RESOURCE_PARAMETERS,
    UPDATABLE,
    neutral_text,
    unified_text,
)
from runtimeproxy.hooks.fields import RESOURCES, UNIFIED
from runtimeproxy.hooks.views import Resources
from runtimeproxy.ledger import fitting
from runtimeproxy.ledger.books import Formats, LeftReason, Plan, plan_values
from runtimeproxy.ledger.tree import Path
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.reconcile import reconciled
from runtimeproxy.pods.records import Book, ContainerRecord, Level, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, overlay
from runtimeproxy.units import UNLIMITED, format_memory_max

Value = int | str


class Status(StrEnum):
    """The outcome of one value."""

    PLANNED = "to be restored"
    RESTORED = "restored"
    LEFT = "left alone"
    FAILED = "not restored"


@dataclass(frozen=True, slots=True)
class Line:
    """One value: its place, the present and the wanted value, and the outcome."""

    target: str
    field: str
    old: Value | None
    new: Value | None
    status: Status = Status.PLANNED
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CgroupState:
    """A cgroup that has a book.

    Attributes:
        book: From checkpoint and journal.
        present: What its files hold, by parameter.
        unreadable: Parameters whose files exist and cannot be read.
        above: What the files of lists hold in the cgroup above, by parameter; needed on version 1.
    """

    book: Book
    present: Mapping[str, FileText] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    above: Mapping[str, FileText] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeState:
    """The present state of the node.

    Attributes:
        containers: The runtime's records of the containers that have not stopped, by id.
        cgroups: Of each book.
        unreported: Why the runtime does not report a container just now, by id.
        whole_lists: All members of a pod's cgroup, by parameter and sandbox's id.
    """

    containers: Mapping[str, ContainerRecord]
    cgroups: tuple[CgroupState, ...] = ()
    whole_lists: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unreported: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def in_books(self) -> frozenset[tuple[str, str]]:
        """The values that books have, by container's id and parameter."""
        return frozenset(
            (_container_of(each.book), name) for each in self.cgroups for name in each.book.entries
        )


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """The values to restore for one container.

    Attributes:
        record: From the checkpoint, with the changes that other programs have made since.
        lines: All values that policies own.
    """

    record: ContainerRecord
    values: Resources
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class CgroupPlan:
    """The values to restore in the files of one cgroup.

    Attributes:
        values: To be written.
        raw: The texts of values whose original is known.
        replaces: Of values of processes: those that are replaced.
        lines: All values that policies have written.
        copies: Lists that are what the cgroup above has, and do not follow when that grows.
    """

    state: CgroupState
    values: Mapping[str, Value]
    raw: Mapping[str, str]
    lines: tuple[Line, ...]
    replaces: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    copies: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """All values to restore, but for those that are gone or are already as the kubelet requested."""

    containers: tuple[ContainerPlan, ...]
    cgroups: tuple[CgroupPlan, ...]

    @property
    def lines(self) -> tuple[Line, ...]:
        of_containers = (line for each in self.containers for line in each.lines)
        return (*of_containers, *(line for each in self.cgroups for line in each.lines))


def plan(saved: Saved, node: NodeState, formats: Formats) -> RestorePlan:
    pods = {pod.id: pod for pod in saved.pods}
    containers = tuple(
        _container_plan(record, pods.get(record.pod_id), node)
        for record in saved.containers
        if record.owners and (record.id in node.containers or record.id in node.unreported)
    )
    by_runtime = {
        (each.record.id, RESOURCE_PARAMETERS[name])
        for each in containers
        for line in each.lines
        if (name := line.field.removeprefix(f"{RESOURCES}.")) in RESOURCE_PARAMETERS
    }
    states = tuple(_without_claims(state, by_runtime) for state in node.cgroups)
    fitted = _fitted_lists(states, formats) if fitting.cgroup_version(formats) == 1 else {}
    cgroups = tuple(
        _cgroup_plan(state, fitted.get(cgroup_path(state.book.id), {}), _claimed(given.book), formats)
        for given, state in zip(node.cgroups, states, strict=True)
    )
    return RestorePlan(
        tuple(each for each in containers if each.lines),
        tuple(each for each in cgroups if each.lines or each.copies),
    )


def without_owners(planned: ContainerPlan, restored: frozenset[str]) -> ContainerRecord:
    """The record of a container once these fields are the kubelet's again."""
    record = planned.record
    owners = {name: owner for name, owner in record.owners.items() if name not in restored}
    scalars = {
        name: getattr(planned.values, name) for name in CRI_FIELDS if f"{RESOURCES}.{name}" in restored
    }
    unified = {key: value for key, value in planned.values.unified.items() if f"{UNIFIED}[{key}]" in restored}
    booked = overlay(record.booked, Resources(**scalars, unified=unified))
    return replace(record, owners=owners or NO_ENTRIES, booked=booked)


def kept_book(book: Book, kept: Mapping[str, Status], copies: Mapping[str, Value]) -> Book | None:
    """The book of a cgroup once its files have their original values; None if there is nothing to keep.

    `kept`: parameters that could not be restored, or were left alone: as they were. `copies`: lists that are
    what the cgroup above has: the next attempt gives more if that has grown.
    """
    entries = {name: book.entries[name]._replace(claims=(), resolved=value) for name, value in copies.items()}
    is_copy = {name for name, status in kept.items() if status is Status.LEFT}.intersection(copies)
    entries |= {name: book.entries[name] for name in kept if name not in is_copy}
    return replace(book, entries=entries) if entries else None


def _container_plan(record: ContainerRecord, pod: PodRecord | None, node: NodeState) -> ContainerPlan:
    target = "/".join((pod.namespace, pod.name, record.name)) if pod is not None else record.id[:12]
    if (reason := node.unreported.get(record.id)) is not None:
        owned = _owned_lines(target, record, node)
        failed = tuple(replace(line, status=Status.FAILED, reason=reason) for line in owned)
        return ContainerPlan(record, Resources(), failed)
    record = reconciled(record, node.containers[record.id])
    lines = tuple(_owned_lines(target, record, node))
    values: dict[str, Any] = {}
    unified: dict[str, str] = {}
    for line in lines:
        if line.status is Status.PLANNED and line.field.startswith(f"{UNIFIED}["):
            unified[unified_key(line.field)] = str(line.new)
        elif line.status is Status.PLANNED:
            values[line.field.removeprefix(f"{RESOURCES}.")] = line.new
    return ContainerPlan(record, Resources(**values, unified=unified), lines)


def _owned_lines(target: str, record: ContainerRecord, node: NodeState) -> Iterator[Line]:
    for name in record.owners:
        scalar = name.removeprefix(f"{RESOURCES}.")
        booked: Value | None
        wanted: Value | None
        if name.startswith(f"{UNIFIED}["):
            key = unified_key(name)
            booked, wanted = record.booked.unified.get(key), requested_text(key, record.requested)
        elif scalar in CRI_FIELDS:
            booked, wanted = getattr(record.booked, scalar), _wanted(scalar, record, node)
        else:
            continue
        line = Line(target, name, booked, wanted)
        if scalar in CRI_FIELDS and scalar not in UPDATABLE:
            if (record.id, RESOURCE_PARAMETERS.get(scalar, "")) not in node.in_books:
                yield replace(line, status=Status.FAILED, reason=AT_CREATION)
        elif wanted is None and booked is not None:
            reason = "the kubelet gave no value, and the CRI cannot clear one of a running container"
            yield replace(line, status=Status.FAILED, reason=reason)
        elif wanted is not None and (booked is None or not is_same(name, booked, wanted)):
            yield line


def _wanted(scalar: str, record: ContainerRecord, node: NodeState) -> Value | None:
    """The kubelet's value, or the one that means "no value" on a running container; None if there is none."""
    requested: Value | None = getattr(record.requested, scalar)
    if requested is not None:
        return requested
    field = CRI_FIELDS[scalar]
    whole = node.whole_lists.get(field.name, {}).get(record.pod_id)
    return whole or field.neutral or None


def _without_claims(state: CgroupState, by_runtime: Collection[tuple[str, str]]) -> CgroupState:
    """A cgroup of which nothing is claimed any more, without what an update of the container brings back."""
    book = state.book
    container = _container_of(book)
    unclaimed = {
        name: entry._replace(claims=())
        for name, entry in book.entries.items()
        if (container, name) not in by_runtime
    }
    return replace(state, book=replace(book, entries=unclaimed))


def _container_of(book: Book) -> str:
    return book.id.rpartition("/")[2].removesuffix(".scope").rpartition("-")[2]


def _fitted_lists(
    states: Sequence[CgroupState], formats: Formats
) -> Mapping[Path, Mapping[str, Value | None]]:
    """The lists that are to be those of the cgroup above, or a part of it, by cgroup and parameter."""
    plans = {
        above: Plan(
            cgroup=cgroup_id(above), present=state.above, book=Book(cgroup_id(above), Level.QOS_CLASS)
        )
        for state in states
        for above in (cgroup_path(state.book.id)[:-1],)
    }
    for state in states:
        found = plan_values(state.book, state.present, formats)
        lists = {name: value for name, value in found.values.items() if name in LISTS}
        if lists:
            path = cgroup_path(state.book.id)
            present = plans[path].present if path in plans else {}
            plans[path] = replace(found, values=lists, present=present)
    return fitting.fitted(plans.values(), formats)


def _claimed(book: Book) -> frozenset[str]:
    return frozenset(name for name, entry in book.entries.items() if entry.claims)


def _cgroup_plan(
    state: CgroupState, lists: Mapping[str, Value | None], claimed: Collection[str], formats: Formats
) -> CgroupPlan:
    """The plan for a cgroup. `claimed`: parameters that no attempt before this one has restored."""
    book, lines = state.book, list[Line]()
    found = plan_values(book, state.present, formats, fitted=lists)
    for name in {**book.entries, **found.values}:
        text = state.present[name].text if name in state.present else ""
        line = Line(book.id, name, formats.decode(name, text), found.values.get(name))
        if name in state.unreadable:
            lines.append(replace(line, status=Status.FAILED, reason="the file cannot be read"))
        elif name in found.values:
            lines.append(replace(line, reason=COPIED) if name in lists else line)
        elif name in found.left:
            reason, text = found.left[name]
            status = Status.LEFT if reason is LeftReason.CHANGED_SINCE else Status.FAILED
            lines.append(replace(line, status=status, reason=text))
        elif name in claimed and lists.get(name) is not None:
            lines.append(replace(line, new=lists[name], status=Status.LEFT, reason=COPIED))
    copies = {name: value for name, value in lists.items() if value is not None and name not in found.left}
    return CgroupPlan(state, found.values, found.raw, tuple(lines), found.replaces, copies)


AT_CREATION: Final = "it applies at the creation only: with the next container"
COPIED: Final = "what the cgroup above has; when that grows, run restore again"
"""The reason of a list that version 1 does not let follow the cgroup above."""


def is_same(field: str, one: Value, other: Value) -> bool:
    """Whether two values of a container's field are the same to the kernel."""
    declared = CRI_FIELDS.get(field.removeprefix(f"{RESOURCES}."))
    return one == other if declared is None else declared.is_same(one, other)


def unified_key(field: str) -> str:
    return field.removeprefix(f"{UNIFIED}[").removesuffix("]")


def requested_text(key: str, requested: Resources) -> str | None:
    """The requested text of a file of version 2: its own, or made of the scalars, or the default."""
    given = {field.name: getattr(requested, name) for name, field in CRI_FIELDS.items()}
    found = unified_text(key, {name: value for name, value in given.items() if value is not None})
    return requested.unified.get(key) or found or _swap_text(key, requested) or neutral_text(key)


def _swap_text(key: str, requested: Resources) -> str | None:
    """The text for the limit of swap alone, which the CRI counts together with memory.

    Source: opencontainers/runc, ConvertMemorySwapToCgroupV2Value.
    """
    limit_bytes, swap_bytes = requested.memory_limit_bytes, requested.memory_swap_limit_bytes
    if key == "memory.swap.max" and limit_bytes is not None and swap_bytes is not None:
        has_limit = UNLIMITED not in (limit_bytes, swap_bytes)
        return format_memory_max(max(swap_bytes - limit_bytes, 0) if has_limit else UNLIMITED)
    return None
