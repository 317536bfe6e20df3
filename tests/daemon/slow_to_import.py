"""A policy whose import waits for a write to a FIFO."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from runtimeproxy.hooks import ContainerView, Policy
from runtimeproxy.node.snapshot import Node
from tests.daemon.site import IMPORT_FIFO

Path(os.environ[IMPORT_FIFO]).read_bytes()


class Slow(Policy):
    """Does nothing, late."""

    name: ClassVar[str] = "slow"

    def on_stopped(self, container: ContainerView, node: Node) -> None:
        """Does nothing."""
