"""The contract with field reporters: each gives some fields of a CustomNodeResource.

Several may give parts of one field, such as the zones of the topology; they are merged. Values are what JSON
has: texts, numbers, lists and mappings, with the names of Katalyst's API.

Source: Katalyst's ReporterPlugin, a field type (Spec, Status, Metadata) with a name and a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from runtimeproxy.qosmanager.reporter.amounts import NodeAmounts
    from runtimeproxy.qosmanager.snapshot import Snapshot


class ObjectSection(StrEnum):
    """The part of the object that a field is in."""

    METADATA = "metadata"
    SPEC = "spec"
    STATUS = "status"


class ReportedField(NamedTuple):
    """A field of a CustomNodeResource, or a part of it."""

    section: ObjectSection
    name: str
    """As in JSON, such as `topologyZone`."""
    value: Any

    @property
    def place(self) -> str:
        return f"{self.section}.{self.name}"


class View(NamedTuple):
    """All that a field reporter reports by."""

    snapshot: Snapshot
    amounts: NodeAmounts
    """What the node and its NUMA nodes have, and have left."""


class FieldReporter:
    """Base class of field reporters. One that raises, hangs or gives nonsense loses its own fields only.

    What it gives must follow from the view alone: the document is written when it has changed.
    """

    name: ClassVar[str]
    """For problems and status; that of a reporter in the configuration is the name of its key."""

    def report(self, view: View) -> Sequence[ReportedField]:
        """Its fields; pure."""
        raise NotImplementedError
