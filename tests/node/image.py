"""The disk of the node: a Debian root, built once for each recipe, with the wheels in a venv."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.node.wheels import Architecture, fingerprint

_FILES = Path(__file__).parent / "image_files"
_SUITE = "bookworm"
_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "udev",
    "dbus",
    "containerd",
    "runc",
    "python3",
    "python3-venv",
    "kmod",
    "procps",
    "iproute2",
    "nftables",
    "busybox-static",
    "make",
)
_INSTALLED = {
    "hosts": "etc/hosts",
    "hostname": "etc/hostname",
    "containerd.toml": "etc/containerd/config.toml",
    "node-checks.service": "etc/systemd/system/node-checks.service",
    "node-checks": "usr/local/sbin/node-checks",
}
_INITRD: Mapping[Architecture, tuple[str, ...]] = {
    "arm64": (
        'install -d "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"',
        'echo MODULES=list >"$1/etc/initramfs-tools/conf.d/node"',
        r'printf "virtio_pci\nvirtio_blk\next4\n" >"$1/usr/share/initramfs-tools/modules.d/node"',
    )
}
"""What makes the initrd with the modules of this machine alone: with all of them it takes a quarter of an
hour where programs are emulated. Source: initramfs.conf(5), mkinitramfs(8)."""
_PREFIX = "opt/koord-runtime-proxy"
_CHECKS = "opt/checks"
"""A copy of the environment, for the checks: those of packages replace the other one."""
_DISK_SIZE = "4G"


@dataclass(frozen=True)
class Image:
    """What the emulator boots."""

    disk: Path
    kernel: Path
    initrd: Path
    architecture: Architecture = "amd64"


def build_image(cache: Path, wheels: Path, architecture: Architecture = "amd64") -> Image:
    """Makes what is not in the cache yet: the root (2 minutes), then the disk (half a minute).

    Programs of another architecture than this machine's are run by binfmt_misc and qemu-user-static; the root
    takes a quarter of an hour then.
    """
    root = _root(cache, architecture)
    boot = root / "boot"
    (kernel,), (initrd,) = boot.glob("vmlinuz-*"), boot.glob("initrd.img-*")
    disk = cache / f"disk-{architecture}-{_short(root.name + repr(_texts()) + fingerprint(wheels))}.img"
    if not disk.exists():
        for old in cache.glob(f"disk-{architecture}-*"):
            old.unlink()
        _install_files(root)
        _install_wheels(root, wheels)
        _make_disk(root, disk)
    return Image(disk, kernel, initrd, architecture)


def _root(cache: Path, architecture: Architecture) -> Path:
    packages = (f"linux-image-{architecture}", *_PACKAGES)
    root = cache / f"root-{architecture}-{_short(repr((_SUITE, packages)))}"
    if root.exists():
        return root
    unfinished = cache / f"root-{architecture}-unfinished"
    for old in cache.glob(f"root-{architecture}-*"):
        shutil.rmtree(old)
    options = (f"--architectures={architecture}", "--variant=minbase", "--include=" + ",".join(packages))
    hooks = [f"--essential-hook={each}" for each in _INITRD.get(architecture, ())]
    _run("mmdebstrap", "--quiet", *options, *hooks, _SUITE, unfinished)
    unfinished.rename(root)
    return root


def _texts() -> list[str]:
    return [(_FILES / name).read_text() for name in _INSTALLED]


def _install_files(root: Path) -> None:
    for name, target in _INSTALLED.items():
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_FILES / name, root / target)
    _run("chroot", root, "systemctl", "--quiet", "enable", "node-checks.service")


def _install_wheels(root: Path, wheels: Path) -> None:
    """What the README's installation does, with the wheels instead of an index."""
    for folder in (_PREFIX, _CHECKS):
        shutil.rmtree(root / folder, ignore_errors=True)
    inside = root / "opt" / "wheels"
    shutil.copytree(wheels, inside, dirs_exist_ok=True)
    try:
        _run("chroot", root, "python3", "-m", "venv", f"/{_PREFIX}")
        source = ("--no-index", "--find-links", "/opt/wheels")
        _run("chroot", root, f"/{_PREFIX}/bin/pip", "install", "--quiet", *source, "koord-runtime-proxy")
    finally:
        shutil.rmtree(inside)
    shutil.copytree(root / _PREFIX, root / _CHECKS, symlinks=True)


def _make_disk(root: Path, disk: Path) -> None:
    unfinished = disk.with_suffix(".unfinished")
    unfinished.touch()
    _run("mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-d", root, unfinished, _DISK_SIZE)
    unfinished.rename(disk)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
