"""The version that a build has: of the tag, else the next one, by the newest tag or the CHANGELOG."""

from __future__ import annotations

import re
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from packaging.version import Version

from runtimeproxy import __version__
from tests.lab.programs import REPOSITORY

_SPEC = spec_from_file_location("build_version", REPOSITORY / "build_version.py")
assert _SPEC is not None
assert _SPEC.loader is not None
builds = module_from_spec(_SPEC)
_SPEC.loader.exec_module(builds)

CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.3.0 - 2026-11-23\n\n- New.\n\n## 1.2.0\n\n- Old.\n"


def git(root: Path, *words: str) -> None:
    about = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", root, *about, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with three commits."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "add", "CHANGELOG.md")
    for number in range(3):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", f"{number}")
    return tmp_path


def test_without_a_tag_it_is_the_changelogs_with_the_number_of_the_commit(checkout: Path) -> None:
    assert builds.version(checkout) == "1.3.0.dev3"
    git(checkout, "tag", "other")
    assert builds.version(checkout) == "1.3.0.dev3"


def test_a_tag_of_this_commit_decides(checkout: Path) -> None:
    git(checkout, "tag", "v1.3.0")
    assert builds.version(checkout) == "1.3.0"


def test_what_is_built_after_a_tag_sorts_after_it(checkout: Path) -> None:
    git(checkout, "tag", "v1.3.0")
    (checkout / "CHANGELOG.md").write_text(CHANGELOG + "- Changed.\n")
    assert builds.version(checkout) == "1.3.1.dev3"
    git(checkout, "commit", "--quiet", "--all", "--message", "4")
    assert builds.version(checkout) == "1.3.1.dev4"
    assert Version("1.3.0") < Version("1.3.1.dev3") < Version("1.3.1.dev4") < Version("1.3.1")


@pytest.mark.parametrize(
    ("tag", "changelog", "built"),
    [
        # Named, and not yet tagged.
        ("v1.2.9", "1.3.0", "1.3.0.dev4"),
        ("v1.9.0", "1.10.0", "1.10.0.dev4"),
        # Tagged without a section of its own.
        ("v1.3.5", "1.3.0", "1.3.6.dev4"),
        ("v1.3.0rc1", "1.2.0", "1.3.0rc2.dev4"),
    ],
)
def test_the_higher_of_tag_and_changelog_counts(checkout: Path, tag: str, changelog: str, built: str) -> None:
    git(checkout, "tag", tag)
    (checkout / "CHANGELOG.md").write_text(CHANGELOG.replace("1.3.0", changelog))
    git(checkout, "commit", "--quiet", "--allow-empty", "--all", "--message", "4")
    assert builds.version(checkout) == built


def test_without_a_repository_there_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    assert builds.version(tmp_path) == "1.3.0.dev0"
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n")
    with pytest.raises(ValueError, match="no release"):
        builds.version(tmp_path)


def test_the_program_has_the_version_that_was_built() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", __version__), "run `make .venv/.installed`"
    # Nothing else has a number of its own.
    assert 'version = "' not in (REPOSITORY / "pyproject.toml").read_text().partition("[tool.")[0]
