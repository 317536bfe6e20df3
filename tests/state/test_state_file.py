"""Small files of the state folder, and files of theirs that earlier versions have written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.documents.reading import InputError
from runtimeproxy.state import state_file
from runtimeproxy.state.state_file import StateFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "x.json"


def loaded(file: StateFile) -> object:
    found: object = file.load(lambda document: document["a"])
    return found


@pytest.mark.parametrize("is_synced", [True, False])
def test_what_is_saved_comes_back(path: Path, is_synced: bool) -> None:
    file = StateFile(path, "nothing counts", version=1, boot_id="boot", is_synced=is_synced)
    assert loaded(file) is None
    assert not file.unusable
    file.save({"a": [1, "\U0001d11e"]})
    assert loaded(file) == [1, "\U0001d11e"]
    assert json.loads(path.read_text()) == {"version": 1, "boot_id": "boot", "a": [1, "\U0001d11e"]}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]


def test_a_file_of_another_boot_is_none(path: Path) -> None:
    StateFile(path, "", boot_id="before").save({"a": 1})
    file = StateFile(path, "", boot_id="boot")
    assert loaded(file) is None
    assert not file.unusable


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b'{"version": 1', "line 1 column 14: Expecting ',' delimiter", id="cut"),
        pytest.param(b'{"version": 1, "a": "\xff"}', "UnicodeDecodeError: ", id="not-utf-8"),
        pytest.param(b'{"version": 1, "a": NaN}', "NaN is not a number of JSON", id="nan"),
        pytest.param(b"[" * 100_000, "nested too deeply", id="deep"),
        pytest.param(b"9" * 5000, "a number has 5000 digits", id="digits"),
        pytest.param(
            b'{"version": 1, "a": 1e999}', "has a number that no Kubernetes object can", id="infinity"
        ),
        pytest.param(b'{"version": 1, "a": "\\ud800"}', "half of a surrogate pair", id="surrogate"),
        pytest.param(b"[]", "TypeError", id="list"),
        pytest.param(b"{}", "KeyError: 'version'", id="no-version"),
        pytest.param(b'{"version": 2, "a": 1}', "version 2 is not 1", id="version"),
        pytest.param(b'{"version": "\\u001b[2J"}', "version '\\x1b[2J' is not 1", id="control-characters"),
        pytest.param(b'{"version": 1}', "KeyError: 'a'", id="unlike-ours"),
        pytest.param(b" " * (state_file.MAX_BYTES + 1), "has more than", id="large"),
    ],
)
def test_what_cannot_be_used_is_said(
    path: Path, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    file = StateFile(path, "nothing counts", version=1)
    assert loaded(file) is None
    assert file.unusable.startswith(f"{path} is not usable: nothing counts: ")
    assert reason in file.unusable
    assert caplog.messages == [file.unusable]
    # What is saved then is not: the process goes on.
    file.save({"a": 1})
    assert loaded(file) == 1
    assert not file.unusable


@pytest.mark.parametrize("text", ["x" * 9_000_000, "\x1b" * 1_000_000], ids=["long", "control-characters"])
def test_what_is_said_of_a_long_text_is_short(path: Path, text: str) -> None:
    file = StateFile(path, "nothing counts", version=1)
    StateFile(path, "", version=text).save({"a": 1})  # type: ignore[arg-type]
    assert loaded(file) is None
    assert len(file.unusable) < 300 + len(str(path))
    assert file.unusable.isprintable()


def test_what_a_reader_says_is_shortened(path: Path) -> None:
    file = StateFile(path, "nothing counts")
    file.save({"a": "\x1b[2J" + "x" * 100_000})

    def refuse(document: dict[str, str]) -> None:
        raise InputError(document["a"])

    assert file.load(refuse) is None
    assert len(file.unusable) < 300 + len(str(path))
    assert file.unusable.isprintable()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path)], ids=["folder", "circle"])
def test_a_file_that_cannot_be_read_may_count_later(path: Path, make: Callable[[Path], Any]) -> None:
    path.parent.mkdir()
    make(path)
    file = StateFile(path, "nothing counts")
    assert loaded(file) is None
    assert file.unusable
    assert file.is_unreadable


def test_what_cannot_be_written_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StateFile(path, "nothing counts")
    file.save({"a": 1})
    monkeypatch.setattr(state_file, "MAX_BYTES", 100)
    with pytest.raises(OSError, match="File too large"):
        file.save({"a": "x" * 100})
    assert loaded(file) == 1
