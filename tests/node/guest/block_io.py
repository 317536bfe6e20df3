"""The policy `block-io` on cgroup v2: what is written follows `io.max`; `io.cost.*` and `io.weight`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.lab.block_io import LoopDevice, write_rate
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects
from tests.node.guest.cgroup_v2 import ROOT
from tests.node.guest.machine import CONFIG, PATIENCE_S, PATIENTLY, SERVICE, UnexpectedError, systemctl
from tests.node.guest.node import Check, Node
from tests.node.guest.strategies import objects

_CONFIG = """
[policies.block-io]
enabled = true
"""
_LIMIT_BPS = 512 << 10
"""Well below what an emulated CPU writes on a busy host."""
_MANY_BYTES = 2 << 20
_TRIES = 5
_WEIGHT = 40
_DISK = "vda"
"""The node's own: virtio, with a queue that the cost model works on."""


def limits_of_a_class(node: Node) -> str:
    """The directory of BE pods gets a limit of a loop device: what a container writes follows it, and is fast
    again when the strategy goes."""
    pod = node.pods["BE"]
    io_max = pod.cgroup.parent / "io.max"
    before = io_max.read_text()
    CONFIG.write_text(_CONFIG)
    systemctl("reload", SERVICE)
    folder = objects()
    with LoopDevice(Path("/var/tmp"), 64 << 20) as device:
        fast = write_rate(device.path, pod.container_cgroup / "cgroup.procs", _MANY_BYTES)
        _configure(folder, beClass=_block(device.path, writeBPS=_LIMIT_BPS))
        line = f"{device.number} rbps=max wbps={_LIMIT_BPS} riops=max wiops=max\n"
        _wait_for(lambda: line in io_max.read_text(), f"{io_max} has {line}")
        rates: list[float] = []
        # A busy host may give the process no CPU for a while; the limit holds all the same.
        while not rates or (rates[-1] < 0.8 * _LIMIT_BPS and len(rates) < _TRIES):
            rates.append(write_rate(device.path, pod.container_cgroup / "cgroup.procs", _MANY_BYTES))
        slow = rates[-1]
        if max(rates) > 1.2 * _LIMIT_BPS or slow < 0.8 * _LIMIT_BPS:
            raise UnexpectedError(f"{rates} bytes/s with a limit of {_LIMIT_BPS:,}; {fast:,.0f} without")
        folder.strategies({})
        _wait_for(lambda: io_max.read_text() == before, f"{io_max} has its text of before")
        again = write_rate(device.path, pod.container_cgroup / "cgroup.procs", _MANY_BYTES)
        if again < 2 * slow:
            raise UnexpectedError(f"{again:,.0f} bytes/s after the limit, {slow:,.0f} with it")
    return f"{_LIMIT_BPS:,} bytes/s wanted, {slow:,.0f} measured; {fast:,.0f} before, {again:,.0f} after"


def cost_model_and_weight(node: Node) -> str:
    """The root cgroup gets latencies and a model of the disk, the directory of BE pods a weight."""
    qos, model = ROOT / "io.cost.qos", ROOT / "io.cost.model"
    if not qos.exists():
        return f"this kernel has no {qos}: {_status_of_policy()}"
    number = Path(f"/sys/class/block/{_DISK}/dev").read_text().strip()
    weight = node.pods["BE"].cgroup.parent / "io.weight"
    before, folder = weight.read_text(), objects()
    _configure(
        folder,
        beClass=_block(f"/dev/{_DISK}", ioWeightPercent=_WEIGHT),
        cgroupRoot=_block(f"/dev/{_DISK}", readLatency=5000, enableUserModel=True, modelReadBPS=1 << 30),
    )
    wanted = f"{number} enable=1 ctrl=user rpct=95.00 rlat=5000 wpct=95.00 wlat=3000 "
    _wait_for(lambda: wanted in qos.read_text(), f"{qos} has {wanted}")
    _wait_for(lambda: f"{number} ctrl=user model=linear rbps={1 << 30} " in model.read_text(), f"{model}")
    _wait_for(lambda: f"{number} {_WEIGHT}\n" in weight.read_text(), f"{weight} has a line of {number}")
    shown = qos.read_text().strip()
    folder.strategies({})
    _wait_for(lambda: weight.read_text() == before, f"{weight} has its text of before")
    _wait_for(lambda: f"{number} enable=0 " in qos.read_text(), f"{qos} is off")
    _wait_for(lambda: f"{number} ctrl=auto " in model.read_text(), f"{model} is the kernel's")
    CONFIG.write_text("")
    systemctl("reload", SERVICE)
    return f"{shown}; {weight.name}: {number} {_WEIGHT}; then {qos.read_text().split(' ', 3)[1]}"


def _block(name: str, **config: int | bool) -> dict[str, object]:
    block = {"name": name, "type": "device", "ioCfg": config}
    return {"blkioQOS": {"enable": True, "blocks": [block]}}


def _configure(folder: NodeObjects, **classes: object) -> None:
    folder.strategies({"resource-qos-config": {"clusterStrategy": classes}})


def _wait_for(is_so: Callable[[], bool], what: str) -> None:
    try:
        wait_until(is_so, what, PATIENCE_S)
    except TimeoutError:
        raise UnexpectedError(f"not so: {what}") from None


def _status_of_policy() -> str:
    command = [str(Path(sys.executable).with_name("koord-runtime-proxy")), "status", *PATIENTLY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in done.stdout.splitlines() if re.search("block-io", line)]
    if not lines:
        raise UnexpectedError(f"status does not say what block-io lacks: {done.stdout}{done.stderr}")
    return "; ".join(lines)


CHECKS = (
    Check("block I/O of BE pods: io.max, and what a container writes follows it", limits_of_a_class),
    Check("block I/O: io.cost.qos and io.cost.model of the root, io.weight", cost_model_and_weight),
)
