"""All files of a folder, with a clock that the tests turn."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeproxy.hooks.remote.registrations import GRACE_S, FolderReading, Registrations
from tests.hooks.remote import registration_files as files
from tests.hooks.remote.registration_files import ConfigMap, content, write

ONE, TWO = "/run/one.sock", "/run/two.sock"


class Folder:
    """A folder, what is known of it, and a clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "a.json"
        self.problems: list[str] = []
        self.now_s = 0.0
        self._registrations = Registrations(path, lambda: self.now_s)

    def look(self, after_s: float = 0.0, default_timeout_s: float = 2.0) -> FolderReading:
        self.now_s += after_s
        look = self._registrations.look(default_timeout_s)
        self.problems += look.problems
        return look

    def endpoints(self, after_s: float = 0.0) -> dict[str, str]:
        return {each.name: each.endpoint for each in self.look(after_s).registrations}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_nothing(folder: Folder) -> None:
    assert folder.look() == FolderReading((), (), None, needs_polling=False)


def test_files_in_the_order_of_their_names(folder: Folder) -> None:
    for name in ("b.json", "10.json", "9.json", "a.json"):
        write(folder.path / name)
    assert list(folder.endpoints()) == ["10.json", "9.json", "a.json", "b.json"]


@pytest.mark.parametrize(
    "change", [files.write, files.replace, files.write_with_old_time, files.replace_with_old_file]
)
def test_changes_count_at_once(folder: Folder, change: Callable[[Path, str], None]) -> None:
    write(folder.file, ONE)
    assert folder.endpoints() == {"a.json": ONE}
    change(folder.file, TWO)
    assert folder.endpoints() == {"a.json": TWO}
    assert folder.problems == []


def test_changes_within_one_tick_of_the_files_clock(folder: Folder) -> None:
    for number in range(500):
        endpoint = f"/run/{number:03}.sock"
        folder.file.write_text(content(endpoint))
        os.utime(folder.file, (1, 1))
        assert folder.endpoints() == {"a.json": endpoint}


def test_a_file_that_stays_the_same_stays_the_same_object(folder: Folder) -> None:
    write(folder.file)
    (first,) = folder.look().registrations
    write(folder.file)
    (second,) = folder.look().registrations
    assert first == second


def test_a_swapped_config_map(folder: Folder) -> None:
    mounted = ConfigMap(folder.path)
    mounted.publish(a=ONE)
    assert folder.endpoints() == {"a.json": ONE}
    mounted.publish(a=TWO)
    assert folder.endpoints() == {"a.json": TWO}
    assert folder.look().needs_polling


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_text(""), id="empty"),
        pytest.param(lambda path: path.write_text(content(TWO)[:20]), id="half"),
        pytest.param(lambda path: path.write_text("{}"), id="no endpoint"),
    ],
)
class TestBadContent:
    def test_it_never_replaces_a_good_registration(
        self, folder: Folder, spoil: Callable[[Path], object]
    ) -> None:
        write(folder.file, ONE)
        folder.look()
        spoil(folder.file)
        for _ in range(3):
            assert folder.endpoints(GRACE_S) == {"a.json": ONE}
        (problem,) = folder.problems
        assert problem.startswith(f"{folder.file}: ")
        assert problem.endswith("; the last good registration of this name stays")
        write(folder.file, TWO)
        assert folder.endpoints() == {"a.json": TWO}

    def test_it_is_not_reported_if_it_becomes_good(
        self, folder: Folder, spoil: Callable[[Path], object]
    ) -> None:
        spoil(folder.file)
        look = folder.look()
        assert look.registrations == ()
        assert look.again_s == pytest.approx(GRACE_S)
        folder.look(GRACE_S * 0.9)
        write(folder.file)
        assert folder.endpoints(GRACE_S) == {"a.json": ONE}
        assert folder.problems == []

    def test_it_is_reported_once_until_it_was_good(
        self, folder: Folder, spoil: Callable[[Path], object]
    ) -> None:
        for _ in range(3):
            spoil(folder.file)
            folder.look(GRACE_S)
        assert len(folder.problems) == 1
        write(folder.file)
        folder.look()
        spoil(folder.file)
        folder.look()
        folder.look(GRACE_S)
        assert len(folder.problems) == 2

    def test_it_goes_with_its_file(self, folder: Folder, spoil: Callable[[Path], object]) -> None:
        spoil(folder.file)
        folder.look()
        folder.file.unlink()
        assert folder.look().again_s is None
        assert folder.problems == []


