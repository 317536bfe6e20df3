"""A real containerd with its own configuration, state and socket in a temporary folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tests.lab import runtime_remains
from tests.lab.busybox_image import write_image
from tests.lab.containerd_config import Nri, Places, configuration
from tests.lab.cri_client import CriClient
from tests.lab.programs import ContainerdVersion, containerd_program, debian_program, run
from tests.lab.runtime_process import RuntimeProcess
from tests.lab.runtime_remains import Remains


class Containerd(RuntimeProcess):
    """Runs containerd from `with` to the end of its block; with `nri` plugins can connect."""

    def __init__(self, version: ContainerdVersion = "1.6", nri: Nri | None = None) -> None:
        self.version = version
        self._program = containerd_program(version)
        super().__init__()
        self._places = Places(self.folder)
        self._places.config.write_text(configuration(version, self._places, nri))

    @property
    def socket(self) -> Path:
        """The socket on which the runtime serves the CRI and its own services."""
        return self._places.socket

    def command(self) -> list[str | Path]:
        """Its command line."""
        return [self._program, "--config", self._places.config]

    def programs(self) -> str:
        """The PATH with which it finds its shim; each version wants its own."""
        return f"{self._program.parent}{os.pathsep}{super().programs()}"

    def import_image(self, client: CriClient) -> None:
        """Gives the runtime its image."""
        archive = self.folder / "busybox.tar"
        write_image(debian_program("busybox"), archive)
        ctr: list[str | Path] = [debian_program("ctr"), "-a", self.socket, "-n", "k8s.io"]
        imported = run([*ctr, "images", "import", archive])
        if imported.returncode != 0:
            raise RuntimeError(f"ctr images import: {imported.stderr}")

    def remove_remains(self) -> None:
        """Removes containers, shims, mounts and cgroups after its end."""
        bundles = sorted(self._places.state.glob("io.containerd.runtime.v2.task/k8s.io/*/"))
        sockets = [path for bundle in bundles if (path := _shim_socket(bundle))]
        containers = [Remains(bundle.name, bundle, bundle / "init.pid") for bundle in bundles]
        shims = runtime_remains.processes_of("containerd-shim", self.socket)
        runtime_remains.remove(self.folder, containers, shims)
        for path in sockets:
            path.unlink(missing_ok=True)


def _shim_socket(bundle: Path) -> Path | None:
    with suppress(OSError):
        address = (bundle / "address").read_text().strip()
        return Path(address.removeprefix("unix://"))
    return None
