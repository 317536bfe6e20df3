"""A client and a runtime that act out a plan, with the relay between them or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from runtimeproxy.http2.frames import PREFACE
from tests.frontends.cri_proxy.relay.playbook import Play, ScriptedCall
from tests.frontends.cri_proxy.relay.properties.endpoint import Endpoint
from tests.frontends.cri_proxy.relay.properties.plans import (
    CHANGED,
    CLIENT_RESETS,
    MAX_MESSAGE_BYTES,
    REFUSED,
    RUNTIME_RESETS,
    SMALL_BYTES,
    Call,
    Plan,
)
from tests.frontends.cri_proxy.relay.properties.streams import Stream
from tests.peers.wire import CANCEL

REFUSAL_CODE = 9
MOST_STEPS = 40_000
_PORTIONS = (1, 3, 9, 14, 100, 1_000, 16_393, 1 << 30)

Move = Callable[[], None]


class Middle(Protocol):
    """What is between the two endpoints."""

    def moves(self, portion: int) -> Iterator[Move]:
        """What can happen there now; `portion` is how many bytes are moved at most."""


class Direct:
    """Nothing is between them."""

    def __init__(self, client: Endpoint, runtime: Endpoint) -> None:
        self._client = client
        self._runtime = runtime
        client.out[:0] = PREFACE

    def moves(self, portion: int) -> Iterator[Move]:
        """Bytes arrive."""
        if self._client.out:
            yield lambda: self._runtime.receive(taken(self._client.out, portion))
        if self._runtime.out:
            yield lambda: self._client.receive(taken(self._runtime.out, portion))


class Through:
    """The relay is between them.

    Attributes:
        tape: all that was done to the core, to be played again.
    """

    def __init__(self, client: Endpoint, runtime: Endpoint, plan: Plan) -> None:
        self.play = play_of(plan)
        self.relay = self.play.relay
        self._client = client
        self._runtime = runtime
        self._plan = plan
        self._to_client = bytearray()
        self._to_runtime = bytearray()
        self._is_full = {"client": False, "runtime": False}
        self._toggles = 12
        self.tape: list[tuple[str, bytes]] = []
        self._collect()

    def moves(self, portion: int) -> Iterator[Move]:
        """Bytes arrive or leave, a decision is made, the transports fill and drain."""
        yield from self._transport_moves(portion)
        if self.play.upstreams and not self.relay.to_runtime.is_open:
            yield lambda: self.do("open")
        if self.relay.flow.wants_turn and self.relay.to_runtime.is_writable:
            yield lambda: self.do("turn")
        for number, call in enumerate(self.play.interceptor.calls):
            is_due = call.names == ["message"] and not self.call_of(call).is_at_once
            if is_due and number not in self._decided:
                yield lambda number=number: self.decide(number)  # type: ignore[misc]
        for side, is_full in self._is_full.items():
            if is_full or self._toggles:
                yield lambda side=side: self._toggle(side)  # type: ignore[misc]

    def _transport_moves(self, portion: int) -> Iterator[Move]:
        if self._client.out and not self._is_full["runtime"]:
            yield lambda: self.do("client", taken(self._client.out, portion))
        if self._runtime.out and self.relay.to_runtime.is_open and not self._is_full["client"]:
            yield lambda: self.do("runtime", taken(self._runtime.out, portion))
        if self._to_client:
            yield lambda: self._client.receive(taken(self._to_client, portion))
        if self._to_runtime and self.relay.to_runtime.is_open:
            yield lambda: self._runtime.receive(taken(self._to_runtime, portion))

    @property
    def _decided(self) -> set[int]:
        return {content[0] for name, content in self.tape if name == "decide"}

    def call_of(self, scripted: ScriptedCall) -> Call:
        """The plan of an intercepted call."""
        return self._plan.calls[number_of(scripted.head.path)]

    def decide(self, number: int) -> None:
        """The interceptor answers."""
        self.do("decide", bytes((number,)))

    def _toggle(self, side: str) -> None:
        is_full = self._is_full[side] = not self._is_full[side]
        if is_full:
            self._toggles -= 1
        self.do(f"{side}-{'full' if is_full else 'writable'}")

    def do(self, name: str, content: bytes = b"") -> None:
        """Does something to the core and takes what comes out."""
        self.tape.append((name, content))
        act(self.play, name, content, self._plan)
        self._collect()

    def _collect(self) -> None:
        self._to_client += self.play.client_bytes()
        if self.relay.to_runtime.is_open:
            self._to_runtime += self.play.runtime_bytes()


def play_of(plan: Plan) -> Play:
    """A connection whose interceptor decides on some calls as soon as it sees them."""

    def decide(scripted: ScriptedCall, _: bytes) -> None:
        call = plan.calls[number_of(scripted.head.path)]
        if call.is_at_once:
            _decide(scripted, call)

    budget = MemoryBudget(plan.budget_bytes, unreserved_bytes=plan.budget_bytes, small_bytes=SMALL_BYTES)
    return Play(decide, budget=budget, max_message_bytes=MAX_MESSAGE_BYTES)


def _decide(scripted: ScriptedCall, call: Call) -> None:
    if call.kind == REFUSED:
        scripted.reply.refuse(REFUSAL_CODE, "no")
    else:
        scripted.reply.forward(call.forwarded if call.kind == CHANGED else None)


def act(play: Play, name: str, content: bytes, plan: Plan) -> None:
    """One thing that can be done to a core, as it is written on a tape."""
    core = play.relay
    if name == "client":
        core.request.receive(content)
    elif name == "runtime":
        core.response.receive(content)
    elif name == "open":
        play.open()
    elif name == "turn":
        core.flow.pump()
    elif name == "decide":
        scripted = play.interceptor.calls[content[0]]
        _decide(scripted, plan.calls[number_of(scripted.head.path)])
    elif name.startswith("client-"):
        core.on_client_writable(name.endswith("writable"))
    else:
        core.on_runtime_writable(name.endswith("writable"))


class Match:
    """Plays a plan to its end.

    Args:
        plan: what happens.
        schedule: in which order, for its length; after it everything goes on in turns.
        is_direct: whether the relay is left out.
    """

    def __init__(self, plan: Plan, schedule: bytes, *, is_direct: bool = False) -> None:
        self.plan = plan
        self.client = Endpoint(is_client=True)
        self.runtime = Endpoint(is_client=False)
        self._client_settings = list(plan.client_settings)
        self._runtime_settings = list(plan.runtime_settings)
        self._pings = {self.client: plan.pings, self.runtime: plan.pings}
        self._answered: set[int] = set()
        self._next_call = 0
        self.client.announce(self._client_settings.pop(0))
        self.runtime.announce(self._runtime_settings.pop(0))
        self.through: Through | None = None
        if is_direct:
            self.middle: Middle = Direct(self.client, self.runtime)
        else:
            self.middle = self.through = Through(self.client, self.runtime, plan)
        self._play(schedule)

    def _play(self, schedule: bytes) -> None:
        for choice in schedule:
            moves = list(self._moves(_PORTIONS[choice & 7]))
            if not moves:
                return
            moves[(choice >> 3) % len(moves)]()
        steps = 0
        while moves := [*self._moves(1 << 30)]:
            steps += 1
            assert steps < MOST_STEPS, "it goes on for ever"
            moves[steps % len(moves)]()

    def _moves(self, portion: int) -> Iterator[Move]:
        yield from self.middle.moves(portion)
        yield from self._client_moves()
        yield from self._runtime_moves()

    # --- the client --------------------------------------------------------------------------------------

    def _client_moves(self) -> Iterator[Move]:
        if self._next_call < len(self.plan.calls):
            yield self._open_call
        if self._client_settings:
            yield lambda: self.client.announce(self._client_settings.pop(0))
        for stream in self.client.streams.values():
            call = self.plan.calls[(stream.stream_id - 1) // 2]
            if call.end == CLIENT_RESETS and not stream.is_over:
                yield lambda stream=stream: self.client.reset(stream, CANCEL)  # type: ignore[misc]
        yield from self._common_moves(self.client)

    def _open_call(self) -> None:
        call = self.plan.calls[self._next_call]
        stream = self.client.open(2 * self._next_call + 1)
        self._next_call += 1
        stream.outgoing.extend(call.request_items())
        self.client.send_next(stream)

    # --- the runtime -------------------------------------------------------------------------------------

    def _runtime_moves(self) -> Iterator[Move]:
        if self._runtime_settings:
            yield lambda: self.runtime.announce(self._runtime_settings.pop(0))
        for stream in self.runtime.streams.values():
            call = self.plan.calls[number_of(stream.blocks[0][":path"])]
            if call.end == RUNTIME_RESETS and not stream.is_over:
                yield lambda stream=stream: self.runtime.reset(stream, 2)  # type: ignore[misc]
            is_due = (call.is_early or stream.has_received_end) and not stream.is_reset
            if is_due and stream.stream_id not in self._answered:
                yield lambda stream=stream, call=call: self._answer(stream, call)  # type: ignore[misc]
        yield from self._common_moves(self.runtime)

    def _answer(self, stream: Stream, call: Call) -> None:
        self._answered.add(stream.stream_id)
        stream.outgoing.extend(call.answer_items())
        self.runtime.send_next(stream)

    # --- both --------------------------------------------------------------------------------------------

    def _common_moves(self, endpoint: Endpoint) -> Iterator[Move]:
        for stream in endpoint.streams.values():
            if endpoint.can_send(stream):
                yield lambda stream=stream: endpoint.send_next(stream)  # type: ignore[misc]
        if endpoint.owed:
            yield lambda: endpoint.credit(None)
        for stream in endpoint.owing():
            yield lambda stream=stream: endpoint.credit(stream)  # type: ignore[misc]
        if self._pings[endpoint]:
            yield lambda: self._ping(endpoint)

    def _ping(self, endpoint: Endpoint) -> None:
        self._pings[endpoint] -= 1
        endpoint.ping(bytes((self._pings[endpoint],)) * 8)


def taken(queue: bytearray, portion: int) -> bytes:
    """Takes the first bytes of a queue."""
    first = bytes(queue[:portion])
    del queue[:portion]
    return first


def number_of(path: str) -> int:
    """The number of the call that a path names."""
    return int(path.rpartition("Call")[2])
