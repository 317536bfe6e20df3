"""The place of a call in the client's trace."""

from __future__ import annotations

import pytest

from runtimeproxy.hooks.traceparent import TraceParent, parse_traceparent, trace_id_of

TRACE, SPAN = "ab" * 16, "12" * 8


@pytest.mark.parametrize(
    ("traceparent", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"01-{TRACE}-{SPAN}-01-more", True),
    ],
)
def test_a_clients_span(traceparent: str, is_sampled: bool) -> None:
    assert parse_traceparent(traceparent) == TraceParent(TRACE, SPAN, is_sampled)
    assert trace_id_of(traceparent) == TRACE


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
    ],
)
def test_headers_that_are_not_valid(traceparent: str) -> None:
    assert parse_traceparent(traceparent) is None
    assert trace_id_of(traceparent) == ""
