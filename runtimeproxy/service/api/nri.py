"""The NRI plugin in a status, and what is wrong with it. Used in the event loop's thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.service.api.values import timestamp

if TYPE_CHECKING:
    from runtimeproxy.config.settings import NriSettings
    from runtimeproxy.frontends.nri.state import NriState


def nri_status(state: NriState, settings: NriSettings) -> api_pb2.NriStatus:
    """The connection with the runtime, and what it has cost."""
    # One that the runtime has launched has its name from it.
    index, _, name = state.own_name.partition("-")
    return api_pb2.NriStatus(
        is_connected=state.is_connected,
        connected_since=timestamp(state.connected_since_s),
        problem=state.problem,
        socket=settings.socket,
        plugin_name=name or settings.plugin_name,
        plugin_index=index or settings.plugin_index,
        runtime_name=state.runtime_name,
        runtime_version=state.runtime_version,
        nri_version=state.nri_version,
        lost_connections=state.lost_connections,
        late_replies=dict(state.late_replies),
        failed_creates=state.failed_creates,
        undecided_containers=state.undecided_containers,
        not_carried=[
            api_pb2.UncarriedField(field=each.field, runtime=each.runtime)
            for each in sorted(state.not_carried)
        ],
        conflict_count=state.conflict_count,
        conflicts=[
            api_pb2.PluginConflict(container=each.container, field=each.field, plugin=each.plugin)
            for each in reversed(tuple(state.conflicts))
        ],
        other_plugins=[
            api_pb2.OtherPlugin(index=each.index, name=each.name)
            for each in sorted(state.other_plugins, key=lambda each: (each.index, each.name))
        ],
    )


def problems_of_nri(status: api_pb2.NriStatus) -> Iterator[str]:
    """What needs an operator's attention."""
    if not status.is_connected:
        reason = status.problem or "the runtime has not answered yet"
        yield (
            f"The runtime does not ask the daemon ({status.socket}): {reason}; containers start with the "
            "kubelet's values, and get those of policies once it does."
        )
    own = (status.plugin_index, status.plugin_name)
    if any((each.index, each.name) == own for each in status.other_plugins):
        yield (
            f"The runtime has a second plugin {'-'.join(own)}: another daemon, with another daemon.lock, "
            "sets the same values; stop one of the two."
        )


def notes_of_nri(status: api_pb2.NriStatus) -> Iterator[str]:
    """What is so by the runtime or its other plugins."""
    if status.not_carried:
        fields = ", ".join(dict.fromkeys(each.field for each in status.not_carried))
        name = status.not_carried[-1].runtime
        yield f"{name} does not carry {fields}: what has a file goes there."
    if status.conflicts:
        last, more = status.conflicts[0], status.conflict_count - 1
        also = f", and {more} times before" if more else ""
        yield f"The plugin {last.plugin or 'of another owner'} has {last.field} of {last.container}{also}."
    if late := sum(status.late_replies.values()):
        yield f"{late} replies to the runtime had no decision in time: their values went by file."
