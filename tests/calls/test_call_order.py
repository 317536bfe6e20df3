"""The order of held calls."""

from __future__ import annotations

import asyncio

from runtimeproxy.calls.call_order import Lanes


def clock() -> float:
    return asyncio.get_running_loop().time()


async def test_turns_of_one_key_come_in_order() -> None:
    lanes, order = Lanes(), []

    async def call(name: str) -> None:
        turn = lanes.take_turn("k")
        assert await turn.come(clock() + 10)
        order.append(name)
        turn.leave()

    first = lanes.take_turn("k")
    async with asyncio.timeout(30):
        calls = asyncio.gather(*map(call, "abc"))
        await asyncio.sleep(0)
        assert not order
        first.leave()
        await calls
    assert order == ["a", "b", "c"]
    assert len(lanes) == 0


async def test_a_call_that_leaves_while_it_waits_lets_nobody_overtake() -> None:
    lanes = Lanes()
    first, second, third = (lanes.take_turn("k") for _ in range(3))
    come = []
    for turn in (second, first):
        turn.leave()
        come.append(third.has_come)
    assert come == [False, True]
    third.leave()
    third.leave()
    assert len(lanes) == 0


async def test_waiting_for_a_turn_is_bounded() -> None:
    lanes = Lanes()
    lanes.take_turn("k")
    second = lanes.take_turn("k")
    assert not await second.come(clock() + 0.01)


async def test_other_keys_do_not_wait() -> None:
    lanes = Lanes()
    lanes.take_turn("a")
    assert await lanes.take_turn("b").come(clock())
    assert lanes.is_idle("c", "c")
    assert not lanes.is_idle("a", "c")


async def test_post_hooks_hold_back_their_pod_only() -> None:
    lanes = Lanes()
    hooks = asyncio.get_running_loop().create_future()
    lanes.hold_back(("uid:1", "pod-1"), hooks)
    assert not lanes.is_idle("x", "pod-1")
    assert await lanes.hooks_done("pod-2", clock())
    assert not await lanes.hooks_done("pod-1", clock() + 0.01)
    asyncio.get_running_loop().call_soon(hooks.set_result, None)
    async with asyncio.timeout(30):
        assert await lanes.hooks_done("pod-1", clock() + 10)
    await asyncio.sleep(0)
    assert len(lanes) == 0


async def test_a_pod_that_nobody_knows_holds_nobody_back() -> None:
    lanes = Lanes()
    hooks = asyncio.get_running_loop().create_future()
    lanes.hold_back(("",), hooks)
    assert lanes.is_idle("x", "")
    hooks.cancel()


async def test_a_cancelled_wait_is_no_error_for_the_next() -> None:
    lanes = Lanes()
    first = lanes.take_turn("k")
    second = lanes.take_turn("k")
    waiting = asyncio.get_running_loop().create_task(second.come(clock() + 10))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    first.leave()
    second.leave()
    assert len(lanes) == 0
