"""Design 2: the decoder sees every block in order; one may be remembered while the table stays as it was."""

from __future__ import annotations

import pytest
from hpack import Decoder

from runtimeproxy.frontends.cri_proxy.interception import CallHead
from runtimeproxy.http2.frames import PeerError
from runtimeproxy.http2.header_fields import timeout_s
from tests.frontends.cri_proxy.relay.playbook import HELD, Play, opened
from tests.peers.wire import Headers, headers

TABLE = 4096

UPDATE_TO_0 = b"\x20"
UPDATE_TO_4096 = b"\x3f\xe1\x1f"
UPDATE_TO_4097 = b"\x3f\xe2\x1f"
NEWEST = b"\xbe"
"""Index 62: the newest entry of the dynamic table."""


class HeaderTracker:
    """Reads the header blocks of one client."""

    def __init__(self) -> None:
        self.relay = Play().relay
        self.heads = self.relay.request._heads

    def decode(self, block: bytes, max_table_bytes: int) -> CallHead:
        """The head of the next block."""
        return self.heads.decode(block, max_table_bytes).call(self.relay)


def indexed(path: str) -> bytes:
    """`:path` as a literal that goes into the table."""
    return b"\x44" + bytes((len(path),)) + path.encode()


def unindexed(path: str) -> bytes:
    """`:path` as a literal that does not."""
    return b"\x04" + bytes((len(path),)) + path.encode()


def test_path_deadline_and_encoding_are_read() -> None:
    block = Headers().request("/a/B", [("grpc-timeout", "3S"), ("grpc-encoding", "gzip")])
    head = HeaderTracker().decode(block, TABLE)
    assert (head.path, head.timeout_s, head.encoding) == ("/a/B", 3.0, "gzip")


@pytest.mark.parametrize(
    ("sent", "served"),
    [
        ("/a/B", "/a/B"),
        ("a/B", "/a/B"),
        ("//a/B", "//a/B"),
        ("a/B/", "/a/B/"),
        ("/a/B?x", "/a/B?x"),
        ("*", "/*"),
        ("/", "/"),
    ],
)
def test_a_path_is_read_as_servers_in_go_do(sent: str, served: str) -> None:
    assert HeaderTracker().decode(Headers().request(sent), TABLE).path == served


def test_a_block_that_says_nothing_has_an_empty_head() -> None:
    head = HeaderTracker().decode(b"", TABLE)
    assert (head.path, head.timeout_s, head.encoding) == ("", None, "identity")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"120000m", 120.0),
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"4u", 4e-6),
        (b"99999999n", 0.099999999),
        (b"", None),
        (b"S", None),
        (b"123456789S", None),
        (b"-1S", None),
        (b"1s", None),
        (b"1S\n", None),
    ],
)
def test_timeouts(value: bytes, seconds: float | None) -> None:
    assert timeout_s(value) == (None if seconds is None else pytest.approx(seconds))


def test_repeated_blocks_are_decoded_once_their_table_is_steady() -> None:
    tracker, client = HeaderTracker(), Headers()
    for _ in range(5):
        assert tracker.decode(client.request("/a/B"), TABLE).path == "/a/B"
    assert tracker.heads.remembered


def test_an_insertion_makes_old_blocks_mean_something_else() -> None:
    tracker = HeaderTracker()
    for path in ("/one", "/two", "/three"):
        tracker.decode(indexed(path), TABLE)
        assert tracker.decode(NEWEST, TABLE).path == path
        assert tracker.decode(NEWEST, TABLE).path == path


def test_a_block_that_inserts_is_not_remembered() -> None:
    tracker = HeaderTracker()
    tracker.decode(indexed("/one"), TABLE)
    tracker.decode(indexed("/two"), TABLE)
    tracker.decode(indexed("/one"), TABLE)
    assert tracker.decode(NEWEST, TABLE).path == "/one"


@pytest.mark.parametrize(
    "update", [UPDATE_TO_0, UPDATE_TO_0 + UPDATE_TO_4096], ids=["emptied", "emptied-and-back"]
)
def test_a_size_update_forgets_what_was_remembered(update: bytes) -> None:
    tracker = HeaderTracker()
    tracker.decode(indexed("/one"), TABLE)
    assert tracker.decode(NEWEST, TABLE).path == "/one"
    tracker.decode(update + unindexed("/two"), TABLE)
    with pytest.raises(PeerError, match="header block"):
        tracker.decode(NEWEST, TABLE)


def test_a_block_with_a_size_update_is_not_remembered() -> None:
    tracker = HeaderTracker()
    emptying = UPDATE_TO_0 + UPDATE_TO_4096 + unindexed("/two")
    for _ in range(2):
        tracker.decode(indexed("/one"), TABLE)
        tracker.decode(emptying, TABLE)
        with pytest.raises(PeerError, match="header block"):
            tracker.decode(NEWEST, TABLE)


def test_an_entry_too_large_for_the_table_empties_it() -> None:
    tracker = HeaderTracker()
    tracker.decode(indexed("/one"), TABLE)
    assert tracker.decode(NEWEST, TABLE).path == "/one"
    tracker.decode(b"\x40\x01x\x7f\xa1\x1f" + b"y" * 4128, TABLE)
    with pytest.raises(PeerError, match="header block"):
        tracker.decode(NEWEST, TABLE)


def test_evictions_forget_too() -> None:
    tracker, client = HeaderTracker(), Headers()
    reference = Decoder()
    for number in range(400):
        block = client.request(f"/a/{number % 7}", [("x-number", str(number % 97) * 40)])
        expected = dict(reference.decode(block, raw=True))[b":path"].decode()
        assert tracker.decode(block, TABLE).path == expected


def test_what_is_remembered_is_bounded() -> None:
    tracker = HeaderTracker()
    for number in range(1000):
        tracker.decode(unindexed(f"/{number}"), TABLE)
    assert len(tracker.heads.remembered) <= 64


def test_a_size_update_over_the_bound_is_an_error() -> None:
    tracker = HeaderTracker()
    with pytest.raises(PeerError, match="header block"):
        tracker.decode(UPDATE_TO_4097, TABLE)


def test_the_table_starts_with_4096_whatever_the_receiver_announces() -> None:
    tracker = HeaderTracker()
    tracker.decode(indexed("/one"), 0)
    assert tracker.decode(NEWEST, 0).path == "/one"


def test_values_that_are_no_text_do_no_harm() -> None:
    tracker = HeaderTracker()
    assert tracker.decode(b"\x04\x02\xff\xfe", TABLE).path == "/\xff\xfe"


def test_a_trace_is_known_of_intercepted_calls() -> None:
    play = opened()
    parent = f"00-{'ab' * 16}-{'12' * 8}-01"
    for number in (3, 5):
        block = play.client_headers.request(HELD, [("traceparent", parent)])
        play.client(headers(number, block))
        assert play.interceptor.calls[-1].head.traceparent == parent
    play.hold(7)
    assert play.interceptor.calls[-1].head.traceparent == ""
