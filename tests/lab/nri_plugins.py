"""NRI plugins written in Go: one whose answers a test chooses, and plugins of others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.json_process import JsonProcess
from tests.lab.nri_adaptation import Message
from tests.lab.programs import go_tool


@dataclass(frozen=True)
class GoPluginOptions:
    """What `nri-plugin` is and answers; nothing by default.

    `adjustment` is the ContainerAdjustment of every container, `rejection` the reason for which it rejects
    those of all plugins; `fail_request` and `keep_connected` are the fields of its FailurePolicy.
    """

    name: str = "lab"
    index: str = "10"
    adjustment: Mapping[str, Any] | None = None
    rejection: str = ""
    delay_s: float = 0.0
    fail_request: bool = False
    keep_connected: bool = False

    def arguments(self) -> list[str]:
        """The flags of `nri-plugin`."""
        adjustment = [] if self.adjustment is None else ["-adjust", json.dumps(self.adjustment)]
        return [
            *(
                "-name",
                self.name,
                "-index",
                self.index,
                "-reject",
                self.rejection,
                "-delay",
                f"{self.delay_s}s",
            ),
            *adjustment,
            *(["-fail-request"] if self.fail_request else []),
            *(["-keep-connected"] if self.keep_connected else []),
        ]


class GoPlugin(JsonProcess):
    """`nri-plugin`, which hears every event, from `with` to the end of its block.

    Args:
        socket: where the runtime listens for plugins.
        folder: where its log goes.
    """

    def __init__(self, socket: Path, folder: Path, options: GoPluginOptions | None = None) -> None:
        self.options = options or GoPluginOptions()
        command: list[str | Path] = [go_tool("nri-plugin"), "-socket", socket, *self.options.arguments()]
        super().__init__(command, folder / f"nri-plugin-{self.options.name}.log")

    def start(self) -> None:
        """Starts it and waits until the runtime has synchronized it."""
        super().start()
        self.take(lambda line: line.get("event") == "Synchronize", "Synchronize")

    def update_containers(self, updates: Sequence[Message]) -> list[Message]:
        """Updates containers without being asked, and returns the updates that failed."""
        self.send({"update": updates})
        return list(self.take(lambda line: "event" not in line, "UpdateContainers").get("failed", ()))
