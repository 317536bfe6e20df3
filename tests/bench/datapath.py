"""Rows of calls that pass: `Version` and lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.load import Load, Shape, generate, h2load, plan_for
from tests.bench.scenarios import SERVICE
from tests.bench.stands import Stand

AnyWay = TypeVar("AnyWay")

_VERSION = SERVICE + "Version"
_LIST = SERVICE + "ListContainers"
_SCENARIOS = {_VERSION: "version", _LIST: "list"}


def version(bench: Bench, turn: int) -> None:
    """`Version`, one caller, and 4 connections with 8 calls in flight each."""
    _loaded(bench, turn, names.VERSION_1, Shape(_VERSION, 1, 1))
    _loaded(bench, turn, names.VERSION_32, Shape(_VERSION, 4, 8))


def listing(bench: Bench, turn: int) -> None:
    """All containers, one caller."""
    _loaded(bench, turn, names.LIST, Shape(_LIST, 1, 1), bench.full)


def kubelet(bench: Bench, turn: int) -> None:
    """`Version` on one connection as the kubelet calls it: deadline, user agent, new traceparents."""
    for row, in_flight in ((names.KUBELET_1, 1), (names.KUBELET_32, 32)):
        for name, way in rotated(bench.empty.ways, turn).items():
            count = bench.count(row, name, first=20 * in_flight, most=10_000)
            plan = replace(plan_for({name: way}, "version", count), in_flight=in_flight, kubelet_headers=True)
            _note(bench, row, name, generate(plan)[name]["version"])


def rotated(ways: Mapping[str, AnyWay], turn: int) -> dict[str, AnyWay]:
    """The ways, another one first in each round."""
    order = list(ways)
    first = turn % len(order)
    return {name: ways[name] for name in order[first:] + order[:first]}


def _loaded(bench: Bench, turn: int, row: str, shape: Shape, stand: Stand | None = None) -> None:
    for name, way in rotated((stand or bench.empty).ways, turn).items():
        in_flight = shape.connections * shape.streams
        count = bench.count(row, name, first=20 * in_flight)
        if bench.options.h2load:
            load = h2load(way, shape, count, bench.folder)
        else:
            plan = replace(plan_for({name: way}, _SCENARIOS[shape.method], count), in_flight=in_flight)
            load = generate(plan)[name][_SCENARIOS[shape.method]]
        _note(bench, row, name, load)


def _note(bench: Bench, row: str, way: str, load: Load) -> None:
    """The first load of a way only says how fast it is."""
    known = (row, way) in bench.rates
    bench.rates[row, way] = load.count / load.seconds
    if known:
        bench.results.add(row, way, load.metrics())
