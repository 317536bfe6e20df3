"""The tests that the README shows pass as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "runtimeproxy" / "testing" / "README.md"
EXAMPLES = [
    block
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    if "def test_" in block
]


def test_each_kind_of_test_has_an_example() -> None:
    text = "".join(EXAMPLES)
    assert all(word in text for word in ("fake_runtime", "koord_proxy", "check_change", "grpc_testing"))


def test_the_examples_of_the_readme_pass(tmp_path: Path) -> None:
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    # The plugin is found as an installed one is: by its entry point.
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(re.findall(r'^def test_', ''.join(EXAMPLES), re.MULTILINE))} passed" in done.stdout
