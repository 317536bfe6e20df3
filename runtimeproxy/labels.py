"""Kubernetes' label selectors: what they select, and which of them Kubernetes would refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


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

_MAX_SHOWN: Final = 128
"""Of a text in a reason, in characters."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Source: RFC 1123, a DNS label."""
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_SUBDOMAIN: Final = 253
"""Source: Kubernetes, apimachinery validation IsDNS1123Subdomain, for names of nodes."""
_LABEL_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Source: RFC 1123, a DNS subdomain; not all of its rules."""
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Source: Kubernetes, names of labels; their values look the same, or are empty."""


def namespace_problem(name: object) -> str:
    """Return why this cannot be the name of a namespace; empty if it can."""
    is_name = isinstance(name, str) and _NAMESPACE.fullmatch(name)
    return "" if is_name else f"{_shown(name)} is not the name of a namespace"


def node_name_problem(name: str) -> str:
    """Return why this cannot be the name of a node; empty if it can."""
    is_name = len(name) <= _MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(name)
    return "" if is_name else f"{_shown(name)} is not the name of a node"


def label_problems(selector: LabelSelector) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield conditions that Kubernetes would refuse: the place and the reason."""
    for key, value in selector.match_labels.items():
        yield from (
            (("match_labels", str(key)), reason)
            for reason in (_key_problem(key), _value_problem(value))
            if reason
        )
    for number, each in enumerate(selector.match_expressions):
        place = ("match_expressions", str(number))
        takes_values = each.operator in (LabelOperator.IN, LabelOperator.NOT_IN)
        if reason := _key_problem(each.key):
            yield (*place, "key"), reason
        if takes_values != bool(each.values):
            yield (*place, "values"), f"{each.operator} needs {'values' if takes_values else 'no values'}"
        yield from (
            ((*place, "values"), reason) for value in each.values if (reason := _value_problem(value))
        )


class _Condition(NamedTuple):
    """All conditions of a selector on one label."""

    is_required: bool = False
    is_forbidden: bool = False
    allowed: frozenset[str] | None = None
    """None: any value."""
    refused: frozenset[str] = frozenset()

    def both(self, other: _Condition) -> _Condition:
        allowed = self.allowed if other.allowed is None else other.allowed
        if self.allowed is not None and other.allowed is not None:
            allowed = self.allowed & other.allowed
        return _Condition(
            self.is_required or other.is_required,
            self.is_forbidden or other.is_forbidden,
            allowed,
            self.refused | other.refused,
        )

    @property
    def has_values(self) -> bool:
        return not self.refused and self.is_required is (self.allowed is not None)

    @property
    def can_hold(self) -> bool:
        if not self.is_required:
            return True
        return not self.is_forbidden and (self.allowed is None or bool(self.allowed - self.refused))


class Conditions:
    """What a label selector requires of each label: to compare it with many others."""

    __slots__ = ("_by_key", "_has_values", "_items", "_required")

    def __init__(self, selector: LabelSelector) -> None:
        self._by_key = _conditions(selector)
        self._has_values = all(each.can_hold and each.has_values for each in self._by_key.values())
        self._items = frozenset(self._by_key.items())
        self._required = frozenset(key for key, each in self._by_key.items() if each.is_required)

    def overlap(self, other: Conditions) -> bool:
        """Return whether an object can match both that has just the labels whose values one of them names.

        So `pool=a` and `disk=ssd` do not overlap, though an object may have both labels; nor do selectors
        that name no value, by `Exists` and `NotIn`. Source: Koordinator's webhook, which compares selectors
        by label sets that it makes of their values (pkg/webhook/cm/plugins/sloconfig).
        """
        return self._contain(other) or other._contain(self)

    def _contain(self, other: Conditions) -> bool:
        """Whether labels whose values this one names, and no more, can match both."""
        if not (self._has_values and other._required <= self._required):
            return False
        return all(
            self._by_key[key].both(each).can_hold
            for key, each in other._items - self._items
            if key in self._required
        )


def _conditions(selector: LabelSelector) -> dict[str, _Condition]:
    conditions = {
        key: _Condition(is_required=True, allowed=frozenset({value}))
        for key, value in selector.match_labels.items()
    }
    for each in selector.match_expressions:
        values = frozenset(each.values)
        condition = {
            LabelOperator.IN: _Condition(is_required=True, allowed=values),
            LabelOperator.NOT_IN: _Condition(refused=values),
            LabelOperator.EXISTS: _Condition(is_required=True),
            LabelOperator.DOES_NOT_EXIST: _Condition(is_forbidden=True),
        }[each.operator]
        conditions[each.key] = conditions.get(each.key, _Condition()).both(condition)
    return conditions


def _key_problem(key: object) -> str:
    if isinstance(key, str):
        prefix, slash, name = key.rpartition("/")
        if _LABEL_NAME.fullmatch(name) and (not slash or _LABEL_PREFIX.fullmatch(prefix)):
            return ""
    return f"{_shown(key)} is not the name of a label"


def _value_problem(value: object) -> str:
    is_value = isinstance(value, str) and (value == "" or _LABEL_NAME.fullmatch(value))
    return "" if is_value else f"{_shown(value)} is not the value of a label"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
