"""Audit entries as JSON: one object per decision, as `audit.file` and the state folder have them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.policy import Hook, Mode


def lines(entries: Iterable[AuditEntry]) -> Iterator[bytes]:
    # A line for each decision, in the order of its first entry.
    for document in documents(entries):
        # ASCII only, so that no text of a pod can end the line or change the direction of what is shown.
        yield json.dumps(document, separators=(",", ":")).encode("ascii") + b"\n"


def documents(entries: Iterable[AuditEntry]) -> Iterator[dict[str, Any]]:
    # An object for each decision, in the order of its first entry.
    for _, found in groupby(entries, lambda entry: (entry.time_s, entry.hook, _subject(entry))):
        yield _document(list(found))


def _subject(entry: AuditEntry) -> tuple[str, ...]:
    return entry.pod_uid, entry.pod_name, entry.container, entry.target


def _document(entries: Sequence[AuditEntry]) -> dict[str, Any]:
    first = entries[0]
    fields: dict[str, Any] = {
        "time": time_text(first.time_s),
        "call": first.call,
        "hook": str(first.hook),
        "trace_id": first.trace_id,
        "namespace": first.pod_namespace,
        "pod": first.pod_name,
        "uid": first.pod_uid,
        "sandbox_id": first.sandbox_id,
        "container": first.container,
        "container_id": first.container_id,
        "target": first.target,
    }
    fields = {key: value for key, value in fields.items() if value}
    fields["changes"] = [_change(entry) for entry in entries]
    return fields


def _change(entry: AuditEntry) -> dict[str, str]:
    about = {
        "kind": str(entry.kind),
        "policy": entry.policy,
        "mode": str(entry.mode),
        "field": entry.field,
        "from": entry.old,
        "to": entry.new,
        "reason": entry.reason,
        "note": entry.note,
    }
    return {key: value for key, value in about.items() if value}


def time_text(time_s: float) -> str:
    # Of one length, so that texts have the order of the times.
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")


def entries_of(document: Mapping[str, Any]) -> list[AuditEntry]:
    """The entries of a decision.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: It is something else, or has a kind of a newer
            version.
    """

    def text(name: str) -> str:
        return _text(document, name)

    time_s, hook = datetime.fromisoformat(document["time"]).timestamp(), text("hook")
    return [
        AuditEntry(
            time_s,
            Hook(hook) if hook else hook,
            AuditKind(change["kind"]),
            _text(change, "policy"),
            Mode(change.get("mode", Mode.ENFORCE)),
            text("namespace"),
            text("pod"),
            text("uid"),
            text("container"),
            text("sandbox_id"),
            text("container_id"),
            _text(change, "field"),
            _text(change, "from"),
            _text(change, "to"),
            _text(change, "reason"),
            _text(change, "note"),
            text("target"),
            text("call"),
            text("trace_id"),
        )
        for change in document["changes"]
    ]


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name, "")
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a text")
    return value
