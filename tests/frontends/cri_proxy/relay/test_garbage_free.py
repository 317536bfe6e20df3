"""Held calls that are over are gone, without a collector."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.frontends.cri_proxy.relay.playbook import HELD, Play, ScriptedCall, forward_as_it_came, opened
from tests.garbage import collected
from tests.peers.wire import CANCEL, data, message, reset


def answered(play: Play, stream_id: int) -> None:
    """The runtime answers."""
    play.runtime(play.response(stream_id), data(stream_id, message(b"yes")), play.trailers(stream_id))


def later(play: Play, stream_id: int) -> None:
    """The decision comes later, then the answer."""
    play.interceptor.calls[-1].reply.forward(message(b"changed"))
    answered(play, stream_id)


def refused(play: Play, stream_id: int) -> None:
    """The decision is a refusal."""
    play.interceptor.calls[-1].reply.refuse(9, "no")


def reset_by_the_client(play: Play, stream_id: int) -> None:
    """The client gives up."""
    play.client(reset(stream_id, CANCEL))


def reset_by_the_runtime(play: Play, stream_id: int) -> None:
    """The runtime gives up."""
    play.runtime(reset(stream_id, CANCEL))


@pytest.mark.parametrize(
    ("decide", "end"),
    [
        pytest.param(forward_as_it_came, answered, id="passed"),
        pytest.param(None, later, id="changed"),
        pytest.param(None, refused, id="refused"),
        pytest.param(None, reset_by_the_client, id="client reset"),
        pytest.param(forward_as_it_came, reset_by_the_client, id="client reset late"),
        pytest.param(None, reset_by_the_runtime, id="runtime reset"),
    ],
)
def test_nothing_of_a_call_is_left(
    decide: Callable[[ScriptedCall, bytes], None] | None, end: Callable[[Play, int], None]
) -> None:
    play = opened(decide)
    with collected() as names:
        for stream_id in range(3, 43, 2):
            play.client(play.call(stream_id, HELD), data(stream_id, message(b"abc"), end=True))
            end(play, stream_id)
            play.forget()
            play.interceptor.calls.clear()
    assert names == []
