"""Whatever a peer sends, it ends that one connection at worst: nothing but `PeerError` comes out."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import HELD, PASSING, Play, forward_as_it_came
from tests.frontends.cri_proxy.relay.properties.profile import bounded
from tests.peers.wire import NAMES, SETTINGS_ACK, Frame, Headers, message, settings, wire

stream_ids = st.sampled_from((0, 1, 3, 5, 7, 2, 2**31 - 1, 2**31 + 3))
flags = st.sampled_from((0, 1, 4, 5, 8, 0x0D, 0x20, 0x2D, 0xFF))
types = st.integers(0, len(NAMES))

_OPENING = Headers()
BLOCKS = [
    _OPENING.request(HELD),
    _OPENING.request(PASSING),
    _OPENING.request(HELD, [("grpc-timeout", "99999999H"), ("grpc-encoding", "gzip")]),
    _OPENING.block([(":status", "200")]),
    _OPENING.trailers(0),
    b"",
    b"\x3f\xe1\x1f",
    b"\x20",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x00\x7f\xff\xff\xff\x0f",
    b"\x40\x85\xff\xff\xff\xff\xff\x00",
    b"\x80",
    b"\x82\xbe\xbf",
]

payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(BLOCKS),
    st.sampled_from([message(b"x" * 3), message(b"x" * 40_000), b"\0\xff\xff\xff\xff", b"\0\0\0", bytes(4)]),
    st.builds(bytes, st.integers(0, 20_000)),
)
frames = st.builds(Frame, types, flags, stream_ids, payloads)
opened = st.builds(
    lambda stream_id, block, is_last: Frame(1, 5 if is_last else 4, stream_id, block),
    st.sampled_from((1, 3, 5, 7)),
    st.sampled_from(BLOCKS[:3]),
    st.booleans(),
)
things = st.lists(
    st.tuples(
        st.sampled_from(
            ("client", "client", "runtime", "open", "full", "writable", "turn", "decide", "drain")
        ),
        st.one_of(frames, opened, st.binary(max_size=30)),
        st.integers(0, 60),
    ),
    max_size=30,
)


def feed(play: Play, name: str, content: bytes, split: int) -> None:
    """One thing; bytes in two reads."""
    core = play.relay
    if name == "client" or (name == "runtime" and core.to_runtime.is_open):
        receive = core.request.receive if name == "client" else core.response.receive
        receive(content[:split])
        receive(content[split:])
    elif name == "open" and play.upstreams and not core.to_runtime.is_open:
        play.open()
    elif name == "decide":
        decide(play, is_refused=split % 2 == 0)
    elif name in ("full", "writable"):
        core.on_runtime_writable(name == "writable")
        core.on_client_writable(name == "writable")
    elif name == "drain":
        core.drain()
        core.finish_drain()
    elif name == "turn":
        core.flow.pump()


def decide(play: Play, *, is_refused: bool) -> None:
    """The interceptor answers for all calls, also for those that have been answered."""
    for call in play.interceptor.calls:
        if is_refused:
            call.reply.refuse(9, "no")
        else:
            call.reply.forward(message(b"changed"))


@bounded(700)
@given(things, st.booleans())
def test_nothing_but_a_peer_error_comes_out(
    items: list[tuple[str, Frame | bytes, int]], is_decided: bool
) -> None:
    decide = forward_as_it_came if is_decided else None
    play = Play(decide, budget_bytes=50_000, small_bytes=1_000, max_message_bytes=60_000)
    with contextlib.suppress(PeerError):
        for name, content, split in items:
            feed(play, name, bytes(content), split)
            assert play.relay.failure is None or isinstance(play.relay.failure, PeerError)
    play.relay.on_lost()
    assert not play.budget.used_bytes
    assert not play.budget.has_waiting


@bounded(300)
@given(st.lists(st.tuples(st.sampled_from(BLOCKS), st.binary(max_size=20)), max_size=8))
def test_any_header_block_decodes_or_is_a_peer_error(blocks: list[tuple[bytes, bytes]]) -> None:
    play = Play()
    play.client(settings(), SETTINGS_ACK)
    with contextlib.suppress(PeerError):
        for number, (block, tail) in enumerate(blocks):
            play.relay.request.receive(wire(Frame(1, 4, 2 * number + 1, block + tail)))
