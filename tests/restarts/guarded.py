"""Kills beside the CPU guard: of the manager and of the daemon; and strategies that change.

`python -m tests.restarts.guarded [KILLS]` (50) kills the manager so often while a bound is held, then the
daemon, then switches the guard to dry-run, off and on, and ends with 1 if a value was not as it must be. The
runtime is the fake one, its cgroups are plain files, and a thread writes there what a kernel would count: a
guarded pod waits four times as long as it may while BE pods use more than 1.2 CPUs, else 0.85 of that.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Self

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.commands.explain import show_explanation
from runtimeproxy.commands.output import Page
from runtimeproxy.commands.status import show_status
from runtimeproxy.qosmanager.status import lines
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, PodCgroups, RuntimeState
from tests.e2e.koordinator import qos
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
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
_ENOUGH: Final = 1.2
"""CPUs of BE pods, from which on the guarded pod waits too long."""
_BOUND_US: Final = range(20_000, 120_001)
"""In 100 ms: from the least floor to what is enough. On a busy machine files are counted up unevenly."""
_ASKED_MS: Final = 1
"""By the pod's annotation."""
_TARGET_MS: Final = 5
"""The least that an annotation gets."""
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
            waited_us += elapsed_us * _TARGET_MS / 1_000 * (4.0 if cores > _ENOUGH else 0.85)
            self._write(self._guarded, used_us, waited_us)
            self._write(_CLASS, be_us, be_us)

    def _write(self, cgroup: str, used_us: float, waited_us: float) -> None:
        folder = self._files.folder(cgroup)
        texts = (
            f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={int(waited_us)}" for kind in ("some", "full")
        )
        _replace(folder / "cpu.pressure", "\n".join(texts))
        counts = f"usage_usec {int(used_us)}\nuser_usec 0\nsystem_usec 0"
        _replace(folder / "cpu.stat", f"{counts}\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0")


def _replace(file: Path, content: str) -> None:
    """In one write, of no less bytes than before: the manager keeps the file open."""
    with file.open("r+b", buffering=0) as opened:
        opened.write(f"{content}\n".encode())


class Values(NamedTuple):
    """What the guard changes, in the kernel's files."""

    quota: str
    """Of the class of BE pods."""
    idle: str
    """Of the BE pod."""
    weight: str


AS_BEFORE: Final = Values(UNBOUNDED, "0", "100")
"""Without the guard."""


