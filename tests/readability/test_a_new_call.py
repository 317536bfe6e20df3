"""A new CRI call that is held, with hooks before and after it: its class, its row in the table, its hooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.readability.patches import files_of, fits, patched_copy

PATCH = Path(__file__).parent / "a_cri_call.patch"
CALLS = "runtimeproxy/frontends/cri_proxy/calls"
MOST_FILES = 3


def test_the_patch_touches_three_files() -> None:
    files = files_of(PATCH)
    assert files == [
        f"{CALLS}/checkpoint_container.py",
        f"{CALLS}/methods.py",
        "runtimeproxy/hooks/policy.py",
    ]
    assert len(files) <= MOST_FILES
    assert fits(PATCH) == ""


@pytest.mark.slow
def test_policies_are_asked_about_the_call(tmp_path: Path) -> None:
    copy = patched_copy(PATCH, tmp_path / "copy")
    test = "tests/frontends/cri_proxy/calls/test_checkpoint_container.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", test]
    # The copy comes before the checkout that is installed: it is the folder that `-m` puts first.
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
