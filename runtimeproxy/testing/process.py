"""The fake runtime in a process of its own, which can be killed for real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_END_TIMEOUT_S = 10.0


class FakeRuntimeProcess:
    """Runs ``python -m runtimeproxy.testing``; serves while the ``with`` block runs.

    Attributes:
        socket_path: Absolute path of the socket.
    """

    def __init__(self, socket_path: Path | str, arguments: Sequence[str] = ()) -> None:
        """Prepares a process; nothing happens before ``start``.

        Args:
            socket_path: Where to serve.
            arguments: More arguments of the command, such as ``["--containers", "1000"]``.
        """
        self.socket_path = Path(socket_path).absolute()
        self._command = [
            *(sys.executable, "-m", "runtimeproxy.testing", "--socket", str(self.socket_path)),
            *arguments,
        ]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Process id.

        Raises:
            RuntimeError: It does not run.
        """
        if self._process is None:
            raise RuntimeError("the fake runtime does not run")
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the process and returns once it serves.

        Raises:
            RuntimeError: It ended before it served; its reason is on the standard error.
        """
        # S603: the command is this interpreter with arguments of the test, and no shell.
        self._process = subprocess.Popen(  # noqa: S603
            self._command, stdout=subprocess.PIPE, text=True
        )
        if self._process.stdout is None or not self._process.stdout.readline():
            self.stop()
            raise RuntimeError(f"the fake runtime did not start on {self.socket_path}")

    def stop(self) -> None:
        """Ends the process as a service manager does; nothing happens if it does not run."""
        if self._process is not None:
            self._process.terminate()
            self._reap(self._process)

    def kill(self) -> None:
        """Ends the process with SIGKILL; the socket file stays, the state is lost."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def _reap(self, process: subprocess.Popen[str]) -> None:
        self._process = None
        with process:
            process.wait(_END_TIMEOUT_S)
