"""`python -m tests.node`: builds the node, boots it, prints what its checks saw; 1 if one failed."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lab.programs import REPOSITORY
from tests.node.guest.checks import selected
from tests.node.image import Image, build_image
from tests.node.qemu import boot
from tests.node.report import rows, table
from tests.node.wheels import gather_wheels

_CACHE = REPOSITORY / ".tools" / "node"
_PACKAGES = _CACHE / "packages"
_PROGRAMS = ("qemu-system-x86_64", "mmdebstrap", "mke2fs")
# What the checks import from this repository's tests; the product comes from the installed wheel.
_SHARED = ("lab", "e2e", "hooks", "node")


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.node", description=__doc__)
    parser.add_argument("--timeout-s", type=float, default=1800, help="when the node is ended, by force")
    parser.add_argument("--only", default="", metavar="REGEX", help="the installation and checks named so")
    arguments = parser.parse_args()
    if reason := _missing():
        print(f"cannot build the node: {reason}", file=sys.stderr)
        return 1
    os.umask(0o022)
    image = _built()
    share = _CACHE / "share"
    names = selected(arguments.only)
    _fill(share, names)
    began = time.monotonic()
    print(f"booting; results appear in {share.relative_to(REPOSITORY)}", flush=True)
    complaint = boot(image, share, arguments.timeout_s)
    results = share / "results.jsonl"
    made = rows(names, results.read_text().splitlines() if results.exists() else [])
    print(table(made))
    print(f"the node ran for {time.monotonic() - began:.0f} s{'; ' + complaint if complaint else ''}")
    return 0 if all(row.ok for row in made) and not complaint else 1


def _missing() -> str:
    if os.geteuid() != 0:
        return "it needs root"
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}; run tests/node/install.sh" if absent else ""


def _built() -> Image:
    began = time.monotonic()
    _CACHE.mkdir(parents=True, exist_ok=True)
    wheels = _CACHE / "wheels"
    wheel = gather_wheels(wheels)
    image = build_image(_CACHE, wheels)
    _build_packages(wheel)
    print(f"image {image.disk.name} in {time.monotonic() - began:.0f} s", flush=True)
    return image


def _build_packages(wheel: Path) -> None:
    """Two packages of the same program: the second one is an upgrade of the first."""
    shutil.rmtree(_PACKAGES, ignore_errors=True)
    builder = REPOSITORY / "systemd" / "packages" / "build_deb.sh"
    # The first one is that of `make deb`; the second one, for the node's Python alone, is built faster.
    for revision, pythons in (("1", ""), ("2", "3.11")):
        environ = {**os.environ, "REVISION": revision, "PYTHONS": pythons, "ARCH": "amd64"}
        subprocess.run(["sh", builder, sys.executable, wheel, _PACKAGES], check=True, env=environ)


def _fill(share: Path, names: Sequence[str]) -> None:
    """The checks go in; what an earlier run has left goes out."""
    shutil.rmtree(share, ignore_errors=True)
    tests = share / "checks" / "tests"
    tests.mkdir(parents=True)
    shutil.copy(REPOSITORY / "tests" / "__init__.py", tests)
    for name in _SHARED:
        source = REPOSITORY / "tests" / name
        for file in source.rglob("*.py"):
            target = tests / name / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    shutil.copytree(_PACKAGES, share / "packages")
    (share / "names.json").write_text(json.dumps(names))


if __name__ == "__main__":
    sys.exit(main())
