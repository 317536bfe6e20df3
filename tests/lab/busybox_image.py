"""An image without a registry: Debian's static busybox as a docker-archive tar."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path

IMAGE = "localhost/busybox:lab"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(busybox: Path, archive: Path, name: str = IMAGE, stop_signal: str = "SIGTERM") -> None:
    """Writes the archive. Its command sleeps, so that it serves as the sandbox image as well.

    As the first process of a container it does not end by SIGTERM.
    """
    layer = _layer(busybox)
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "1000000"], "StopSignal": stop_signal},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add_file(tar, "layer.tar", layer)
        _add_file(tar, "config.json", json.dumps(config).encode())
        _add_file(tar, "manifest.json", json.dumps(manifest).encode())


def _layer(busybox: Path) -> bytes:
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in ("bin", "etc", "tmp", "dev", "proc", "sys"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        _add_file(tar, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for applet in sorted(set(listed.stdout.split()) - {"busybox"}):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return buffer.getvalue()


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
