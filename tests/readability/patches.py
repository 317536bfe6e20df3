"""Patches that show how many files a usual change touches; each is applied to a copy of the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.lab.programs import REPOSITORY

_COPIED: Final = ("runtimeproxy", "policies", "cri_api", "tests", "pyproject.toml")
_IGNORED: Final = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache")


def files_of(patch: Path) -> list[str]:
    """The files of the program that a patch touches: no tests, no documents."""
    files = re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(), re.MULTILINE)
    return [file for file in files if not file.startswith("tests/") and not file.endswith(".md")]


def fits(patch: Path) -> str:
    """Why a patch cannot be applied; empty if it can."""
    done = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.stderr


def patched_copy(patch: Path, folder: Path) -> Path:
    """The tree with the patch, in a folder outside of any repository."""
    folder.mkdir()
    for name in _COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=_IGNORED)
        else:
            shutil.copy(source, folder / name)
    subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)
    return folder
