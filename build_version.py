"""The version that is built: that of this commit's tag, else the CHANGELOG's latest release with `.devN`.

hatchling runs it (`tool.hatch.version` of pyproject.toml); a source distribution has its version in PKG-INFO.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent


def version(root: Path = ROOT) -> str:
    tag = _git(root, "describe", "--tags", "--exact-match", "--dirty", "--match", "v[0-9]*")
    if tag and not tag.endswith("-dirty"):
        return tag.removeprefix("v")
    # Of the same checkout a later commit has the higher number.
    commits = _git(root, "rev-list", "--count", "HEAD") or "0"
    return f"{latest_release((root / 'CHANGELOG.md').read_text())}.dev{commits}"


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
