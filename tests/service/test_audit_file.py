"""The audit in a file: lines, rotation, full disks, files that are no files."""

# ruff: noqa: ASYNC240 - small files of the test

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.config.settings import AuditSettings
from runtimeproxy.core.audit_lines import lines
from runtimeproxy.hooks import Hook, Mode
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.service.audit_file import MOST_QUEUED, AuditFile
from tests.hooks.asking import until

CREATE = Hook.PRE_CREATE_CONTAINER


def entry(number: int = 1, **changes: Any) -> AuditEntry:
    found = AuditEntry(
        1_700_000_000.25,
        CREATE,
        AuditKind.CHANGED,
        "batch-resource",
        Mode.ENFORCE,
        "ns",
        f"pod-{number}",
        f"u{number}",
        "main",
    )
    return found._replace(**changes)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "audit.jsonl"


def test_a_decision_is_one_line_with_all_its_changes() -> None:
    shares = entry(
        field="resources.cpu_shares",
        old="2",
        new="512",
        reason="batch",
        call="CreateContainer",
        trace_id="ab" * 16,
        sandbox_id="s1",
        container_id="c1",
    )
    failed = entry(kind=AuditKind.FAILED, policy="gpu-env", mode=Mode.DRY_RUN, reason="bad\n\u202e", note="n")
    (line,) = lines([shares, failed])
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "call": "CreateContainer",
        "hook": "pre_create_container",
        "trace_id": "ab" * 16,
        "namespace": "ns",
        "pod": "pod-1",
        "uid": "u1",
        "sandbox_id": "s1",
        "container": "main",
        "container_id": "c1",
        "changes": [
            {
                "kind": "changed",
                "policy": "batch-resource",
                "mode": "enforce",
                "field": "resources.cpu_shares",
                "from": "2",
                "to": "512",
                "reason": "batch",
            },
            {
                "kind": "failed",
                "policy": "gpu-env",
                "mode": "dry-run",
                "reason": "bad\n\u202e",
                "note": "n",
            },
        ],
    }


def test_other_decisions_have_other_lines() -> None:
    entries = [entry(1), entry(2), entry(2, time_s=5.0), entry(2, time_s=5.0, hook=Hook.POST_START_CONTAINER)]
    assert len(list(lines(entries))) == 4


async def test_the_file_is_made_for_its_user_only(path: Path) -> None:
    file = AuditFile(AuditSettings(file=str(path)))
    file(entry(1))
    file(entry(2))
    await until(lambda: file.written == 2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each["pod"] for each in read(path)] == ["pod-1", "pod-2"]
    file(entry(3))
    file.close()
    assert [each["pod"] for each in read(path)] == ["pod-1", "pod-2", "pod-3"]
    assert file.lost == 0


async def test_a_full_file_is_renamed_and_the_oldest_goes(path: Path) -> None:
    line = next(lines([entry(10)]))
    file = AuditFile(AuditSettings(file=str(path), max_bytes=2 * len(line), keep=2))
    for number in range(10, 19):
        file(entry(number))
    file.close()
    names = {each.name: [row["pod"] for row in read(each)] for each in path.parent.iterdir()}
    assert names == {
        "audit.jsonl": ["pod-18"],
        "audit.jsonl.1": ["pod-16", "pod-17"],
        "audit.jsonl.2": ["pod-14", "pod-15"],
    }


async def test_without_old_files_a_full_one_is_removed(path: Path) -> None:
    line = next(lines([entry(10)]))
    file = AuditFile(AuditSettings(file=str(path), max_bytes=len(line), keep=0))
    file(entry(10))
    file(entry(11))
    file.close()
    assert [each.name for each in path.parent.iterdir()] == ["audit.jsonl"]
    assert [each["pod"] for each in read(path)] == ["pod-11"]


async def test_a_reload_opens_it_again(path: Path) -> None:
    file = AuditFile(AuditSettings(file=str(path)))
    file(entry(1))
    await until(lambda: file.written == 1)
    path.rename(path.with_name("old"))
    file(entry(2))
    await until(lambda: file.written == 2)
    file(entry(3))
    file.configure(AuditSettings(file=str(path)))
    file(entry(4))
    await until(lambda: file.written == 4)
    # What was gathered before the reload went to the old one.
    assert [each["pod"] for each in read(path.with_name("old"))] == ["pod-1", "pod-2", "pod-3"]
    assert [each["pod"] for each in read(path)] == ["pod-4"]
    file.configure(AuditSettings())
    file(entry(5))
    file.close()
    assert len(read(path)) == 1


async def test_a_full_disk_loses_lines_and_the_next_ones_can_be_read(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = [10, 0, 1 << 20]

    def write(descriptor: int, data: bytes) -> int:
        left = room.pop(0) if len(room) > 1 else room[0]
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data[:left])

    file = AuditFile(AuditSettings(file=str(path)), write=write)
    for number in range(1, 5):
        file(entry(number))
    file.close()
    assert (file.written, file.lost) == (2, 2)
    cut, *whole = path.read_bytes().splitlines()
    assert len(cut) == 10
    assert [json.loads(line)["pod"] for line in whole] == ["pod-3", "pod-4"]
    assert [each.message for each in caplog.records] == [f"audit file: {path}: No space left on device"]


async def test_half_a_line_of_a_killed_process_is_ended(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"pod":"cut')
    file = AuditFile(AuditSettings(file=str(path)))
    file(entry(1))
    file.close()
    assert path.read_text().splitlines()[0] == '{"pod":"cut'
    assert json.loads(path.read_text().splitlines()[1])["pod"] == "pod-1"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/full")])
async def test_what_is_no_file_loses_lines_only(
    path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    make(path)
    file = AuditFile(AuditSettings(file=str(path)))
    file(entry(1))
    file.close()
    assert (file.written, file.lost) == (0, 1)
    assert str(path) in caplog.text


async def test_a_disk_that_hangs_delays_nothing(path: Path) -> None:
    path.parent.mkdir()
    is_free, hangs = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def write(descriptor: int, data: bytes) -> int:
        loop.call_soon_threadsafe(hangs.set)
        asyncio.run_coroutine_threadsafe(is_free.wait(), loop).result(30)
        return os.write(descriptor, data)

    file = AuditFile(AuditSettings(file=str(path)), write=write)
    file(entry(1))
    await asyncio.wait_for(hangs.wait(), 30)
    for _ in range(2):
        for number in range(MOST_QUEUED // 2):
            file(entry(number))
        await until(lambda: not file._gathered)
    # The first of them still waits to be written, so the last ones do not fit.
    assert file.lost == MOST_QUEUED // 2
    is_free.set()
    await until(lambda: file.written > 1)
    file(entry(1))
    await until(lambda: file.lost + file.written >= MOST_QUEUED)
    file.close()


async def test_nothing_is_done_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = AuditFile(AuditSettings())
    file(entry(1))
    file.configure(AuditSettings())
    file.close()
    assert list(tmp_path.iterdir()) == []
    assert (file.written, file.lost, file._thread) == (0, 0, None)
