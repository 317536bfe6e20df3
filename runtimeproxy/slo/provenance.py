"""Provenance: the layer of the configuration that a resolved value comes from."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from runtimeproxy.slo.problems import printable


class Source(StrEnum):
    """A layer of the configuration; a later one wins, except as `overridePod` says."""

    DEFAULT = "default"
    CLUSTER = "cluster strategy"
    NODE = "node strategy"
    NODE_SLO = "NodeSLO"
    NODE_LABEL = "node label"
    NODE_ANNOTATION = "node annotation"
    POD = "pod strategy"
    POD_LABEL = "pod label"
    ANNOTATION = "annotation"


class Provenance(NamedTuple):
    """Where a value comes from."""

    source: Source = Source.DEFAULT
    file: str = ""
    """Path of the file; empty for labels, annotations and defaults."""
    key: str = ""
    """Key of the ConfigMap, or of the label or annotation; for a NodeSLO, the name of its section."""
    strategy: str = ""
    """Name of the node strategy or pod strategy, or its place in the key if it has none."""
    is_off: bool = False
    """The layer did not give this value: it leaves the QoS disabled, and this value switches it off."""

    def __str__(self) -> str:
        text = f"{self.source} {self.strategy}" if self.strategy else str(self.source)
        if self.key:
            text += f" of {self.key}" if self.source in _OF_KEY else f" {self.key}"
        if self.file:
            text += f" in {self.file}"
        return printable(f"disabled by {text}" if self.is_off else text)


_OF_KEY: Final = frozenset({Source.CLUSTER, Source.NODE, Source.POD})

BY_DEFAULT: Final = Provenance()
