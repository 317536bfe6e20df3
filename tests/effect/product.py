"""The ways: what of the product runs beside a load, and what shows that it does."""

from __future__ import annotations

import contextlib
import os
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.effect.node import BE_CLASS, BE_POD_SHARES, CPUS, PRODUCT, Node, frozen
from tests.effect.results import Second
from tests.lab import cgroup_v1
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.lab.ports import free_port
from tests.lab.procfs import cpu_seconds
from tests.lab.proxy_process import ManagerProcess, ProxyOptions, ProxyProcess

UNLIMITED: Final = -1
MIN_QUOTA_US: Final = 1_000
"""Source: Linux kernel/sched/core.c, min_cfs_quota_period."""
DEFAULT_THRESHOLD_PERCENT: Final = 65
"""Source: Koordinator's default of cpuSuppressThresholdPercent."""
LEARNING_S: Final = 95.0
"""The guard wants 60 quiet seconds, and saves what it knows 90 s after its start."""
_NAME: Final = "effect"
_CONFIG: Final = """
[node]
name = "{name}"
kubelet_dir = "{kubelet}"

[plugins.cpu-guard]
mode = "enforce"
options = {{ folder = "{history}", metrics_listen = "127.0.0.1:{port}" }}
"""
_METRICS: Final = "koord_qos_manager_cpu_guard_"
_INTO_CGROUPS: Final = 'for file in {files}; do echo $$ >$file; done; exec "$@"'


@dataclass(frozen=True)
class Way:
    """What runs: `alone`, `nothing`, `suppress`, `protection`, `feedback`.

    With a number behind a colon: the threshold of `suppress` in percent, the target of `feedback` in ms/s.

    Or `watch`: a guard that changes nothing.

    Or one of `LEVERS`, without the product: to see what another law could reach. `bound`: a quota of the BE
    class in millicores; `cpus`: so many CPUs for it; `idle`: `cpu.idle` of the class itself; `idle-pods`: of
    its pods.
    """

    text: str

    @property
    def name(self) -> str:
        """Without the number."""
        return self.text.partition(":")[0]

    @property
    def number(self) -> float | None:
        """Behind the colon."""
        number = self.text.partition(":")[2]
        return float(number) if number else None

    @property
    def strategies(self) -> dict[str, Any]:
        """The keys of the ConfigMap; none: the product does not run."""
        if self.name == "suppress":
            strategy = {
                "enable": True,
                "cpuSuppressThresholdPercent": int(self.number or DEFAULT_THRESHOLD_PERCENT),
                "cpuSuppressPolicy": "cfsQuota",
            }
            return {"resource-threshold-config": {"clusterStrategy": strategy}}
        if self.name in ("protection", "feedback", WATCH):
            strategy = {
                "enable": True,
                "feedback": self.name == "feedback",
                "idlePods": self.name != WATCH,
            }
            if self.number is not None:
                strategy["targetPressureMilliseconds"] = int(self.number)
            return {"cpu-guard-config": {"clusterStrategy": strategy}}
        return {}


NAMES: Final = ("alone", "nothing", "suppress", "protection", "feedback")
BOUND: Final = "bound"
WATCH: Final = "watch"
LEVERS: Final = (BOUND, "cpus", "idle", "idle-pods")


def way(text: str) -> Way:
    """Reads a way. Raises ValueError."""
    found = Way(text)
    number = found.number
    takes_number = found.name in ("suppress", "feedback", BOUND, "cpus")
    if found.name not in (*NAMES, WATCH, *LEVERS) or (number is not None and not takes_number):
        raise ValueError(text)
    if found.name == BOUND and (number is None or number < MIN_QUOTA_US / 100):
        raise ValueError(text)
    if found.name in ("suppress", "feedback") and number is not None and not number.is_integer():
        raise ValueError(text)  # Strategies have whole numbers only.
    if found.name == "cpus" and (number is None or not 1 <= number <= CPUS):
        raise ValueError(text)
    return found


def be_quota_us() -> int:
    """The bound of the BE class in the kernel."""
    return int(cgroup_v1.read("cpu", BE_CLASS, "cpu.cfs_quota_us"))


