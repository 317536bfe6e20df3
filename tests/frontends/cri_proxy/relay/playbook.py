"""Plays a connection without sockets: frames in from either side, frames out to both, in the test's order.

A play has one `H2Relay`, a scripted interceptor that holds paths below `/held`, and the header state of a
client and of a runtime:

    play = opened()
    call = play.hold(3)
    play.client(data(3, message(b"abc"), end=True))
    call.reply.forward(None)
    assert play.runtime_got() == [...]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from runtimeproxy.frontends.cri_proxy.interception import CallHandler, CallHead, Outcome, Reply
from runtimeproxy.frontends.cri_proxy.relay.budget import SMALL_BYTES, MemoryBudget
from runtimeproxy.frontends.cri_proxy.relay.h2_relay import H2Relay
from runtimeproxy.frontends.cri_proxy.relay.preconnect import EarlyMemory
from runtimeproxy.frontends.cri_proxy.relay.streams import RelayOptions
from runtimeproxy.frontends.cri_proxy.relay.upstream import Upstream
from tests.peers.wire import SETTINGS_ACK, Frame, Headers, Reader, credit, headers, settings, wire

HELD = "/held.Service/Call"
PASSING = "/passing.Service/Call"
ELSEWHERE = "/elsewhere.Service/Call"

RUNTIME = Upstream("runtime", "runtime.sock", is_intercepted=True)
OTHER = Upstream("other", "other.sock", is_intercepted=False)

DEFAULT_WINDOW = 65_535


def route(path: str) -> Upstream:
    """Paths below `/elsewhere` belong to another upstream."""
    return OTHER if path.startswith("/elsewhere") else RUNTIME


Decide = Callable[["ScriptedCall", bytes], None]


@dataclass
class ScriptedCall:
    """An intercepted call as its handler sees it.

    Attributes:
        events: what the relay told, in order: `("message", bytes)`, `("cancelled",)`,
            `("responded", outcome, bytes)`.
    """

    head: CallHead
    reply: Reply
    decide: Decide | None
    events: list[tuple[object, ...]] = field(default_factory=list)
    before_response: Callable[[], None] | None = None

    def on_message(self, data: bytes) -> None:
        """The request is there; answered at once if the interceptor was given a decision."""
        self.events.append(("message", data))
        if self.decide is not None:
            self.decide(self, data)

    def on_cancelled(self) -> None:
        """The call is over."""
        self.events.append(("cancelled",))

    def on_response(self, outcome: Outcome, data: bytes) -> None:
        """The answer is there."""
        if self.before_response is not None:
            self.before_response()
        self.events.append(("responded", outcome, data))

    @property
    def names(self) -> list[object]:
        """The events without their contents."""
        return [event[0] for event in self.events]


class ScriptedInterceptor:
    """Holds paths below `/held`; what is done with a message is the test's to say.

    Args:
        decide: called with each message; None leaves the answer to the test.

    Attributes:
        calls: all intercepted calls, in the order in which they were opened.
    """

    def __init__(self, decide: Decide | None = None) -> None:
        self.calls: list[ScriptedCall] = []
        self.decide = decide

    def intercepts(self, path: str) -> bool:
        """Whether calls of this path are held."""
        return path.startswith("/held")

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        """An intercepted call begins."""
        call = ScriptedCall(head, reply, self.decide)
        self.calls.append(call)
        return call


def forward_as_it_came(call: ScriptedCall, data: bytes) -> None:
    """Decides at once, without a change."""
    call.reply.forward(None)


class Play:
    """One connection; `client` and `runtime` bring frames in, `client_got` and `runtime_got` what came out.

    Args:
        decide: what the interceptor does with each message at once.
        budget_bytes: for the messages of intercepted calls.
        small_bytes: up to which size an intercepted call needs nothing of it.
        max_message_bytes: bound per message.
    """

    def __init__(
        self,
        decide: Decide | None = None,
        *,
        budget_bytes: int = 1 << 26,
        small_bytes: int = SMALL_BYTES,
        max_message_bytes: int = 1 << 24,
        budget: MemoryBudget | None = None,
        early: EarlyMemory | None = None,
    ) -> None:
        self.interceptor = ScriptedInterceptor(decide)
        self.budget = budget or MemoryBudget(budget_bytes, small_bytes=small_bytes)
        options = RelayOptions(
            route, self.interceptor, self.budget, max_message_bytes, early or EarlyMemory()
        )
        self.upstreams: list[Upstream] = []
        self.wakes = 0
        self.relay = H2Relay(options, self.upstreams.append, self._wake)
        self.client_headers = Headers()
        self.runtime_headers = Headers()
        self._from_client_side = Reader()
        self._from_runtime_side = Reader()
        self._is_open = False

    def _wake(self) -> None:
        self.wakes += 1

    def client(self, *items: Frame | bytes) -> None:
        """The client sends frames, in one read."""
        self.relay.request.receive(wire(*items))
        while self.relay.request.is_behind:
            self.relay.request.receive(b"")

    def runtime(self, *items: Frame | bytes) -> None:
        """The runtime sends frames, in one read."""
        self.relay.response.receive(wire(*items))
        while self.relay.response.is_behind:
            self.relay.response.receive(b"")

    def open(self) -> None:
        """The upstream connection is there."""
        self._is_open = True
        self.relay.on_upstream_opened()

    def client_bytes(self) -> bytes:
        """All bytes for the client since the last look."""
        return _taken(self.relay.to_client.chunks)

    def runtime_bytes(self) -> bytes:
        """All bytes for the runtime since the last look; nothing can be written before it is open."""
        return _taken(self.relay.to_runtime.chunks) if self._is_open else b""

    def client_got(self) -> list[Frame]:
        """The frames that the client got since the last look."""
        return list(self._from_runtime_side.frames(self.client_bytes()))

    def runtime_got(self) -> list[Frame]:
        """The frames that the runtime got since the last look."""
        return list(self._from_client_side.frames(self.runtime_bytes()))

    def forget(self) -> None:
        """Looks away: what came out so far does not count."""
        self.client_got()
        self.runtime_got()

    def call(self, stream_id: int, path: str = PASSING, *, end: bool = False, timeout: str = "") -> Frame:
        """A request's HEADERS from the client."""
        extra = [("grpc-timeout", timeout)] if timeout else []
        return headers(stream_id, self.client_headers.request(path, extra), end=end)

    def hold(self, stream_id: int, path: str = HELD) -> ScriptedCall:
        """The client opens an intercepted call; what came out is forgotten."""
        self.client(self.call(stream_id, path))
        self.forget()
        return self.interceptor.calls[-1]

    def response(self, stream_id: int) -> Frame:
        """A response's HEADERS from the runtime."""
        return headers(stream_id, self.runtime_headers.response())

    def trailers(self, stream_id: int, code: int = 0) -> Frame:
        """A response's end from the runtime."""
        return headers(stream_id, self.runtime_headers.trailers(code), end=True)

    def error(self, stream_id: int, code: int) -> Frame:
        """A response without a message: trailers only."""
        block = self.runtime_headers.block(
            [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", str(code))]
        )
        return headers(stream_id, block, end=True)

    def read_refusal(self, frame: Frame) -> dict[str, str]:
        """Decodes a block as the client does, whose table the runtime's blocks have filled."""
        return self.client_headers.read(frame.payload)


def _taken(chunks: list[bytes | memoryview]) -> bytes:
    taken = b"".join(bytes(chunk) for chunk in chunks)
    chunks.clear()
    return taken


def opened(
    decide: Decide | None = None,
    *,
    runtime_settings: dict[int, int] | None = None,
    client_settings: dict[int, int] | None = None,
    **options: int,
) -> Play:
    """A play after its opening: stream 1 has passed, SETTINGS are acknowledged in both directions."""
    play = Play(decide, **options)  # type: ignore[arg-type]  # MemoryBudget is never among them
    return _opened(play, runtime_settings, client_settings)


def opened_with(budget: MemoryBudget, runtime_settings: dict[int, int] | None = None) -> Play:
    """The same, with a budget that others use too."""
    return _opened(Play(budget=budget), runtime_settings, None)


def _opened(
    play: Play, runtime_settings: dict[int, int] | None, client_settings: dict[int, int] | None
) -> Play:
    play.client(settings(client_settings), SETTINGS_ACK, play.call(1, end=True))
    play.open()
    play.runtime(settings(runtime_settings), SETTINGS_ACK, play.trailers(1))
    play.client(SETTINGS_ACK)
    play.forget()
    return play


def spend(play: Play, leave_bytes: int, *, stream_id: int = 3) -> None:
    """Uses up the runtime's connection window by the DATA of a passing stream, but for `leave_bytes`.

    The client gets no credit for it, so that it may send exactly `leave_bytes` more.
    """
    play.client(play.call(stream_id))
    rest = DEFAULT_WINDOW - leave_bytes
    while rest:
        size = min(rest, 16_384)
        play.client(Frame(0, 0, stream_id, bytes(size)))
        rest -= size
    play.forget()


def grant(play: Play, stream_id: int, increment: int) -> None:
    """The runtime gives credit."""
    play.runtime(credit(stream_id, increment))
