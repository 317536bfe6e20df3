"""Checks of strategies beyond single fields, like those of Koordinator's webhook (policies spec 4.4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from runtimeproxy.slo.reading import Overlay, Path, build, json_key
from runtimeproxy.slo.schema import Bound, HostApplication, NetworkQoS, QoSStrategy
from runtimeproxy.units import quantity_bytes

CLASSES: Final = ("lsr_class", "ls_class", "be_class", "system_class")
"""The classes of pods, whose network requests share the node's bandwidth."""
_REQUESTS: Final = ("ingress_request", "egress_request")


def strategy_problems(kind: type, default: object, merged: Overlay) -> Iterator[tuple[Path, str]]:
    """Yields what is wrong with a strategy: path and reason.

    Args:
        kind: the schema's dataclass.
        default: the values below the merged ones.
        merged: what cluster strategy and node strategy set.
    """
    strategy = build(default, merged)
    yield from _bound_problems(strategy, (), merged)
    if isinstance(strategy, QoSStrategy):
        yield from _network_problems(strategy, merged)


def bandwidth_problem(strategy: QoSStrategy, total: int) -> str:
    """Returns why the classes' network requests do not fit the node's bandwidth in bits/s; empty if they do.

    A bandwidth of 0 is not known, and fits.
    """
    for name in _REQUESTS:
        requests = [getattr(network, name) for network in _networks(strategy)]
        needed = sum(quantity_bytes(each) for each in requests if isinstance(each, str))
        if total and needed > total:
            which = f"{needed} bits/s of {json_key(name)} over all classes"
            return f"adds up to {which}, more than the node's {total}"
    return ""


def application_problems(applications: object) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with host applications: the place below the list, and the reason."""
    names: set[str] = set()
    for number, each in enumerate(applications if isinstance(applications, tuple) else ()):
        if not isinstance(each, HostApplication):
            continue
        if not each.name or "/" in each.name or each.name in (".", ".."):
            yield f"[{number}].name", "is not the name of a directory"
        elif each.name in names:
            yield f"[{number}].name", "is that of another application, too"
        names.add(each.name)
        where = each.cgroup_path
        parts = f"{where.parent_dir}/{where.relative_path}".split("/") if where else ()
        if ".." in parts:
            yield f"[{number}].cgroupPath", "leads out of its base"


def _bound_problems(value: object, path: Path, merged: Overlay) -> Iterator[tuple[Path, str]]:
    bounds: tuple[Bound, ...] = getattr(value, "bounds", ())
    for bound in bounds:
        lower, upper = getattr(value, bound.lower), getattr(value, bound.upper)
        if lower is not None and upper is not None and lower >= upper:
            at = bound.lower if (*path, bound.lower) in merged else bound.upper
            yield (
                (*path, at),
                f"{json_key(bound.lower)} is {lower}, which is not below {json_key(bound.upper)}, {upper}",
            )
    for each in dataclasses.fields(value):  # type: ignore[arg-type]
        below = getattr(value, each.name)
        if dataclasses.is_dataclass(below):
            yield from _bound_problems(below, (*path, each.name), merged)


def _network_problems(strategy: QoSStrategy, merged: Overlay) -> Iterator[tuple[Path, str]]:
    """One format only, and percentages of requests of at most 100 together."""
    paths = [path for path in merged if len(path) == 3 and path[1] == "network_qos" and path[2] != "enable"]
    texts = [path for path in paths if isinstance(merged[path], str)]
    if texts and len(texts) < len(paths):
        yield texts[-1], "is a quantity, while others are percentages: one format only"
    for name in _REQUESTS:
        numbers = [getattr(network, name) for network in _networks(strategy)]
        percent = sum(each for each in numbers if isinstance(each, int))
        if percent > 100:
            at = next(path for path in reversed(paths) if path[2] == name)
            yield at, f"adds up to {percent} percent over all classes, more than 100"


def _networks(strategy: QoSStrategy) -> list[NetworkQoS]:
    return [getattr(strategy, each).network_qos for each in CLASSES]
