"""GetResctrl: groups, and what pods use of the last-level cache and of the memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from cri_api.runtimeproxy.v1 import api_pb2

if TYPE_CHECKING:
    from runtimeproxy.cgroups.resctrl import GroupCounters, ResctrlGroups
    from runtimeproxy.core.state import SavedState
    from runtimeproxy.node.resctrl import Resctrl
    from runtimeproxy.node.sources import NodeSources
    from runtimeproxy.pods.store import PodStore


def resctrl_reading(
    state: SavedState, node: NodeSources, store: PodStore
) -> Callable[[], api_pb2.GetResctrlResponse]:
    """Return what reads all groups and counters, for a worker thread; used in the event loop's."""
    # None: the daemon writes no values.
    groups = state.sysctls.groups if state.sysctls is not None else None
    names = {pod.uid: (pod.namespace, pod.name) for pod in store.pods}
    return partial(resctrl_of, groups, node.latest.resctrl, names)


def resctrl_of(
    groups: ResctrlGroups | None, facts: Resctrl | None, names: Mapping[str, tuple[str, str]]
) -> api_pb2.GetResctrlResponse:
    """Read all groups and counters; `facts` is None where resctrl is not mounted, or not looked at yet."""
    if groups is None or facts is None or not groups.is_mounted:
        return api_pb2.GetResctrlResponse()
    return api_pb2.GetResctrlResponse(
        is_mounted=True,
        closids=facts.closids,
        rmids=facts.rmids,
        groups=[
            api_pb2.ResctrlGroup(name=name, schemata=schemata, is_own=is_own)
            for name, schemata, is_own in groups.all_groups()
        ],
        pods=[_pod(each, names.get(each.uid, ("", ""))) for each in groups.counters()],
    )


def _pod(found: GroupCounters, name: tuple[str, str]) -> api_pb2.ResctrlPod:
    return api_pb2.ResctrlPod(
        uid=found.uid, namespace=name[0], name=name[1], group=found.group, counters=_counters(found)
    )


def _counters(found: GroupCounters) -> Iterator[api_pb2.ResctrlCounter]:
    for each in found.counters:
        message = api_pb2.ResctrlCounter(cache=each.cache, name=each.name, problem=each.problem)
        if each.value is not None:
            message.value = each.value
        yield message
