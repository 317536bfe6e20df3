"""The place of a call in the client's trace."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED: Final = 0x01


class TraceParent(NamedTuple):
    """The client's span."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    is_sampled: bool
    """Whether the client records it, so that the spans below it should be recorded, too."""


def parse_traceparent(text: str) -> TraceParent | None:
    """The client's span in a `traceparent`; None for none, and for a header that is not valid.

    Source: W3C Trace Context, "traceparent Header Field Values".
    """
    match = _TRACEPARENT.fullmatch(text) if text else None
    if match is None:
        return None
    version, trace_id, span_id, flags = match.groups()
    if version == "ff" or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def trace_id_of(traceparent: str) -> str:
    """The trace's id in a `traceparent`; empty for none."""
    parent = parse_traceparent(traceparent)
    return parent.trace_id if parent is not None else ""
