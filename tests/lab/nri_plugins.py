"""NRI plugins written in Go: one whose answers a test chooses, and plugins of others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab.json_process import JsonProcess, Line
from tests.lab.nri_adaptation import Message
from tests.lab.programs import go_tool


@dataclass(frozen=True)
class GoPluginOptions:
    """What `nri-plugin` is and answers; nothing by default.

    `adjustment` is the ContainerAdjustment of every container, `rejection` the reason for which it rejects
    those of all plugins; `fail_request` and `keep_connected` are the fields of its FailurePolicy; with
    `prints` its lines have every event with its messages.
    """

    name: str = "lab"
    index: str = "10"
    adjustment: Mapping[str, Any] | None = None
    rejection: str = ""
    delay_s: float = 0.0
    fail_request: bool = False
    keep_connected: bool = False
    prints: bool = False

    def arguments(self) -> list[str]:
        """The flags of `nri-plugin`."""
        flags = {
            "name": self.name,
            "index": self.index,
            "adjust": "" if self.adjustment is None else json.dumps(self.adjustment),
            "reject": self.rejection,
            "delay": f"{self.delay_s}s",
            "fail-request": json.dumps(self.fail_request),
            "keep-connected": json.dumps(self.keep_connected),
            "events": json.dumps(self.prints),
        }
        return [f"-{flag}={value}" for flag, value in flags.items()]


class GoPlugin(JsonProcess):
    """`nri-plugin`, which hears every event, from `with` to the end of its block.

    `synchronized` has the ids of the pods and containers that the runtime told it.

    Args:
        socket: where the runtime listens for plugins.
        folder: where its log goes.
    """

    def __init__(self, socket: Path, folder: Path, options: GoPluginOptions | None = None) -> None:
        self.options = options or GoPluginOptions()
        command: list[str | Path] = [go_tool("nri-plugin"), "-socket", socket, *self.options.arguments()]
        self.synchronized: Line = {}
        super().__init__(command, folder / f"nri-plugin-{self.options.name}.log")

    def start(self) -> None:
        """Starts it and waits until the runtime has synchronized it."""
        super().start()
        self.synchronized = self.event("Synchronize")

    def event(self, name: str) -> Line:
        """Waits for the next event of this name; only Synchronize is told without `prints`."""
        return self.take(lambda line: line.get("event") == name, name)

    def update_containers(self, updates: Sequence[Message]) -> list[Message]:
        """Updates containers without being asked, and returns the updates that failed."""
        self.send({"update": updates})
        return list(self.take(lambda line: "event" not in line, "UpdateContainers").get("failed", ()))


class ForeignPlugin:
    """A plugin of nri-plugins, as `balloons` and `memory-qos`; from `with` to the end of its block.

    It has its name, its index and its connection from its environment, as if the runtime had started it.

    Args:
        program: its name below `cmd/plugins` of the module.
        runtime: where the runtime listens for plugins.
        log_file: where its output goes.
    """

    def __init__(
        self, program: str, runtime: Path, log_file: Path, *arguments: str, index: str = "20"
    ) -> None:
        self.name = program
        self._command = [str(go_tool(f"nri-{program}")), *arguments]
        self._runtime = runtime
        self._log_file = log_file
        self._index = index
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log_file.read_text(errors="replace")

    def start(self) -> None:
        """Starts it and does not wait."""
        with socket.socket(socket.AF_UNIX) as connection, self._log_file.open("ab") as log:
            connection.connect(str(self._runtime))
            descriptor = connection.fileno()
            environment = {
                "NRI_PLUGIN_NAME": self.name,
                "NRI_PLUGIN_IDX": self._index,
                "NRI_PLUGIN_SOCKET": str(descriptor),
            }
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                pass_fds=[descriptor],
                start_new_session=True,
            )

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(timeout=20)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
