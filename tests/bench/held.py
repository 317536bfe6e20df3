"""Rows of calls that the proxy intercepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.datapath import rotated
from tests.bench.load import Load, generate, plan_for
from tests.bench.scenarios import Pod, make_pod
from tests.bench.stands import DIRECT, PROXY

_TURN = 10
_CALLS_PER_SECOND = 500


class HeldRows:
    """The intercepted calls, one at a time, the ways in turns of a few calls each."""

    def __init__(self) -> None:
        self._pods: dict[bool, Pod] = {}

    def __call__(self, bench: Bench, turn: int) -> None:
        """Measures one round; the first makes the pods, through the proxy."""
        if not self._pods:
            socket = bench.full.ways[PROXY].socket
            self._pods = {
                best_effort: make_pod(socket, f"bench-{best_effort}".lower(), best_effort=best_effort)
                for best_effort in (False, True)
            }
        ways = rotated(bench.full.ways, turn)
        count = max(_TURN, int(bench.options.seconds * _CALLS_PER_SECOND) // _TURN * _TURN)
        for row, scenario, step, best_effort in (
            (names.PASSING, "version", "version", False),
            (names.HELD_UPDATE, "update", "update", False),
            (names.HELD_CREATE, "create-remove", "create", False),
            (names.CHANGED, "create-remove", "create", True),
        ):
            pods = dict.fromkeys(ways, self._pods[best_effort].as_words())
            plan = plan_for(ways, scenario, count)
            plan = replace(plan, turn=_TURN, pods=pods, kubelet_headers=True)
            _note(bench, row, {name: steps[step] for name, steps in generate(plan).items()})


def _note(bench: Bench, row: str, loads: Mapping[str, Load]) -> None:
    for name, load in loads.items():
        metrics = {"mean us": load.mean_us, "p99 us": load.p99_us}
        if name != DIRECT:
            metrics["added mean us"] = load.mean_us - loads[DIRECT].mean_us
        bench.results.add(row, name, metrics)
