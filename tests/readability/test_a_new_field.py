"""A new field of each kind, two of them in the CRI: its declaration, and its name for type checkers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fields.test_synthetic_fields import CASES, run_cases
from tests.readability.patches import files_of, fits, patched_copy

PATCH = Path(__file__).parent / "a_field_of_each_kind.patch"


def test_the_patch_touches_two_files() -> None:
    assert files_of(PATCH) == ["runtimeproxy/fields/declared.py", "runtimeproxy/fields/resources.py"]
    assert fits(PATCH) == ""


@pytest.mark.slow
def test_all_of_the_program_has_the_fields(tmp_path: Path) -> None:
    copy = patched_copy(PATCH, tmp_path / "copy")
    done = run_cases(tmp_path / "site", CASES, "tests/fields/test_table.py", checkout=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
