"""Pod selectors: a call that no policy's selector matches needs no worker thread."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

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


class LabelOperator(StrEnum):
    """The comparison of a label. Source: Kubernetes, LabelSelectorOperator."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequirement:
    """A condition on one label, like one of Kubernetes' `matchExpressions`."""

    key: str
    operator: LabelOperator
    values: tuple[str, ...] = ()
    """At least one for `In` and `NotIn`, none for the others."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels fulfil it; an absent label is `NotIn` any values."""
        value = labels.get(self.key)
        if self.operator is LabelOperator.IN:
            return value is not None and value in self.values
        if self.operator is LabelOperator.NOT_IN:
            return value is None or value not in self.values
        return (value is not None) is (self.operator is LabelOperator.EXISTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """Conditions on labels, like Kubernetes' label selectors; all must hold, and an empty one selects all."""

    match_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels with their values."""
    match_expressions: tuple[LabelRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels fulfil all conditions."""
        for key, value in self.match_labels.items():
            if labels.get(key) != value:
                return False
        return all(each.matches(labels) for each in self.match_expressions)


EVERY_LABEL: Final = LabelSelector()
"""No conditions."""


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
        """Return whether the pod fulfils all conditions."""
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


Concern = PodSelector
"""The name of `PodSelector` in version 0.1."""

EVERY_POD: Final = PodSelector()
"""No conditions."""

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Source: RFC 1123, a DNS label."""
_LABEL_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Source: RFC 1123, a DNS subdomain; not all of its rules."""
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Source: Kubernetes, names of labels; their values look the same, or are empty."""


def selector_problems(
    namespaces: Iterable[object], labels: LabelSelector
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield conditions that no pod can match, or that Kubernetes would refuse: the place and the reason."""
    for name in namespaces:
        if not (isinstance(name, str) and _NAMESPACE.fullmatch(name)):
            yield ("namespaces",), f"{name!r} is not the name of a namespace"
    for key, value in labels.match_labels.items():
        yield from (
            (("match_labels", str(key)), reason)
            for reason in (_key_problem(key), _value_problem(value))
            if reason
        )
    for number, each in enumerate(labels.match_expressions):
        place = ("match_expressions", str(number))
        takes_values = each.operator in (LabelOperator.IN, LabelOperator.NOT_IN)
        if reason := _key_problem(each.key):
            yield (*place, "key"), reason
        if takes_values != bool(each.values):
            yield (*place, "values"), f"{each.operator} needs {'values' if takes_values else 'no values'}"
        yield from (
            ((*place, "values"), reason) for value in each.values if (reason := _value_problem(value))
        )


def _key_problem(key: object) -> str:
    if isinstance(key, str):
        prefix, slash, name = key.rpartition("/")
        if _LABEL_NAME.fullmatch(name) and (not slash or _LABEL_PREFIX.fullmatch(prefix)):
            return ""
    return f"{key!r} is not the name of a label"


def _value_problem(value: object) -> str:
    is_value = isinstance(value, str) and (value == "" or _LABEL_NAME.fullmatch(value))
    return "" if is_value else f"{value!r} is not the value of a label"
