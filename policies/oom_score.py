"""OOM score: which containers the kernel kills first when memory is short, by annotations of the pod.

The annotation `koordinator.sh/oom-score-adj` has the score of all containers of a pod, and the one that ends
with `-spec` those of single ones. New containers begin with it; the processes of running ones get it when an
annotation changes, and the kubelet's back when it goes. The sandbox keeps the runtime's.
Source: Koordinator pkg/koordlet/runtimehooks/hooks/oomscoreadj; apis/extension/constants.go.

A low score is a right: others are killed in the place of what has it. So annotations can set no score below
an option, and those of best-effort pods none below the kubelet's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from policies.annotations import AnnotationError, parse, remembered
from runtimeproxy.hooks import ContainerChange, ContainerView, PodSelector, Policy, Reason, ResourceChange
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.units import MAX_INT64

SCORE: Final = "koordinator.sh/oom-score-adj"
"""Annotation: a whole number."""
SCORES: Final = "koordinator.sh/oom-score-adj-spec"
"""Annotation: an object of whole numbers by container's name."""
LEAST: Final = -1_000
"""A process with this one is never killed. Source: Linux include/uapi/linux/oom.h."""
MOST: Final = 1_000
GUARANTEED: Final = -997
"""What the kubelet gives to containers of Guaranteed pods. Source: kubelet, pkg/kubelet/qos/policy.go."""

_FIELD: Final = "oom_score_adj"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
"""Source: Go, strconv.ParseInt with base 10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomScoreOptions:
    """Settings of the policy."""

    minimum: int = GUARANTEED
    """The lowest score that annotations may set, -1000 to 1000; a lower one becomes this. Of -1000, as in
    Koordinator, such a container is never killed."""
    lower_best_effort: bool = False
    """True lets annotations of best-effort pods lower the score, too, as in Koordinator."""

    def __post_init__(self) -> None:
        if not LEAST <= self.minimum <= MOST:
            raise ValueError(f"minimum is not in {LEAST} to {MOST}")


class Score(NamedTuple):
    """The score that annotations ask for."""

    value: int
    """Any whole number."""
    annotation: str
    """The name of the one that has it."""


def annotated_score(annotations: Mapping[str, str], container: str) -> Score | None:
    """Return the score of a container; None if none is asked for. Source: getOOMScoreAdjForContainer.

    Raises:
        AnnotationError: An annotation that is needed cannot be read; of an unreadable object all containers.
    """
    if text := annotations.get(SCORES, ""):
        value = _scores(text).get(container)
        if value is not None:
            return Score(value, SCORES)
    if text := annotations.get(SCORE, ""):
        if not _INTEGER.fullmatch(text) or abs(int(text)) > MAX_INT64:
            raise AnnotationError(f"annotation {SCORE} is not a whole number")
        return Score(int(text), SCORE)
    return None


@remembered
def _scores(text: str) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for name, place in parse(SCORES, text).entries().items():
        found[name] = place.integer()
        if abs(found[name]) > MAX_INT64:
            place.fail("is not a whole number of 64 bits")
    return MappingProxyType(found)


def lowest_score(
    qos: QoSClass, kube_qos: KubeQoSClass, requested: int | None, options: OomScoreOptions
) -> int:
    """Return the lowest score that annotations may set.

    `requested`: what the kubelet asked for; None is 0.
    """
    is_best_effort = qos is QoSClass.BE or (qos is QoSClass.NONE and kube_qos is KubeQoSClass.BEST_EFFORT)
    if is_best_effort and not options.lower_best_effort:
        return max(options.minimum, requested or 0)
    return options.minimum


class OomScore(Policy):
    """Sets the OOM score of containers by the annotations of their pod."""

    name: ClassVar[str] = "oom-score"
    selector: ClassVar[PodSelector] = PodSelector(annotations=(SCORE, SCORES))
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {"container": frozenset({_FIELD})}
    priority: ClassVar[int] = 57
    is_default: ClassVar[bool] = False
    options_type: ClassVar[type[OomScoreOptions] | None] = OomScoreOptions

    def __init__(self, options: OomScoreOptions | None = None) -> None:
        self._options = options or OomScoreOptions()

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the score of the container."""
        pod = container.pod
        try:
            score = annotated_score(pod.annotations, container.name)
        except AnnotationError as error:
            return ContainerChange(problems=(str(error),))
        if score is None:
            return None
        value, annotation = score
        if not LEAST <= value <= MOST:
            return ContainerChange(
                problems=(f"annotation {annotation}: {value} is not in {LEAST} to {MOST}",)
            )
        reason = Reason(f"annotation {annotation} = ", value)
        problems: tuple[str, ...] = ()
        lowest = lowest_score(pod.qos, pod.kube_qos, container.requested.oom_score_adj, self._options)
        if value < lowest:
            reason = Reason(f"annotation {annotation} ", value, ", at least ", lowest, " = ", lowest)
            problems = (f"annotation {annotation}: {value} is below {lowest}, the lowest that it may set",)
        resources = ResourceChange(oom_score_adj=max(value, lowest))
        return ContainerChange(
            resources=resources, problems=problems, reason="OOM score of the pod", reasons={_FIELD: reason}
        )
