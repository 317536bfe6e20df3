"""Pods come and go, and the daemon or the runtime is restarted meanwhile."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import grpc

from tests.lab import cgroup_v1
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.restarts.nri.lab import KINDS, Kind, Lab

RIGHT_S: Final = 2.0
"""How long after the return of the runtime's socket, or the daemon's start, all values have to be right."""
UNDER_RESTARTS: Final = 12
"""Pods that are there while something is restarted."""
_PATIENCE_S: Final = 180.0
_PACE_S: Final = 0.05
_LISTENS: Final = "00010000"
"""Flags of a listening socket in /proc/net/unix. Source: the kernel's __SO_ACCEPTCON."""


class Event(StrEnum):
    """What happens while pods come and go."""

    NOTHING = "nothing"
    KILL = "kill"
    SIGTERM = "sigterm"
    RUNTIME = "runtime"


@dataclass
class Turnover:
    """Keeps some pods there: adds one for each that has ended, and takes away the oldest that run.

    Attributes:
        most: How many there are at a time.
        total: How many in all; None: until `stop`.
        begun: How many were added.
        ended: How many are gone with their cgroups.
        first: Values that were wrong when a container was first seen to run.
    """

    lab: Lab
    most: int
    total: int | None = None
    begun: int = 0
    ended: int = 0
    first: list[str] = field(default_factory=list)
    _there: deque[tuple[Kind, str]] = field(default_factory=deque)
    _ending: list[tuple[Kind, str]] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _is_stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.is_over:
            with suppress(grpc.RpcError):
                self._turn()
            time.sleep(_PACE_S)

    def stop(self) -> None:
        """Adds no more, and takes all away."""
        self._is_stopped.set()

    @property
    def is_over(self) -> bool:
        is_last = self._is_stopped.is_set() or self.begun == self.total
        return is_last and not self._there and not self._ending

    def _turn(self) -> None:
        running = self.lab.containers()
        new = {uid: identity for uid, identity in running.items() if identity not in self._seen}
        self.first += self.lab.wrong(new)
        self._seen.update(new.values())
        gone = [
            (kind, name)
            for kind, name in self._ending
            if not cgroup_v1.file("cpu", kind.pod_cgroup(f"{name}-uid"), "").is_dir()
        ]
        self._ending = [each for each in self._ending if each not in gone]
        self.ended += len(gone)
        is_last = self._is_stopped.is_set() or self.begun == self.total
        ready = sum(f"{name}-uid" in running for _, name in self._there)
        while self._there and f"{self._there[0][1]}-uid" in running and (is_last or ready > self.most // 2):
            kind, name = self._there.popleft()
            self.lab.kubelet.remove(name)
            self._ending.append((kind, name))
            ready -= 1
        while not is_last and len(self._there) + len(self._ending) < self.most:
            kind = KINDS[self.begun % len(KINDS)]
            pod = kind.pod(self.begun)
            self.lab.kubelet.put(pod)
            self._there.append((kind, pod["metadata"]["name"]))
            self.begun += 1
            is_last = self.begun == self.total


@dataclass
class Report:
    """What came out.

    Attributes:
        pods: How many have come and gone.
        seconds: How long all took.
        first: Values that were wrong when a container was first seen to run.
        right_s: By restart, how long after it all values were right.
        reasons: The kubelet's failed calls by method and text.
        complaints: Errors in the daemon's log.
    """

    event: Event
    pods: int
    seconds: float
    first: Sequence[str]
    right_s: Sequence[float]
    reasons: Counter[str]
    complaints: Sequence[str]


def turned_over(lab: Lab, total: int, most: int) -> Report:
    """Pods come and go, and nothing is restarted."""
    turnover, began = Turnover(lab, most, total), time.monotonic()
    turnover.run()
    seconds = time.monotonic() - began
    return Report(Event.NOTHING, turnover.ended, seconds, turnover.first, (), reasons(lab), lab.complaints())


def restarted(lab: Lab, event: Event, restarts: int, most: int = UNDER_RESTARTS) -> Report:
    """Restarts something while pods come and go; each time waits until all values are right."""
    turnover, began, right_s = Turnover(lab, most), time.monotonic(), list[float]()
    thread = threading.Thread(target=turnover.run, daemon=True)
    thread.start()
    wait_until(lambda: turnover.ended > 0, "the first pod's end", _PATIENCE_S)
    for _ in range(restarts):
        begun = turnover.begun

        def has_begun(before: int = begun) -> bool:
            return turnover.begun > before

        returned = _RESTARTS[event](lab)
        right_s.append(_right_s(lab, returned))
        wait_until(has_begun, "more pods", _PATIENCE_S)
    turnover.stop()
    thread.join()
    seconds = time.monotonic() - began
    # What was created while the plugin was away has other values at first.
    first = turnover.first if lab.daemon is None else ()
    return Report(event, turnover.ended, seconds, first, right_s, reasons(lab), lab.complaints())


def _kill(lab: Lab) -> float:
    daemon = lab.daemon
    assert daemon is not None
    daemon.kill()
    return _started(daemon)


def _sigterm(lab: Lab) -> float:
    daemon = lab.daemon
    assert daemon is not None
    if (code := daemon.terminate()) != 0:
        raise ChildProcessError(f"exit code {code} after SIGTERM")
    return _started(daemon)


def _started(daemon: ProxyProcess) -> float:
    daemon.forget_states()
    daemon.start()
    return time.monotonic()


def _restart_runtime(lab: Lab) -> float:
    lab.runtime.kill()
    returned: list[float] = []

    def watch() -> None:
        wait_until(lambda: _is_listening(lab.runtime.nri_socket), "NRI's socket", _PATIENCE_S)
        returned.append(time.monotonic())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    lab.runtime.start()
    thread.join()
    return returned[0]


def _is_listening(path: Path) -> bool:
    lines = Path("/proc/net/unix").read_text().splitlines()
    return any(line.endswith(f" {path}") and f" {_LISTENS} " in line for line in lines)


_RESTARTS: Final[Mapping[Event, Callable[[Lab], float]]] = {
    Event.KILL: _kill,
    Event.SIGTERM: _sigterm,
    Event.RUNTIME: _restart_runtime,
}


def _right_s(lab: Lab, since: float) -> float:
    """How long after a moment the values of all containers that run were right."""
    if lab.daemon is None:
        return 0.0
    wrong: list[str] = []

    def are_right() -> bool:
        wrong[:] = lab.wrong(lab.containers(), was_away=True)
        return not wrong

    try:
        wait_until(are_right, "right values", _PATIENCE_S)
    except TimeoutError:
        raise AssertionError(f"not right: {wrong[:10]}") from None
    return time.monotonic() - since


_VARIABLE: Final = re.compile(r'\\?"[^"\\]*\\?"|[0-9a-f]{12,}|/\S+|\d+')
_FAILED: Final = re.compile(r'"(\w+)[^"]* from runtime service failed" err=(?:"(.*?[^\\])"|<\n\t(.*)\n)')


def reasons(lab: Lab) -> Counter[str]:
    """The kubelet's failed calls by method and text, without what differs from call to call.

    Source: k8s.io/cri-client pkg/remote_runtime.go.
    """
    found = _FAILED.findall(lab.kubelet.log)
    return Counter(f"{method}: {_VARIABLE.sub('*', text or lines)}" for method, text, lines in found)
