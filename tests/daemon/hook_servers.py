"""Hook servers of the tests, and what a daemon says about them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

ALL_HOOKS = (
    "PreRunPodSandbox",
    "PostStopPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PostStartContainer",
    "PreUpdateContainerResources",
    "PostStopContainer",
)


class Servers:
    """Starts hook servers in a folder and ends them all."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def start(self, name: str = "hook", **behaviour: Any) -> HookServerProcess:
        server = HookServerProcess(self._folder / f"{name}.sock", Behaviour(**behaviour))
        return self._stack.enter_context(server)


def use(daemon: ProxyProcess, *names: str) -> None:
    """Waits until the daemon uses the servers."""
    for name in names:
        wait_until(
            lambda name=name: any(f"hook server {name} is used" in each for each in messages(daemon)),  # type: ignore[misc]
            f"{name} is used",
        )


def messages(daemon: ProxyProcess) -> list[str]:
    return [record["message"] for record in daemon.log_records]