class GuardedNode:
    """A daemon and a manager with the guard, before a fake runtime with a guarded pod and a BE pod."""

    def __init__(
        self,
        folder: Path,
        daemon: ProxyProcess,
        manager: ManagerProcess,
        kernel: CountingKernel,
        files: CgroupFiles,
        batch: PodSpec,
    ) -> None:
        self.daemon = daemon
        self.manager = manager
        self.kernel = kernel
        self._folder = folder
        self._files = files
        self._batch = batch
        self._objects = NodeObjects(daemon.objects_folder, "node-a")
        self._objects.node(capacity={"cpu": str(CORES), "memory": "16Gi"})

    def set_strategy(self, *, enable: bool) -> None:
        """Switches the guard on or off."""
        self._objects.strategies({"cpu-guard-config": {"clusterStrategy": {"enable": enable}}})

    def set_mode(self, mode: str) -> None:
        """Has the manager read the configuration again, with this mode of the plugin."""
        self.daemon.config_file.write_text(config(self._folder, mode))
        self.manager.signal(signal.SIGHUP)

    def values(self) -> Values:
        """As the files have them now; one that is being written is empty."""
        idle, weight = (
            self._files.read(self._batch.cgroup_parent, name) for name in ("cpu.idle", "cpu.weight")
        )
        return Values(self.kernel.quota(), idle, weight)

    def whole_values(self) -> Values:
        """The values at a moment at which none of them is being written."""

        def found() -> Values | None:
            values = self.values()
            return values if all(values) else None

        return wait_until(found, "values that are whole")

    def wait_for(self, expected: Values) -> None:
        wait_until(lambda: self.values() == expected, f"{expected}; {self.manager.log[-5:]}", _TIMEOUT_S)

    def wait_for_bound(self) -> Values:
        """Waits until BE pods have a bound, and yield; returns the values."""

        def found() -> Values | None:
            values = self.values()
            is_bounded = values.quota not in ("", UNBOUNDED) and self.kernel.values[-1:] == [values.quota]
            return values if is_bounded and values.idle == "1" else None

        return wait_until(found, "a bound and a pod that yields", _TIMEOUT_S)

    def wait_for_rest(self, bound: str) -> None:
        """Waits until a manager says that this bound is right, by samples of its own."""
        millicores = int(bound) // 100
        while f"{millicores}m is right: it stays" not in self.manager.wait_for_state("STATUS=", _TIMEOUT_S):
            continue

    def kill_manager(self, *, is_early: bool = False) -> None:
        """Kills the manager, and waits until the next one has the claims, or has decided by them, too."""
        before = self._owner().session
        self.manager.kill()
        self.manager.forget_states()
        self.manager.start()
        self._wait_for_session(before)
        if is_early:
            return
        while "cpu-guard: 2 claims" not in self.manager.wait_for_state("STATUS=", _TIMEOUT_S):
            continue

    def kill_daemon(self) -> None:
        """Kills the daemon, and waits until the manager renews its claims again."""
        self.daemon.kill()
        self.daemon.start()
        wait_until(
            lambda: self._owner().state == api_pb2.ClaimOwner.STATE_LEASED, "a lease of claims", _TIMEOUT_S
        )

    def _wait_for_session(self, before: str) -> None:
        wait_until(lambda: self._owner().session not in ("", before), "another session", _TIMEOUT_S)

    def _owner(self) -> api_pb2.ClaimOwner:
        owners = (each for each in self.status().claim_owners if each.name == "cpu-guard")
        return next(owners, api_pb2.ClaimOwner())

    def claims(self) -> int:
        """How many the daemon has of the guard: the bound, and that the BE pod yields."""
        return self._owner().claims

    def status(self) -> api_pb2.GetStatusResponse:
        with self._api() as api:
            return api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)

    def explained(self, pod: str) -> str:
        """As `explain` prints it."""
        with self._api() as api:
            found = api.Explain(api_pb2.ExplainRequest(pod=pod), timeout=CALL_TIMEOUT_S)
        file = io.StringIO()
        show_explanation(found, Page(file))
        return file.getvalue()

    @contextmanager
    def _api(self) -> Iterator[api_pb2_grpc.RuntimeProxyStub]:
        with CriClient(self.daemon.socket) as client:
            yield api_pb2_grpc.RuntimeProxyStub(client.channel)


def shown_status(status: api_pb2.GetStatusResponse) -> tuple[str, str]:
    """What the commands `status` of the daemon and of the manager print."""
    file, now = io.StringIO(), datetime.now(UTC)
    show_status(status, Page(file), now)
    return file.getvalue(), "\n".join(lines(status.qos_manager, now))


def config(folder: Path, mode: str = "enforce") -> str:
    """The configuration of daemon and manager."""
    return _CONFIG.format(kubelet=folder / "kubelet", mode=mode)


