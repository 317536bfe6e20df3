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

from tests.lab.deadline import wait_until
from tests.lab.json_process import JsonProcess, Line
from tests.lab.nri_adaptation import Message
from tests.lab.programs import go_tool, run


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
    """A plugin of the module nri-plugins, from `with` to the end of its block.

    Args:
        command: its command line.
        log_file: where its output goes.
    """

    started = "Started plugin"
    """What it logs when the runtime has synchronized it."""

    def __init__(self, command: Sequence[str | Path], log_file: Path) -> None:
        self._command = [str(word) for word in command]
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log_file.read_text(errors="replace")

    def start(self) -> None:
        """Starts it and waits until the runtime has synchronized it."""
        self._spawn({}, ())
        self.wait_for_log(self.started)

    def wait_for_log(self, text: str) -> None:
        """Waits until it has written this."""
        wait_until(lambda: text in self.log or self._has_ended(), f"{self._command[0]}: {text}")
        if text not in self.log:
            raise ChildProcessError(f"{self._command[0]} has ended: {self.log[-2000:]}")

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(timeout=20)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _spawn(self, environment: Mapping[str, str], inherited: Sequence[int]) -> None:
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                pass_fds=inherited,
                start_new_session=True,
            )


class Balloons(ForeignPlugin):
    """Gives containers CPUs of pools, and moves other containers with the answer or without being asked.

    Args:
        runtime: where the runtime listens for plugins.
        folder: where its files go.
        spec: of its resource BalloonsPolicy.
    """

    started = "<= Synchronize"

    def __init__(self, runtime: Path, folder: Path, spec: Mapping[str, Any], index: str = "20") -> None:
        self._state = folder / "balloons"
        self._config = folder / "balloons.json"
        command: list[str | Path] = [
            go_tool("nri-balloons"),
            *("-nri-socket", runtime, "-nri-plugin-index", index, "-config-file", self._config),
            *("-state-dir", self._state, "-pid-file", folder / "balloons.pid"),
        ]
        super().__init__(command, folder / "balloons.log")
        self.configure(spec)

    def configure(self, spec: Mapping[str, Any]) -> None:
        """Changes its configuration; while it runs it updates all containers then."""
        policy = {
            "apiVersion": "config.nri/v1alpha1",
            "kind": "BalloonsPolicy",
            "metadata": {"name": "default"},
            "spec": {**spec, "log": {"debug": ["nri-plugin"]}},
        }
        unfinished = self._config.with_suffix(".new")
        unfinished.write_text(json.dumps(policy))
        unfinished.rename(self._config)

    def start(self) -> None:
        """Starts it and waits until the runtime has synchronized it. Needs root."""
        # Containers get a part of its state as a mount that must be a shared one.
        self._state.mkdir(exist_ok=True)
        _check(run(["mount", "-t", "tmpfs", "-o", "mode=0755", "balloons", self._state]))
        _check(run(["mount", "--make-shared", self._state]))
        super().start()

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        super().kill()
        if os.path.ismount(self._state):
            _check(run(["umount", "--lazy", self._state]))


class MemoryQos(ForeignPlugin):
    """Sets `memory.high` and `memory.swap.max` of containers whose annotations ask for it.

    It takes no socket, but the connection with which a runtime starts a plugin.

    Args:
        runtime: where the runtime listens for plugins.
        folder: where its files go.
        settings: its configuration.
    """

    def __init__(self, runtime: Path, folder: Path, settings: Mapping[str, Any], index: str = "30") -> None:
        config = folder / "memory-qos.json"
        config.write_text(json.dumps(settings))
        super().__init__([go_tool("nri-memory-qos"), "-v", "-config", config], folder / "memory-qos.log")
        self._runtime = runtime
        self._index = index

    def start(self) -> None:
        """Starts it and waits until the runtime has synchronized it."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._runtime))
            descriptor = connection.fileno()
            environment = {
                "NRI_PLUGIN_NAME": "memory-qos",
                "NRI_PLUGIN_IDX": self._index,
                "NRI_PLUGIN_SOCKET": str(descriptor),
            }
            self._spawn(environment, [descriptor])
        self.wait_for_log(self.started)


def _check(ended: subprocess.CompletedProcess[str]) -> None:
    if ended.returncode != 0:
        raise RuntimeError(f"{ended.args}: {ended.stderr}")
