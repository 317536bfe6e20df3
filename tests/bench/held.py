"""Rows of calls that the proxy holds, and of those that pass beside a policy that computes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.bench import burning, names
from tests.bench.bench import Bench
from tests.bench.datapath import rotated
from tests.bench.load import Load, generate, plan_for
from tests.bench.scenarios import SERVICE, Pod, make_pod
from tests.bench.stands import DIRECT, PROXY, Way
from tests.peers.load_client import LoadError, call

_TURN = 10
_CALLS_PER_SECOND = 500


class HeldRows:
    """The held calls, one at a time, the ways in turns of a few calls each."""

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


class Burner:
    """Keeps the burning policy of one proxy computing, by one held call after the other."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        pod = pod_sandbox_config("burn", labels={burning.LABEL: "true"})
        # A handler that no runtime has: the sandbox is refused after the policies were asked.
        request = api_pb2.RunPodSandboxRequest(config=pod, runtime_handler="bench-none")
        self._message = request.SerializeToString()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        began = monotonic()
        self._burn()
        if monotonic() - began < burning.BURN_S:
            raise LoadError("the policy that should compute does not")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._burn()

    def _burn(self) -> None:
        try:
            call(self.socket, SERVICE + "RunPodSandbox", self._message)
        except LoadError:
            return


class BusyRow:
    """`Version` through a proxy whose policy computes all the time, and directly at the same time."""

    def __init__(self) -> None:
        self._way: Way | None = None

    def __call__(self, bench: Bench, turn: int) -> None:
        """Measures one round; the first starts the proxy."""
        if self._way is None:
            self._way = self._start(bench)
        ways = rotated({DIRECT: bench.empty.ways[DIRECT], PROXY: self._way}, turn)
        count = max(100, int(bench.options.seconds * 3_000))
        plan = replace(plan_for(ways, "version", count), turn=50, kubelet_headers=True)
        with Burner(self._way.socket):
            loads = generate(plan)
        for name, steps in loads.items():
            load = steps["version"]
            bench.results.add(names.BUSY, name, {"mean us": load.mean_us, "p99 us": load.p99_us})

    @staticmethod
    def _start(bench: Bench) -> Way:
        stand = bench.empty
        environ = burning.install(stand.folder / "burning")
        process = stand.launcher.make(stand.folder / "burning.sock", stand.upstream, environ)
        bench.stack.enter_context(process)
        process.wait_until_serving()
        return Way(process.socket, process.pid)
