"""The wheel of this repository and those that it depends on, in one folder, for a machine without network."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from tests.lab.programs import REPOSITORY

Architecture = Literal["amd64", "arm64"]
"""As Debian names them."""

# Source: Debian 12 has Python 3.11 and glibc 2.36.
_PYTHON = "3.11"
_PLATFORMS = ("manylinux_2_35", "manylinux_2_28", "manylinux_2_17", "manylinux2014", "linux")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def gather_wheels(folder: Path, architecture: Architecture = "amd64") -> Path:
    """Builds and downloads all wheels into `folder`; returns the one of this repository.

    The folder has no others then. Dependencies have the versions of `requirements.lock`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, REPOSITORY)
    (wheel,) = folder.glob("koord_runtime_proxy-*.whl")
    constraints = folder / "constraints.txt"
    constraints.write_text(pinned((REPOSITORY / "requirements.lock").read_text()))
    _pip("download", *_target(architecture), "--constraint", constraints, "--dest", folder, wheel)
    return wheel


def gather_locked(folder: Path, architecture: Architecture) -> None:
    """Downloads what the program needs, with its hashes, for `make run` on a machine without network."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = REPOSITORY / "systemd" / "packages" / "requirements.lock"
    _pip("download", *_target(architecture), "--no-deps", "--require-hashes", "--dest", folder, "-r", lock)


def _target(architecture: Architecture) -> list[str]:
    target = ["--only-binary=:all:", "--python-version", _PYTHON, "--implementation", "cp"]
    for platform in _PLATFORMS:
        target += ["--platform", f"{platform}_{_MACHINES[architecture]}"]
    return target


def pinned(lock: str) -> str:
    """The versions of a lock file without their hashes, which pip does not take for a wheel built here."""
    names = re.findall(r"^(\S+==[^\s;\\]+)", lock, flags=re.MULTILINE)
    return "".join(f"{name}\n" for name in names)


def fingerprint(folder: Path) -> str:
    """Changes with the content of any wheel."""
    digest = hashlib.sha256()
    for wheel in sorted(folder.glob("*.whl")):
        digest.update(wheel.name.encode() + hashlib.sha256(wheel.read_bytes()).digest())
    return digest.hexdigest()


def _pip(*arguments: str | Path) -> None:
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, *map(str, arguments)], check=True)
