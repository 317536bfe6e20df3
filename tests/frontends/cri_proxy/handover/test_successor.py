"""How a process is started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lab.programs import REPOSITORY

IN_A_FOLDER_THAT_IS_GONE = """\
import os, sys
sys.path.insert(0, os.getcwd())
from runtimeproxy.frontends.cri_proxy.handover.upgrade import Program
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
print(Program.this({}).folder)
"""


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    command = [sys.executable, "-c", IN_A_FOLDER_THAT_IS_GONE, str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "/\n"
