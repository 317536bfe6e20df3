"""The QoS manager's claims go back to what the kubelet asked for, on either cgroup version."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.lab import cgroup_v1
from tests.lab.deadline import wait_until
from tests.node.guest.cgroup_v2 import ROOT
from tests.node.guest.machine import (
    CONFIG,
    MANAGER,
    PATIENCE_S,
    PROGRAM,
    SERVICE,
    SOCKET_UNIT,
    UnexpectedError,
    expect,
    run,
    systemctl,
)
from tests.node.guest.node import Check, Node
from tests.node.guest.pods import BATCH
from tests.node.guest.qos_manager import THRESHOLD, wait_for_claims
from tests.node.guest.strategies import objects

CLASS = "/kubepods/besteffort"


class Limits(NamedTuple):
    """Quota in microseconds, and the CPUs that processes may run on."""

    quota: str
    cpus: str


_LOWERS = "[ledger]\nlower_memory_limits = true\n"

BOUND = (Limits("50000", "1"), Limits("max", "1"), Limits("max", "1"))
"""Of class, pod and container: a quarter of the two CPUs, and none of the LSE pod's."""
FREE = (Limits("max", "0-1"),) * 3


def limits(cgroup: str) -> Limits:
    """Those of a cgroup on the version of this node."""
    if (ROOT / "cgroup.controllers").exists():
        folder = ROOT / cgroup.lstrip("/")
        quota = (folder / "cpu.max").read_text().split()[0]
        return Limits(quota, (folder / "cpuset.cpus.effective").read_text().strip())
    quota = cgroup_v1.read("cpu", cgroup, "cpu.cfs_quota_us")
    cpus = cgroup_v1.read("cpuset", cgroup, "cpuset.cpus")
    return Limits("max" if quota == "-1" else quota, cpus)


def limits_of(node: Node, title: str) -> tuple[Limits, ...]:
    """Those of the best-effort class, of a pod and of its container."""
    pod = node.pods[title]
    parent = pod.spec.cgroup_parent
    return limits(CLASS), limits(parent), limits(f"{parent}/{pod.container_id}")


def are_bound(node: Node, title: str = BATCH.title) -> str:
    """The strategy bounds all BE pods: waits for it."""
    objects().strategies({"resource-threshold-config": {"clusterStrategy": THRESHOLD}})
    try:
        wait_until(lambda: limits_of(node, title) == BOUND, "the bound", PATIENCE_S)
    except TimeoutError:
        raise UnexpectedError(f"{limits_of(node, title)} instead of {BOUND}") from None
    return f"{CLASS}: {BOUND[0]}; {wait_for_claims()}"


def go_back(node: Node, program: Path = PROGRAM, title: str = BATCH.title) -> str:
    """Both are stopped, and the bound is there; `restore` ends it, and finds nothing more then."""
    systemctl("stop", MANAGER, SERVICE, SOCKET_UNIT)
    expect("limits, all stopped", limits_of(node, title), BOUND)
    run(program, "restore", "--dry-run")
    expect("limits after the dry run", limits_of(node, title), BOUND)
    printed = run(program, "restore")
    expect("limits after restore", limits_of(node, title), FREE)
    expect("a second restore", run(program, "restore"), "nothing to restore")
    lines = (" ".join(line.split()) for line in printed.splitlines())
    return next(line for line in lines if line.startswith(f"{CLASS} cpuset.cpus "))


def start_again(node: Node) -> str:
    """Daemon and manager are started, and the bound is there again.

    Memory limits, which restore has taken away, fall again where that is allowed: later checks look at them.
    """
    CONFIG.write_text(_LOWERS)
    systemctl("start", SOCKET_UNIT, SERVICE, MANAGER)
    return are_bound(node)


def go_back_after_a_start(node: Node) -> str:
    """Started, the bound is there again, and goes back as before."""
    start_again(node)
    return go_back(node)


CHECKS = (
    Check("QoS manager: restore gives its claims back", go_back),
    Check("QoS manager: restore, start, restore", go_back_after_a_start),
)
STARTED_AGAIN = Check("QoS manager: started again after restore", start_again)
BOUND_FIRST = Check("QoS manager: BE pods are bounded", are_bound)
