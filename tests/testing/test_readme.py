"""The tests that the README shows pass as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "runtimeproxy" / "testing" / "README.md"
EXAMPLES = [
    block
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    if "def test_" in block
]


def test_each_kind_of_test_has_an_example() -> None:
    text = "".join(EXAMPLES)
    assert all(word in text for word in ("fake_runtime", "koord_proxy", "check_change", "grpc_testing"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: str(re.findall(r"def (test_\w+)", text)[0]))
def test_an_example_of_the_readme(example: str, tmp_path: Path) -> None:
    file = tmp_path / "test_example.py"
    file.write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", str(file)]
    # The plugin is found as an installed one is: by its entry point.
    done = subprocess.run(
        command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
