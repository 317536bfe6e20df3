"""Pod selectors: a call that no policy's selector matches needs no worker thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from runtimeproxy.labels import (
    EVERY_LABEL,
    LabelOperator,
    LabelRequirement,
    LabelSelector,
    label_problems,
    namespace_problem,
)
from runtimeproxy.qos import QoSClass


class PodTraits(Protocol):
    """The attributes of a pod that selectors use; a `PodView` has them."""

    @property
    def namespace(self) -> str:
        """Its namespace."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""

    @property
    def qos(self) -> QoSClass:
        """Its QoS class, by the raw label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSelector:
    """Conditions on a pod; all must hold. The event loop evaluates them, before a worker thread is used.

    The pod is the policy's view of it, with the changes of earlier policies.
    """

    qos_classes: frozenset[QoSClass] | None = None
    """The pod's QoS class, by its raw label, is one of these; None means any."""
    annotations: tuple[str, ...] = ()
    """The pod has an annotation with one of these keys; empty means that no annotation is needed."""
    namespaces: frozenset[str] | None = None
    """The pod is in one of these namespaces; None means any."""
    labels: LabelSelector = EVERY_LABEL
    """The pod's labels match."""

    def narrowed(self, namespaces: Collection[str], labels: LabelSelector | None) -> PodSelector:
        """Return a selector that also requires one of the namespaces, if there are any, and the labels."""
        chosen = frozenset(namespaces) if namespaces else self.namespaces
        if namespaces and self.namespaces is not None:
            chosen = frozenset(namespaces) & self.namespaces
        if labels is None:
            return replace(self, namespaces=chosen)
        own = self.labels
        # If one label is required to have two values, no pod matches.
        pairs = tuple(
            LabelRequirement(key=key, operator=LabelOperator.IN, values=(value,))
            for key, value in labels.match_labels.items()
        )
        expressions = (*own.match_expressions, *labels.match_expressions, *pairs)
        selector = LabelSelector(match_labels=own.match_labels, match_expressions=expressions)
        return replace(self, namespaces=chosen, labels=selector)

    def matches(self, pod: PodTraits) -> bool:
        if self.qos_classes is not None and pod.qos not in self.qos_classes:
            return False
        if self.namespaces is not None and pod.namespace not in self.namespaces:
            return False
        if self.annotations:
            for key in self.annotations:
                if key in pod.annotations:
                    break
            else:
                return False
        return self.labels is EVERY_LABEL or self.labels.matches(pod.labels)


EVERY_POD: Final = PodSelector()
"""No conditions."""


def selector_problems(
    namespaces: Iterable[object], labels: LabelSelector
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield conditions that no pod can match, or that Kubernetes would refuse: the place and the reason."""
    for name in namespaces:
        if problem := namespace_problem(name):
            yield ("namespaces",), problem
    yield from label_problems(labels)
