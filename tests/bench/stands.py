"""A stand is one runtime and the ways to it that are compared."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from runtimeproxy.testing.server import FakeRuntimeProcess
from tests.bench.processes import ProxyLauncher, reference

DIRECT, SPLICE, GENERIC, PROXY = "direct", "splice", "generic", "proxy"
EARLIER = "earlier"
"""Another version of the proxy, if there is one."""
LANES = (DIRECT, SPLICE, GENERIC, EARLIER, PROXY)


@dataclass(frozen=True, slots=True)
class Way:
    """A socket and the process behind it whose CPU time counts."""

    socket: str
    pid: int


class Runtime(Protocol):
    """What is needed of a runtime."""

    @property
    def pid(self) -> int:
        """Its process."""

    @property
    def endpoint(self) -> str:
        """Its socket."""


class FakeBackend:
    """The fake runtime with containers in it."""

    def __init__(self, folder: Path, containers: int) -> None:
        pods = max(1, containers // 3)
        arguments = ["--pods", str(pods), "--containers", str(containers)] if containers else []
        self._process = FakeRuntimeProcess(folder / "fake.sock", arguments)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return str(self._process.socket_path)


class ContainerdBackend:
    """Debian's containerd, empty."""

    def __init__(self) -> None:
        from tests.lab.containerd import Containerd  # needs the laboratory's programs

        self._containerd = Containerd()

    def __enter__(self) -> Self:
        self._containerd.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._containerd.close()

    @property
    def pid(self) -> int:
        return self._containerd.pid

    @property
    def endpoint(self) -> str:
        return str(self._containerd.socket)


class Stand:
    """A runtime, two references and the proxy before it; all run while the `with` block does.

    Args:
        template: As `ProxyLauncher` has it.
        earlier_python: The interpreter in whose environment another version is installed; None for none.
    """

    def __init__(self, name: str, folder: Path, template: str | None, earlier_python: str | None) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        # An empty tree: no call that is measured writes cgroup files, and making them for all containers
        # would take longer than a round.
        self.launcher = ProxyLauncher(template, self.folder / "cgroup")
        self.launcher.cgroup_root.mkdir()
        self._earlier = None
        if earlier_python is not None:
            self._earlier = ProxyLauncher(None, self.launcher.cgroup_root, earlier_python)
        self.ways: dict[str, Way] = {}
        self._stack = ExitStack()

    def start(self, backend: AbstractContextManager[Runtime]) -> None:
        """Starts everything and waits until all of it serves."""
        runtime = self._stack.enter_context(backend)
        self.ways[DIRECT] = Way(runtime.endpoint, runtime.pid)
        made = {
            SPLICE: reference("splice", self.folder / "splice.sock", runtime.endpoint),
            GENERIC: reference("generic_proxy", self.folder / "generic.sock", runtime.endpoint),
            PROXY: self.launcher.make(self.folder / "proxy.sock", runtime.endpoint),
        }
        if self._earlier is not None:
            made[EARLIER] = self._earlier.make(self.folder / "earlier.sock", runtime.endpoint)
        for process in made.values():
            self._stack.enter_context(process)
        for name, process in made.items():
            process.wait_until_serving()
            self.ways[name] = Way(process.socket, process.pid)

    @property
    def upstream(self) -> str:
        """The runtime's own socket."""
        return self.ways[DIRECT].socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def containerd_is_there() -> bool:
    """Whether the programs for `ContainerdBackend` are installed."""
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    return all(shutil.which(program, path=path) for program in ("containerd", "runc", "ctr", "busybox"))
