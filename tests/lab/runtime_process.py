"""A real container runtime with its own configuration, state and sockets in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lab.busybox_image import IMAGE
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until

_START_TIMEOUT_S = 90.0


class RuntimeProcess:
    """Runs a runtime from `with` to the end of its block, then removes all that it left.

    The runtime has one image, `tests.lab.busybox_image.IMAGE`, which is also its sandbox image.
    """

    cgroup_prefix = ""
    """What comes before a container's id in the name of its cgroup."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """The socket on which the runtime serves the CRI."""
        raise NotImplementedError

    @property
    def nri_socket(self) -> Path:
        """The socket on which the runtime waits for NRI plugins, if NRI is on."""
        return self.folder / "nri.sock"

    @property
    def nri_plugins(self) -> Path:
        """The folder of the NRI plugins that the runtime starts itself; `conf.d` in it has their settings."""
        return self.folder / "nri"

    @property
    def pid(self) -> int:
        """The process id of the daemon. Raises RuntimeError when it does not run."""
        if self._process is None:
            raise RuntimeError("the runtime does not run")
        return self._process.pid

    @property
    def log(self) -> str:
        """What the daemon has logged so far."""
        return self._log_file.read_text(errors="replace")

    def command(self) -> list[str | Path]:
        """Its command line."""
        raise NotImplementedError

    def programs(self) -> str:
        """The PATH with which it finds the programs that it starts."""
        return "/usr/sbin:/usr/bin:/sbin:/bin"

    def import_image(self, client: CriClient) -> None:
        """Gives the runtime its image, while it runs."""
        raise NotImplementedError

    def remove_remains(self) -> None:
        """Removes containers, mounts and cgroups after its end."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts the daemon and waits until it answers. Containers of an earlier run are kept."""
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": self.programs()},
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
            with CriClient(self.socket) as client:
                self.import_image(client)
                # containerd's CRI plugin learns of the image by an event.
                wait_until(lambda: client.has_image(IMAGE), "the runtime knows the image")
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
        self.remove_remains()
        shutil.rmtree(self.folder)

    @property
    def _log_file(self) -> Path:
        return self.folder / "runtime.log"

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(timeout=20)
