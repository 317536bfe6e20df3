"""One timer looks at all calls under way."""

from __future__ import annotations

import asyncio
import time

import pytest

from runtimeproxy.hooks.watch import Watch


class Watched:
    """Is looked at as often as it says."""

    def __init__(self, *waits_s: float | None) -> None:
        self.waits_s = list(waits_s)
        self.looks_s: list[float] = []
        self.over = asyncio.Event()

    def look(self, now_s: float) -> float | None:
        self.looks_s.append(now_s)
        wait_s = self.waits_s.pop(0)
        if wait_s is None:
            self.over.set()
        return wait_s


async def test_a_call_is_looked_at_when_it_says() -> None:
    watch, call = Watch(), Watched(0.02, None)
    start_s = time.monotonic()
    watch.add(call, start_s, 0.02)
    async with asyncio.timeout(30):
        await call.over.wait()
    assert len(call.looks_s) == 2
    assert call.looks_s[-1] - start_s >= 0.03


async def test_an_earlier_time_moves_the_timer_forward() -> None:
    watch, late, early = Watch(), Watched(None), Watched(None)
    watch.add(late, time.monotonic(), 3_600)
    watch.add(early, time.monotonic(), 0.01)
    async with asyncio.timeout(30):
        await early.over.wait()


async def test_a_call_that_is_over_is_not_looked_at() -> None:
    watch, over, call = Watch(), Watched(None), Watched(None)
    watch.add(over, time.monotonic(), 0.01)
    watch.add(call, time.monotonic(), 0.01)
    watch.discard(over)
    async with asyncio.timeout(30):
        await call.over.wait()
    assert over.looks_s == []
    assert watch.watched == 1


async def test_a_call_that_raises_leaves_the_others_watched(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Watched):
        def look(self, now_s: float) -> float | None:
            raise RuntimeError("bug")

    watch, call = Watch(), Watched(0.01, None)
    for each in (Broken(), call):
        watch.add(each, time.monotonic(), 0.01)
    async with asyncio.timeout(30):
        await call.over.wait()
    assert "cannot be concluded" in caplog.text
