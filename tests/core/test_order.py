"""The order of events that wait for a decision."""

from __future__ import annotations

import asyncio

from runtimeproxy.core.order import EventOrder, KeyedQueue


def clock() -> float:
    return asyncio.get_running_loop().time()


async def test_entries_of_one_key_come_in_order() -> None:
    queue, order = KeyedQueue(), []

    async def call(name: str) -> None:
        turn = queue.enter("k")
        await turn
        order.append(name)
        queue.leave("k", turn)

    first = queue.enter("k")
    async with asyncio.timeout(30):
        calls = asyncio.gather(*map(call, "abc"))
        await asyncio.sleep(0)
        assert not order
        queue.leave("k", first)
        await calls
    assert order == ["a", "b", "c"]
    assert len(queue) == 0


async def test_an_entry_that_leaves_while_it_waits_changes_no_order() -> None:
    queue = KeyedQueue()
    first, second, third = (queue.enter("k") for _ in range(3))
    is_first = []
    for turn in (second, first):
        queue.leave("k", turn)
        is_first.append(third.done())
    assert is_first == [False, True]
    queue.leave("k", third)
    queue.leave("k", third)
    assert len(queue) == 0


async def test_a_wait_that_has_timed_out_keeps_its_place_until_it_leaves() -> None:
    queue = KeyedQueue()
    first, second, third = (queue.enter("k") for _ in range(3))
    second.cancel()
    queue.leave("k", first)
    assert not third.done()
    queue.leave("k", second)
    assert third.done()
    queue.leave("k", third)


async def test_other_keys_do_not_wait() -> None:
    order = EventOrder()
    order.enter("a")
    assert order.enter("b").done()
    assert order.is_idle("c", "c")
    assert not order.is_idle("a", "c")


async def test_post_hooks_block_their_pod_only() -> None:
    order = EventOrder()
    hooks = asyncio.get_running_loop().create_future()
    order.block(("uid:1", "pod-1"), hooks)
    assert not order.is_idle("x", "pod-1")
    assert await order.wait_for_post_hooks("pod-2", clock())
    assert not await order.wait_for_post_hooks("pod-1", clock() + 0.01)
    asyncio.get_running_loop().call_soon(hooks.set_result, None)
    async with asyncio.timeout(30):
        assert await order.wait_for_post_hooks("pod-1", clock() + 10)
    await asyncio.sleep(0)
    assert len(order) == 0


async def test_an_unknown_pod_blocks_nothing() -> None:
    order = EventOrder()
    hooks = asyncio.get_running_loop().create_future()
    order.block(("",), hooks)
    assert order.is_idle("x", "")
    hooks.cancel()
