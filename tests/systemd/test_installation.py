"""The documented steps of an installation, run as they are written, in folders of the test's own."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from runtimeproxy.hooks.loading import built_in
from tests.config.reading import load
from tests.lab.programs import REPOSITORY, missing

README = REPOSITORY / "systemd" / "README.md"
FROM_KOORDINATOR = REPOSITORY / "systemd" / "coming-from-koordinator.md"


def block(path: Path, heading: str, kind: str) -> str:
    """The first block of code of a kind below a heading."""
    _, _, below = path.read_text().partition(heading)
    found = re.search(rf"^ *```{kind}\n(.*?)^ *```$", below, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The repository's own files, without what is made from them."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        missing("git and a clone of the repository are needed")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, check=True)
    folder = tmp_path / "clone"
    for name in filter(None, os.fsdecode(done.stdout).split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    return folder


@pytest.mark.slow
def test_the_steps_of_an_installation_work_as_written(clone: Path, tmp_path: Path) -> None:
    steps = block(README, "## Install", "sh")
    systemctl = [line for line in steps.splitlines() if line.startswith("systemctl ")]
    assert systemctl[0] == "systemctl daemon-reload"
    assert systemctl[1].startswith("systemctl enable --now ")
    root, environment = tmp_path / "root", Path(sys.executable).parents[1]
    for name in ("etc/systemd/system", "opt"):
        (root / name).mkdir(parents=True)
    # What it depends on comes from this environment, not from the network.
    dependencies = root / "opt/koord-runtime-proxy" / sitepackages() / "dependencies.pth"
    for written, run in (
        ("/opt/", f"{root}/opt/"),
        ("/etc/", f"{root}/etc/"),
        ("make wheel", f"make -o {environment}/.installed VENV={environment} wheel"),
        ("python3 -m venv", f"{sys.executable} -m venv"),
        (
            "pip install",
            f"pip --version; echo {sysconfig.get_path('purelib')} > {dependencies}; pip install --no-deps",
        ),
        ("systemctl ", ": "),
    ):
        assert written in steps
        steps = steps.replace(written, run)
    steps = steps.replace("; pip install", f"; {root}/opt/koord-runtime-proxy/bin/pip install")
    configuration = root / "etc/koord-runtime-proxy/config.toml"
    done = subprocess.run(
        ["sh", "-eu", "-c", steps],
        cwd=clone,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KOORD_RUNTIMEPROXY_CONFIG": str(configuration)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    program = root / "opt/koord-runtime-proxy/bin/koord-runtime-proxy"
    shown = subprocess.run([program, "version"], capture_output=True, text=True, check=True, cwd=root)
    # The copy has no repository, which would count its commits.
    assert re.fullmatch(r"koord-runtime-proxy \d+\.\d+\.\d+\.dev0\n", shown.stdout)
    units = {path.name for path in (root / "etc/systemd/system").iterdir()}
    assert units == {"koord-runtime-proxy.service", "koord-runtime-proxy.socket"}


def sitepackages() -> str:
    """Where an environment has its packages, below its folder."""
    return os.path.relpath(sysconfig.get_path("purelib"), sys.prefix)


def test_the_short_steps_are_those_of_the_long_ones() -> None:
    short = block(REPOSITORY / "README.md", "## Installation", "")
    long = block(README, "## Install", "sh")
    for step in ("make wheel", "pip install dist/", "systemctl daemon-reload\n", "systemctl enable --now "):
        assert step in short
        assert step in long


def test_step_0_switches_off_every_policy_that_is_on(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        re.sub(r"^ +", "", block(FROM_KOORDINATOR, "policies are on by default", "toml"), flags=re.MULTILINE)
    )
    policies = load(argparse.Namespace(config=str(file)), {}).policies
    assert {name for name, settings in policies.items() if not settings.enabled} == {
        policy.name for policy in built_in() if policy.is_default
    }
