"""The version that is built: that of this commit's tag, or of the version to come, with `.devN`.

To come is the next patch after the newest tag (0.2.1 after v0.2.0), or the CHANGELOG's latest release if that
is higher or nothing is tagged. Installers sort 0.2.0, 0.2.1.dev9, 0.2.1. hatchling runs it
(`tool.hatch.version` of pyproject.toml); a source distribution has its version in PKG-INFO.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# A dependency of hatchling.
from packaging.version import Version

ROOT = Path(__file__).parent


def version(root: Path = ROOT) -> str:
    tag = _described(root, "--exact-match", "--dirty")
    if tag and not tag.endswith("-dirty"):
        return tag.removeprefix("v")
    release = latest_release((root / "CHANGELOG.md").read_text())
    if newest := _described(root, "--abbrev=0"):
        release = max(release, _next(newest.removeprefix("v")), key=Version)
    # Of the same checkout a later commit has the higher number.
    commits = _git(root, "rev-list", "--count", "HEAD") or "0"
    return f"{release}.dev{commits}"


def _described(root: Path, *flags: str) -> str:
    """Return the tag of a version by which git describes the commit; empty without one."""
    return _git(root, "describe", "--tags", "--match", "v[0-9]*", *flags)


def _next(tag: str) -> str:
    """Return a version with its last number one higher, as setuptools-scm does: 0.3.0rc2 after 0.3.0rc1."""
    return re.sub(r"\d+$", lambda number: str(int(number[0]) + 1), tag)


def latest_release(changelog: str) -> str:
    """Return the version of the first heading that has one; raise ValueError without any."""
    found = re.search(r"^## (\d\S*)", changelog, flags=re.MULTILINE)
    if found is None:
        raise ValueError("CHANGELOG.md has no release")
    return found[1]


def _git(root: Path, *words: str) -> str:
    """Return what git says of a checkout; empty if there is none, or no git."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), *words]
    try:
        # S603: the arguments are constants.
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