def test_a_file_that_grows_is_not_reported(folder: Folder) -> None:
    text = content()
    for end in range(len(text)):
        folder.file.write_text(text[:end])
        assert folder.look(GRACE_S * 0.9).registrations == ()
    folder.file.write_text(text)
    assert folder.endpoints(GRACE_S * 0.9) == {"a.json": ONE}
    assert folder.problems == []


def test_problems_of_a_file_that_counts_are_reported_once(folder: Folder) -> None:
    for _ in range(2):
        folder.file.write_text(content(failure_policy="fail"))
        assert folder.endpoints(GRACE_S) == {"a.json": ONE}
    (problem,) = folder.problems
    assert problem.startswith(f"{folder.file}: failure-policy: 'fail' is unknown")


def test_what_is_no_file_is_reported_and_does_not_replace(folder: Folder) -> None:
    write(folder.file)
    folder.look()
    folder.file.unlink()
    os.mkfifo(folder.file)
    folder.look()
    look = folder.look(GRACE_S)
    assert [each.endpoint for each in look.registrations] == [ONE]
    assert look.needs_polling
    assert folder.problems == [
        f"{folder.file}: is not a regular file; the last good registration of this name stays"
    ]


def test_a_deleted_file_counts_no_more_after_a_moment(folder: Folder) -> None:
    write(folder.file)
    folder.look()
    folder.file.unlink()
    look = folder.look()
    assert len(look.registrations) == 1
    assert look.again_s == pytest.approx(GRACE_S)
    assert folder.endpoints(GRACE_S) == {}
    assert folder.problems == []


def test_a_file_that_comes_back_within_a_moment_was_never_away(folder: Folder) -> None:
    write(folder.file)
    folder.look()
    folder.file.rename(folder.path / "a.json~")
    assert folder.endpoints() == {"a.json": ONE}
    write(folder.file, TWO)
    assert folder.endpoints(GRACE_S * 0.9) == {"a.json": TWO}
    assert folder.endpoints(GRACE_S) == {"a.json": TWO}


def test_a_renamed_file_is_not_there_twice(folder: Folder) -> None:
    write(folder.file)
    folder.look()
    folder.file.rename(folder.path / "b.json")
    assert folder.endpoints() == {"b.json": ONE}


def test_a_deleted_folder(folder: Folder) -> None:
    write(folder.file)
    folder.look()
    folder.file.unlink()
    folder.path.rmdir()
    assert folder.endpoints() == {"a.json": ONE}
    assert folder.endpoints(GRACE_S) == {}
    assert folder.problems == [
        f"{folder.path}: No such file or directory; hook servers can register once there is such a folder"
    ]
    folder.path.mkdir()
    write(folder.file, TWO)
    assert folder.endpoints() == {"a.json": TWO}
    assert len(folder.problems) == 1


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = Folder(tmp_path / "file")
    folder.look()
    folder.look()
    assert len(folder.problems) == 1


def test_another_default_timeout_counts_for_files_that_say_nothing(folder: Folder) -> None:
    write(folder.file)
    (folder.path / "b.json").write_text(content(timeout_seconds=1))
    for default_s in (2.0, 3.0):
        look = folder.look(default_timeout_s=default_s)
        assert [each.timeout_s for each in look.registrations] == [default_s, 1.0]


def test_names_that_are_no_text(folder: Folder) -> None:
    name = os.fsdecode(b"\xff.json")
    write(folder.path / name)
    (folder.path / os.fsdecode(b"\xfe.json")).touch()
    folder.look()
    assert list(folder.endpoints(GRACE_S)) == ["\\udcff.json"]
    assert folder.problems == [f"{folder.path}/\\udcfe.json: the file is empty"]