@contextmanager
def guarded_node(folder: Path) -> Iterator[GuardedNode]:
    """Runs all of it in a folder, whose path must be short."""
    kernel_files = {"cgroup.controllers": "cpu memory", "cpu.pressure": "", "cpu.stat": ""}
    files = CgroupFiles(folder / "cgroup", version=2, more=kernel_files)
    files.make(_CLASS)
    kubelet_files(folder / "kubelet", {})
    state = RuntimeState(
        PodCgroups(CgroupDriver.CGROUPFS, files), clock_ns=lambda: time.time_ns() - _PODS_AGE_NS
    )
    target = json.dumps({"targetPressureMilliseconds": _ASKED_MS})
    web = PodSpec("web", "burstable", qos("LS"), {"koordinator.sh/cpuGuard": target})
    batch = PodSpec("batch", "besteffort", qos("BE"))
    environment = {"KOORD_RUNTIMEPROXY_CGROUPS_ROOT": str(files.root)}
    own = folder / "d"
    own.mkdir()
    with ExitStack() as stack:
        runtime = stack.enter_context(FakeRuntime(folder / "runtime.sock", state=state))
        options = ProxyOptions(
            str(runtime.socket_path), config=config(folder), environment=environment, is_forked=True
        )
        daemon = ProxyProcess(own, options)
        manager = ManagerProcess(own, daemon.config_file, daemon.socket, environment, is_forked=True)
        kernel = CountingKernel(files, web.cgroup_parent)
        node = GuardedNode(folder, daemon, manager, kernel, files, batch)
        node.set_strategy(enable=True)
        client = stack.enter_context(CriClient(runtime.socket_path))
        for pod in (web, batch):
            # Before the daemon, which so takes their age from the runtime: young ones drive nothing.
            stack.enter_context(running_pod(client, pod, folder))
        stack.enter_context(kernel)
        stack.enter_context(daemon)
        stack.enter_context(manager)
        yield node


def faults_after_kills(node: GuardedNode, kills: int) -> list[str]:
    """What is wrong with the values while the manager and the daemon are killed."""
    faults: list[str] = []
    bounded = node.wait_for_bound()
    if int(bounded.quota) not in _BOUND_US:
        faults.append(f"the guard bounds to {bounded.quota}")
    begun = len(node.kernel.values) - 1
    for number in range(kills):
        node.kill_manager(is_early=number % 2 == 0)
    node.kill_daemon()
    quotas = node.kernel.values[begun:]
    # A manager that lives for some seconds may decrease the bound.
    if UNBOUNDED in quotas or sorted(map(int, quotas), reverse=True) != list(map(int, quotas)):
        faults.append(f"killed at {bounded}, the quotas went {quotas}")
    if (now := node.whole_values())[1:] != bounded[1:]:
        faults.append(f"killed at {bounded}, the values are {now}")
    if (claims := node.claims()) != 2:
        faults.append(f"{claims} claims are left")
    complaints = [line for line in node.manager.log if not line.startswith("{") or '"level":"error"' in line]
    return [*faults, *(f"manager: {line}" for line in complaints)]


def switch_off(node: GuardedNode) -> None:
    """By the strategy, after some changes; waits until all values are given back."""
    for enable in (False, True, False):
        node.set_strategy(enable=enable)
    node.wait_for(AS_BEFORE)


def switch_to_dry_run(node: GuardedNode) -> None:
    """And back; waits until values are given back, and BE pods yield again: a bound needs samples."""
    node.set_mode("dry-run")
    node.wait_for(AS_BEFORE)
    node.set_mode("enforce")
    node.wait_for(AS_BEFORE._replace(idle="1"))


def main(arguments: Sequence[str]) -> int:
    """Kills so often, and tells."""
    kills = int(arguments[0]) if arguments else 50
    folder = Path(tempfile.mkdtemp(prefix="guarded-", dir="/tmp"))
    try:
        with guarded_node(folder) as node:
            begun_s = time.monotonic()
            bounded = node.wait_for_bound()
            node.wait_for_rest(bounded.quota)
            print("\n".join(shown_status(node.status())), node.explained("web"), node.explained("batch"))
            faults = faults_after_kills(node, kills)
            switch_to_dry_run(node)
            switch_off(node)
            node.set_strategy(enable=True)
            again = node.wait_for_bound()
            node.wait_for_rest(again.quota)
            print(f"{kills} kills in {time.monotonic() - begun_s:.0f} s; values {node.kernel.values}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(faults or ["all as it must be"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
