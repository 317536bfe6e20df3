"""A policy of the tests that writes down the calls for which hook servers have no hook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from runtimeproxy.hooks import ContainerView, PodChange, PodView, Policy
from runtimeproxy.hooks.loading import ENTRY_POINT_GROUP
from runtimeproxy.node.snapshot import Node

WATCH_IN = "test/watch-in"
"""The pod's annotation with the file that gets a line for each call."""


class Watching(Policy):
    """Changes nothing."""

    name: ClassVar[str] = "watching"

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        _write(pod, f"pod {pod.id} {pod.resources.cpu_shares}")
        return None

    def on_removed(self, container: ContainerView, node: Node) -> None:
        name = container.labels["io.kubernetes.container.name"]
        _write(container.pod, f"on_removed {container.id} {name}")


def watching_site(folder: Path) -> Mapping[str, str]:
    """Installs the policy in a new folder, as a third party's package is; returns the environment for it."""
    about = folder / "watching-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: watching\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nwatching = {__name__}:Watching\n")
    return {"PYTHONPATH": str(folder)}


def _write(pod: PodView, line: str) -> None:
    if WATCH_IN in pod.annotations:
        with Path(pod.annotations[WATCH_IN]).open("a") as file:
            file.write(f"{line}\n")
