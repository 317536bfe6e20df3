"""Reasons: why a policy gives a field its value, with the arithmetic, as text when somebody reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from runtimeproxy.slo.strategies import Provenance


class Source(NamedTuple):
    """A field of a strategy that a value follows from."""

    path: str
    """Such as `cpu_burst.cpu_burst_percent`."""
    provenance: Provenance

    def __str__(self) -> str:
        return f"({self.provenance})"


Part: TypeAlias = str | int | float | Source


class Reason:
    """Texts and numbers that are joined when the reason is read: by then the call has gone on.

    `Reason("batch-cpu limit ", 700, "m = ", 70000)` is "batch-cpu limit 700m = 70000". The last number is the
    value that the reason is for. A reason equals another one of the same text, and that text.
    """

    __slots__ = ("_parts",)

    def __init__(self, *parts: Part) -> None:
        self._parts = parts

    def then(self, *parts: Part) -> Reason:
        return Reason(*self.parts(), *parts)

    def parts(self) -> tuple[Part, ...]:
        return self._parts

    @property
    def sources(self) -> tuple[Source, ...]:
        """The fields of strategies that the value follows from."""
        return tuple(each for each in self.parts() if isinstance(each, Source))

    def __str__(self) -> str:
        return "".join([part if type(part) is str else _shown(part) for part in self.parts()])

    def __repr__(self) -> str:
        return f"Reason({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if type(self) is type(other) is Reason and self._parts == other._parts:
            return True
        return isinstance(other, Reason | str) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: Reason | str) -> bool:
        return str(self) < str(other)

    def __gt__(self, other: Reason | str) -> bool:
        return str(self) > str(other)


@dataclass(eq=False, repr=False)
class LateReason(Reason):
    """A reason that is not even put together before it is read, for arithmetic with several cases.

    `make` is a quick function of the arguments alone, and raises nothing: it runs in any thread. The
    arguments are immutable and small, for they are kept as long as the value.
    """

    __slots__ = ("arguments", "make")

    make: Callable[..., Reason]
    arguments: tuple[object, ...]

    def parts(self) -> tuple[Part, ...]:
        return self.make(*self.arguments).parts()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LateReason) and (self.make, self.arguments) == (other.make, other.arguments):
            return True
        return Reason.__eq__(self, other)

    __hash__ = Reason.__hash__


NO_REASONS: Final[Mapping[str, Reason | str]] = MappingProxyType({})


def _shown(part: object) -> str:
    # A policy may pass anything, and its own code must not run where reasons are read.
    if isinstance(part, str):
        return str.__str__(part)
    if type(part) is float:
        return f"{part:g}"
    return str(part) if type(part) in (int, Source) else "?"
