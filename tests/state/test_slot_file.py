"""The file of two slots: what is saved while calls wait."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.state.slot_file import CHANGES, VALUE, SlotFile

_SMALL, _LARGE = [1, "\U0001d11e"], ["x" * 40_000]
_WRITER = """
import json, sys
from pathlib import Path
from runtimeproxy.state.slot_file import SlotFile

file, number = SlotFile(Path(sys.argv[1]), "", boot_id="boot"), 0
while True:
    number += 1
    if number % 7 < 3 or not file.add(json.dumps(number)):
        file.save(json.dumps([number] * (number % 3_000)))
    print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "x.json"


def slot_file(path: Path, boot_id: str = "boot") -> SlotFile:
    return SlotFile(path, "nothing counts", boot_id=boot_id)


def loaded(file: SlotFile) -> object:
    found: object = file.load(lambda document: document[VALUE])
    return found


def read(path: Path) -> object:
    """What another process reads."""
    return loaded(slot_file(path))


def test_what_is_saved_last_comes_back(path: Path) -> None:
    file = slot_file(path)
    assert loaded(file) is None
    assert not file.unusable
    for value in (_SMALL, 1, _SMALL, _LARGE, 2, 3, _LARGE, _SMALL, 4):
        file.save(json.dumps(value))
        assert read(path) == loaded(file) == value
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]
    # The next process.
    after = slot_file(path)
    assert loaded(after) == 4
    after.save("5")
    assert read(path) == 5
    # One that was replaced meanwhile, and one whose boot is over.
    file.save("6")
    assert read(path) == 6
    assert loaded(slot_file(path, "other")) is None


def test_no_file_is_renamed_while_the_value_fits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = slot_file(path)
    file.save("1")
    inode = path.stat().st_ino
    monkeypatch.setattr(os, "fsync", pytest.fail)
    for number in range(5):
        file.save(json.dumps([number] * number * 100))
    assert path.stat().st_ino == inode


def changes(path: Path) -> tuple[object, list[object]]:
    found = slot_file(path).load(lambda document: (document[VALUE], document.get(CHANGES, [])))
    assert found is not None
    return found


def test_changes_come_back_with_the_value_that_they_are_of(path: Path) -> None:
    file = slot_file(path)
    assert not file.add("0")
    file.save(json.dumps(_LARGE))
    for number in range(3):
        assert file.add(json.dumps({"n": number}))
    inode = path.stat().st_ino
    assert changes(path) == (_LARGE, [{"n": 0}, {"n": 1}, {"n": 2}])
    for value in (_SMALL, _LARGE, _SMALL):
        # Those of the value before do not count, nor what is left of them behind a new one.
        file.save(json.dumps(value))
        assert changes(path) == (value, [])
        assert file.add("1")
        assert changes(path) == (value, [1])
    assert path.stat().st_ino == inode
    # There is as much room as for the value.
    count = 1
    while file.add(json.dumps("x" * 1_000)):
        count += 1
    assert 20 < count < 100
    assert len(changes(path)[1]) == count
    # The next process has the value anew, and so has one whose file another has made anew.
    other = slot_file(path)
    assert loaded(other) == _SMALL
    assert not other.add("2")
    other.save("5")
    assert not file.add("2")
    assert changes(path) == (5, [])


@pytest.mark.parametrize("length", [0, 1, 30, 89])
def test_a_change_that_is_cut_short_leaves_those_before(path: Path, length: int) -> None:
    file = slot_file(path)
    file.save("1")
    assert file.add('"first"')
    before = path.stat().st_size
    assert file.add('"second"')
    os.truncate(path, min(before + length, path.stat().st_size - 2))
    assert changes(path) == (1, ["first"])
    # The file is no longer as it was left.
    assert not file.add('"third"')


def test_a_change_that_cannot_be_written_raises_and_the_value_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, write = slot_file(path), os.pwrite
    file.save("1")
    assert file.add("2")
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: write(descriptor, data[:10], at))
    with pytest.raises(OSError, match="No space"):
        file.add("3")
    monkeypatch.undo()
    assert changes(path) == (1, [2])
    assert file.add("4")
    assert changes(path) == (1, [2, 4])


@pytest.mark.parametrize("length", [1, 20, 100, 4096])
@pytest.mark.parametrize("newest", [0, 1])
def test_a_write_that_is_cut_short_leaves_the_value_before(path: Path, length: int, newest: int) -> None:
    file = slot_file(path)
    for number in range(3 + newest):
        file.save(json.dumps([number] * 2_000))
    before = path.read_bytes()
    assert read(path) == [2 + newest] * 2_000
    file.save(json.dumps([7] * 2_000))
    after = path.read_bytes()
    begin = next(at for at in range(len(after)) if before[at] != after[at]) // (len(after) // 2)
    begin *= len(after) // 2
    path.write_bytes(before[:begin] + after[begin : begin + length] + before[begin + length :])
    assert read(path) == [2 + newest] * 2_000


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def _cut(path: Path) -> None:
    os.truncate(path, 100)


def _move(path: Path) -> None:
    path.replace(path.with_name("other"))


def _link(path: Path) -> None:
    path.replace(path.with_name("other"))
    path.symlink_to("other")


@pytest.mark.parametrize("harm", [_remove, _replace, _cut, _move, _link])
def test_a_file_that_others_have_changed_is_made_anew(path: Path, harm: Callable[[Path], None]) -> None:
    file = slot_file(path)
    file.save("1")
    harm(path)
    file.save("2")
    assert read(path) == 2
    assert not path.is_symlink()


def test_what_cannot_be_written_raises_and_the_value_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = slot_file(path)
    file.save("1")
    monkeypatch.setattr(os, "pwrite", lambda *_: 3)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.save("2")
    monkeypatch.undo()
    assert read(path) == 1
    file.save("3")
    assert read(path) == 3
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        file.save(json.dumps("x" * 9_000_000))
    assert read(path) == 3
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        file.save("4")
    path.rmdir()
    file.save("5")
    assert read(path) == 5


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[" * 10_000, b"\x00" * 100, b'{"boot_id":"boot","value":1,"checksum":1}\n']
)
def test_what_is_no_such_file_is_said(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    file = slot_file(path)
    assert loaded(file) is None
    assert "is not usable: nothing counts" in file.unusable


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_saves(path: Path) -> None:
    for _ in range(5):
        command = [sys.executable, "-c", _WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            told = 0
            while told < 200:
                told = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            rest = [line for line in writer.stdout.read().split("\n") if line]
        told = int(rest[-1]) if rest else told
        value, since = changes(path)
        # One more may be saved than it has told.
        assert (since and since[-1] in (told, told + 1)) or value in (
            [told] * (told % 3_000),
            [told + 1] * ((told + 1) % 3_000),
        )
