"""Checks of strategies beyond single fields, like those of Koordinator's webhook (policies spec 4.4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from runtimeproxy.slo.reading import Overlay, Path, build, json_key
from runtimeproxy.slo.schema import Bound, HostApplication, NetworkQoS, QoSStrategy
from runtimeproxy.units import quantity_bytes

CLASSES: Final = ("lsr_class", "ls_class", "be_class")
"""The classes whose network requests share the node's bandwidth. Source: Koordinator's webhook."""
_REQUESTS: Final = ("ingress_request", "egress_request")


def strategy_problems(default: object, cluster: Overlay, node: Overlay) -> Iterator[tuple[Path, str]]:
    """Yields what is wrong with a strategy: path and reason.

    Args:
        default: the values below both.
        cluster: what the cluster strategy sets; nothing while that one itself is checked.
        node: what the node strategy, or the cluster strategy itself, sets.
    """
    merged = {**cluster, **node}
    strategy = build(default, merged)
    yield from _bound_problems(strategy, (), merged)
    if isinstance(strategy, QoSStrategy):
        yield from _network_problems(node)


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
        if not each.name.isprintable() or "/" in each.name or each.name in ("", ".", ".."):
            yield f"[{number}].name", "is not the name of a directory"
        elif each.name in names:
            yield f"[{number}].name", "is that of another application, too"
        names.add(each.name)
        where = each.cgroup_path
        place = f"{where.parent_dir}/{where.relative_path}" if where else ""
        if ".." in place.split("/"):
            yield f"[{number}].cgroupPath", "leads out of its base"
        elif not place.isprintable():
            yield f"[{number}].cgroupPath", "is not the path of a directory"


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


def _network_problems(overlay: Overlay) -> Iterator[tuple[Path, str]]:
    """One format for all requests of one strategy, and percentages of at most 100 together."""
    requests = {
        path: overlay[path]
        for path in overlay
        if len(path) == 3 and path[0] in CLASSES and path[1] == "network_qos" and path[2] in _REQUESTS
    }
    texts = [path for path, value in requests.items() if isinstance(value, str)]
    if texts and len(texts) < len(requests):
        yield texts[-1], "is a quantity, while other requests are percentages: one format only"
    for name in _REQUESTS:
        percent = {path: each for path, each in requests.items() if path[2] == name and isinstance(each, int)}
        if sum(percent.values()) > 100:
            reason = f"adds up to {sum(percent.values())} percent over all classes, more than 100"
            yield [*percent][-1], reason


def _networks(strategy: QoSStrategy) -> list[NetworkQoS]:
    return [getattr(strategy, each).network_qos for each in CLASSES]
