"""A real containerd with its own configuration, state and socket in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lab import containerd_remains
from tests.lab.busybox_image import IMAGE, write_image
from tests.lab.containerd_config import Nri, Places, configuration
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.programs import ContainerdVersion, containerd_program, debian_program, run

_START_TIMEOUT_S = 30.0


class Containerd:
    """Runs containerd from `with` to the end of its block, then removes all that it left.

    The runtime has one image, `tests.lab.busybox_image.IMAGE`, which is also its sandbox image. With `nri`
    plugins can connect.
    """

    def __init__(self, version: ContainerdVersion = "1.6", nri: Nri | None = None) -> None:
        self.version = version
        self._program = containerd_program(version)
        self._places = Places(Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp")))
        self._process: subprocess.Popen[bytes] | None = None
        self._places.config.write_text(configuration(version, self._places, nri))

    @property
    def socket(self) -> Path:
        """The socket on which the runtime serves the CRI and its own services."""
        return self._places.socket

    @property
    def nri_socket(self) -> Path:
        """The socket on which the runtime waits for NRI plugins, if it was made with `nri`."""
        return self._places.nri_socket

    @property
    def nri_plugins(self) -> Path:
        """The folder of the NRI plugins that the runtime starts itself; `conf.d` in it has their settings."""
        return self._places.nri_plugins

    @property
    def pid(self) -> int:
        """The process id of the daemon. Raises RuntimeError when it does not run."""
        if self._process is None:
            raise RuntimeError("containerd does not run")
        return self._process.pid

    @property
    def log(self) -> str:
        """What the daemon has logged so far."""
        return self._places.log.read_text(errors="replace")

    def start(self) -> None:
        """Starts the daemon and waits until it answers. Containers of an earlier run are kept."""
        # The daemon finds its shim by PATH, and each version wants its own.
        path = f"{self._program.parent}{os.pathsep}/usr/sbin:/usr/bin:/sbin:/bin"
        with self._places.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "--config", self._places.config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": path},
                start_new_session=True,
            )
        try:
            with CriClient(self.socket) as client:
                client.wait_until_serving(_START_TIMEOUT_S)
        except Exception:
            print(self.log)
            raise

    def stop(self) -> None:
        """Ends the daemon with SIGTERM; its containers go on."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the daemon with SIGKILL; its containers go on."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stops the daemon if it runs, and starts it on the same state."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        try:
            self.start()
            self._import_image()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the daemon, its containers and shims, and removes mounts, cgroups and files."""
        self.kill()
        containerd_remains.remove(self._places)
        shutil.rmtree(self._places.folder)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(timeout=20)

    def _import_image(self) -> None:
        archive = self._places.folder / "busybox.tar"
        write_image(debian_program("busybox"), archive)
        ctr: list[str | Path] = [debian_program("ctr"), "-a", self.socket, "-n", "k8s.io"]
        imported = run([*ctr, "images", "import", archive])
        if imported.returncode != 0:
            raise RuntimeError(f"ctr images import: {imported.stderr}")
        with CriClient(self.socket) as client:
            # The CRI plugin learns of the image by an event.
            wait_until(lambda: client.has_image(IMAGE), "the image is known to the CRI plugin")