@contextmanager
def bounded(millicores: int) -> Iterator[None]:
    """Bounds the BE class as far as this, of a period of 100 ms."""
    quota = cgroup_v1.file("cpu", BE_CLASS, "cpu.cfs_quota_us")
    quota.write_text(str(millicores * 100))
    try:
        yield
    finally:
        quota.write_text(str(UNLIMITED))


@contextmanager
def on_cpus(number: int) -> Iterator[None]:
    """Leaves the BE class so many CPUs."""
    _set_cpus(number, is_wider=False)
    try:
        yield
    finally:
        _set_cpus(CPUS, is_wider=True)


def _set_cpus(number: int, *, is_wider: bool) -> None:
    # Those of a cgroup are within those of its parent, at each moment.
    for folder, _, _ in os.walk(cgroup_v1.file("cpuset", BE_CLASS, ""), topdown=is_wider):
        (Path(folder) / "cpuset.cpus").write_text(f"0-{number - 1}")


@contextmanager
def idle_class() -> Iterator[None]:
    """Makes the BE class an idle one."""
    idle = cgroup_v1.file("cpu", BE_CLASS, "cpu.idle")
    shares = cgroup_v1.read("cpu", BE_CLASS, "cpu.shares")
    idle.write_text("1")
    try:
        yield
    finally:
        idle.write_text("0")
        cgroup_v1.file("cpu", BE_CLASS, "cpu.shares").write_text(shares)


@contextmanager
def idle_be_pods(node: Node) -> Iterator[None]:
    """Makes each BE pod an idle one, as the product does."""
    _set_idle(node, "1")
    try:
        yield
    finally:
        _set_idle(node, "0")
        for cgroup in node.batch:
            cgroup_v1.file("cpu", cgroup, "cpu.shares").write_text(str(BE_POD_SHARES))


def _set_idle(node: Node, text: str) -> None:
    for cgroup in node.batch:
        cgroup_v1.file("cpu", cgroup, "cpu.idle").write_text(text)


def lever(way: Way, node: Node) -> AbstractContextManager[None]:
    """What a way of `LEVERS` does."""
    if way.name == "idle":
        return idle_class()
    if way.name == "idle-pods":
        return idle_be_pods(node)
    number = int(way.number or 0)
    return bounded(number) if way.name == BOUND else on_cpus(number)


def idle_pods(node: Node) -> int:
    """How many BE pods yield to all others."""
    return sum(cgroup_v1.read("cpu", cgroup, "cpu.idle") == "1" for cgroup in node.batch)


def _left(node: Node) -> list[str]:
    """The values of BE pods that are not as they were before."""
    found = [] if be_quota_us() == UNLIMITED else [f"quota {be_quota_us()}"]
    for cgroup in node.batch:
        idle, shares = (cgroup_v1.read("cpu", cgroup, name) for name in ("cpu.idle", "cpu.shares"))
        if (idle, shares) != ("0", str(BE_POD_SHARES)):
            found.append(f"{cgroup}: idle {idle}, shares {shares}")
    return found


def _wrapper() -> tuple[str, ...]:
    files = (cgroup_v1.file(each, PRODUCT, "cgroup.procs") for each in ("cpu", "cpuacct"))
    return "sh", "-c", _INTO_CGROUPS.format(files=" ".join(map(str, files))), "sh"


class _Manager(ManagerProcess):
    @property
    def wrapper(self) -> tuple[str, ...]:
        return _wrapper()


