"""What the relay counts while it passes and holds calls."""

from __future__ import annotations

import pytest

from runtimeproxy.counts import OTHER
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.frontends.cri_proxy.relay.counts import MethodCounts, RelayCounts
from tests.frontends.cri_proxy.relay.playbook import HELD, PASSING, Play, forward_as_it_came, opened
from tests.peers.wire import Frame, data, message, reset, wire


def counts_of(play: Play, path: str = HELD) -> MethodCounts:
    return play.relay.options.counts.of(path)


def test_paths_that_are_not_known_are_counted_together() -> None:
    counts = RelayCounts({"/a/X": "X", "/b/X": "X", "/a/Y": "Y"})
    assert set(counts.by_method) == {"X", "Y", OTHER}
    assert counts.of("/a/X") is counts.of("/b/X") is counts.by_method["X"]
    assert counts.of("/a/Z") is counts.of("") is counts.by_method[OTHER]


def test_each_call_counts_once_whether_it_passes_or_is_held() -> None:
    play = opened(forward_as_it_came)
    before = counts_of(play).begun
    play.client(play.call(3, PASSING, end=True), play.call(5, HELD), data(5, message(b"a"), end=True))
    # The end of a call, and a block of the runtime, begin none.
    play.runtime(play.response(3), play.trailers(3))
    assert counts_of(play).begun == before + 2
    assert counts_of(play) is counts_of(play, PASSING)
    assert sum(counts_of(play).held.counts) == 1


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("message", Outcome.SUCCEEDED),
        ("error", Outcome.FAILED),
        ("reset", Outcome.UNKNOWN),
        ("lost", Outcome.UNKNOWN),
    ],
)
def test_an_intercepted_call_ends_once(end: str, outcome: Outcome) -> None:
    play = opened(forward_as_it_came)
    play.client(play.call(3, HELD), data(3, message(b"a"), end=True))
    if end == "message":
        play.runtime(play.response(3), data(3, message(b"b")), play.trailers(3))
    elif end == "error":
        play.runtime(play.error(3, 5))
    elif end == "reset":
        play.client(reset(3))
    play.relay.on_lost()
    assert counts_of(play).ended == {each: int(each is outcome) for each in Outcome}
    assert counts_of(play).cancelled == 0


def test_a_call_that_ends_while_it_is_held_is_cancelled() -> None:
    play = opened()
    play.hold(3)
    play.client(data(3, message(b"a"), end=True), reset(3))
    assert (counts_of(play).cancelled, sum(counts_of(play).held.counts)) == (1, 0)


def test_refusals_are_counted_by_their_code() -> None:
    play = opened(max_message_bytes=10)
    play.hold(3).reply.refuse(9, "too early: not counted")
    play.client(data(3, message(b"a"), end=True))
    play.interceptor.calls[-1].reply.refuse(9, "no")
    play.hold(5)
    play.client(data(5, message(bytes(11))[:5]))
    assert counts_of(play).refused == {9: 1, 8: 1}
    assert play.relay.options.counts.too_large == 1
    assert counts_of(play).cancelled == 0


def test_calls_without_an_upstream_are_counted() -> None:
    play = Play()
    play.client(play.call(1), play.call(3))
    play.relay.on_upstream_failed("away")
    assert play.relay.options.counts.without_upstream == 2


@pytest.mark.parametrize("cut", [1, 5, 9, 10, 1_000])
def test_bytes_are_counted_once_however_they_are_cut(cut: int) -> None:
    play = opened()
    before = play.relay.request.received_bytes, play.relay.response.received_bytes
    sent = wire(play.call(3), *[data(3, bytes(100)) for _ in range(3)], Frame(0x20, 0, 0, bytes(50)))
    got = wire(play.response(3), *[data(3, bytes(100)) for _ in range(3)], play.trailers(3))
    for receive, content in ((play.relay.request.receive, sent), (play.relay.response.receive, got)):
        for begin in range(0, len(content), cut):
            receive(content[begin : begin + cut])
    assert play.relay.request.received_bytes - before[0] == len(sent)
    assert play.relay.response.received_bytes - before[1] == len(got)


def test_frames_of_a_later_turn_are_counted_once() -> None:
    play = opened()
    before = play.relay.response.received_bytes
    content = wire(*[Frame(0x20, 0, 0, b"x")] * 5_000)
    play.runtime(content)
    assert play.relay.response.received_bytes - before == len(content)
