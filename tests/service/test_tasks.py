"""The daemon's background tasks."""

from __future__ import annotations

import asyncio

import pytest

from runtimeproxy.service.tasks import BackgroundTasks


async def fails() -> None:
    raise ValueError("of all things")


async def test_an_error_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    fatal: list[BaseException] = []
    tasks = BackgroundTasks(fatal.append)
    going_on = tasks.spawn(asyncio.Event().wait())  # type: ignore[arg-type]
    await asyncio.wait((tasks.spawn(fails()),))
    assert "of all things" in caplog.text
    assert not fatal
    assert not going_on.done()
    await tasks.cancel(10)
    assert going_on.cancelled()


async def test_the_error_of_a_vital_task_is_told(caplog: pytest.LogCaptureFixture) -> None:
    fatal: list[BaseException] = []
    await asyncio.wait((BackgroundTasks(fatal.append).spawn(fails(), is_vital=True),))
    assert [str(error) for error in fatal] == ["of all things"]
    assert not caplog.records


async def test_who_cancels_is_not_cancelled() -> None:
    tasks = BackgroundTasks(lambda _: None)

    async def cancels() -> None:
        await tasks.cancel(10)

    task = tasks.spawn(cancels())
    await asyncio.wait((task,))
    assert not task.cancelled()


async def test_one_that_does_not_end_is_not_waited_for() -> None:
    tasks, over = BackgroundTasks(lambda _: None), asyncio.Event()

    async def stubborn() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    task = tasks.spawn(stubborn())
    await asyncio.sleep(0)
    await tasks.cancel(0.05)
    assert not task.done()
    over.set()
    await task