class Product:
    """Both processes of the product, made anew for each time that they run; no value of theirs stays.

    Args:
        folder: For their files; what the guard learns stays there.
        node: The node.
    """

    def __init__(self, folder: Path, node: Node) -> None:
        self._node = node
        self._history = folder / "history"
        self._history.mkdir()
        kubelet_files(folder / "kubelet", {})
        self._port = free_port()
        config = _CONFIG.format(
            name=_NAME, kubelet=folder / "kubelet", history=self._history, port=self._port
        )
        options = ProxyOptions(str(node.runtime.socket), config=config, wrapper=_wrapper())
        self._daemon = ProxyProcess(folder, options)
        self._objects = NodeObjects(self._daemon.objects_folder, _NAME)
        self._objects.node(capacity={"cpu": str(CPUS), "memory": "4Gi"})
        self.problems: list[str] = []
        """What was left of the product's values, the last time."""
        self._manager = _Manager(folder, self._daemon.config_file, self._daemon.socket)

    @contextmanager
    def running(self, way: Way) -> Iterator[None]:
        """The product in this way, from when it acts to when its values are gone, or not: see `problems`."""
        self.problems = []
        # What another program has left is no part of a way.
        cgroup_v1.file("cpu", BE_CLASS, "cpu.cfs_quota_us").write_text(str(UNLIMITED))
        if way.name == "alone":
            with frozen():
                yield
            return
        if way.name in LEVERS:
            with lever(way, self._node):
                yield
            return
        if not way.strategies:
            yield
            return
        self._objects.strategies(way.strategies)
        self._daemon.start()
        try:
            self._manager.start()
            self._wait(way)
            yield
            self._objects.strategies({})
            self._wait_for_the_end()
        finally:
            self._end()

    def _wait(self, way: Way) -> None:
        if way.name == "suppress":
            self._until(lambda: be_quota_us() > 0, "a bound of the BE class")
        elif way.name == WATCH:
            self._until(lambda: bool(self.guard()), "a guard that answers")
        else:
            self._until(lambda: idle_pods(self._node) == len(self._node.batch), "BE pods that yield")
        if way.name == "feedback":
            self._until(lambda: self.guard().get("blind") == 0, "a guard that sees")

    def _wait_for_the_end(self) -> None:
        try:
            self._until(lambda: not _left(self._node), "the end of the product's values", 30)
        except TimeoutError as error:
            self.problems.append(f"{error}: {', '.join(_left(self._node))}")

    @property
    def has_history(self) -> bool:
        """Whether the guard has saved what is usual while BE pods are quiet."""
        return any(self._history.iterdir())

    def guard(self) -> dict[str, float]:
        """The guard's numbers; empty if it does not answer, or has none."""
        found: dict[str, float] = {}
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
            for line in lines:
                if line.startswith(_METRICS):
                    name, _, value = line.removeprefix(_METRICS).rpartition(" ")
                    found[name.partition("{")[0]] = float(value)
        return found

    def used_s(self) -> float:
        """CPU time of both processes so far."""
        return cpu_seconds(self._daemon.pid) + cpu_seconds(self._manager.pid)

    def close(self) -> None:
        """Ends what still runs."""
        self._manager.close()
        self._daemon.close()

    def _end(self) -> None:
        for each in (self._manager, self._daemon):
            with contextlib.suppress(RuntimeError):
                if each.alive():
                    each.terminate()

    def _until(self, condition: Any, what: str, timeout_s: float = 90.0) -> None:
        try:
            wait_until(condition, what, timeout_s)
        except TimeoutError:
            print(*self._daemon.log[-20:], *self._manager.log[-40:], sep="\n")
            raise


def way_problems(way: Way, node: Node, seconds: Sequence[Second]) -> list[str]:
    """Why these seconds were not in this way, by the values in the kernel and the guard's own numbers."""
    problems = []
    if not seconds:
        return ["no second was read"]
    bounded = sum(each.quota_us > 0 for each in seconds)
    idle = sum(each.idle_pods == len(node.batch) for each in seconds)
    blind = sum(each.guard.get("blind", 1) != 0 for each in seconds if each.guard is not None)
    wants_bound = {"suppress": True, BOUND: True, "feedback": None}.get(way.name, False)
    if wants_bound is not None and bounded != wants_bound * len(seconds):
        problems.append(f"BE pods were bounded in {bounded} of {len(seconds)} s")
    if idle != len(seconds) * (way.name in ("protection", "feedback", "idle-pods")):
        problems.append(f"all BE pods had cpu.idle in {idle} of {len(seconds)} s")
    if way.name == "feedback" and blind:
        problems.append(f"the guard was blind in {blind} of {len(seconds)} s")
    if way.name == "alone" and any(each.be_cores > 0.01 for each in seconds):
        problems.append("BE pods used CPU time")
    return problems
