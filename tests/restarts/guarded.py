"""Kills beside the CPU guard: of the manager and of the daemon; and strategies that change.

`python -m tests.restarts.guarded [KILLS]` (50) kills the manager so often, then the daemon, then changes the
strategy, and ends with 1 if a value was not as it must be. The runtime is the fake one, its cgroups are plain
files, and a thread writes there what a kernel would count: a guarded pod waits twice as long as it may while
BE pods use more than a CPU, else nine tenths of that.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, PodCgroups, RuntimeState
from tests.e2e.koordinator import qos
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.lab.pods import PodSpec
from tests.lab.proxy_process import ManagerProcess, ProxyOptions, ProxyProcess

CORES: Final = 4
UNBOUNDED: Final = "max"
_CLASS: Final = "/kubepods/besteffort"
_ASKED: Final = 2.0
"""CPUs, by the BE pods."""
_ENOUGH: Final = 1.0
"""CPUs of BE pods, from which on the guarded pod waits too long."""
_TARGET_MS: Final = 20.0
_PODS_AGE_NS: Final = 3_600 * 10**9
_TICK_S: Final = 0.02
_TIMEOUT_S: Final = 90.0
_CONFIG: Final = """
[node]
kubelet_dir = "{kubelet}"
name = "node-a"
[plugins.cpu-guard]
mode = "{mode}"
"""


class CountingKernel:
    """Counts CPU time and pressure of a guarded pod and the class of BE pods, from `with` to its end."""

    def __init__(self, files: CgroupFiles, guarded: str) -> None:
        self.values: list[str] = []
        """Of the class's quota, in the order in which they came."""
        self._files = files
        self._guarded = guarded
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def quota(self) -> str:
        """Of the class, per 100 ms; empty while the file is being written."""
        return self._files.read(_CLASS, "cpu.max").partition(" ")[0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        used_us, waited_us, be_us, last_s = 0.0, 0.0, 0.0, time.monotonic()
        while not self._ended.wait(_TICK_S):
            quota = self.quota()
            if not quota:
                continue
            if not self.values or quota != self.values[-1]:
                self.values.append(quota)
            cores = _ASKED if quota == UNBOUNDED else min(int(quota) / 100_000, _ASKED)
            now_s = time.monotonic()
            elapsed_us, last_s = (now_s - last_s) * 1e6, now_s
            used_us += elapsed_us
            be_us += elapsed_us * cores
            waited_us += elapsed_us * _TARGET_MS / 1_000 * (2.0 if cores > _ENOUGH else 0.9)
            self._write(self._guarded, used_us, waited_us)
            self._write(_CLASS, be_us, be_us)

    def _write(self, cgroup: str, used_us: float, waited_us: float) -> None:
        folder = self._files.folder(cgroup)
        lines = (
            f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={int(waited_us)}" for kind in ("some", "full")
        )
        _replace(folder / "cpu.pressure", "\n".join(lines))
        counts = f"usage_usec {int(used_us)}\nuser_usec 0\nsystem_usec 0"
        _replace(folder / "cpu.stat", f"{counts}\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0")


def _replace(file: Path, content: str) -> None:
    """In one write, of no less bytes than before: the manager keeps the file open."""
    with file.open("r+b", buffering=0) as opened:
        opened.write(f"{content}\n".encode())


class GuardedNode:
    """A daemon and a manager with the guard, before a fake runtime with a guarded pod and a BE pod."""

    def __init__(
        self, folder: Path, daemon: ProxyProcess, manager: ManagerProcess, kernel: CountingKernel
    ) -> None:
        self.daemon = daemon
        self.manager = manager
        self.kernel = kernel
        self._folder = folder
        self._objects = NodeObjects(daemon.objects_folder, "node-a")
        self._objects.node(capacity={"cpu": str(CORES), "memory": "16Gi"})

    def set_strategy(self, *, enable: bool) -> None:
        """Switches the guard on or off."""
        self._objects.strategies(
            {"cpu-guard-config": {"clusterStrategy": {"enable": enable, "idlePods": False}}}
        )

    def set_mode(self, mode: str) -> None:
        """Has the manager read the configuration with another mode of the plugin; it begins anew."""
        self.daemon.config_file.write_text(config(self._folder, mode))
        self.manager.forget_states()
        self.manager.restart()

    def explained(self) -> str:
        """What the daemon's `status` says of the guard."""
        return self.daemon.run("status").stdout

    def wait_for_rest(self) -> str:
        """Waits until the guard holds a bound that is right, and returns the quota."""
        wait_until(lambda: "is right: it stays" in self.explained(), "a bound that is right", _TIMEOUT_S)
        return self.kernel.quota()

    def wait_for(self, quota: str) -> None:
        wait_until(lambda: self.kernel.quota() == quota, f"a quota of {quota}", _TIMEOUT_S)

    def kill_manager(self) -> None:
        """Kills the manager, and waits until the next one has the claims."""
        self.manager.forget_states()
        self.manager.kill()
        self.manager.start()
        self.wait_for_claims()

    def kill_daemon(self) -> None:
        """Kills the daemon, and waits until the manager has its claims again."""
        self.manager.forget_states()
        self.daemon.kill()
        self.daemon.start()
        self.wait_for_claims()

    def wait_for_claims(self) -> None:
        """Waits until the manager says that it has its claim."""
        wait_until(self._has_claim, "its claim", _TIMEOUT_S)

    def _has_claim(self) -> bool:
        return any("cpu-guard: 1 claims" in each for each in self.manager.states)


def config(folder: Path, mode: str = "enforce") -> str:
    """The configuration of daemon and manager."""
    return _CONFIG.format(kubelet=folder / "kubelet", mode=mode)


@contextmanager
def guarded_node(folder: Path) -> Iterator[GuardedNode]:
    """Runs all of it in a folder, whose path must be short."""
    files = CgroupFiles(folder / "cgroup", version=2, more={"cpu.pressure": "", "cpu.stat": ""})
    files.make(_CLASS)
    kubelet_files(folder / "kubelet", {})
    state = RuntimeState(
        PodCgroups(CgroupDriver.CGROUPFS, files), clock_ns=lambda: time.time_ns() - _PODS_AGE_NS
    )
    target = json.dumps({"targetPressureMilliseconds": _TARGET_MS})
    web = PodSpec("web", "burstable", qos("LS"), {"koordinator.sh/cpuGuard": target})
    batch = PodSpec("batch", "besteffort", qos("BE"))
    environment = {"KOORD_RUNTIMEPROXY_CGROUPS_ROOT": str(files.root)}
    own = folder / "d"
    own.mkdir()
    with ExitStack() as stack:
        runtime = stack.enter_context(FakeRuntime(folder / "runtime.sock", state=state))
        options = ProxyOptions(str(runtime.socket_path), config=config(folder), environment=environment)
        daemon = ProxyProcess(own, options)
        manager = ManagerProcess(own, daemon.config_file, daemon.socket, environment)
        kernel = CountingKernel(files, web.cgroup_parent)
        node = GuardedNode(folder, daemon, manager, kernel)
        node.set_strategy(enable=True)
        stack.enter_context(daemon)
        client = stack.enter_context(CriClient(daemon.socket))
        client.wait_until_serving(30)
        beyond = stack.enter_context(CriClient(runtime.socket_path))
        for pod in (web, batch):
            stack.enter_context(running_pod(client, pod, folder, remover=beyond))
        stack.enter_context(kernel)
        stack.enter_context(manager)
        yield node


def faults_of(node: GuardedNode, kills: int) -> list[str]:
    """What is wrong with the values after kills of the manager, of the daemon, and changes."""
    faults: list[str] = []
    rest = node.wait_for_rest()
    if rest in ("", UNBOUNDED):
        faults.append(f"the guard rests at {rest}")
    begun = len(node.kernel.values)
    for _ in range(kills):
        node.kill_manager()
    node.kill_daemon()
    if node.kernel.values[begun:]:
        faults.append(f"killed at {rest}, the values went {node.kernel.values[begun - 1 :]}")
    for enable in (False, True, False):
        node.set_strategy(enable=enable)
    node.wait_for(UNBOUNDED)
    node.set_strategy(enable=True)
    if (again := node.wait_for_rest()) != rest:
        faults.append(f"on again it rests at {again}, not at {rest}")
    node.set_mode("dry-run")
    node.wait_for(UNBOUNDED)
    complaints = [line for line in node.manager.log if not line.startswith("{") or '"level":"error"' in line]
    return [*faults, *(f"manager: {line}" for line in complaints)]


def main(arguments: Sequence[str]) -> int:
    """Kills so often, and tells."""
    kills = int(arguments[0]) if arguments else 50
    folder = Path(tempfile.mkdtemp(prefix="guarded-", dir="/tmp"))
    try:
        with guarded_node(folder) as node:
            begun_s = time.monotonic()
            faults = faults_of(node, kills)
            print(f"{kills} kills in {time.monotonic() - begun_s:.0f} s; values {node.kernel.values}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(faults or ["all as it must be"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
