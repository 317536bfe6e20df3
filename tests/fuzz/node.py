"""A daemon between a fake runtime and its attackers, and the checks of it afterwards."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from runtimeproxy.testing import FakeRuntimeProcess
from tests.daemon.hook_servers import ALL_HOOKS
from tests.lab import procfs
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

MORE_FILES: Final = 16
"""Descriptors that a daemon may have open afterwards beside those before: own connections that come late."""
MORE_THREADS: Final = 24
"""Threads that are made when they are first needed: policies', spares for those that hang, gRPC's."""
MORE_BYTES: Final = 160 << 20
"""Resident memory beside that at the start: the budget of calls under way, and what malloc keeps."""
LATE_S: Final = 30.0
"""How long the daemon may take to close what was left to it."""
LINES: Final = 200
"""Of the log in a minute, and as many at the start: causes are many, each is logged once in an interval."""
TRACE_LINES: Final = 200
"""Of the log, when the daemon has ended: the stacks of all threads are among them."""
NRI_SOCKET: Final = "nri.sock"
"""Of the runtime that behaves."""
AUDIT: Final = '"runtimeproxy.audit"'


@dataclass(frozen=True)
class Variant:
    """How the daemon is run: which interpreter, with which environment."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


class Node:
    """A runtime and a daemon in front of it, from `with` to the end of its block.

    Attributes:
        runtime: the fake runtime's process.
        proxy: the daemon's.
        deaths: how the daemon ended without being asked to: exit code and last lines of its log.
    """

    def __init__(
        self,
        variant: Variant | None = None,
        *,
        config: str = "",
        runtime_socket: str = "runtime.sock",
        nri_socket: str = "",
    ) -> None:
        """Prepares a node; with an NRI socket the daemon is a plugin there."""
        variant = variant or Variant()
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/tmp"))
        (self.folder / "tmp").mkdir()
        cgroups = self.folder / "cgroup"
        arguments = ["--cgroup-root", str(cgroups), "--cgroup-version", "2"]
        mode = {}
        if nri_socket:
            arguments += ["--nri-socket", str(self.folder / NRI_SOCKET)]
            mode = {
                "KOORD_RUNTIMEPROXY_DAEMON_MODE": "nri",
                "KOORD_RUNTIMEPROXY_DAEMON_LOCK": str(self.folder / "front-end.lock"),
                "KOORD_RUNTIMEPROXY_NRI_SOCKET": str(self.folder / nri_socket),
            }
        self.runtime = FakeRuntimeProcess(self.folder / "runtime.sock", arguments)
        environment = {
            "KOORD_RUNTIMEPROXY_CGROUPS_ROOT": str(cgroups),
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONFAULTHANDLER": "1",
            # By default one process may have 64, which a daemon that is behind would take for too many.
            "KOORD_RUNTIMEPROXY_PROXY_MAX_CONNECTIONS_PER_PROCESS": "512",
            "GRPC_VERBOSITY": "ERROR",
            **mode,
            **variant.environment,
        }
        options = ProxyOptions(
            str(self.folder / runtime_socket),
            image_endpoint=str(self.folder / "runtime.sock"),
            config=config,
            environment=environment,
            python=variant.python,
        )
        self.proxy = ProxyProcess(self.folder, options)
        self.deaths: list[str] = []
        self._files = self._threads = self._bytes = 0

    def __enter__(self) -> Self:
        # gRPC's core would write a line for each session that reaches the runtime.
        os.environ["GRPC_VERBOSITY"] = "NONE"
        self.runtime.start()
        try:
            self.start()
        except BaseException:
            self.runtime.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.proxy.close()
        self.runtime.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Starts the daemon and remembers what it uses."""
        self.proxy.start()
        pid = self.proxy.pid
        self._files, self._threads = procfs.open_files(pid), procfs.threads(pid)
        self._bytes = procfs.rss_bytes(pid)

    def register(self, endpoint: Path) -> None:
        """Registers a hook server for all hooks; what it does to a call is ignored when it fails."""
        registration = {
            "remote-endpoint": f"unix://{endpoint}",
            "failure-policy": "Ignore",
            "runtime-hooks": ALL_HOOKS,
        }
        (self.proxy.hook_folder / "hostile.json").write_text(json.dumps(registration))

    def revive(self) -> bool:
        """Starts a daemon that has ended again, and remembers how it ended; whether it had."""
        if self.proxy.alive():
            return False
        last = "\n".join(self.proxy.log[-TRACE_LINES:])
        self.deaths.append(f"exit code {self.proxy.wait()}\n{last}")
        self.start()
        return True

    def chatter(self, took_s: float, expected: int = 0) -> list[str]:
        """Whether its log has grown with what others send; the audit's lines are about calls that count.

        `expected` lines are about what has happened as it should.
        """
        lines = sum(AUDIT not in line for line in self.proxy.log)
        most = expected + LINES + LINES * took_s / 60
        return [f"{lines:,} log lines in {took_s:.0f} s"] if lines > most else []

    def excesses(self) -> list[str]:
        """What the daemon has not given back, once it had time to; empty if all is well."""
        if not self.proxy.alive():
            return []
        pid = self.proxy.pid
        found = []
        try:
            wait_until(lambda: procfs.open_files(pid) <= self._files + MORE_FILES, "files", LATE_S)
        except TimeoutError:
            found.append(f"{procfs.open_files(pid)} files open, {self._files} at the start")
        if (threads := procfs.threads(pid)) > self._threads + MORE_THREADS:
            found.append(f"{threads} threads, {self._threads} at the start")
        if (more := procfs.rss_bytes(pid) - self._bytes) > MORE_BYTES:
            found.append(f"{more >> 20} MiB more than at the start")
        return found
