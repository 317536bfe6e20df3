"""The processes between which the bench compares: references and the proxy, each on a socket of its own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.bench.scenarios import SERVICE
from tests.peers.load_client import LoadError, call

# The two references tell of no readiness, and the time until the first answer is a figure of the proxy.
_POLL_S = 0.002
_END_TIMEOUT_S = 10.0


class Process:
    """A server that runs while the `with` block does."""

    def __init__(self, command: Sequence[str], listen: str, folder: Path, environ: Mapping[str, str]) -> None:
        self.command = list(command)
        self.socket = listen
        self.log = folder / f"{Path(listen).stem}.log"
        # An installed program has its bytecode; a developer's machine may forbid to write it.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._environ = {**inherited, **environ}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id; LoadError if it was not started."""
        if self._process is None:
            raise LoadError(f"{self.command} does not run")
        return self._process.pid

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environ
            )
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_until_serving(self, timeout_s: float = 30.0) -> None:
        """Returns once a call is answered. Raises LoadError when none is in time or the process ends."""
        ends = time.monotonic() + timeout_s
        while True:
            self._check_alive()
            try:
                call(self.socket, SERVICE + "Version")
            except OSError:
                if time.monotonic() > ends:
                    raise LoadError(f"{self.command} does not serve: {self.output()}") from None
                time.sleep(_POLL_S)
            else:
                return

    def output(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(errors="replace")[-2000:]

    def _check_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise LoadError(f"{self.command} ended: {self.output()}")


def reference(module: str, listen: Path, upstream: str) -> Process:
    """One of the two reference proxies, `splice` or `generic_proxy`."""
    command = [sys.executable, "-m", f"tests.bench.{module}", "--listen", str(listen), "--upstream", upstream]
    return Process(command, str(listen), listen.parent, {})


class Notices:
    """Stands in for the service manager: gets what the proxy says about its state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def wait_for(self, pattern: str, timeout_s: float) -> None:
        """Returns once a line matches. Raises LoadError when none has in time."""
        ends = time.monotonic() + timeout_s
        while not any(re.search(pattern, line) for line in self.lines):
            self._socket.settimeout(max(0.001, ends - time.monotonic()))
            try:
                said = self._socket.recv(4096).decode()
            except TimeoutError:
                raise LoadError(f"no notice like {pattern!r}, but {self.lines}") from None
            self.lines.extend(said.splitlines())

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


class ProxyLauncher:
    """Knows how the proxy is started.

    Args:
        template: Another command to measure, with `{listen}` and `{upstream}`; None for the proxy's.
        cgroup_root: Where the proxy looks for cgroups.
        python: The interpreter in whose environment the proxy is installed.
    """

    def __init__(self, template: str | None, cgroup_root: Path, python: str = sys.executable) -> None:
        self.template = template
        self.cgroup_root = cgroup_root
        self._python = python

    def make(
        self, listen: Path, upstream: str, environ: Mapping[str, str] | None = None, config: str = ""
    ) -> Process:
        """A proxy with all its files beside its socket, and with more lines of configuration."""
        folder = listen.parent
        command = self._own_command(listen, upstream, config)
        if self.template is not None:
            command = [word.format(listen=listen, upstream=upstream) for word in self.template.split()]
        return Process(command, str(listen), folder, environ or {})

    def _own_command(self, listen: Path, upstream: str, more: str) -> list[str]:
        folder = listen.parent / listen.stem
        hooks = folder / "hookserver.d"
        hooks.mkdir(parents=True, exist_ok=True)
        config = folder / "config.toml"
        config.write_text(f'[cgroups]\nroot = "{self.cgroup_root}"\n{more}')
        return [
            *(self._python, "-m", "runtimeproxy"),
            *("--koord-runtimeproxy-endpoint", str(listen)),
            *("--remote-runtime-service-endpoint", upstream),
            *("--config", str(config)),
            *("--state-dir", str(folder / "state")),
            *("--hook-config-dir", str(hooks)),
        ]
