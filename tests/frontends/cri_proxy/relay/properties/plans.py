"""What happens on a connection: calls, answers, settings, and a schedule; all of it drawn by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tests.frontends.cri_proxy.relay.properties.streams import Block, Content
from tests.peers import wire
from tests.peers.wire import message

MAX_MESSAGE_BYTES = 120_000
BUDGETS = (4_000, 130_000, 1 << 26)
SMALL_BYTES = 200
_SIZES = (0, 1, 5, 100, 3_000, 20_000, 70_000, 100_000)
_SMALL = 3_000

PASSING, UNCHANGED, CHANGED, REFUSED, TOO_LARGE = "passing", "unchanged", "changed", "refused", "too-large"
HELD = frozenset((UNCHANGED, CHANGED, REFUSED, TOO_LARGE))
NORMAL, CLIENT_RESETS, RUNTIME_RESETS = "normal", "client-resets", "runtime-resets"


@dataclass(frozen=True)
class Call:
    """One call, from both ends and in the middle.

    Attributes:
        number: tells the bytes of one call from those of others.
        kind: the fate of its message at the relay.
        end: how it ends; resets come at any time that the schedule chooses.
        is_early: whether the runtime answers without waiting for the message.
        ends_empty: whether END_STREAM comes on an empty DATA frame.
        is_at_once: whether its message is decided on as soon as the relay shows it.
    """

    number: int
    kind: str
    end: str
    is_early: bool
    size: int
    changed_size: int
    answer_size: int
    pieces: int
    pad: int | None
    priority: bool
    ends_empty: bool
    is_at_once: bool

    @property
    def path(self) -> str:
        """What the runtime and the interceptor know the call by."""
        return f"/{'passing' if self.kind == PASSING else 'held'}.Service/Call{self.number}"

    @property
    def request(self) -> bytes:
        """The message as the client sends it."""
        return message(_filled(self.number, MAX_MESSAGE_BYTES + 1 if self.kind == TOO_LARGE else self.size))

    @property
    def forwarded(self) -> bytes:
        """The message as the runtime gets it."""
        if self.kind == CHANGED:
            return message(_filled(self.number + 100, self.changed_size))
        return self.request

    @property
    def answer(self) -> bytes:
        """The response's message."""
        return message(_filled(self.number + 200, self.answer_size))

    def request_items(self) -> list[Block | Content]:
        """All that the client sends."""
        fields = (
            (":method", "POST"),
            (":path", self.path),
            ("content-type", "application/grpc"),
            ("x-number", str(self.number)),
        )
        block = Block(fields, pieces=self.pieces, pad=self.pad, priority=self.priority)
        return [block, *self._content(self.request, is_last=True)]

    def answer_items(self) -> list[Block | Content]:
        """All that the runtime sends."""
        return [
            Block(
                (("x-answer", str(self.number)), (":status", "200"))[::-1], pieces=self.pieces, pad=self.pad
            ),
            *self._content(self.answer, is_last=False),
            Block((("grpc-status", "0"), ("x-end", "1")), is_last=True, pieces=self.pieces),
        ]

    def _content(self, content: bytes, *, is_last: bool) -> list[Block | Content]:
        if not self.ends_empty:
            return [Content(content, is_last, self.pad)]
        return [Content(content, False, self.pad), Content(b"", is_last)]


def _filled(number: int, size: int) -> bytes:
    """Bytes in which every part differs from every other part and from other calls."""
    counted = b"".join(at.to_bytes(3, "big") + bytes((number,)) for at in range(-(-size // 4)))
    return counted[:size]


@dataclass(frozen=True)
class Plan:
    """Everything but the order in which it happens."""

    calls: tuple[Call, ...]
    client_settings: tuple[dict[int, int], ...]
    runtime_settings: tuple[dict[int, int], ...]
    budget_bytes: int
    pings: int


@st.composite
def _settings(draw: st.DrawFn, *, tables: bool) -> dict[int, int]:
    values: dict[int, int] = {}
    if draw(st.booleans()):
        values[wire.INITIAL_WINDOW] = draw(st.sampled_from((50, 700, 65_535, 200_000)))
    if draw(st.booleans()):
        values[wire.MAX_FRAME] = draw(st.sampled_from((16_384, 20_000, 100_000)))
    if tables and draw(st.booleans()):
        values[wire.TABLE_SIZE] = draw(st.sampled_from((0, 64, 4096)))
    return values


@st.composite
def calls(draw: st.DrawFn, number: int, kinds: tuple[str, ...], ends: tuple[str, ...]) -> Call:
    """One call."""
    kind = draw(st.sampled_from(kinds))
    return Call(
        number=number,
        kind=kind,
        end=draw(st.sampled_from(ends)),
        is_early=draw(st.sampled_from((False, False, False, True))),
        size=draw(st.sampled_from(_SIZES)),
        changed_size=draw(st.sampled_from(_SIZES)),
        answer_size=draw(st.sampled_from(_SIZES)),
        pieces=draw(st.sampled_from((1, 1, 2, 3))),
        pad=draw(st.sampled_from((None, None, 0, 10, 255))),
        priority=draw(st.booleans()),
        ends_empty=draw(st.booleans()),
        is_at_once=draw(st.booleans()),
    )


@st.composite
def plans(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = (PASSING, PASSING, UNCHANGED, CHANGED, REFUSED, TOO_LARGE),
    ends: tuple[str, ...] = (NORMAL, NORMAL, CLIENT_RESETS, RUNTIME_RESETS),
) -> Plan:
    """A connection with a handful of calls."""
    client = tuple(draw(st.lists(_settings(tables=True), min_size=1, max_size=3)))
    runtime = tuple(draw(st.lists(_settings(tables=True), min_size=1, max_size=3)))
    count = draw(st.integers(1, 6))
    made = tuple(draw(calls(number, kinds, ends)) for number in range(count))
    return Plan(
        calls=tuple(_bounded(call, client, runtime) for call in made),
        client_settings=client,
        runtime_settings=runtime,
        budget_bytes=draw(st.sampled_from(BUDGETS)),
        pings=draw(st.integers(0, 2)),
    )


def _bounded(call: Call, client: tuple[dict[int, int], ...], runtime: tuple[dict[int, int], ...]) -> Call:
    """Small messages where a window is tiny: each window of it is a round of its own."""
    tiny_request = any(values.get(wire.INITIAL_WINDOW, 65_535) < _SMALL for values in runtime)
    tiny_answer = any(values.get(wire.INITIAL_WINDOW, 65_535) < _SMALL for values in client)
    most_request = _SMALL if tiny_request else MAX_MESSAGE_BYTES
    return replace(
        call,
        kind=REFUSED if tiny_request and call.kind == TOO_LARGE else call.kind,
        size=min(call.size, most_request),
        changed_size=min(call.changed_size, most_request),
        answer_size=min(call.answer_size, _SMALL if tiny_answer else MAX_MESSAGE_BYTES),
        pad=None if (tiny_request or tiny_answer) and call.pad == 255 else call.pad,
    )


schedules = st.binary(max_size=250)
"""One byte a step: which of the possible moves is made, and how many bytes it takes along."""
