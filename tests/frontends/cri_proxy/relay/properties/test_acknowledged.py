"""An acknowledgement never overtakes DATA that was sent before it."""

from __future__ import annotations

from tests.frontends.cri_proxy.relay.playbook import forward_as_it_came, opened
from tests.peers.wire import INITIAL_WINDOW, SETTINGS_ACK, credit, data, message, settings


def test_a_lowered_window_counts_after_the_data_that_waits() -> None:
    play = opened(forward_as_it_came)
    play.hold(3)
    content = message(bytes(60_000))
    play.client(*(data(3, content[at : at + 16_384], end=at > 45_000) for at in range(0, 60_000, 16_384)))
    play.client(play.call(5), data(5, bytes(16_000)), settings({}))
    play.forget()
    play.runtime(settings({INITIAL_WINDOW: 100}))
    play.client(SETTINGS_ACK)
    assert play.runtime_got() == [], "the runtime would find the DATA beyond the stream's window"
    play.runtime(credit(0, 60_005))
    waited, acknowledged = play.runtime_got()
    assert (waited.stream_id, acknowledged) == (5, SETTINGS_ACK)
