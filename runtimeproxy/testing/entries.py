"""A sandbox and a container of the fake runtime, and how they are found and updated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.failures import CallError, not_found

Resources = api_pb2.LinuxContainerResources

_Entry = TypeVar("_Entry")


@dataclass
class Sandbox:
    """One pod sandbox; times are Unix nanoseconds."""

    id: str
    config: api_pb2.PodSandboxConfig
    runtime_handler: str
    created_at_ns: int
    pid: int
    ip: str
    ready: bool = True


@dataclass
class Container:
    """One container; times are Unix nanoseconds, 0 before they are known.

    Attributes:
        config: As it was created; updates do not change it.
        resources: As applied, with the updates.
        update_annotations: Annotations of the last update.
    """

    id: str
    sandbox_id: str
    config: api_pb2.ContainerConfig
    sandbox_config: api_pb2.PodSandboxConfig
    resources: Resources
    created_at_ns: int
    state: api_pb2.ContainerState.ValueType = api_pb2.CONTAINER_CREATED
    started_at_ns: int = 0
    finished_at_ns: int = 0
    exit_code: int = 0
    reason: str = ""
    pid: int = 0
    update_annotations: dict[str, str] = field(default_factory=dict)


def merge_resources(into: Resources, update: Resources) -> None:
    """Applies an update: what is set replaces, ``unified`` by key; oom_score_adj never changes.

    Source: containerd, updateOCIResource of the CRI plugin.
    """
    oom_score_adj = into.oom_score_adj
    if update.hugepage_limits:
        del into.hugepage_limits[:]
    into.MergeFrom(update)
    into.oom_score_adj = oom_score_adj


def matches_labels(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether all labels of the selector are there with the same values."""
    return all(labels.get(key) == value for key, value in selector.items())


def find(entries: Mapping[str, _Entry], wanted: str, kind: str) -> _Entry:
    """The entry with this id or unique prefix of one; raises ``CallError`` if there is none."""
    if wanted in entries:
        return entries[wanted]
    match [key for key in entries if wanted and key.startswith(wanted)]:
        case [only]:
            return entries[only]
        case []:
            raise not_found(kind, wanted)
        case _:
            raise CallError("UNKNOWN", f"multiple {kind} ids begin with {wanted!r}")


def find_or_none(entries: Mapping[str, _Entry], wanted: str, kind: str) -> _Entry | None:
    """As ``find``, with ``None`` where nothing has the id; an ambiguous prefix still fails."""
    try:
        return find(entries, wanted, kind)
    except CallError as failure:
        if failure.code == "NOT_FOUND":
            return None
        raise
