"""Rows of calls about which a hook server in another process is asked, or would be if it answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.datapath import rotated
from tests.bench.http2 import LoadError
from tests.bench.load import Load, generate, plan_for
from tests.bench.scenarios import Pod, make_pod
from tests.bench.stands import DIRECT, PROXY, Way
from tests.hooks.remote.hook_server_process import HookServerProcess

_TURN = 10
_CALLS_PER_SECOND = 300
_FAILURES_TO_OPEN = 3
_ASKING, _SKIPPING = "asking", "skipping"


class HookedRows:
    """`CreateContainer` with one hook server that is asked, and with one that is away and skipped."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        self._pod: Pod | None = None

    def __call__(self, bench: Bench, turn: int) -> None:
        """Measures one round; the first starts the server and the proxies."""
        if self._pod is None:
            self._pod = make_pod(bench.full.ways[PROXY].socket, "bench-hooked", best_effort=False)
            self._ways = {_ASKING: _asking(bench), _SKIPPING: _skipping(bench)}
        there = {name: bench.full.ways[name] for name in (DIRECT, PROXY)}
        ways = rotated({**there, **self._ways}, turn)
        count = max(_TURN, int(bench.options.seconds * _CALLS_PER_SECOND) // _TURN * _TURN)
        plan = plan_for(ways, "create-remove", count)
        pods = dict.fromkeys(ways, self._pod.as_words())
        loads = generate(replace(plan, turn=_TURN, pods=pods, kubelet_headers=True))
        creates = {name: steps["create"] for name, steps in loads.items()}
        _note(bench, names.HOOKED, creates, _ASKING)
        _note(bench, names.SKIPPED, creates, _SKIPPING)


def _note(bench: Bench, row: str, loads: dict[str, Load], way: str) -> None:
    direct, load = loads[DIRECT], loads[way]
    bench.results.add(row, DIRECT, {"mean us": direct.mean_us, "p99 us": direct.p99_us})
    metrics = {
        "mean us": load.mean_us,
        "p99 us": load.p99_us,
        "added mean us": load.mean_us - direct.mean_us,
        "over no server us": load.mean_us - loads[PROXY].mean_us,
    }
    bench.results.add(row, PROXY, metrics)


def _asking(bench: Bench) -> Way:
    """A proxy whose hook server answers as koordlet does."""
    server = bench.stack.enter_context(HookServerProcess(bench.full.folder / "hook.sock"))
    way = _proxy(bench, _ASKING, server)
    make_pod(way.socket, "bench-asking", best_effort=False)
    if not server.asked("PreCreateContainerHook"):
        raise LoadError("the hook server is not asked")
    return way


def _skipping(bench: Bench) -> Way:
    """A proxy whose hook server is away, for so many calls that it is skipped."""
    way = _proxy(bench, _SKIPPING, HookServerProcess(bench.full.folder / "away.sock"))
    for number in range(_FAILURES_TO_OPEN):
        make_pod(way.socket, f"bench-skipping-{number}", best_effort=False)
    return way


def _proxy(bench: Bench, name: str, server: HookServerProcess) -> Way:
    stand = bench.full
    if stand.launcher.template is not None:
        raise LoadError("another proxy's hook servers are not known")
    process = stand.launcher.make(stand.folder / f"{name}.sock", stand.upstream)
    server.register(_registrations(process.socket), "bench.json", "PreCreateContainer")
    bench.stack.enter_context(process)
    process.wait_until_serving()
    return Way(process.socket, process.pid)


def _registrations(listen: str) -> Path:
    """Where `ProxyLauncher` lets hook servers register."""
    return Path(listen).with_suffix("") / "hookserver.d"
