"""Turns of the interpreter are short while a call lasts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator

import pytest

from runtimeproxy.hooks import switch_interval as turns_module
from runtimeproxy.hooks.switch_interval import LOOK_S, SHORT_S, SwitchInterval, Turns

USUAL_S = 0.003


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(turns_module, "SWITCH_INTERVAL", SwitchInterval())
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(before_s)


async def until(condition: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    over_s = loop.time() + 30
    while not condition():
        assert loop.time() < over_s, "the condition never held"
        await asyncio.sleep(0)


async def until_turns_have(length_s: float) -> None:
    await until(lambda: sys.getswitchinterval() == pytest.approx(length_s))


async def test_short_while_a_call_lasts() -> None:
    under_way: set[object] = {"call"}
    turns = Turns(under_way, lambda: False)
    turns.begin()
    await until_turns_have(SHORT_S)
    under_way.clear()
    await until_turns_have(USUAL_S)


async def test_calls_that_come_and_go_leave_them_as_they_are() -> None:
    under_way: set[object] = {0}
    turns = Turns(under_way, lambda: False)
    turns.begin()
    loop = asyncio.get_running_loop()
    over_s = loop.time() + 4 * LOOK_S
    number = 0
    seen_s = set()
    while loop.time() < over_s:
        number += 1
        under_way.clear()
        under_way.add(number)
        seen_s.add(round(sys.getswitchinterval(), 9))
        await asyncio.sleep(0)
    assert seen_s == {USUAL_S}
    under_way.clear()


async def test_short_while_a_thread_hangs_and_usual_once_it_is_back() -> None:
    hung = [True]
    turns = Turns(set(), lambda: bool(hung))
    turns.begin()
    await until_turns_have(SHORT_S)
    hung.clear()
    await until_turns_have(USUAL_S)


async def test_they_are_never_made_longer() -> None:
    sys.setswitchinterval(SHORT_S / 2)
    under_way: set[object] = {"call"}
    turns = Turns(under_way, lambda: False)
    turns.begin()
    await until(lambda: turns._is_short)
    assert sys.getswitchinterval() == pytest.approx(SHORT_S / 2)
    under_way.clear()
    await until(lambda: not turns._is_short)


async def test_looking_ends_with_the_last_call_and_begins_anew() -> None:
    under_way: set[object] = {"call"}
    turns = Turns(under_way, lambda: False)
    for _ in range(2):
        under_way.add("call")
        turns.begin()
        await until_turns_have(SHORT_S)
        under_way.clear()
        await until(lambda: not turns._is_looking)
        assert sys.getswitchinterval() == pytest.approx(USUAL_S)


async def test_the_shortest_that_anybody_asks_for_counts() -> None:
    """The interpreter has one switch interval, and calls and long requests both ask for another."""
    interval = SwitchInterval()
    interval.shorten(USUAL_S / 2)
    interval.shorten(SHORT_S)
    interval.shorten(SHORT_S)
    interval.restore(SHORT_S)
    assert sys.getswitchinterval() == pytest.approx(SHORT_S)
    interval.restore(SHORT_S)
    assert sys.getswitchinterval() == pytest.approx(USUAL_S / 2)
    interval.restore(USUAL_S / 2)
    assert sys.getswitchinterval() == pytest.approx(USUAL_S)
