"""Label selectors as texts, such as `pool=a,disk in (ssd,nvme)`: reading, matching, overlap. Pure.

Source: Kubernetes apimachinery pkg/labels/selector.go, Parse; katalyst-core pkg/controller/kcc/util, the test
of an overlap.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from runtimeproxy.documents.reading import InputError, shortened
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector, label_problems

MAX_SELECTOR_CHARS: Final = 64 * 1024
"""Of one text; a node label has at most 63 characters."""
MAX_VALUES: Final = 1024
"""Of one text: each selector is compared with each other one."""

_TOKENS: Final = re.compile(r"\s*(?:(?P<sign>!=|==|[=!,()<>])|(?P<name>[^\s=!,()<>]+))")
_SIGNS: Final = frozenset("=!,()<>") | {"!=", "=="}


class Operator(StrEnum):
    """The comparison of a label."""

    IN = "in"
    """Also `=` and `==`."""
    NOT_IN = "notin"
    """Also `!=`."""
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"
    ABOVE = ">"
    BELOW = "<"


class Requirement(NamedTuple):
    """A condition on one label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()
    """At least one for `IN` and `NOT_IN`, a whole number for `ABOVE` and `BELOW`, none for the others."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels fulfil it; an absent label is `NOT_IN` any values."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
        number, limit = _number(value), _number(next(iter(self.values)))
        if number is None or limit is None:
            return False
        return number > limit if self.operator is Operator.ABOVE else number < limit


class Selector(NamedTuple):
    """Conditions that must all hold."""

    requirements: tuple[Requirement, ...]

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(each.key for each in self.requirements)

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(each.matches(labels) for each in self.requirements)


class ComparedSelector:
    """A selector, to be compared with many others. `keys`: the only labels that are compared."""

    __slots__ = ("_forbidden", "_wanted")

    def __init__(self, selector: Selector, keys: Collection[str]) -> None:
        self._wanted: dict[str, frozenset[str]] = {}
        self._forbidden: dict[str, frozenset[str]] = {}
        for key, operator, values in selector.requirements:
            # Other operators leave the key as if it were not used.
            if key in keys and operator is Operator.IN:
                self._wanted[key] = self._wanted.get(key, values) & values
            elif key in keys and operator is Operator.NOT_IN:
                self._forbidden[key] = self._forbidden.get(key, frozenset()) | values

    def overlaps(self, other: ComparedSelector) -> bool:
        """Return whether one node can match both, as far as the compared labels tell.

        A key separates two selectors if both name values for it and have none in common, or one names values
        that the other one all forbids. Exact unless a selector both names and forbids values of one key.
        """
        if not all((*self._wanted.values(), *other._wanted.values())):
            return False  # one of them selects nothing
        return not (self._is_apart(other) or other._forbids(self))

    def _is_apart(self, other: ComparedSelector) -> bool:
        mine, theirs = self._wanted, other._wanted
        is_disjoint = any(key in theirs and values.isdisjoint(theirs[key]) for key, values in mine.items())
        return is_disjoint or self._forbids(other)

    def _forbids(self, other: ComparedSelector) -> bool:
        wanted = other._wanted
        return any(key in wanted and wanted[key] <= values for key, values in self._forbidden.items())


def parse_selector(text: str) -> Selector:
    """The selector of a text; an empty one matches all.

    Raises:
        InputError: Kubernetes would refuse it, or it has more than `MAX_VALUES` values.
    """
    if len(text) > MAX_SELECTOR_CHARS:
        raise InputError(f"is longer than {MAX_SELECTOR_CHARS} characters")
    requirements = tuple(_requirements(_Tokens(text)))
    count = sum(len(each.values) for each in requirements)
    if count > MAX_VALUES or len(requirements) > MAX_VALUES:
        raise InputError(f"has {max(count, len(requirements))} values, more than {MAX_VALUES}")
    for each in requirements:
        _check(each)
    return Selector(requirements)


class _Tokens:
    """The tokens of a text, of which one is looked at."""

    def __init__(self, text: str) -> None:
        self._tokens = [match[0].strip() for match in _TOKENS.finditer(text)]
        self._at = 0

    @property
    def next(self) -> str:
        """Empty at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def is_end(self) -> bool:
        return self._at >= len(self._tokens)

    def take(self, *wanted: str) -> str:
        """Go on by one token, which must be one of these if there are any."""
        token = self.next
        if (wanted and token not in wanted) or (not wanted and (not token or token in _SIGNS)):
            found = shortened(repr(token)) if token else "its end"
            raise InputError(f"has {found} where {' or '.join(map(repr, wanted)) or 'a name'} should be")
        self._at += 1
        return token

    def take_value(self) -> str:
        # A value may be empty.
        return "" if self.next in ("", ",", ")") else self.take()


def _requirements(tokens: _Tokens) -> Iterator[Requirement]:
    while not tokens.is_end():
        yield _requirement(tokens)
        if not tokens.is_end():
            tokens.take(",")
            if tokens.is_end():
                tokens.take()


def _requirement(tokens: _Tokens) -> Requirement:
    if tokens.next == "!":
        tokens.take("!")
        return Requirement(tokens.take(), Operator.DOES_NOT_EXIST)
    key = tokens.take()
    if tokens.next in ("", ","):
        return Requirement(key, Operator.EXISTS)
    sign = tokens.take("=", "==", "!=", "in", "notin", ">", "<")
    if sign in ("in", "notin"):
        tokens.take("(")
        values = {tokens.take_value()}
        while tokens.next == ",":
            tokens.take(",")
            values.add(tokens.take_value())
        tokens.take(")")
        return Requirement(key, Operator(sign), frozenset(values))
    values = {tokens.take_value()}
    operators = {"!=": Operator.NOT_IN, ">": Operator.ABOVE, "<": Operator.BELOW}
    return Requirement(key, operators.get(sign, Operator.IN), frozenset(values))


def _check(requirement: Requirement) -> None:
    key, operator, values = requirement
    found = LabelSelector(
        match_expressions=(
            LabelRequirement(key=key, operator=LabelOperator.IN, values=tuple(sorted(values)) or ("",)),
        )
    )
    for _, reason in label_problems(found):
        raise InputError(f"is not a label selector: {reason}")
    if operator in (Operator.ABOVE, Operator.BELOW) and _number(next(iter(values))) is None:
        raise InputError(f"is not a label selector: {key} {operator} needs a whole number")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,18}", text) else None
