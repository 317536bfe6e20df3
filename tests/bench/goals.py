"""What the table's figures should reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench import names
from tests.bench.results import Results
from tests.bench.stands import DIRECT, GENERIC, PROXY, SPLICE


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure of the table and its limit."""

    row: str
    metric: str
    limit: float
    unit: str
    measure: Callable[[Results], float | None]
    at_least: bool = False

    def verdict(self, results: Results) -> tuple[str, bool | None]:
        """For the table: limit, figure, verdict; None for what was not measured."""
        value = self.measure(results)
        limit = f"{'>=' if self.at_least else '<='} {self.limit:g}{self.unit}"
        if value is None:
            return limit, None
        reached = value >= self.limit if self.at_least else value <= self.limit
        return f"{limit}: {value:.3g} {'ok' if reached else 'MISS'}", reached


def _ratio(row: str, metric: str, other: str, limit: float, *, at_least: bool = False) -> Goal:
    unit = f"x {other}"
    return Goal(row, metric, limit, unit, lambda results: results.ratio(row, metric, other), at_least)


def _most(row: str, metric: str, limit: float, unit: str) -> Goal:
    return Goal(row, metric, limit, unit, lambda results: results.median(row, metric, PROXY))


def _over_passing(row: str, limit: float) -> Goal:
    def measure(results: Results) -> float | None:
        held = results.median(row, "added mean us", PROXY)
        passing = results.median(names.PASSING, "added mean us", PROXY)
        return held / passing if held is not None and passing else None

    return Goal(row, "added mean us", limit, "x passing", measure)


def _over_proxy_mode(results: Results) -> float | None:
    in_nri = results.median(names.NRI, "all policies, added mean us", PROXY)
    in_proxy = results.median(names.EVALUATED, "all policies, added mean us", PROXY)
    return in_nri / in_proxy if in_nri is not None and in_proxy else None


def _added_p99(results: Results) -> float | None:
    return results.added(names.BESIDE, "p99 us", DIRECT)


GOALS = (
    _ratio(names.VERSION_1, "CPU us/call", SPLICE, 1.4),
    _ratio(names.VERSION_1, "CPU us/call", GENERIC, 0.12),
    _ratio(names.VERSION_32, "CPU us/call", SPLICE, 2.2),
    _ratio(names.VERSION_32, "CPU us/call", GENERIC, 0.07),
    _ratio(names.VERSION_32, "calls/s", GENERIC, 8, at_least=True),
    _ratio(names.VERSION_32, "calls/s", SPLICE, 0.5, at_least=True),
    _ratio(names.LIST, "CPU us/call", SPLICE, 1.3),
    _ratio(names.LIST, "CPU us/call", GENERIC, 0.45),
    _over_passing(names.HELD_UPDATE, 2),
    _over_passing(names.HELD_CREATE, 2),
    _over_passing(names.CHANGED, 3.5),
    _most(names.HOOKED, "over no server, x raw", 1.5, "x a raw call"),
    Goal(names.BESIDE, "p99 us", 2000, " us over direct", _added_p99),
    _most(names.WATCHED, "p50 over none", 1.05, "x none"),
    _most(names.WATCHED, "p99 us over none", 500, " us"),
    _most(names.MANAGED, "p50 over none", 1.05, "x none"),
    _most(names.MANAGED, "p99 us over none", 500, " us"),
    _most(names.MANAGED, "MiB, manager", 60, " MiB"),
    _most(names.STORM, "CPU s of a storm", 2, " s"),
    _most(names.STORM, "calls of the runtime", 0, ""),
    _most(names.STORM, "p50 over off", 1.05, "x off"),
    _most(names.STORM, "p99 us over off", 500, " us"),
    _most(names.STORM, "MiB, all policies", 75, " MiB"),
    _most(names.SAMPLES, "CPU ms/pass, version 1", 30, " ms"),
    _most(names.SAMPLES, "CPU ms/pass, version 2", 30, " ms"),
    _most(names.SAMPLES, "MiB, version 1", 60, " MiB"),
    _most(names.SAMPLES, "MiB, version 2", 60, " MiB"),
    *(
        goal
        for where in ("version 1", "version 1, Malachite", "version 2", "version 2, Malachite")
        for goal in (
            _most(names.POOLED, f"CPU ms/pass, {where}", 30, " ms"),
            _most(names.POOLED, f"MiB, {where}", 60, " MiB"),
        )
    ),
    _most(names.GUARDED, "CPU ms a second over none, version 1", 10, " ms"),
    _most(names.GUARDED, "CPU ms a second over none, version 2", 10, " ms"),
    _most(names.EVALUATED, "all policies, x three", 1.5, "x three"),
    _most(names.EVALUATED, "all policies, CPU x three", 1.5, "x three"),
    _most(names.EVALUATED, "all policies, x passing", 5, "x passing"),
    _most(names.EVALUATED, "with pools, x without", 1.5, "x without"),
    _most(names.EVALUATED, "with pools, CPU x without", 1.5, "x without"),
    Goal(names.NRI, "all policies, added mean us", 1, "x proxy mode", _over_proxy_mode),
    _most(names.NRI, "all policies, p99 us", 2000, " us"),
    _most(names.SYNCHRONIZE, "all policies, s", 1, " s"),
    _most(names.START, "first answer s", 0.4, " s"),
    _most(names.START, "records s", 1.5, " s"),
    _most(names.RSS, "MiB, all containers", 58, " MiB"),
    _most(names.RSS, "MiB, after a reflection call", 62, " MiB"),
    _most(names.RSS, "MiB growth over the cycles", 2, " MiB"),
)
"""The limit of the growth is what the allocator moves by itself: a record that stays takes over 10 MiB."""
