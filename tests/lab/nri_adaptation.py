"""Go's own side of NRI without containers: `nri_adaptation` calls plugins as containerd and CRI-O do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.json_process import JsonProcess, Line
from tests.lab.programs import go_tool

Message = dict[str, Any]
"""A message of NRI as `google.protobuf.json_format` writes it with the names of the .proto file."""


class NriCallError(Exception):
    """A plugin, a conflict of two, or a validator failed the call."""


@dataclass(frozen=True)
class NriRuntimeOptions:
    """What the runtime is and how long it waits. `plugins` is the folder of those that it starts itself."""

    name: str = "containerd"
    version: str = "v2.4.2"
    registration_timeout_s: float = 5.0
    request_timeout_s: float = 2.0
    plugins: Path | None = None
    plugin_configurations: Path | None = None
    default_validator: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Go's DefaultValidatorConfig, as in `{"Enable": True, "RequiredPlugins": ["koord"]}`."""

    def arguments(self) -> list[str]:
        """The flags of `nri-adaptation`."""
        folders = {"-plugins": self.plugins, "-plugin-configurations": self.plugin_configurations}
        return [
            *("-name", self.name, "-version", self.version),
            *("-registration-timeout", f"{self.registration_timeout_s}s"),
            *("-request-timeout", f"{self.request_timeout_s}s"),
            *("-default-validator", json.dumps(self.default_validator)),
            *(word for flag, folder in folders.items() if folder for word in (flag, str(folder))),
        ]


@dataclass(frozen=True)
class Invocation:
    """What one plugin did with one call."""

    call: str
    plugin: str
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class NriAnswer:
    """The answer of all plugins together; `seconds` is what they took, without this process and its pipes."""

    response: Message
    seconds: float
    invocations: tuple[Invocation, ...]


class NriAdaptation(JsonProcess):
    """A runtime that plugins can connect to, from `with` to the end of its block.

    Args:
        folder: where the socket and the log are; the socket's path has at most 107 bytes.
    """

    def __init__(self, folder: Path, options: NriRuntimeOptions | None = None) -> None:
        self.socket = folder / "nri.sock"
        self._inventory = folder / "nri-inventory.json"
        self._inventory.write_text("{}")
        command: list[str | Path] = [
            go_tool("nri-adaptation"),
            *("-socket", self.socket, "-inventory", self._inventory),
            *(options or NriRuntimeOptions()).arguments(),
        ]
        super().__init__(command, folder / "nri-adaptation.log")
        self._plugins = 0

    def start(self) -> None:
        """Starts it and waits until plugins can connect."""
        super().start()
        self._plugins = 0
        self.event("Listening")

    def set_inventory(self, pods: Sequence[Message] = (), containers: Sequence[Message] = ()) -> None:
        """Sets what plugins that connect from now on are told by Synchronize, also after a restart."""
        inventory = {"pods": pods, "containers": containers}
        self._inventory.write_text(json.dumps(inventory))
        if self.is_running:
            self.call("Inventory", **inventory)

    def set_failed_updates(self, updates: Sequence[Message]) -> None:
        """Sets what is answered to each unsolicited update from now on."""
        self.call("AnswerUpdates", failed=updates)

    def wait_for_plugins(self, count: int) -> None:
        """Waits until so many plugins are connected. A dropped one is missed at the next call only."""
        while self._plugins != count:
            self._plugins = self.event("Plugins")["count"]

    def synchronized(self) -> NriAnswer:
        """Waits for the next plugin's answer to Synchronize."""
        return _answer(self.event("Synchronize"))

    def unsolicited_updates(self) -> list[Message]:
        """Waits for the updates of a plugin's next UpdateContainers."""
        return list(self.event("UpdateContainers")["request"]["update"])

    def event(self, name: str) -> Line:
        """Waits for the next event of this name."""
        return self.take(lambda line: line.get("event") == name, name)

    def call(self, name: str, **request: object) -> NriAnswer:
        """Makes a call, with the fields of its request.

        Raises:
            NriCallError: the call failed.
        """
        self.send({"call": name, "request": request})
        return _answer(self.take(lambda line: line.get("call") == name, name))

    def run_pod(self, pod: Message) -> None:
        """Runs a sandbox."""
        self.call("RunPodSandbox", pod=pod)

    def start_container(self, pod: Message, container: Message) -> NriAnswer:
        """Creates and starts a container, and returns the answer to its creation."""
        created = self.call("CreateContainer", pod=pod, container=container)
        for name in ("PostCreateContainer", "StartContainer", "PostStartContainer"):
            self.call(name, pod=pod, container=container)
        return created

    def update_container(self, pod: Message, container: Message, resources: Message) -> NriAnswer:
        """Updates a container as the kubelet asks for it."""
        updated = self.call("UpdateContainer", pod=pod, container=container, linux_resources=resources)
        self.call("PostUpdateContainer", pod=pod, container=container)
        return updated

    def remove_container(self, pod: Message, container: Message) -> None:
        """Stops and removes a container."""
        for name in ("StopContainer", "RemoveContainer"):
            self.call(name, pod=pod, container=container)

    def remove_pod(self, pod: Message) -> None:
        """Stops and removes a sandbox."""
        for name in ("StopPodSandbox", "RemovePodSandbox"):
            self.call(name, pod=pod)


def _answer(line: Line) -> NriAnswer:
    if error := line.get("error"):
        raise NriCallError(error)
    invocations = tuple(Invocation(**each) for each in line.get("invocations", ()))
    return NriAnswer(line.get("response", {}), line.get("seconds", 0.0), invocations)
