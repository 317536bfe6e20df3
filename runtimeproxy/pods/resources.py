"""Resources and text entries of the CRI: read from messages and JSON, overlaid with updates."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.fields.declaration import Declaration, Kind
from runtimeproxy.fields.resources import Resources
from runtimeproxy.fields.tables import CRI_FIELDS, RESOURCE_FIELDS
from runtimeproxy.units import MAX_INT64

if TYPE_CHECKING:
    from cri_api.runtime.v1 import api_pb2

NO_ENTRIES: Final[Mapping[str, Any]] = MappingProxyType({})
"""The one empty mapping that all records share."""

NO_RESOURCES: Final = Resources(unified=NO_ENTRIES)
"""The one `Resources` without any value that all records share."""

_VALUES: Final = attrgetter(*RESOURCE_FIELDS)
_SENT: Final = attrgetter(*(field.cri for field in CRI_FIELDS.values()))
"""The values of all fields at once."""

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""The pod's manifest as `kubectl apply` was given it, with the values of environment variables: never kept.
Source: Kubernetes, LastAppliedConfigAnnotation."""

MAX_KEPT_BYTES: Final = 256 * 1024
"""Of a pod's or container's annotations, and of its labels; and a pod with more counts as one that cannot be
read. Source: Kubernetes apimachinery, TotalAnnotationSizeLimitB."""

OF_THE_KUBELET: Final = "kubernetes.io/config."
"""Annotations that the kubelet adds. Source: Kubernetes pkg/kubelet/types, ConfigSourceAnnotationKey."""

_DOMAINS: Final = ("koordinator.sh", "kubernetes.io", "katalyst.kubewharf.io", "huawei.com", "metax-tech.com")
"""Of the annotations that policies read."""
_WITHOUT_DOMAIN: Final = frozenset({"CAMBRICON_DSMLU_PROFILE"})
"""Those that policies read, too: `policies/accelerators.py` says of whom."""

_ENTRY_BYTES: Final = 100
"""Of an entry in a table of the interpreter, without its texts; at most."""

INTERNED_CHARS: Final = 128
"""Longer texts are not interned: they are rarely the same in two pods."""


def read_resources(message: api_pb2.LinuxContainerResources) -> Resources:
    """The values that a message gives.

    A scalar that is 0 or empty has no bytes on the wire, so it means "no value given".
    """
    if not message.ByteSize():
        return NO_RESOURCES
    pages = message.hugepage_limits
    return Resources(
        **{name: value or None for name, value in zip(CRI_FIELDS, _SENT(message), strict=True)},
        hugepage_limits_bytes=tuple((page.page_size, page.limit) for page in pages) if pages else (),
        unified=frozen(read_entries(message.unified)) if message.unified else NO_ENTRIES,
    )


def read_entries(entries: Mapping[str, str]) -> Mapping[str, str]:
    # For a message's maps it is the quickest copy.
    return {key: entries[key] for key in entries} if entries else NO_ENTRIES


def frozen(entries: Mapping[str, str]) -> Mapping[str, str]:
    # Policies have them in their threads, for longer than a call.
    return MappingProxyType(entries) if entries else NO_ENTRIES


def overlay(base: Resources, newer: Resources) -> Resources:
    """`base` with every value that `newer` gives: `unified` by key, hugepage limits by page size."""
    if newer is NO_RESOURCES:
        return base
    if base is NO_RESOURCES:
        return newer
    pages = base.hugepage_limits_bytes
    if newer.hugepage_limits_bytes:
        pages = tuple({**dict(pages), **dict(newer.hugepage_limits_bytes)}.items())
    values = zip(RESOURCE_FIELDS, _VALUES(base), _VALUES(newer), strict=True)
    return Resources(
        **{name: old if new is None else new for name, old, new in values},
        hugepage_limits_bytes=pages,
        unified=frozen({**base.unified, **newer.unified}) if newer.unified else base.unified,
    )


