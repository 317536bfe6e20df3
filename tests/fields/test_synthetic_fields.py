"""Fields that only a test declares: nothing else knows them, and all of the program carries them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeproxy.hooks.loading import ENTRY_POINT_GROUP
from tests.lab.programs import REPOSITORY

HERE = Path(__file__).parent
CASES = "tests/fields/synthetic_cases.py"


def run_cases(site: Path, *files: str, checkout: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Runs tests of a checkout in processes that declare the fields at their start."""
    about = site / "wanting-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wanting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\nwanting = tests.fields.wanting:Wanting\n"
    )
    shutil.copy(HERE / "declaring.py", site / "sitecustomize.py")
    paths = os.pathsep.join([str(site), str(checkout)])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_ADDOPTS": "", "SITE": paths},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


@pytest.mark.slow
def test_synthetic_fields(tmp_path: Path) -> None:
    done = run_cases(tmp_path / "site", CASES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
