"""One file that other programs write, with a clock of the test's own."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest

from runtimeproxy.documents.reading import InputError
from runtimeproxy.node.input_file import GRACE_S, MOST_SETTLE_S, SETTLE_S, ParsedInput, WatchedFile


def number(data: bytes, before: int | None) -> ParsedInput[int]:
    """Reads a number; of a text with `?` the value before stands in."""
    if b"?" in data:
        return ParsedInput(before or 0, None, ("a part is bad",))
    try:
        return ParsedInput(int(data), int(data), notes=("odd",) if int(data) % 2 else ())
    except ValueError:
        raise InputError("not a number", "line 1") from None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "number"


@pytest.fixture
def file(path: Path) -> WatchedFile[int]:
    return WatchedFile(path, 16, number, settle_s=0)


def seen(file: WatchedFile[int]) -> WatchedFile[int]:
    """The file, of whose attributes nothing is known: each look may change them."""
    return file


def test_a_file_comes_changes_and_goes(path: Path, file: WatchedFile[int]) -> None:
    assert not file.look(0)
    assert (file.value, file.is_missing, file.wait_s) == (None, True, None)
    path.write_text("2")
    assert file.look(1)
    assert (file.value, file.source, file.is_missing) == (2, 2, False)
    assert not file.look(2)
    path.write_text("3")
    assert file.look(3)
    assert (file.value, file.notes) == (3, (f"{path}: odd",))
    path.unlink()
    assert not file.look(10)
    assert (file.value, file.is_missing, file.wait_s, file.notes) == (3, True, GRACE_S, ())
    assert not file.look(10 + GRACE_S - 1)
    assert (file.value, file.wait_s) == (3, 1)
    assert file.look(10 + GRACE_S)
    assert (file.value, file.source, file.wait_s) == (None, None, None)


def test_a_file_that_is_back_within_the_grace_was_never_away(path: Path, file: WatchedFile[int]) -> None:
    path.write_text("2")
    file.look(0)
    path.unlink()
    file.look(10)
    path.write_text("2")
    assert not file.look(60)
    path.unlink()
    assert not file.look(100)
    assert (file.value, file.wait_s) == (2, GRACE_S)


def test_the_same_file_that_is_back_counts_as_present(path: Path, file: WatchedFile[int]) -> None:
    path.write_text("2")
    file.look(0)
    path.rename(path.with_name("away"))
    file.look(10)
    path.with_name("away").rename(path)
    assert not file.look(60)
    assert not file.is_missing
    assert not file.look(10 + GRACE_S)
    assert file.value == 2


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("x", "line 1: not a number"),
        ("", "line 1: not a number"),
        ("1" * 17, "has more than 16 bytes"),
    ],
)
def test_a_broken_file_keeps_the_last_good_value(
    path: Path, file: WatchedFile[int], content: str, problem: str
) -> None:
    path.write_text(content)
    file.look(0)
    assert (file.value, file.is_missing, file.problems) == (None, False, (f"{path}: {problem}",))
    path.write_text("2")
    assert file.look(1)
    assert seen(file).problems == ()
    path.write_text(content)
    for now_s in (2, 2 + 10 * GRACE_S):
        assert not file.look(now_s)
        assert seen(file).problems == (f"{path}: {problem}; what was there before stays",)
        assert (file.value, file.source) == (2, 2)


def test_of_a_file_with_a_bad_part_the_rest_counts(path: Path, file: WatchedFile[int]) -> None:
    path.write_text("2")
    file.look(0)
    path.write_text("?")
    assert not file.look(1)
    assert (file.value, file.problems) == (2, (f"{path}: a part is bad",))


@pytest.mark.parametrize("make", ["folder", "fifo", "loop"])
def test_what_is_no_file_is_a_problem(path: Path, file: WatchedFile[int], make: str) -> None:
    path.write_text("2")
    file.look(0)
    path.unlink()
    if make == "folder":
        path.mkdir()
    elif make == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    assert not file.look(1)
    assert (file.value, file.is_missing, file.is_watchable) == (2, False, False)
    assert len(file.problems) == 1


def test_a_change_is_read_once_it_has_settled(path: Path) -> None:
    file = WatchedFile(path, 16, number)
    path.write_text("2")
    assert file.look(0, is_first=True)
    path.write_text("4")
    assert not file.look(1)
    assert seen(file).wait_s == SETTLE_S
    path.write_text("44")
    assert not file.look(1 + SETTLE_S / 2)
    assert seen(file).wait_s == SETTLE_S
    assert not file.look(1 + SETTLE_S)
    assert seen(file).wait_s == SETTLE_S / 2
    assert file.look(1 + 1.5 * SETTLE_S)
    assert seen(file).value == 44
    assert seen(file).wait_s is None


def test_a_file_that_never_settles_is_read_all_the_same(path: Path) -> None:
    file = WatchedFile(path, 16, number)
    path.write_text("2")
    file.look(0, is_first=True)
    read_s = [0.0]
    for step in range(1, 200):
        now_s = step / 8
        new = path.with_name("new")
        new.write_text(str(2 * step))
        new.replace(path)
        if file.look(now_s):
            read_s.append(now_s)
        else:
            assert 0 < (seen(file).wait_s or 0) <= SETTLE_S
    pauses_s = {later - earlier for earlier, later in pairwise(read_s)}
    assert pauses_s == {MOST_SETTLE_S + 1 / 8}


def test_the_last_change_of_a_file_that_never_settled_is_read(path: Path) -> None:
    """A change right after a read may leave size and times as they are: the file is read once more."""
    read: list[bytes] = []

    def parse(data: bytes, before: int | None) -> ParsedInput[int]:
        read.append(data)
        return number(data, before)

    file = WatchedFile(path, 16, parse)
    now_s = 0.0
    while not read:
        path.write_text(str(10 + len(read) + int(now_s * 8) % 2))
        file.look(now_s)
        now_s += 1 / 8
    assert seen(file).wait_s == SETTLE_S
    file.look(now_s)
    assert seen(file).wait_s == SETTLE_S
    file.look(now_s + SETTLE_S)
    assert (len(read), read[1]) == (2, path.read_bytes())
    file.look(now_s + 2 * SETTLE_S)
    assert (len(read), file.wait_s) == (2, None)


def test_a_restored_value_counts_until_the_file_is_another_one(path: Path) -> None:
    path.write_text("2")
    before = WatchedFile(path, 16, number)
    before.look(0, is_first=True)
    after: WatchedFile[int] = WatchedFile(path, 16, lambda *_: pytest.fail("is not to be read again"))
    after.restore(ParsedInput(2, 2), before.stamp)
    assert not after.look(0, is_first=True)
    assert after.value == 2
    changed = WatchedFile(path, 16, number)
    changed.restore(ParsedInput(2, 2), before.stamp)
    path.write_text("4")
    assert changed.look(0, is_first=True)
    assert changed.value == 4


def test_a_restored_value_of_a_missing_file_counts_for_the_grace(path: Path) -> None:
    file = WatchedFile(path, 16, number)
    file.restore(ParsedInput(2, 2), (1, 2, 3, 4, 5))
    assert not file.look(5, is_first=True)
    assert (file.value, file.wait_s) == (2, GRACE_S)
    assert file.look(5 + GRACE_S)
    assert file.value is None


def test_changes_without_events_are_told(path: Path, file: WatchedFile[int]) -> None:
    path.write_text("2")
    file.look(0)
    assert seen(file).is_watchable
    os.link(path, path.with_name("other"))
    path.write_text("4")
    file.look(1)
    assert not seen(file).is_watchable
    path.unlink()
    path.symlink_to("other")
    file.look(2)
    assert not seen(file).is_watchable
    (path.parent / "..data").mkdir()
    (path.parent / "..data/number").write_text("6")
    path.unlink()
    path.symlink_to("..data/number")
    assert file.look(3)
    assert seen(file).is_watchable


def test_a_file_of_a_config_map_that_is_swapped_all_the_time_is_read(tmp_path: Path) -> None:
    (tmp_path / "number").symlink_to("..data/number")
    file = WatchedFile(tmp_path / "number", 16, number)
    for version in range(2, 10, 2):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "number").write_text(str(version))
        (tmp_path / "..new").symlink_to(f"..{version}")
        (tmp_path / "..new").replace(tmp_path / "..data")
        assert file.look(version * SETTLE_S / 4)
        assert (file.value, file.is_watchable) == (version, True)


def test_a_link_is_polled_after_a_restart_too(path: Path, file: WatchedFile[int]) -> None:
    other = path.with_name("other")
    other.write_text("2")
    path.symlink_to(other)
    file.look(0)
    after = WatchedFile(path, 16, number)
    after.restore(ParsedInput(2, 2), file.stamp)
    assert not after.look(0, is_first=True)
    assert not after.is_watchable


def test_a_file_that_has_more_than_it_tells_is_too_large(path: Path, file: WatchedFile[int]) -> None:
    """As one that grows while it is read."""
    path.symlink_to("/proc/version")
    assert path.stat().st_size == 0
    file.look(0)
    assert file.problems == (f"{path}: has more than 16 bytes",)


def test_a_file_that_may_not_be_read_keeps_its_value(
    path: Path, file: WatchedFile[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("2")
    file.look(0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:  # root may read everything
        patched.setattr(Path, "stat", refuse)
        for now_s in (1, 1 + 2 * GRACE_S):
            assert not file.look(now_s)
            problems = (f"{path}: cannot be read: Permission denied; what was there before stays",)
            assert (file.value, seen(file).problems, file.is_watchable) == (2, problems, False)
    path.write_text("4")
    assert file.look(4 * GRACE_S)
    assert (file.value, file.problems) == (4, ())


def test_a_device_is_not_opened(path: Path, file: WatchedFile[int], monkeypatch: pytest.MonkeyPatch) -> None:
    path.symlink_to("/dev/null")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opening has an effect on some devices"))
    file.look(0)
    assert file.problems == (f"{path}: is not a regular file",)


def test_an_error_of_the_parser_is_one_of_the_file(path: Path) -> None:
    def fail(data: bytes, before: int | None) -> ParsedInput[int]:
        raise ValueError("bug")

    path.write_text("2")
    file = WatchedFile(path, 16, fail)
    assert not file.look(0, is_first=True)
    assert file.problems == (f"{path}: internal error: ValueError: bug",)
    assert file.is_unknown
