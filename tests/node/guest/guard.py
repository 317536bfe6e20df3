"""A whole kubelet restarts while the CPU guard acts on its pods, on cgroup version 2, with either driver.

The kubelet's errors are compared with those of a run on containerd alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from cri_api.runtime.v1 import api_pb2
from tests.lab.cri_client import CriClient
from tests.lab.guarded_kubelet import CONFIG as GUARD
from tests.lab.guarded_kubelet import STRATEGIES, Report, Restarts, Weight
from tests.node.guest import kubelets
from tests.node.guest.cgroup_v2 import ROOT, Watch
from tests.node.guest.machine import (
    CONFIG,
    CONTAINERD,
    ENDPOINT,
    MANAGER,
    PATIENCE_S,
    PROGRAM,
    SERVICE,
    SHARED_UNITS,
    SOCKET_UNIT,
    UNITS,
    UnexpectedError,
    expect,
    run,
    systemctl,
    wait_for_status,
)
from tests.node.guest.node import Check, Node
from tests.node.guest.strategies import objects

VERSION = "1.37"
Driver = Literal["cgroupfs", "systemd"]
_CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
_HANDLERS: Mapping[Driver, str] = {"cgroupfs": "runc", "systemd": "systemd"}
_CLASSES: Mapping[Driver, Path] = {
    "cgroupfs": ROOT / "kubepods" / "besteffort",
    "systemd": ROOT / "kubepods.slice" / "kubepods-besteffort.slice",
}
_CLASS_IDLE = {
    **STRATEGIES,
    "cpu-guard-config": {
        "clusterStrategy": {**STRATEGIES["cpu-guard-config"]["clusterStrategy"], "classIdle": True}
    },
}
_SERVICES = ("system.slice", "CPUWeight=1000")
"""Pods work all the time: kubelet and runtime would have half of the slow CPUs. The kubelet gives all pods of
two CPUs a weight of 79. Source: kubelet pkg/kubelet/cm/node_container_manager_linux.go."""
_UID = "io.kubernetes.pod.uid"
_UNBOUNDED = "max"


@dataclass(frozen=True)
class Size:
    """How much a check does; `most` is how many pods stay."""

    restarts: int
    pods: int
    most: int

    def __str__(self) -> str:
        return f"{self.restarts} restarts, {self.pods} pods"


SIZES = (Size(2, 8, 6), Size(20, 100, 8))


class OnVersion2:
    """The node; see `tests.lab.guarded_kubelet.Stand`."""

    patience_s = 600.0
    pace_s = 1.0
    as_requested = Weight("0", "1")
    # Source: Linux 6.1 kernel/sched/core.c, cpu_weight_read_u64: scheduler weight 3 of 1024, x 100.
    as_idle = Weight("1", "0")

    def __init__(self, driver: Driver, endpoint: Path, log: Path) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._log = log
        self._class = _CLASSES[driver]

    def start_kubelet(self) -> None:
        config = {"cgroupDriver": self._driver}
        kubelets.start_kubelet(VERSION, config, self._log, self._endpoint)

    def stop_kubelet(self) -> None:
        kubelets.stop_kubelet()

    def kubelet_log(self) -> str:
        return self._log.read_text(errors="replace")

    def put(self, pod: dict[str, Any]) -> None:
        kubelets.put_pod(pod)

    def remove(self, name: str) -> None:
        kubelets.remove_pod(name)

    def running(self) -> set[str]:
        # Of containerd itself: the daemon may be gone.
        running = api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_RUNNING)
        request = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(state=running))
        with CriClient(CONTAINERD) as client:
            found = client.runtime.ListContainers(request, timeout=PATIENCE_S).containers
        return {each.labels[_UID] for each in found}

    def be_pods(self) -> dict[str, Weight]:
        begin = "pod" if self._driver == "cgroupfs" else "kubepods-besteffort-pod"
        found: dict[str, Weight] = {}
        for folder in self._class.glob(f"{begin}*/"):
            uid = folder.name.removeprefix(begin).removesuffix(".slice").replace("_", "-")
            with suppress(OSError):
                texts = ((folder / name).read_text().strip() for name in ("cpu.idle", "cpu.weight"))
                found[uid] = Weight(*texts)
        return found

    def is_bounded(self) -> bool:
        with suppress(OSError):
            return (self._class / "cpu.max").read_text().split()[0] != _UNBOUNDED
        return False

    def set_strategies(self, keys: Mapping[str, object]) -> None:
        objects().strategies(keys)

    def restore(self) -> None:
        systemctl("stop", MANAGER, SERVICE, SOCKET_UNIT)
        run(PROGRAM, "restore")
        systemctl("start", SOCKET_UNIT, SERVICE)


def no_error_of_its_own(driver: Driver, size: Size, _: Node) -> str:
    """On containerd alone and with the guard on: the kubelet has no error that it has not without."""
    with _handler(driver):
        _direct(driver, SIZES[0])
        with _guard(STRATEGIES):
            report = _run(driver, size, "guard", STRATEGIES)
        return _compared(report, driver, size)


def the_class_is_idle_again(size: Size, _: Node) -> str:
    """`classIdle` with the systemd driver: the kubelet's weights end it, it comes back, and the kubelet has
    no error that it has not without."""
    cgroup = _CLASSES["systemd"]
    with _handler("systemd"):
        _direct("systemd", SIZES[0])
        with _guard(_CLASS_IDLE):
            watch = Watch(cgroup, _idle)
            try:
                report = _run("systemd", size, "idle", _CLASS_IDLE)
            finally:
                watch.end()
        begun = watch.values.count("1")
        # At first, after each start of the kubelet, and after the strategy was gone.
        if begun < size.restarts + 2:
            raise UnexpectedError(f"cpu.idle of the class: {watch.values}")
        expect("cpu.idle of the class", _idle(cgroup), "0")
        return f"{begun} times idle; {_compared(report, 'systemd', size)}"


def _idle(cgroup: Path) -> str:
    with suppress(OSError):
        return (cgroup / "cpu.idle").read_text().strip()
    return ""


def _compared(report: Report, driver: Driver, size: Size) -> str:
    """The report beside runs on containerd alone. Raises UnexpectedError if something is wrong.

    A short run has most of the kubelet's own errors, and one of the same size is made for the others only: it
    takes as long as that with the guard.
    """
    direct = _direct(driver, SIZES[0])
    if report.faults(direct) and size != SIZES[0]:
        whole = _direct(driver, size)
        direct = replace(whole, errors=direct.errors | whole.errors)
    faults = report.faults(direct)
    if faults:
        raise UnexpectedError("; ".join(faults))
    return "; ".join(report.lines(direct))


@cache
def _direct(driver: Driver, size: Size) -> Report:
    """On containerd alone; once for all checks."""
    return _run(driver, size, "direct", None)


def _run(driver: Driver, size: Size, way: str, strategies: Mapping[str, object] | None) -> Report:
    """With the guard and these strategies; None: on containerd alone."""
    log = kubelets.LOGS / f"kubelet-{driver}-{size.pods}-{way}.log"
    stand = OnVersion2(driver, CONTAINERD if strategies is None else ENDPOINT, log)
    restarts = Restarts(
        stand,
        size.restarts,
        size.pods,
        size.most,
        is_guarded=strategies is not None,
        strategies=strategies or {},
    )
    try:
        return restarts.run()
    finally:
        stand.stop_kubelet()
        kubelets.remove_all_pods()


@contextmanager
def _handler(driver: Driver) -> Iterator[None]:
    """Debian's containerd with the driver's handler for all pods; services come before pods."""
    systemctl("disable", "--now", SOCKET_UNIT, SERVICE)
    systemctl("set-property", "--runtime", *_SERVICES)
    before = _CONTAINERD_CONFIG.read_text()
    section = '[plugins."io.containerd.grpc.v1.cri".containerd]\n'
    _CONTAINERD_CONFIG.write_text(f'{before}{section}  default_runtime_name = "{_HANDLERS[driver]}"\n')
    try:
        _restart_containerd()
        yield
    finally:
        _CONTAINERD_CONFIG.write_text(before)
        _restart_containerd()


def _restart_containerd() -> None:
    systemctl("restart", "containerd.service")
    with CriClient(CONTAINERD) as client:
        client.wait_until_serving(PATIENCE_S)


@contextmanager
def _guard(strategies: Mapping[str, object]) -> Iterator[None]:
    """Daemon and QoS manager with the strategies."""
    run("install", "-m", "0644", SHARED_UNITS / MANAGER, UNITS)
    systemctl("daemon-reload")
    before = CONFIG.read_text()
    CONFIG.write_text(GUARD)
    folder = objects()
    folder.node(capacity={"cpu": "2", "memory": "3Gi"})
    folder.strategies(strategies)
    try:
        systemctl("start", SOCKET_UNIT, SERVICE, MANAGER)
        wait_for_status("cpu-guard: ", MANAGER)
        yield
    finally:
        systemctl("stop", MANAGER, SERVICE, SOCKET_UNIT)
        CONFIG.write_text(before)
        folder.strategies({})


def _checks(size: Size) -> Iterator[Check]:
    for driver in _HANDLERS:
        yield Check(f"guard, {driver} driver: {size}", partial(no_error_of_its_own, driver, size))


CHECKS = (
    *_checks(SIZES[0]),
    Check(f"guard, systemd driver, classIdle: {SIZES[0]}", partial(the_class_is_idle_again, SIZES[0])),
    *_checks(SIZES[1]),
)
