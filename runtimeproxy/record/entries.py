"""The entries of a recording: lines of JSON, each an object with one key; README.md describes them. Pure."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from cri_api.parsing import parse
from cri_api.runtime.v1 import api_pb2
from runtimeproxy import __version__
from runtimeproxy.documents.long_json import SHORT_CHARS, json_text
from runtimeproxy.documents.reading import InputError, json_value, parse_json
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import (
    GZIP_MAGIC,
    Decompressor,
    MessageTooLargeError,
    UnreadableMessageError,
    open_response,
)
from runtimeproxy.frontends.cri_proxy.calls.methods import CallKind
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks.claimants import labels_of
from runtimeproxy.hooks.fields import ANNOTATIONS, ENV
from runtimeproxy.pods.checkpoint.codec import RowKind
from runtimeproxy.pods.checkpoint.codec import encode as encode_record
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.record.redaction import (
    is_shown,
    redact,
    redacted_annotations,
    redacted_document,
    shown_value,
)
from runtimeproxy.record.values import changed_fields, encode
from runtimeproxy.simulate.description import before_and_after, result_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.hooks.policy import Hook
    from runtimeproxy.node.snapshot import Node

FORMAT_VERSION: Final = 1
"""Of recordings; one of a newer version is refused. New kinds of entries and new keys are none."""
MAX_REQUEST_BYTES: Final = 256 * 1024
"""Longest request that is recorded, decompressed; of a longer one only the decisions are. A pod's annotations
have at most 256 KiB, and its requests mostly a few. Source: Kubernetes, TotalAnnotationSizeLimitB."""
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Longest line that is read; records of pods have up to some megabytes."""

_UNREADABLE: Final = (DecodeError, UnreadableMessageError, MessageTooLargeError)


class RecordingError(RuntimeProxyError):
    """A recording that cannot be read; the text says why."""


class Decided(NamedTuple):
    """A decision of the policies on a call."""

    hook: Hook
    decision: Decision


class CallTaken(NamedTuple):
    """An intercepted call that is decided."""

    number: int
    time_s: float
    """Since the epoch."""
    kind: CallKind
    frame: bytes
    """The request, as it came."""
    encoding: str
    node: Node
    decisions: tuple[Decided, ...]


class ResponseTaken(NamedTuple):
    """The end of a recorded call."""

    number: int
    kind: CallKind
    outcome: Outcome
    frame: bytes
    """Empty unless it succeeded."""


Taken = CallTaken | ResponseTaken


# Writing


