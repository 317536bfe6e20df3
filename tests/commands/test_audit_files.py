"""Reading `audit.file` and its rotations, whatever they hold."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.commands import audit_files
from runtimeproxy.commands.audit_files import AuditFiles
from runtimeproxy.core.audit_lines import entries_of, lines
from runtimeproxy.hooks import Hook, Mode
from runtimeproxy.hooks.audit import AuditEntry, AuditKind

START_S = 1_700_000_000.0


def entry(number: int, pod: str = "") -> AuditEntry:
    name = pod or f"pod-{number}"
    return AuditEntry(
        START_S + number,
        Hook.PRE_CREATE_CONTAINER,
        AuditKind.CHANGED,
        "p",
        Mode.ENFORCE,
        "default",
        name,
        f"uid-{name}",
        "main",
        field="env[A]",
        old="<set>",
        new="<set>",
        reason="r\n",
        note="n",
    )


def text(*numbers: int) -> bytes:
    return b"".join(lines(map(entry, numbers)))


def read(path: Path, since: int | None = None, until: int | None = None) -> tuple[list[str], list[str]]:
    """The pods of the entries, and the notes."""
    files = AuditFiles(path)
    times = (None if each is None else START_S + each for each in (since, until))
    pods = [each.pod_name.removeprefix("pod-") for each in files.entries(*times)]
    files.close()
    return pods, [each.replace(f"{path.parent}/", "") for each in files.notes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_a_line_becomes_its_entries_again() -> None:
    found = [entry(1), entry(1)._replace(kind=AuditKind.CONFLICT, field=""), entry(2)._replace(hook="")]
    assert [each for line in lines(found) for each in entries_of(json.loads(line))] == found


PACKERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", bytes),
    (".gz", gzip.compress),
    (".xz", lzma.compress),
    (".bz2", bz2.compress),
]


@pytest.mark.parametrize(("suffix", "pack"), PACKERS)
@pytest.mark.parametrize("names", [(".2", ".1"), ("-20231114", "-20231115")])
def test_rotations_are_read_in_the_order_of_time(
    path: Path, names: tuple[str, str], suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    for name, numbers in zip(names, ((1, 2), (3, 4)), strict=True):
        path.with_name(f"{path.name}{name}{suffix}").write_bytes(pack(text(*numbers)))
    path.write_bytes(text(5, 6))
    path.with_name("audit.jsonl.old").write_bytes(text(9))
    path.with_name("other.jsonl.1").write_bytes(text(9))
    assert read(path) == (["1", "2", "3", "4", "5", "6"], [])
    assert read(path, since=2, until=5)[0] == ["2", "3", "4", "5"]
    files = AuditFiles(path)
    assert [each.name for each in files.read][-1] == "audit.jsonl"
    assert files.oldest.startswith("2023-11-14T22:13:21.000")
    files.close()


def test_entries_that_were_written_late_are_put_in_order(path: Path) -> None:
    path.write_bytes(text(1, 3, 4, 2, 5))
    assert read(path)[0] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("damage", "pods", "note"),
    [
        (b"{not json\n", ["1", "2"], "audit.jsonl: 1 line is damaged and left out, the first is line 2"),
        (b"\x00" * 100 + b"\n[]\n", ["1", "2"], "audit.jsonl: 2 lines are damaged and left out"),
        (b'{"time":"2023-11-14T22:13:21.000+00:00"}\n', ["1", "2"], "audit.jsonl: 1 line is damaged"),
        (b'{"time":7,"changes":[]}\n', ["1", "2"], "audit.jsonl: 1 line is damaged"),
        (b"[" * 100_000 + b"\n", ["1", "2"], "audit.jsonl: 1 line is damaged"),
        (text(7)[:50] + b"\n", ["1", "2"], "audit.jsonl: 1 line is damaged"),
    ],
    ids=range(6),
)
def test_damaged_lines_are_left_out_and_said(path: Path, damage: bytes, pods: list[str], note: str) -> None:
    path.write_bytes(text(1) + damage + text(2))
    found, (said,) = read(path)
    assert found == pods
    assert said.startswith(note)


def test_the_last_line_may_be_cut(path: Path) -> None:
    path.write_bytes(text(1) + text(2)[:-20])
    assert read(path) == (["1"], ["audit.jsonl: 1 line is damaged and left out, the first is line 2"])


def test_a_compressed_file_that_is_cut_gives_what_it_has(path: Path) -> None:
    packed = gzip.compress(text(*range(5_000)), compresslevel=1)
    path.with_name("audit.jsonl.1.gz").write_bytes(packed[: len(packed) // 2])
    path.write_bytes(text(9_000))
    pods, notes = read(path)
    assert pods[0] == "0"
    assert 1_000 < len(pods) < 5_000
    assert pods[-1] == "9000"
    assert any("audit.jsonl.1.gz: damaged, what follows is left out" in each for each in notes)


def test_a_huge_file_takes_bounded_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_files, "MOST_LINE_BYTES", 100_000)
    monkeypatch.setattr(audit_files, "WINDOW_BYTES", 100_000)
    path.write_bytes(text(1) + b"x" * 30_000_000 + b"\n" + text(2) + b"\x00" * 30_000_000)
    path.with_name("audit.jsonl.1.gz").write_bytes(gzip.compress(b"y" * 30_000_000))
    tracemalloc.start()
    pods, notes = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pods == ["1", "2"]
    assert len(notes) == 2
    assert peak < 3_000_000


def test_files_that_cannot_be_read_are_named(path: Path) -> None:
    path.write_bytes(text(3))
    path.with_name("audit.jsonl.1.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    path.with_name("audit.jsonl.2.gz").write_bytes(b"no gzip")
    os.mkfifo(path.with_name("audit.jsonl.3"))
    path.with_name("audit.jsonl.4").mkdir()
    # The same file under another name, as in the midst of a rotation.
    os.link(path, path.with_name("audit.jsonl.5"))
    pods, notes = read(path)
    assert pods == ["3"]
    assert notes[0] == "audit.jsonl.1.zst: cannot be read: zstd is not supported; zstdcat shows it"
    assert [each.split(":")[0] for each in notes] == [
        f"audit.jsonl.{name}" for name in ("1.zst", "2.gz", 3, 4)
    ]


def test_nothing_there(path: Path) -> None:
    files = AuditFiles(path)
    assert files.problem == f"{path}: No such file or directory"
    path.write_bytes(b"")
    files = AuditFiles(path)
    assert (files.problem, list(files.entries(None, None)), files.oldest) == ("", [], "")
    files.close()


def test_more_rotations_than_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_files, "MOST_FILES", 3)
    for number in range(1, 6):
        path.with_name(f"audit.jsonl.{number}").write_bytes(text(10 - number))
    # The file itself is the first of them, and is not there.
    assert read(path) == (["8", "9"], ["3 older rotations are left out"])
