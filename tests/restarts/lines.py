"""What a caller prints, a line of JSON each: begins and ends of calls, containers, events."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Begun:
    """A worker begins a call, which has a line of its own once it has ended."""

    worker: str
    method: str
    at: float


@dataclass(frozen=True)
class Call:
    """One call, with moments of the monotonic clock; `code` as Go spells it, as in `Unavailable`."""

    worker: str
    method: str
    begun: float
    ended: float
    code: str
    message: str

    @property
    def is_ok(self) -> bool:
        return self.code == "OK"

    @property
    def is_stream(self) -> bool:
        return self.method == "GetContainerEvents"

    @property
    def kind(self) -> str:
        """`list`, `status`, `create` or `events`."""
        return self.worker.partition("-")[0]


@dataclass(frozen=True)
class Created:
    """What became of one CreateContainer: how often its container is there, and with which shares."""

    name: str
    code: str
    listed: int
    cpu_shares: int


@dataclass(frozen=True)
class Event:
    """One event of a container, and when it came."""

    at: float
    container_id: str


Line = Begun | Call | Created | Event

_KINDS: dict[str, type[Line]] = {"begun": Begun, "call": Call, "created": Created, "event": Event}


def parsed(text: str) -> Line:
    """Reads a line. Raises ValueError for one that no caller prints."""
    fields = json.loads(text)
    kind = _KINDS.get(fields.pop("kind", ""))
    if kind is None:
        raise ValueError(f"not a line of a caller: {text!r}")
    return kind(**fields)
