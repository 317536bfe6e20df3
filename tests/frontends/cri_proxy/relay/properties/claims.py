"""What must be true of a match when it is over."""

from __future__ import annotations

from runtimeproxy.frontends.cri_proxy.interception import Outcome
from tests.frontends.cri_proxy.relay.properties.match import REFUSAL_CODE, Match, number_of
from tests.frontends.cri_proxy.relay.properties.plans import HELD, NORMAL, PASSING, REFUSED, TOO_LARGE, Call
from tests.frontends.cri_proxy.relay.properties.streams import DEFAULT_WINDOW, Stream


def check(match: Match) -> None:
    """Checks every stream, the windows of both sides, and that the relay has forgotten it all."""
    for endpoint in (match.client, match.runtime):
        assert endpoint.is_at_boundary
        assert endpoint.is_acknowledged
        assert endpoint.goaway is None
    for number, call in enumerate(match.plan.calls):
        _check_call(match, call, match.client.streams[2 * number + 1], match.runtime.streams[2 * number + 1])
    assert match.client.send_window == match.runtime.receive_window == DEFAULT_WINDOW
    assert match.runtime.send_window == match.client.receive_window == DEFAULT_WINDOW
    if match.through is not None:
        _check_relay(match)


def _check_call(match: Match, call: Call, sent: Stream, served: Stream) -> None:
    assert sent.is_over, (call, sent)
    assert served.is_over, (call, served)
    forwarded = call.request if match.through is None else call.forwarded
    assert forwarded.startswith(served.received), "the request's bytes, in order"
    if call.end != NORMAL:
        return
    is_refused = match.through is not None and call.kind in HELD and sent.is_refused
    assert is_refused or call.kind not in (REFUSED, TOO_LARGE) or call.is_early or match.through is None
    if is_refused:
        _check_refused(call, sent, served)
        return
    assert sent.received == call.answer
    assert sent.blocks[-1]["grpc-status"] == "0"
    if call.is_early and call.kind in HELD and match.through is not None:
        assert sent.has_sent_end, "the client gets rid of its message"
    else:
        assert not sent.is_reset
        assert not served.is_reset
        assert served.received == forwarded


def _check_refused(call: Call, sent: Stream, served: Stream) -> None:
    assert not served.received
    assert served.is_reset
    expected = REFUSAL_CODE if call.kind == REFUSED else 8
    is_out_of_memory = sent.blocks[-1]["grpc-message"].endswith("too many requests wait on this connection")
    assert sent.blocks[-1]["grpc-status"] == str(8 if is_out_of_memory else expected)
    assert call.is_early or not sent.received


def _check_relay(match: Match) -> None:
    through = match.through
    assert through is not None
    relay = through.relay
    assert not relay.has_intercepted_calls
    assert not relay.open_streams
    assert not relay.flow.waiting
    assert relay.flow.debt_bytes == 0
    assert not through.play.budget.used_bytes
    assert not through.play.budget.has_waiting
    for scripted in through.play.interceptor.calls:
        call = match.plan.calls[number_of(scripted.head.path)]
        assert call.kind != PASSING
        assert scripted.names in (
            ["message", "cancelled"],
            ["cancelled"],
            ["message", "responded"],
            ["message"],
        )
        is_plain = call.end == NORMAL and not call.is_early and call.kind not in (REFUSED, TOO_LARGE)
        if is_plain and scripted.names != ["cancelled"]:
            assert scripted.events[0] == ("message", call.request)
            assert scripted.events[1] == ("responded", Outcome.SUCCEEDED, call.answer)
