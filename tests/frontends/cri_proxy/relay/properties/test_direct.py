"""The same calls have the same outcome at both ends with the relay between them and without it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.cri_proxy.relay.properties.claims import check
from tests.frontends.cri_proxy.relay.properties.endpoint import Endpoint
from tests.frontends.cri_proxy.relay.properties.match import Match
from tests.frontends.cri_proxy.relay.properties.plans import (
    CLIENT_RESETS,
    NORMAL,
    PASSING,
    RUNTIME_RESETS,
    UNCHANGED,
    Plan,
    plans,
    schedules,
)
from tests.frontends.cri_proxy.relay.properties.profile import bounded
from tests.frontends.cri_proxy.relay.properties.streams import Stream

Outcome = tuple[object, ...]


def outcome(stream: Stream) -> Outcome:
    """All that an endpoint knows of a stream that is over."""
    blocks = tuple(tuple(block.items()) for block in stream.blocks)
    return blocks, bytes(stream.received), stream.has_received_end, stream.received_reset


def outcomes(endpoint: Endpoint) -> dict[int, Outcome]:
    """The outcomes of all streams."""
    return {stream_id: outcome(stream) for stream_id, stream in endpoint.streams.items()}


@pytest.mark.slow
@bounded(60)
@given(
    plans(kinds=(PASSING, UNCHANGED), ends=(NORMAL,)).filter(
        lambda plan: not any(call.is_early for call in plan.calls) and plan.budget_bytes > 2**20
    ),
    schedules,
)
def test_calls_have_the_same_outcome(plan: Plan, schedule: bytes) -> None:
    direct, through = Match(plan, schedule, is_direct=True), Match(plan, schedule)
    assert outcomes(direct.client) == outcomes(through.client)
    assert outcomes(direct.runtime) == outcomes(through.runtime)


@bounded(50)
@given(
    plans(kinds=(PASSING, UNCHANGED), ends=(NORMAL, CLIENT_RESETS, RUNTIME_RESETS)),
    schedules,
    st.booleans(),
)
def test_calls_that_are_reset_at_any_time_keep_the_claims(
    plan: Plan, schedule: bytes, is_direct: bool
) -> None:
    check(Match(plan, schedule, is_direct=is_direct))