class Encoder:
    """Makes the lines of one recording; for one thread at a time."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._node: Node | None = None

    def start(
        self,
        time_s: float,
        node: Node,
        records: Iterable[PodRecord | ContainerRecord],
        policies: Iterable[LoadedPolicy],
    ) -> Iterator[bytes]:
        """Yields the header, the node and the records."""
        header = {
            "format": FORMAT_VERSION,
            "daemon": __version__,
            "time": round(time_s, 3),
            "policies": [
                {"name": each.name, "mode": each.mode.value, "isServer": bool(each.remote_hooks)}
                for each in policies
            ],
        }
        yield _line("header", header)
        yield from self._node_changes(node)
        for record in records:
            kind = RowKind.POD if isinstance(record, PodRecord) else RowKind.CONTAINER
            text = encode_record(record)
            body = redacted_document(json_value(text, interruptible=True), self._key)
            entry = {"kind": kind.name.lower(), "id": record.id, "body": body}
            yield _line("record", entry, is_long=len(text) > SHORT_CHARS)

    def lines(self, taken: Taken) -> Iterator[bytes]:
        # After the lines of a node that has changed.
        if isinstance(taken, CallTaken):
            try:
                request = self._request(taken)
            except MessageTooLargeError:
                request = None
            except _UNREADABLE:
                # It was not shown to policies either.
                return
            yield from self._node_changes(taken.node)
            call: dict[str, Any] = {
                "number": taken.number,
                "time": round(taken.time_s, 3),
                "method": taken.kind.value,
                "decisions": [decision_document(*each) for each in taken.decisions],
            }
            if request is not None:
                call["request"] = _document(request)
            yield _line("call", call)
        else:
            response: dict[str, Any] = {"number": taken.number, "outcome": taken.outcome.value}
            if taken.outcome is Outcome.SUCCEEDED:
                with suppress(*_UNREADABLE):
                    message = message_type(f"{taken.kind}Response").FromString(open_response(taken.frame))
                    redact(message, self._key)
                    response["message"] = _document(message)
            yield _line("response", response)

    def _node_changes(self, node: Node) -> Iterator[bytes]:
        if node is self._node:
            return
        changed = changed_fields(node, self._node)
        self._node = node
        if "annotations" in changed:
            changed["annotations"] = encode(redacted_annotations(node.annotations, self._key))
        # A line for each: no single one is long.
        yield from (_line("node", {name: value}) for name, value in changed.items())

    def _request(self, taken: CallTaken) -> Message:
        """The redacted request, parsed in pieces: other threads run meanwhile.

        Raises:
            MessageTooLargeError: It is too long to be recorded.
            UnreadableMessageError: It is not a message in a frame.
            DecodeError: It cannot be parsed.
        """
        message = Decompressor(taken.frame, taken.encoding, MAX_REQUEST_BYTES)
        message.run()
        request = parse(message_type(f"{taken.kind}Request"), message.take())
        redact(request, self._key)
        return request


def message_type(name: str) -> type[Message]:
    """Such as `CreateContainerRequest`."""
    found: type[Message] = getattr(api_pb2, name)
    return found


def _document(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def decision_document(hook: Hook, decision: Decision) -> dict[str, Any]:
    """Returns what a decision changes: by field the value and its policies, or why the call is refused.

    A field whose value policies left as it was is not in it. Of variables, and of annotations whose values
    are redacted, all that policies set are: whether they differ cannot be seen in a recording.
    """
    document: dict[str, Any] = {"hook": hook.value}
    if decision.refusal is not None:
        return document | {"refusal": decision.refusal.text, "policy": decision.refusal.policy}
    fields: dict[str, Any] = {}
    for each, merged in decision.merged.fields.items():
        if not merged.owners:
            continue
        _, after, is_changed = before_and_after(each, merged, decision)
        if not is_changed and is_shown(each):
            continue
        if each.group in (ANNOTATIONS, ENV):
            after = shown_value(each, result_of(each, merged, decision)) or None
        fields[str(each)] = {"value": after, "policy": labels_of(merged.owners)}
    return document | {"fields": fields} if fields else document


def _line(kind: str, body: object, *, is_long: bool = False) -> bytes:
    return json_text({kind: body}, is_long=is_long).encode() + b"\n"


# Reading


@dataclass(slots=True)
class Recording:
    """A recording that is being read.

    Attributes:
        is_cut_off: whether it ends within an entry, known when all entries are read: the recorder was killed.
    """

    header: Mapping[str, Any]
    is_cut_off: bool = False
    _lines: Iterator[bytes | None] = field(default_factory=lambda: iter(()))

    def entries(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yields kind and body of each entry after the header, once.

        Raises:
            RecordingError: A line is not an entry.
        """
        number = 1
        for line in self._lines:
            number += 1
            if line is None:
                self.is_cut_off = True
                return
            yield _entry(line, f"line {number}")


def open_recording(file: IO[bytes]) -> Recording:
    """Reads the header of a recording, compressed with gzip or not.

    Raises:
        RecordingError: It is not a recording, or one of a newer version.
    """
    start = file.read(len(GZIP_MAGIC))
    file.seek(0)
    lines = _lines_of(gzip.GzipFile(fileobj=file) if start == GZIP_MAGIC else file)
    first = next(lines, None)
    if first is None:
        raise RecordingError("is not a recording: it has no header")
    kind, header = _entry(first, "line 1")
    version = header.get("format")
    if kind != "header" or not isinstance(version, int):
        raise RecordingError("is not a recording: it does not begin with a header")
    if version > FORMAT_VERSION:
        raise RecordingError(
            f"is a recording of format {version}, made by version {header.get('daemon')}; "
            f"this version knows formats up to {FORMAT_VERSION}: replay it with the newer version"
        )
    return Recording(header, _lines=lines)


def _lines_of(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes | None]:
    # None if the file ends within a line.
    while True:
        try:
            line = file.readline(MAX_LINE_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            yield None
            return
        if not line:
            return
        if not line.endswith(b"\n"):
            if len(line) >= MAX_LINE_BYTES:
                raise RecordingError(f"has a line of more than {MAX_LINE_BYTES} bytes")
            yield None
            return
        yield line


def _entry(line: bytes, place: str) -> tuple[str, Mapping[str, Any]]:
    try:
        document = parse_json(line)
    except InputError:
        raise RecordingError(f"is not a recording: {place} is not JSON") from None
    if isinstance(document, dict) and len(document) == 1:
        ((kind, body),) = document.items()
        if isinstance(body, dict):
            return kind, body
    raise RecordingError(f"is not a recording: {place} is not an object with one object")
