"""How the plugin stands with its runtime: what `status`, metrics and the node page show of it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MOST_CONFLICTS: Final = 20
"""How many conflicts with other plugins are kept; the count has them all."""
MOST_CONTAINERS: Final = 1000
"""Of which the fields that other plugins set are kept."""


class UncarriedField(NamedTuple):
    """A field of our replies that this runtime drops without a word: it goes by file if it can."""

    field: str
    runtime: str
    """Name and version."""


class PluginConflict(NamedTuple):
    """A field that another plugin owns, or that a validator has rejected."""

    container: str
    """Namespace, pod and container, or an id."""
    field: str
    plugin: str
    """Its index and name; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class OtherPlugin:
    """Another plugin of the same runtime."""

    index: str
    """Two digits; empty if that is not known."""
    name: str


@dataclass(slots=True)
class NriState:
    """Filled by the front end, in the event loop's thread; read by everything that shows it."""

    is_connected: bool = False
    """Whether the runtime has configured the plugin, and its inventory is taken over."""
    connected_since_s: float | None = None
    """Seconds since the epoch; None while it is not connected."""
    problem: str = ""
    """Why it is not connected: no socket, refused, dropped after a late reply. Empty while it is connected,
    and before the first attempt has ended."""
    own_name: str = ""
    """Index and name of the plugin, as the runtime has them."""
    runtime_name: str = ""
    """As the runtime has said in Configure; kept while it is away."""
    runtime_version: str = ""
    nri_version: str = ""
    """Of the runtime's NRI; empty if it does not say."""
    lost_connections: int = 0
    """Connections that had been configured and have ended, other than by the daemon's own end."""
    late_replies: Counter[str] = field(default_factory=Counter)
    """By event: replies without a decision, as the policies were not ready within the budget."""
    failed_creates: int = 0
    """Containers that the runtime has not created after the plugin's answer."""
    undecided_containers: int = 0
    """Containers that were created without a decision: while the plugin was away, or with a late reply."""
    not_carried: set[UncarriedField] = field(default_factory=set)
    other_plugins: set[OtherPlugin] = field(default_factory=set)
    """At the last creation of a container; none without `nri.learn_owners`."""
    learns_owners: bool = False
    """Whether `nri.learn_owners` is set."""
    conflict_count: int = 0
    conflicts: deque[PluginConflict] = field(default_factory=lambda: deque(maxlen=MOST_CONFLICTS))
    """The latest, the oldest first."""
    fields_of_others: dict[str, dict[str, str]] = field(default_factory=dict)
    """By a container's id: the fields that policies and another plugin set, with that plugin. They go by
    file."""

    def add_conflict(self, container_id: str, conflict: PluginConflict) -> bool:
        """Takes a conflict of a container; returns whether it was not known."""
        if container_id not in self.fields_of_others and len(self.fields_of_others) >= MOST_CONTAINERS:
            del self.fields_of_others[next(iter(self.fields_of_others))]
        fields = self.fields_of_others.setdefault(container_id, {})
        if conflict.field in fields:
            return False
        fields[conflict.field] = conflict.plugin
        self.conflict_count += 1
        self.conflicts.append(conflict)
        return True

    @property
    def runtime(self) -> str:
        return " ".join(filter(None, (self.runtime_name, self.runtime_version)))

    @property
    def summary(self) -> str:
        """For the line of `systemctl status`."""
        if self.is_connected:
            return f"NRI plugin of {self.runtime or 'the runtime'}"
        return f"NRI plugin, not connected: {self.problem or 'no answer yet'}"
