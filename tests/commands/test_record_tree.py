"""`doctor --record-tree FILE`: a new file, for its reader alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

from runtimeproxy.commands.exit_codes import ExitCode
from runtimeproxy.doctor.tree import parse_tree
from tests.commands.conftest import Run


def test_the_command_writes_a_new_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    done = run("doctor", "--record-tree", str(path))
    assert done.code == ExitCode.OK
    assert "read it before you send it" in done.out
    assert path.stat().st_mode & 0o777 == 0o600
    assert parse_tree(path.read_text()).kernel == os.uname().release
    done = run("doctor", "--record-tree", str(path))
    assert done.code == ExitCode.USAGE
    assert "exists already" in done.err


def test_the_command_says_it_as_json(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    done = run("doctor", "--record-tree", str(path), "--output", "json")
    assert json.loads(done.out)["files"] == len(parse_tree(path.read_text()).files)


def test_a_file_that_cannot_be_made(run: Run, tmp_path: Path) -> None:
    done = run("doctor", "--record-tree", str(tmp_path / "absent" / "tree.json"))
    assert done.code == ExitCode.FAILED
    assert "cannot be made" in done.err
