"""The memory of large intercepted calls while the runtime does not read their messages."""

from __future__ import annotations

import tracemalloc

import pytest

from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from tests.frontends.cri_proxy.relay.playbook import DEFAULT_WINDOW, Play, ScriptedCall, opened_with
from tests.peers.wire import DATA, WINDOW_UPDATE, Frame, credit

MEBIBYTE = 1 << 20
MESSAGE_BYTES = 3 * MEBIBYTE
BUDGET_BYTES = 16 * MEBIBYTE
CALLS = 20

_PIECE = bytes(16_384)


class Upload:
    """A client with one call on stream 3 that sends its message as fast as the windows let it."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.play: Play = opened_with(budget)
        self.call: ScriptedCall = self.play.hold(3)
        self.left = MESSAGE_BYTES + 5
        self.windows = {0: DEFAULT_WINDOW, 3: DEFAULT_WINDOW}
        self.taken = 0

    def go_on(self) -> bool:
        """Sends what it may; returns whether it could."""
        for frame in self.play.client_got():
            if frame.type_ == WINDOW_UPDATE:
                self.windows[frame.stream_id] += frame.number
        size = min(len(_PIECE), self.left, *self.windows.values())
        if not size:
            return False
        prefix = b"\0" + MESSAGE_BYTES.to_bytes(4, "big") if self.left == MESSAGE_BYTES + 5 else b""
        self.left -= size
        for window in self.windows:
            self.windows[window] -= size
        self.play.client(Frame(DATA, not self.left, 3, prefix + _PIECE[: size - len(prefix)]))
        return True

    def take(self) -> bool:
        """The runtime reads; returns whether it has the whole message."""
        for frame in self.play.runtime_got():
            if frame.type_ == DATA:
                self.taken += len(frame.payload)
                if frame.ends_stream:
                    return True
        self.play.runtime(credit(0, MEBIBYTE), credit(3, MEBIBYTE))
        self.play.relay.flow.pump()
        return False


@pytest.mark.parametrize("is_changed", [False, True])
def test_many_large_calls_take_little_more_than_their_budget(is_changed: bool) -> None:
    budget = MemoryBudget(BUDGET_BYTES)
    tracemalloc.start()
    try:
        uploads = [Upload(budget) for _ in range(CALLS)]
        for upload in uploads:

            def decide(scripted: ScriptedCall, data: bytes) -> None:
                scripted.events.clear()
                scripted.reply.forward(bytes(len(data)) if is_changed else None)

            upload.call.decide = decide
        waiting = list(uploads)
        while waiting:
            while sum(upload.go_on() for upload in waiting):
                pass
            assert budget.used_bytes <= BUDGET_BYTES
            sending = [upload for upload in waiting if not upload.left]
            assert sending
            # The oldest of those that the runtime has not taken yet.
            while not sending[0].take():
                pass
            waiting.remove(sending[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {upload.taken for upload in uploads} == {MESSAGE_BYTES + 5}
    assert peak < 2 * BUDGET_BYTES
    assert budget.used_bytes == 0
