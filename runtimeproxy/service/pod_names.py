"""Names in labels and annotations of pods that nothing uses, because they are probably misspelled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from runtimeproxy.cgroups.pace import rest, with_rests
from runtimeproxy.node.snapshot import Node, NodeSource
from runtimeproxy.pods.record_views import recorded_pod
from runtimeproxy.pods.records import PodRecord
from runtimeproxy.slo.object_names import POD_NAMES, name_problems
from runtimeproxy.slo.reading import Problem
from runtimeproxy.slo.strategies import Strategies

NamesByPod: TypeAlias = Mapping[str, tuple[Problem, ...]]
"""By `namespace/name` of the pod; only pods that have some."""


class PodNames(NamedTuple):
    """Unknown names of one pod's labels and annotations, and of fields in them."""

    misspelled: tuple[Problem, ...]
    others: tuple[Problem, ...]
    """Those that are near no known one: they may be a newer Koordinator's."""


def names_of(pod: PodRecord, node: Node) -> PodNames:
    """The names of a pod that are not known; in any thread."""
    view = recorded_pod(pod)
    found = (
        *name_problems(POD_NAMES, view.labels, view.annotations),
        *(each for each in node.strategy_for(view).problems if each.is_unknown_name),
    )
    return PodNames(
        tuple(each for each in found if each.guess), tuple(each for each in found if not each.guess)
    )


class MisspelledNames:
    """Finds the names of all pods that are probably misspelled; what has not changed is not read again.

    Args:
        node: has the strategies, which read the annotations.
    """

    def __init__(self, pods: Iterable[PodRecord], node: NodeSource) -> None:
        self._pods = pods
        self._node = node
        self._found: Mapping[str, tuple[PodRecord, Strategies, tuple[Problem, ...]]] = {}

    def find(self) -> NamesByPod:
        # In any thread but the loop's, which annotations that want to be slow would hold up.
        return with_rests(partial(self._find, self._node.latest))

    def _find(self, node: Node) -> NamesByPod:
        before = self._found
        found: dict[str, tuple[PodRecord, Strategies, tuple[Problem, ...]]] = {}
        for pod in self._pods:
            known = before.get(pod.id)
            # Both are replaced, never changed.
            if known is None or known[0] is not pod or known[1] is not node.strategies:
                known = pod, node.strategies, names_of(pod, node).misspelled
                rest()
            found[pod.id] = known
        self._found = found
        return {f"{pod.namespace}/{pod.name}": names for pod, _, names in found.values() if names}
