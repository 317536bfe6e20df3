"""The wheel: code that imports the packages gets their types."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.lab.programs import REPOSITORY

PROGRAM = """\
from cri_api.runtime.v1 import api_pb2
from policies.annotations import read
from runtimeproxy.hooks import ContainerChange, ContainerView, Policy
from runtimeproxy.node.snapshot import Node


class Typed(Policy):
    name = "typed"

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        reveal_type(container.pod.labels)
        reveal_type(api_pb2.VersionRequest().version)
        reveal_type(read({}, "a"))
        return 5
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_each_package_says_that_it_has_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package}/py.typed" for package in ("runtimeproxy", "cri_api", "policies")} <= names


@pytest.mark.slow
def test_the_files_of_the_node_page_are_in_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        f"runtimeproxy/service/page/{name}" for name in ("page.html", "page.css", "page.js", "icon.svg")
    } <= names


@pytest.mark.slow
def test_a_type_checker_knows_the_types_of_the_installed_packages(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    # What the packages depend on; a path file is not read in a folder that a path file names, so this
    # repository, which is installed there as editable, stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    python = str(environment / "bin" / "python")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--python-executable", python, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    notes = [line.partition(": note: ")[2] for line in done.stdout.splitlines() if ": note: " in line]
    assert [note.replace("builtins.", "") for note in notes] == [
        'Revealed type is "typing.Mapping[str, str]"',
        'Revealed type is "str"',
        'Revealed type is "policies.annotations.Place | None"',
    ], done.stdout
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1
    assert "Incompatible return value type" in errors[0]
