"""Kills beside the QoS manager: of itself and of the daemon; and strategies that change again and again.

By its strategy the manager bounds the quota of all BE pods to a floor that does not depend on the load of the
machine: so the file of their QoS class must have one value all the time, and lose it when nothing renews it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from runtimeproxy.ledger.leases import LEASE_S
from runtimeproxy.testing import CgroupFiles
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.lab.proxy_process import ManagerProcess
from tests.restarts.figures import Window
from tests.restarts.load import Client
from tests.restarts.orders import Workers
from tests.restarts.proxy_restarts import Report, report_under_load
from tests.restarts.stands import Stand
from tests.restarts.supervisors import Kind, Supervisor, supervised

HOLD_S: Final = 3.0
FLIPS: Final = 10
"""Changes of the strategy one after the other; a restart of this kind is so many."""
_FLIP_PAUSE_S: Final = 0.03
_CORES: Final = 4
_PERCENTS: Final = (25, 50)
_UNBOUNDED: Final = "max"
_CLASS: Final = "/kubepods/besteffort"
_CONFIG: Final = """
[node]
kubelet_dir = "{kubelet}"
name = "node-a"
[owners.cpu-suppress]
hold_s = {hold_s}
[ledger]
openings = "off"
"""
"""The load is pods that start: each would lift the bound that is watched here."""
_TICK_S: Final = 0.01
_LATE_S: Final = 10.0
"""How much later than due a claim may end on a busy machine."""
_RESUMES_S: Final = 60.0


class ManagedKind(StrEnum):
    """What happens to a daemon with a manager."""

    MANAGER = "manager"
    MANAGED = "managed"
    STRATEGIES = "strategies"


MEANINGS: Final = {
    ManagedKind.MANAGER: "kill -9 of the QoS manager, and a new process",
    ManagedKind.MANAGED: "kill -9 of the daemon beside a QoS manager, with the same socket",
    ManagedKind.STRATEGIES: f"the strategy of the QoS manager changes {FLIPS} times",
}


@dataclass(frozen=True)
class ManagedReport:
    """What came out of it.

    Attributes:
        report: what clients have seen.
        values: of the file, in the order in which they came; from the first claim to the last restart.
        resumed_s: how long after each restart the manager had its claims again.
        ended_s: how long after the last renewal of its lease the value was gone; None: it has not gone.
        faults: what is wrong with values.
    """

    report: Report
    values: Sequence[str]
    resumed_s: Sequence[float]
    ended_s: float | None
    faults: Sequence[str]


class ManagedNode:
    """A daemon and a manager before a fake runtime; a supervisor that restarts one of them."""

    def __init__(self, kind: ManagedKind, stand: Stand, daemon: Supervisor, manager: ManagerProcess) -> None:
        self.kind = kind
        self.socket = daemon.socket
        self.manager = manager
        self.resumed_s: list[float] = []
        self._daemon = daemon
        self._file = stand.folder / "cgroup" / _CLASS.strip("/") / "cpu.max"
        self._objects = NodeObjects(stand.folder / "kill" / "node.d", "node-a")
        self._objects.node(capacity={"cpu": str(_CORES), "memory": "16Gi"})
        self._percent = _PERCENTS[0]
        self._values: list[str] = []
        self._watch_ends = threading.Event()
        self._watch = threading.Thread(target=self._watch_file)

    @property
    def bound(self) -> str:
        """The quota per 100 ms by the present strategy, as in the file."""
        return str(_CORES * self._percent * 1_000) if self._percent else _UNBOUNDED

    @property
    def values(self) -> list[str]:
        return list(self._values)

    def __enter__(self) -> Self:
        self.wait_for(self.bound)
        self._watch.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._watch_ends.set()
        self._watch.join()

    def set_strategy(self, percent: int) -> None:
        """Has the manager bound BE pods to this share of the node; 0: not at all."""
        self._percent = percent
        strategy = {
            "enable": percent > 0,
            "cpuSuppressPolicy": "cfsQuota",
            "cpuSuppressThresholdPercent": 1,
            "cpuSuppressMinPercent": percent or 1,
        }
        self._objects.strategies({"resource-threshold-config": {"clusterStrategy": strategy}})

    def restart(self) -> Window:
        """Restarts what this kind restarts, and waits until the manager has its claims again."""
        self.manager.forget_states()
        if self.kind is ManagedKind.STRATEGIES:
            return self._flip()
        if self.kind is ManagedKind.MANAGED:
            window = self._daemon.restart()
        else:
            begun = time.monotonic()
            self.manager.kill()
            self.manager.start()
            window = Window(begun, time.monotonic())
        self._wait_for_claims()
        self.resumed_s.append(time.monotonic() - window.ended)
        return window

    def complaints(self) -> list[str]:
        """The errors in the logs of all processes, and what is no record, such as a traceback."""
        lines = [f"manager: {line}" for line in self.manager.log if _is_complaint(line)]
        return [*self._daemon.complaints(), *lines]

    def kill_daemon(self) -> Window:
        """Kills and starts the daemon, whatever kind this is."""
        return self._daemon.restart()

    def wait_for(self, quota: str, timeout_s: float = _RESUMES_S) -> None:
        """Waits until the file has this quota. Raises TimeoutError."""
        wait_until(lambda: self._read() == quota, f"{quota} in {self._file.name}", timeout_s)

    def _flip(self) -> Window:
        begun = time.monotonic()
        for number in range(FLIPS):
            self.set_strategy((*_PERCENTS, 0)[number % 3])
            time.sleep(_FLIP_PAUSE_S)
        return Window(begun, time.monotonic())

    def _wait_for_claims(self) -> None:
        self.manager.wait_for_state("STATUS=cpu-suppress: 1 claims", _RESUMES_S)

    def _watch_file(self) -> None:
        while not self._watch_ends.wait(_TICK_S):
            value = self._read()
            if value and value != (self._values[-1] if self._values else ""):
                self._values.append(value)

    def _read(self) -> str:
        """The quota; empty while the file is being written."""
        return self._file.read_text().partition(" ")[0].strip()


def restarted_beside_manager(
    stand: Stand, kind: ManagedKind, restarts: int, clients: Sequence[Client]
) -> ManagedReport:
    """Restarts what the kind says under the load of all clients; then lets the claims end."""
    with _managed_node(stand, kind) as node:
        with node:
            report = report_under_load(stand, node, kind, restarts, clients)
            if kind is ManagedKind.STRATEGIES:
                faults = _wrong_ends(node)
                return ManagedReport(report, node.values, (), None, faults)
        values, ended_s = node.values, _ended_s(node)
    faults = [] if values == [node.bound] else [f"the values of the class were {values}, not {node.bound}"]
    whole_s = LEASE_S + HOLD_S
    # Less by the time that the claim was not renewed between two restarts, in steps of some seconds.
    if ended_s is None or not HOLD_S + LEASE_S / 3 <= ended_s <= whole_s + _LATE_S:
        faults.append(f"{ended_s} s without the manager until its claim ended, not {whole_s}")
    return ManagedReport(report, values, node.resumed_s, ended_s, faults)


def _wrong_ends(node: ManagedNode) -> list[str]:
    """What is wrong after the last change of the strategy, and after two more."""
    faults: list[str] = []
    for percent in (None, *_PERCENTS, 0):
        if percent is not None:
            node.set_strategy(percent)
        try:
            node.wait_for(node.bound)
        except TimeoutError as error:
            faults.append(f"strategy of {percent} %: {error}")
    return faults


def _ended_s(node: ManagedNode) -> float | None:
    """Seconds until the claim is gone without a manager; the daemon is killed too, if this kind does so."""
    node.manager.kill()
    begun = time.monotonic()
    if node.kind is ManagedKind.MANAGED:
        begun = node.kill_daemon().ended
    try:
        node.wait_for(_UNBOUNDED, LEASE_S + HOLD_S + 2 * _LATE_S)
    except TimeoutError:
        return None
    return time.monotonic() - begun


@contextmanager
def _managed_node(stand: Stand, kind: ManagedKind) -> Iterator[ManagedNode]:
    kubelet = stand.folder / "kubelet"
    kubelet_files(kubelet, {})
    # Before the daemon starts, as on a node.
    CgroupFiles(stand.folder / "cgroup", version=2).make(_CLASS)
    config = _CONFIG.format(kubelet=kubelet, hold_s=HOLD_S)
    options = replace(stand.proxy_options(), config=config)
    with ExitStack() as stack:
        daemon = stack.enter_context(supervised(Kind.KILL, stand.folder, options))
        folder = stand.folder / Kind.KILL
        manager = ManagerProcess(folder, folder / "config.toml", folder / "proxy.sock", options.environment)
        # Without any pod nothing is suppressed.
        stack.enter_context(stand.order(f"{kind}-resident", daemon.socket, Workers()))
        node = ManagedNode(kind, stand, daemon, manager)
        node.set_strategy(_PERCENTS[0])
        stack.enter_context(manager)
        yield node


def _is_complaint(line: str) -> bool:
    return not line.startswith("{") or '"level":"error"' in line
