"""A folder that is watched: every way in which files come, change and go, with inotify and without it."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from runtimeproxy.hooks.remote.registrations import Registration
from runtimeproxy.hooks.remote.watcher import FolderWatchSettings, RegistrationWatcher
from tests.hooks.remote import registration_files as files
from tests.hooks.remote.registration_files import ConfigMap, content, write
from tests.inotify_doubles import Deaf, Exhausted
from tests.lab.deadline import wait_until

ONE, TWO = "/run/one.sock", "/run/two.sock"
DEADLINE_S = 30.0
"""Far more than a second, because machines are busy."""
QUICK = FolderWatchSettings(poll_s=0.01, rescan_s=0.01, gather_s=0.001, grace_s=0.02)
EVENTS_ONLY = replace(QUICK, rescan_s=3600)
"""A change without an event is not noticed."""


class Watched:
    """A folder under watch, and what is registered in it."""

    def __init__(self, path: Path, watching: FolderWatchSettings) -> None:
        self.path = path
        self.file = path / "a.json"
        self.endpoints: Mapping[str, str] = {}
        self.changes = 0
        self._changed = asyncio.Condition()
        self._executor = ThreadPoolExecutor(1)
        self.directory = RegistrationWatcher(path, 2.0, self._executor, self._take, watching)
        self._task = asyncio.get_running_loop().create_task(self.directory.run())

    async def until(self, **endpoints: str) -> None:
        """Waits until these files, named without their suffix, are registered."""
        await self.until_true(lambda: self.endpoints == {f"{k}.json": v for k, v in endpoints.items()})

    async def until_true(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(condition)

    async def settle(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.directory.settled.wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._executor.shutdown()

    async def _take(self, registrations: tuple[Registration, ...]) -> None:
        async with self._changed:
            self.endpoints = {each.name: each.endpoint for each in registrations}
            self.changes += 1
            self._changed.notify_all()


WATCHING = {
    "inotify": EVENTS_ONLY,
    "exhausted": replace(QUICK, open_inotify=Exhausted()),
    "lost events": replace(QUICK, open_inotify=Deaf),
}


@pytest.fixture
def watching() -> FolderWatchSettings:
    return EVENTS_ONLY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hookserver.d"


@pytest_asyncio.fixture
async def watched(path: Path, watching: FolderWatchSettings) -> AsyncIterator[Watched]:
    made = Watched(path, watching)
    await made.settle()
    yield made
    await made.stop()


async def test_the_folder_is_made(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        watched = Watched(tmp_path / "runtime" / "hookserver.d", EVENTS_ONLY)
        await watched.settle()
    finally:
        os.umask(before)
    for folder in (watched.path, watched.path.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    await watched.stop()


async def test_what_is_there_at_the_start_is_known_once_it_is_settled(tmp_path: Path) -> None:
    write(tmp_path / "a.json", ONE)
    write(tmp_path / "bad.json", "")
    watched = Watched(tmp_path, EVENTS_ONLY)
    await watched.settle()
    assert watched.endpoints == {"a.json": ONE}
    await watched.stop()


@pytest.mark.parametrize("watching", WATCHING.values(), ids=WATCHING)
@pytest.mark.parametrize(
    "change",
    [files.write, files.replace, files.write_with_old_time, files.replace_with_old_file],
    ids=lambda change: change.__name__,
)
async def test_changes(watched: Watched, change: Callable[[Path, str], None]) -> None:
    write(watched.file, ONE)
    await watched.until(a=ONE)
    change(watched.file, TWO)
    await watched.until(a=TWO)
    watched.file.rename(watched.path / "b.json")
    await watched.until(b=TWO)
    (watched.path / "b.json").unlink()
    await watched.until()


async def test_a_bad_file_replaces_nothing(watched: Watched) -> None:
    write(watched.file, ONE)
    await watched.until(a=ONE)
    for text in ("", content(TWO)[:20]):
        watched.file.write_text(text)
        (watched.path / "other.json").write_text(content(f"/run/{len(text)}"))
        await watched.until(a=ONE, other=f"/run/{len(text)}")
    watched.file.write_text(content(TWO))
    await watched.until(a=TWO, other="/run/20")


async def test_a_bad_file_is_logged_once(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.file.touch()
    for number in range(3):
        write(watched.path / "b.json", f"/run/{number}")
        await watched.until(b=f"/run/{number}")
    await asyncio.to_thread(wait_until, lambda: caplog.messages, "a line")
    watched.file.touch()
    write(watched.path / "b.json", ONE)
    await watched.until(b=ONE)
    assert caplog.messages == [f"hook server registration: {watched.file}: the file is empty"]


async def test_a_fifo_is_not_waited_for(watched: Watched) -> None:
    os.mkfifo(watched.file)
    write(watched.path / "b.json", ONE)
    await watched.until(b=ONE)


async def test_a_swapped_config_map(watched: Watched) -> None:
    mounted = ConfigMap(watched.path)
    for endpoint in (ONE, TWO):
        mounted.publish(a=endpoint, b=endpoint)
        await watched.until(a=endpoint, b=endpoint)


async def test_the_target_of_a_link_elsewhere(watched: Watched, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write(target, ONE)
    watched.file.symlink_to(target)
    await watched.until(a=ONE)
    write(target, TWO)
    await watched.until(a=TWO)


async def test_a_file_that_is_written_under_another_name(watched: Watched, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, ONE)
    watched.file.hardlink_to(other)
    await watched.until(a=ONE)
    write(other, TWO)
    await watched.until(a=TWO)


async def test_a_link_that_leads_to_another_folder(tmp_path: Path) -> None:
    for number, endpoint in enumerate((ONE, TWO)):
        (tmp_path / f"{number}").mkdir()
        write(tmp_path / f"{number}" / "a.json", endpoint)
        (tmp_path / f"link{number}").symlink_to(f"{number}")
    link = tmp_path / "link0"
    watched = Watched(link, EVENTS_ONLY)
    await watched.until(a=ONE)
    (tmp_path / "link1").replace(link)
    await watched.until(a=TWO)
    await watched.stop()


@pytest.mark.parametrize("watching", WATCHING.values(), ids=WATCHING)
async def test_the_folder_goes_and_comes_again(watched: Watched) -> None:
    for endpoint in (ONE, TWO):
        write(watched.file, endpoint)
        await watched.until(a=endpoint)
        watched.file.unlink()
        watched.path.rmdir()
        await watched.until()
        watched.path.mkdir()


async def test_a_folder_that_cannot_be_made_and_comes_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runtime").touch()
    watched = Watched(tmp_path / "runtime" / "hookserver.d", EVENTS_ONLY)
    await watched.settle()
    assert len(caplog.messages) == 2
    (tmp_path / "runtime").unlink()
    (tmp_path / "runtime").mkdir()
    watched.path.mkdir()
    write(watched.file, ONE)
    await watched.until(a=ONE)
    await watched.stop()


async def test_exhausted_inotify_is_told_once_and_tried_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exhausted = Exhausted()
    watched = Watched(path, replace(QUICK, poll_s=0.05, open_inotify=exhausted))
    await watched.settle()
    for endpoint in (ONE, TWO):
        write(watched.file, endpoint)
        await watched.until(a=endpoint)
    assert caplog.messages == [
        (
            f"{path}: no events from the kernel ([Errno 24] Too many open files; see"
            " fs.inotify.max_user_instances), files are polled every 0.05 s"
        )
    ]
    caplog.set_level(logging.INFO)
    exhausted.is_over = True
    await asyncio.to_thread(wait_until, lambda: len(caplog.messages) > 1, "events again")
    assert caplog.messages[1] == f"{path}: the kernel reports changes of files now"
    await watched.stop()


@pytest.mark.parametrize("watching", WATCHING.values(), ids=WATCHING)
async def test_many_files_at_once(watched: Watched) -> None:
    names = [f"{number:03}" for number in range(200)]

    def each(change: Callable[[Path, str], None], endpoint: str) -> None:
        for name in names:
            change(watched.path / f"{name}.json", endpoint)

    for change, endpoint in ((files.write, ONE), (files.replace, TWO), (files.write_with_old_time, ONE)):
        await asyncio.to_thread(each, change, endpoint)
        await watched.until(**dict.fromkeys(names, endpoint))
    await asyncio.to_thread(each, lambda path, _: path.unlink(), "")
    await watched.until()
    assert watched.changes <= 4 * len(names)


async def test_another_default_timeout(watched: Watched) -> None:
    write(watched.file, ONE)
    await watched.until(a=ONE)
    watched.directory.configure(3.0)
    await watched.until_true(lambda: watched.changes == 2)
