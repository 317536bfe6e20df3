"""The engine before it is loaded, and after."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runtimeproxy.config.settings import ProxySettings, Settings, StateSettings
from runtimeproxy.service.late_engine import LateEngine


async def test_before_it_is_made_there_is_nothing_to_do() -> None:
    late = LateEngine()
    late.compare_soon()
    await late.use(Settings())
    await late.flush_state()
    await late.take_back_state()
    await late.close()
    assert (late.engine, late.internal_errors, late.summary) == (None, 0, "loading")


async def test_once_it_is_made_it_answers(tmp_path: Path) -> None:
    settings = Settings(
        proxy=ProxySettings(runtime_endpoint=str(tmp_path / "none")), state=StateSettings(dir=str(tmp_path))
    )
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        return task

    late = LateEngine()
    with ThreadPoolExecutor(2) as executor:
        engine = await late.make(settings, executor, spawn, lambda: False)
        await late.use(settings)
        assert late.engine is engine
        assert (late.internal_errors, late.summary) == (0, engine.summary)
        assert "policies" in late.summary
        await late.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
