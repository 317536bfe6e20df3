"""Between the loop's thread and worker threads: whatever is done reaches the loop, once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from runtimeproxy.hooks.exchange import Exchange


class Taken:
    """What the loop was told, and a way to wait for it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.refused: set[str] = set()
        self._more = asyncio.Event()

    def __call__(self, name: str) -> None:
        self.names.append(name)
        self._more.set()
        if name in self.refused:
            raise RuntimeError(f"no {name}")

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(30):
            while self.names != list(names):
                self._more.clear()
                await self._more.wait()


def followed(taken: Taken) -> Exchange[str]:
    exchange = Exchange(taken)
    exchange.follow()
    return exchange


async def test_what_is_done_reaches_the_loop_in_its_order() -> None:
    exchange = followed(taken := Taken())
    for name in ("first", "second", "third"):
        exchange.finish(name)
    assert taken.names == []
    await taken.until("first", "second", "third")
    exchange.leave()


async def test_a_task_that_is_done_is_taken_at_once_and_once() -> None:
    exchange = followed(taken := Taken())
    exchange.finish("task")
    assert exchange.wait_for("task", 0)
    assert taken.names == ["task"]
    exchange.finish("next")
    await taken.until("task", "next")
    exchange.leave()


async def test_what_else_is_done_then_reaches_the_loop_later() -> None:
    exchange = followed(taken := Taken())
    exchange.finish("late")
    exchange.finish("task")
    assert exchange.wait_for("task", 0)
    assert taken.names == ["task"]
    await taken.until("task", "late")
    exchange.leave()


async def test_waiting_in_vain_loses_nothing() -> None:
    exchange = followed(taken := Taken())
    assert not exchange.wait_for("task", 0)
    exchange.finish("other")
    assert not exchange.wait_for("task", 0)
    assert taken.names == []
    await taken.until("other")
    exchange.finish("task")
    await taken.until("other", "task")
    exchange.leave()


async def test_the_wait_ends_with_the_task() -> None:
    exchange = followed(taken := Taken())
    thread = threading.Thread(target=lambda: exchange.finish(exchange.next() or ""))
    thread.start()
    exchange.put("task")
    assert exchange.wait_for("task", 30_000)
    assert taken.names == ["task"]
    thread.join()
    exchange.leave()


async def test_an_error_in_one_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    exchange = followed(taken := Taken())
    taken.refused.add("first")
    exchange.finish("first")
    exchange.finish("second")
    await taken.until("first", "second")
    assert "not taken well" in caplog.text
    exchange.leave()


async def test_an_error_in_the_awaited_one_costs_the_others_nothing() -> None:
    exchange = followed(taken := Taken())
    taken.refused.add("task")
    exchange.finish("late")
    exchange.finish("task")
    with pytest.raises(RuntimeError, match="no task"):
        exchange.wait_for("task", 0)
    await taken.until("task", "late")
    exchange.leave()


async def test_who_has_left_is_told_nothing() -> None:
    exchange = followed(taken := Taken())
    other = followed(asked := Taken())
    exchange.leave()
    exchange.finish("task")
    other.finish("later")
    await asked.until("later")
    assert taken.names == []
    other.leave()
    exchange.leave()


def test_a_second_loop_is_told_from_now_on() -> None:
    """The first may be closed by then."""
    taken: list[str] = []
    exchange = Exchange(taken.append)

    async def told(name: str) -> None:
        exchange.follow()
        exchange.finish(name)
        async with asyncio.timeout(30):
            while name not in taken:  # noqa: ASYNC110  # an event belongs to one loop
                await asyncio.sleep(0)

    asyncio.run(told("first"))
    asyncio.run(told("second"))
    assert taken == ["first", "second"]
