"""What is remembered of evictions across restarts and reboots, and what becomes of a file that is no use."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtimeproxy.core import eviction_history
from runtimeproxy.core.eviction import Bounds, unknown_s
from runtimeproxy.core.eviction_history import FILE, MOST_AGE_S, UNKNOWN_UID, Evicted, EvictionHistory


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


class Process:
    """A history with clocks of its own."""

    def __init__(
        self, folder: Path, thread: ThreadPoolExecutor, boot: str = "boot", now_s: float = 5000.0
    ) -> None:
        self.now_s, self.wall_s = now_s, 1_000_000.0
        self.history = EvictionHistory(folder, boot, thread, lambda: self.now_s, lambda: self.wall_s)

    async def evict(self, uid: str) -> None:
        self.history.add(uid)
        await self.history.save()


async def test_the_next_process_of_this_boot_has_the_same_times(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    first, second = Process(tmp_path, thread), Process(tmp_path, thread, now_s=5030.0)
    await first.history.load()
    assert not first.history.evictions
    await first.evict("a")
    first.now_s += 10
    await first.evict("b")
    # However the clock of the wall is set.
    second.wall_s = 0.0
    await second.history.load()
    assert list(second.history.evictions) == [Evicted(5000.0, "a"), Evicted(5010.0, "b")]


@pytest.mark.parametrize(
    ("boots", "wall_s", "age_s"),
    [
        pytest.param(("one", "two"), 1_000_090.0, 100.0, id="after-a-reboot-of-90-s"),
        pytest.param(("one", "two"), 0.0, 10.0, id="the-wall-clock-was-set-back"),
        pytest.param(("", ""), 1_000_090.0, 100.0, id="the-boot-is-not-known"),
    ],
)
async def test_after_a_reboot(
    tmp_path: Path, thread: ThreadPoolExecutor, boots: tuple[str, str], wall_s: float, age_s: float
) -> None:
    first, second = Process(tmp_path, thread, boots[0]), Process(tmp_path, thread, boots[1], now_s=20.0)
    first.history.add("a")
    first.now_s += 10
    await first.history.save()
    second.wall_s = wall_s
    await second.history.load()
    assert list(second.history.evictions) == [Evicted(20.0 - age_s, "a")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2}',
        '{"version": 1, "boot_id": "boot", "boot_time_s": 1, "time_s": 1, "evictions": [[1]]}',
        '{"version": 1, "boot_id": "boot", "boot_time_s": 1, "time_s": 1, "evictions": [[-Infinity, "a"]]}',
        None,
    ],
)
async def test_what_cannot_be_read_is_reported_and_counts_as_evictions(
    tmp_path: Path, thread: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    path = tmp_path / FILE
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    first = Process(tmp_path, thread)
    await first.history.load()
    assert f"{path} is not usable: no pod is evicted until" in caplog.text
    assert list(first.history.evictions) == [Evicted(5000.0, UNKNOWN_UID)]
    assert bool(first.history.problem) is (text is None)
    # A restart does not begin the time anew, and nothing else ends it.
    second = Process(tmp_path, thread, now_s=5100.0)
    await second.history.load()
    bounds = Bounds(2, 60.0, 300.0)
    assert unknown_s(second.history.evictions, bounds, second.now_s) == (300.0 if text is None else 200.0)
    assert unknown_s(second.history.evictions, bounds, 5100.0 + 300.0) == 0


async def test_evictions_of_long_ago_are_forgotten(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    process = Process(tmp_path, thread)
    await process.evict("a")
    process.now_s += MOST_AGE_S + 1
    await process.evict("b")
    assert [uid for _, uid in json.loads((tmp_path / FILE).read_text())["evictions"]] == ["b"]


async def test_after_a_failed_upgrade_evictions_of_both_processes_count(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    old, new = Process(tmp_path, thread), Process(tmp_path, thread)
    await old.evict("a")
    old.history.is_handed_over = True
    await new.history.load()
    await new.evict("b")
    old.history.add("c")
    await old.history.save()
    assert '"c"' not in (tmp_path / FILE).read_text()
    await old.history.load()
    assert [uid for _, uid in old.history.evictions] == ["a", "b", "c"]
    await old.history.save()
    assert '"c"' in (tmp_path / FILE).read_text()


async def test_a_slow_disk_does_not_keep_an_eviction_waiting(
    tmp_path: Path, thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction_history, "SAVE_S", 0.01)
    process, go_on = Process(tmp_path, thread), threading.Event()
    blocked = thread.submit(go_on.wait)
    await process.evict("a")
    assert not blocked.done()
    assert not (tmp_path / FILE).exists()
    go_on.set()
    monkeypatch.undo()
    await process.history.save()
    assert '"a"' in (tmp_path / FILE).read_text()
