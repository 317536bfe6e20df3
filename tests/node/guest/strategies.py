"""Strategies of running pods on cgroup v2 and systemd: values in the kernel's files, and the way back."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.e2e.values import MIB
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.node.guest.cgroup_v2 import ROOT
from tests.node.guest.machine import CONFIG, PATIENCE_S, SERVICE, Journal, UnexpectedError, systemctl
from tests.node.guest.node import Check, Node, Pod

_OBJECTS = Path("/etc/koord-runtime-proxy/node.d")
_KUBELET = Path("/var/lib/kubelet")
_CONFIG = """
[policies.cpu-normalization]
enabled = true
[policies.memory-qos]
enabled = true
"""
_MEMORY = {"memoryQOS": {"enable": True, "minLimitPercent": 25, "lowLimitPercent": 50}}
_KEYS = {
    "cpu-burst-config": {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 50}},
    "cpu-normalization-config": {"enable": True, "defaultRatio": 1.25},
    "resource-qos-config": {"clusterStrategy": {"lsClass": _MEMORY, "beClass": _MEMORY}},
}
_REQUEST_MIB = 32
_BATCH_MIB = 64
"""The batch memory that `pods.BATCH` requests."""
_HOLDS_A_VALUE = re.compile(
    r"^(cpu\.(idle|max|max\.burst|weight)|cpuset\.(cpus|mems)|memory\.(high|low|max|min|oom\.group))$"
)
"""Files that policies may write; systemd and the runtime change others at a daemon-reload."""
_SLICES = "BE in slices"
_TIMES = 4
"""More often than another writer's values are repaired."""

Texts = dict[str, str]


def objects() -> NodeObjects:
    """The folder of Kubernetes objects, as an administrator fills it."""
    return NodeObjects(_OBJECTS, node_name=socket.gethostname())


def _texts(node: Node) -> Texts:
    """The files that hold values, of all pods with their containers and of the directories above them."""
    folders = {ROOT / "kubepods", ROOT / "kubepods.slice"}
    for pod in node.pods.values():
        folders |= {pod.cgroup, pod.container_cgroup, pod.cgroup.parent}
    found: Texts = {}
    for file in sorted(file for folder in folders for file in folder.iterdir()):
        if _HOLDS_A_VALUE.search(file.name):
            found[str(file)] = file.read_text()
    return found


def _wait_for(texts: Callable[[], Texts], wanted: Mapping[str, str], what: str) -> None:
    """Waits until these files hold what is wanted; says which did not."""
    differing: Texts = {}

    def hold() -> bool:
        found = texts()
        differing.clear()
        differing.update(
            {
                path: f"{found.get(path)!r}, not {text!r}"
                for path, text in wanted.items()
                if found.get(path) != text
            }
        )
        return not differing

    try:
        wait_until(hold, what, PATIENCE_S)
    except TimeoutError:
        raise UnexpectedError(f"{what}: {len(differing)} files: {differing}") from None


def _wanted(node: Node) -> Texts:
    """The values of `_KEYS`, of the LS pod (resized to two CPUs) and of the BE pod in slices."""
    burst, quota = 200_000 // 2, 200_000 * 4 // 5
    wanted: Texts = {}
    for cgroup in (node.pods["LS"].cgroup, node.pods["LS"].container_cgroup):
        wanted[f"{cgroup}/memory.min"] = f"{_REQUEST_MIB * MIB // 4}\n"
        wanted[f"{cgroup}/memory.low"] = f"{_REQUEST_MIB * MIB // 2}\n"
    container = node.pods["LS"].container_cgroup
    wanted[f"{container}/cpu.max"] = f"{quota} 100000\n"
    wanted[f"{container}/cpu.max.burst"] = f"{burst}\n"
    return wanted | _wanted_in_slices(node.pods[_SLICES])


def _wanted_in_slices(pod: Pod) -> Texts:
    wanted: Texts = {}
    for cgroup in (pod.cgroup, pod.container_cgroup):
        # runc rounds quotas under systemd up to a whole percent, and 40000 is one.
        wanted[f"{cgroup}/cpu.max"] = "40000 100000\n"
        wanted[f"{cgroup}/memory.min"] = f"{_BATCH_MIB * MIB // 4}\n"
        wanted[f"{cgroup}/memory.low"] = f"{_BATCH_MIB * MIB // 2}\n"
    return wanted


def a_strategy_comes(node: Node) -> str:
    """The ConfigMap is pasted while pods run: containers, pods and QoS classes have the values."""
    _KUBELET.mkdir(exist_ok=True)
    kubelet_files(_KUBELET, {(node.pods["LS"].spec.uid, "main"): {"memory": f"{_REQUEST_MIB}Mi"}})
    CONFIG.write_text(_CONFIG)
    systemctl("reload", SERVICE)
    node.before = _texts(node)
    folder = objects()
    folder.node(capacity={"cpu": "2", "memory": "3Gi"})
    folder.strategies(_KEYS)
    wanted = _wanted(node)
    _wait_for(lambda: _texts(node), wanted, "the strategy's values")
    return f"{len(wanted)} files, such as LS: {_shown(node.pods['LS'])}"


def daemon_reload_is_put_right(node: Node) -> str:
    """systemd writes the cgroups of all its units again."""
    for _ in range(_TIMES):
        systemctl("daemon-reload")
        _wait_for(lambda: _texts(node), _wanted(node), "the values after daemon-reload")
    return f"{_TIMES} times"


def set_property_is_put_right(node: Node) -> str:
    """A change of one property of a pod's slice makes systemd write all of them."""
    pod, journal = node.pods[_SLICES], Journal()
    unit = pod.cgroup.name
    # A quota of the unit's own is another writer's, whose first values are repaired.
    changes = [f"TasksMax={1000 + number}" for number in range(_TIMES)]
    for change in (*changes, "CPUQuota=50%", "CPUQuota="):
        systemctl("set-property", "--runtime", unit, change)
        _wait_for(lambda: _texts(node), _wanted_in_slices(pod), "the values after set-property")
    # Later checks find the unit without properties of its own.
    systemctl("revert", unit)
    _wait_for(lambda: _texts(node), _wanted_in_slices(pod), "the values after revert")
    return f"{_TIMES} times; {len(journal.lines())} lines of the journal"


def a_restart_keeps_the_originals(node: Node) -> str:
    """`systemctl restart` while strategies count."""
    systemctl("restart", SERVICE)
    _wait_for(lambda: _texts(node), _wanted(node), "the values after a restart")
    return "the values are there"


def the_strategy_goes(node: Node) -> str:
    """Withdrawn: every file has its text of before, byte for byte."""
    objects().strategies({})
    _wait_for(lambda: _texts(node), node.before, "the texts of before")
    if extra := _texts(node).keys() - node.before.keys():
        raise UnexpectedError(f"other files than before: {extra}")
    CONFIG.write_text("")
    systemctl("reload", SERVICE)
    return f"{len(node.before)} files as before"


def _shown(pod: Pod) -> str:
    names = ("cpu.max", "cpu.max.burst", "memory.min", "memory.low")
    return ", ".join(f"{name}={(pod.container_cgroup / name).read_text().strip()}" for name in names)


CHECKS = (
    Check("a strategy comes while pods run: values on cgroup v2", a_strategy_comes),
    Check("systemctl daemon-reload: values are put right", daemon_reload_is_put_right),
    Check("systemctl set-property on a pod's slice: values are put right", set_property_is_put_right),
    Check("systemctl restart while strategies count", a_restart_keeps_the_originals),
    Check("the strategy goes: every file has its text of before", the_strategy_goes),
)
