"""Rows of calls about which a hook server in another process is asked, or would be if it answered."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import uvloop

from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.remote.protocol import EXCHANGES
from runtimeproxy.http2.client import GrpcClient, RpcError, request_block
from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.datapath import rotated
from tests.bench.load import Load, generate, plan_for
from tests.bench.scenarios import Pod, make_pod
from tests.bench.stands import DIRECT, PROXY, Way
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.peers.load_client import LoadError

_TURN = 10
_CALLS_PER_SECOND = 300
_FAILURES_TO_OPEN = 3
_METHOD = EXCHANGES[Hook.PRE_CREATE_CONTAINER].method
_RAW_TIMEOUT_S = 10.0
_ASKING, _SKIPPING = "asking", "skipping"


class HookedRows:
    """`CreateContainer` with one hook server that is asked, and with one that is away and skipped."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        self._pod: Pod | None = None
        self._request = b""

    def __call__(self, bench: Bench, turn: int) -> None:
        """Measures one round; the first starts the server and the proxies."""
        if self._pod is None:
            self._pod = make_pod(bench.full.ways[PROXY].socket, "bench-hooked", best_effort=False)
            asking, self._request = _asking(bench)
            self._ways = {_ASKING: asking, _SKIPPING: _skipping(bench)}
        there = {name: bench.full.ways[name] for name in (DIRECT, PROXY)}
        ways = rotated({**there, **self._ways}, turn)
        count = max(_TURN, int(bench.options.seconds * _CALLS_PER_SECOND) // _TURN * _TURN)
        plan = plan_for(ways, "create-remove", count)
        pods = dict.fromkeys(ways, self._pod.as_words())
        loads = generate(replace(plan, turn=_TURN, pods=pods, kubelet_headers=True))
        creates = {name: steps["create"] for name, steps in loads.items()}
        raw_us = _raw_call_us(bench.full.folder / "hook.sock", self._request, count)
        _note(bench, names.HOOKED, creates, _ASKING)
        _note(bench, names.SKIPPED, creates, _SKIPPING)
        over_us = creates[_ASKING].mean_us - creates[PROXY].mean_us
        with_it, without = creates[_ASKING], creates[PROXY]
        figures = {
            "a raw call of it us": raw_us,
            "over no server, x raw": over_us / raw_us,
            "CPU us over no server": (with_it.cpu_s / with_it.count - without.cpu_s / without.count) * 1e6,
        }
        bench.results.add(names.HOOKED, PROXY, figures)


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


def _raw_call_us(socket: Path, request: bytes, count: int) -> float:
    """Mean latency of the question that the proxy puts, put directly, one call after the other."""

    async def ask() -> float:
        client, block = GrpcClient(str(socket)), request_block(_METHOD)
        loop = asyncio.get_running_loop()
        begun_s = 0.0
        for number in range(count + _TURN):
            if number == _TURN:
                begun_s = time.perf_counter()
            answered: asyncio.Future[bytes | RpcError] = loop.create_future()
            client.call(block, request, _RAW_TIMEOUT_S, answered.set_result)
            answer = await answered
            if isinstance(answer, RpcError):
                raise LoadError(f"a raw call of the hook server failed: {answer}")
        taken_s = time.perf_counter() - begun_s
        client.close()
        return taken_s * 1e6 / count

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(ask())


def _asking(bench: Bench) -> tuple[Way, bytes]:
    """A proxy whose hook server answers as koordlet does, and the question that it puts."""
    server = bench.stack.enter_context(HookServerProcess(bench.full.folder / "hook.sock"))
    way = _proxy(bench, _ASKING, server)
    make_pod(way.socket, "bench-asking", best_effort=False)
    asked = server.asked("PreCreateContainerHook")
    if not asked:
        raise LoadError("the hook server is not asked")
    return way, asked[0].request.SerializeToString()


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
