"""`python -m tests.node`: builds the node, boots it with each cgroup version, prints what its checks saw."""

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

from tests.lab.programs import REPOSITORY, tools_folder
from tests.node.guest.checks import ARM64, BOOTS, CORE_SCHED, GUARD, KUBELETS, MODES, POOLS, selected
from tests.node.image import Image, build_image
from tests.node.qemu import boot
from tests.node.report import rows, table
from tests.node.wheels import Architecture, gather_locked, gather_wheels

_CACHE = REPOSITORY / ".tools" / "node"
_PACKAGES = _CACHE / "packages"
_LOCKED = _CACHE / "locked"
_INTERPRETER = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
"""Of programs of arm64. Source: Linux Documentation/admin-guide/binfmt-misc.rst."""
_PROGRAMS = ("mmdebstrap", "mke2fs")
_EMULATORS = {"amd64": ("qemu-system-x86_64",), "arm64": ("qemu-system-aarch64", "qemu-aarch64-static")}
# What the checks import from this repository's tests; the product comes from the installed wheel.
_SHARED = ("lab", "e2e", "hooks", "network", "node")
VERSIONS = ("1.34", "1.37")
"""Of the kubelet: both ends of the supported range."""
KERNEL = REPOSITORY / ".tools" / "node-kernel" / "bzImage"
"""Of `build_kernel.sh`."""
_ALONE = (KUBELETS, GUARD, CORE_SCHED, ARM64, POOLS)
"""Boots that are made only if they are named: they need more than the others."""
_WITH_NRI = ("containerd", "containerd-shim-runc-v2")


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.node", description=__doc__)
    parser.add_argument("--timeout-s", type=float, default=1800, help="when the node is ended, by force")
    parser.add_argument("--only", default="", metavar="REGEX", help="the installation and checks named so")
    parser.add_argument("--boot", choices=BOOTS, help=f"this one only (all but {' and '.join(_ALONE)})")
    parser.add_argument("--own-kernel", action="store_true", help="boots with the kernel of build_kernel.sh")
    arguments = parser.parse_args()
    boots = [arguments.boot] if arguments.boot else [each for each in BOOTS if each not in _ALONE]
    names = selected(arguments.only, KUBELETS) if KUBELETS in boots else []
    wanted = (each for each in VERSIONS if any(name.startswith(f"kubelet {each}") for name in names))
    tools: dict[str, list[Path]] = {
        KUBELETS: [tools_folder() / f"kubelet-{version}" for version in wanted],
        GUARD: [tools_folder() / f"kubelet-{VERSIONS[-1]}"],
        **{boot: [tools_folder() / name for name in _WITH_NRI] for boot in (MODES, POOLS)},
    }
    own_kernel = KERNEL if arguments.own_kernel or CORE_SCHED in boots else None
    if own_kernel is not None and not own_kernel.exists():
        print("cannot boot: no own kernel; run tests/node/build_kernel.sh", file=sys.stderr)
        return 1
    architecture: Architecture = "arm64" if ARM64 in boots else "amd64"
    if reason := _missing([path for boot in boots for path in tools.get(boot, [])], architecture):
        print(f"cannot build the node: {reason}", file=sys.stderr)
        return 1
    os.umask(0o022)
    image = _built(architecture, with_packages=not {*_ALONE, MODES}.issuperset(boots))
    are_ok = [
        _run(image, boot, arguments.only, tools.get(boot, []), arguments.timeout_s, own_kernel)
        for boot in boots
    ]
    return 0 if all(are_ok) else 1


def _run(
    image: Image, name: str, only: str, tools: Sequence[Path], timeout_s: float, own_kernel: Path | None
) -> bool:
    """Boots once and prints the table; returns whether all went well."""
    share = _CACHE / f"share-{name}"
    names = selected(only, name)
    _fill(share, name, names, tools)
    cgroup_version = 1 if name == "cgroup-v1" else 2
    began = time.monotonic()
    where = share.relative_to(REPOSITORY)
    print(f"booting: {name}; results appear in {where}", flush=True)
    complaint = boot(image, share, timeout_s, cgroup_version, own_kernel, has_numa=name == POOLS)
    results = share / "results.jsonl"
    made = rows(names, results.read_text().splitlines() if results.exists() else [])
    print(table(made))
    print(
        f"the node ran for {time.monotonic() - began:.0f} s{'; ' + complaint if complaint else ''}",
        flush=True,
    )
    return all(row.ok for row in made) and not complaint


def _missing(tools: Sequence[Path], architecture: Architecture) -> str:
    if os.geteuid() != 0:
        return "it needs root"
    absent = [name for name in (*_PROGRAMS, *_EMULATORS[architecture]) if shutil.which(name) is None]
    if absent:
        command = f"tests/node/install.sh{' arm64' if architecture == 'arm64' else ''}"
        return f"not installed: {', '.join(absent)}; run {command}"
    if architecture == "arm64" and not _INTERPRETER.exists():
        return "the kernel does not run programs of arm64; run tests/node/install.sh arm64"
    absent = [path.name for path in tools if not path.exists()]
    return f"not built: {', '.join(absent)}; run tests/lab/build_tools.sh versions" if absent else ""


def _built(architecture: Architecture, *, with_packages: bool) -> Image:
    began = time.monotonic()
    _CACHE.mkdir(parents=True, exist_ok=True)
    wheels = _CACHE / f"wheels-{architecture}"
    wheel = gather_wheels(wheels, architecture)
    image = build_image(_CACHE, wheels, architecture)
    shutil.rmtree(_PACKAGES, ignore_errors=True)
    shutil.rmtree(_LOCKED, ignore_errors=True)
    if architecture == "arm64":
        gather_locked(_LOCKED, architecture)
    if with_packages:
        _build_packages(wheel)
    print(f"image {image.disk.name} in {time.monotonic() - began:.0f} s", flush=True)
    return image


def _build_packages(wheel: Path) -> None:
    """Two packages of the same program: the second one is an upgrade of the first."""
    builder = REPOSITORY / "systemd" / "packages" / "build_deb.sh"
    # The first one is that of `make deb`; the second one, for the node's Python alone, is built faster.
    for revision, pythons in (("1", ""), ("2", "3.11")):
        environ = {**os.environ, "REVISION": revision, "PYTHONS": pythons, "ARCH": "amd64"}
        subprocess.run(["sh", builder, sys.executable, wheel, _PACKAGES], check=True, env=environ)


def _fill(share: Path, boot: str, names: Sequence[str], tools: Sequence[Path]) -> None:
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
    if _PACKAGES.exists():
        shutil.copytree(_PACKAGES, share / "packages")
    if boot == ARM64:
        shutil.copytree(_LOCKED, share / "locked")
        _copy_source(share / "source")
    (share / "tools").mkdir()
    for path in tools:
        shutil.copy(path, share / "tools")
    (share / "names.json").write_text(json.dumps([boot, names]))


def _copy_source(folder: Path) -> None:
    """The files of the checkout, as git knows them, for `make run`."""
    listed = subprocess.run(
        ("git", "-C", REPOSITORY, "ls-files", "--cached", "--others", "--exclude-standard", "-z"),
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, target)


if __name__ == "__main__":
    sys.exit(main())