def resources_from_json(found: Mapping[str, Any]) -> Resources:
    """The values of a CRI message in JSON, as containerd writes it; numbers may be quoted.

    Anything of another type than the CRI's counts as "no value given".
    """
    values = {name: _given(field, found.get(field.cri)) for name, field in CRI_FIELDS.items()}
    pages = ((page.get("page_size"), page.get("limit")) for page in _objects(found.get("hugepage_limits")))
    return _filled(values, pages, found.get("unified"))


def resources_from_spec(found: Mapping[str, Any]) -> Resources:
    """The values of an OCI runtime specification's `linux.resources`, as CRI-O reports it.

    Source: opencontainers/runtime-spec, config-linux.md, "Control groups".
    """
    values = {
        name: _given(field, _object(found.get(field.oci[0])).get(field.oci[1]))
        for name, field in CRI_FIELDS.items()
        if field.oci is not None
    }
    pages = ((page.get("pageSize"), page.get("limit")) for page in _objects(found.get("hugepageLimits")))
    return _filled(values, pages, found.get("unified"))


def _given(field: Declaration, value: object) -> int | str | None:
    return (_integer(value) if field.kind is Kind.NUMBER else _text(value)) or None


def _filled(values: dict[str, Any], pages: Iterable[tuple[Any, Any]], unified: object) -> Resources:
    """`Resources` of already checked scalars and unchecked lists."""
    limits = ((_text(size), _integer(limit)) for size, limit in pages)
    values["hugepage_limits_bytes"] = tuple(pair for pair in limits if all(pair))
    entries = {key: value for key, value in _object(unified).items() if isinstance(value, str)}
    found = Resources(**values, unified=frozen(entries))
    return NO_RESOURCES if found == NO_RESOURCES else found


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: object) -> int:
    """An integer of 64 bits, which may be text, as protobuf's own JSON writes it; 0 if it is none."""
    if isinstance(value, str):
        sign, digits = (-1, value[1:]) if value.startswith("-") else (1, value)
        value = sign * int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_INT64:
        return 0
    return value


def entries_bytes(entries: Mapping[str, str]) -> int:
    """The size of labels or annotations as the API server counts them, without those of the kubelet.

    What is above `MAX_KEPT_BYTES` is not counted to its end.
    """
    size_bytes = 0
    for key in entries:
        if not key.startswith(OF_THE_KUBELET):
            size_bytes += _utf8_bytes(key) + _utf8_bytes(entries[key])
            if size_bytes > MAX_KEPT_BYTES:
                break
    return size_bytes


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def memory_bytes(entries: Mapping[str, str | None]) -> int:
    """What labels, annotations or the like take in memory; many short ones take many times their texts."""
    texts = sum(map(sys.getsizeof, entries)) + sum(map(sys.getsizeof, entries.values()))
    return texts + _ENTRY_BYTES * len(entries)


def read_by_policies(entries: Mapping[str, str]) -> Mapping[str, str]:
    # The annotations that policies of this project, strategies and selectors can read.
    return {key: entries[key] for key in entries if has_known_domain(key)}


def has_known_domain(name: str) -> bool:
    """Whether an annotation is of a domain that policies read."""
    domain, slash, _ = name.partition("/")
    if not slash:
        return name in _WITHOUT_DOMAIN
    return any(f".{domain}".endswith(f".{each}") for each in _DOMAINS)


def kept_annotations(entries: Mapping[str, str]) -> Mapping[str, str]:
    """A copy of annotations for a record, without the one that is never kept."""
    if LAST_APPLIED in entries:
        entries = {key: entries[key] for key in entries if key != LAST_APPLIED}
    return compact(entries)


def bounded(entries: Mapping[str, str]) -> Mapping[str, str]:
    # None of an object with more than is kept.
    return entries if entries_bytes(entries) <= MAX_KEPT_BYTES else NO_ENTRIES


def compact(entries: Mapping[str, str]) -> Mapping[str, str]:
    """A copy for a record: equal keys and short values of many pods are one object in memory."""
    if not entries:
        return NO_ENTRIES
    copy: dict[str, str] = {}
    for key in entries:
        value = entries[key]
        copy[sys.intern(key) if len(key) <= INTERNED_CHARS else key] = (
            sys.intern(value) if len(value) <= INTERNED_CHARS else value
        )
    return copy
