"""CPUs, memory and processor of a node, from sysfs and procfs."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtimeproxy.node.snapshot import Cpu
from runtimeproxy.units import parse_cpu_list

_CPUS: Final = "devices/system/cpu"
_NODES: Final = "devices/system/node"
"""Source: Linux Documentation/ABI/stable/sysfs-devices-system-cpu, sysfs-devices-node;
Documentation/ABI/testing/sysfs-devices-system-cpu (cache, smt, intel_pstate, cpufreq)."""
_MAX_PACKAGES: Final = 2**31 - 1
_MEM_TOTAL: Final = re.compile(r"Node +[0-9]+ +MemTotal: +([0-9]+) kB")
_MODEL_NAME: Final = re.compile(r"^model name[ \t]*:[ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The processor that the CPUs of a node are of."""

    model: str = ""
    """Name as in /proc/cpuinfo; empty: not known."""
    has_hyper_threads: bool = False
    """Whether cores have more than one thread now."""
    has_turbo: bool = False
    """Whether cores may run faster than their nominal frequency now."""


def read_cpus(sysfs: Path) -> tuple[Cpu, ...] | None:
    """The CPUs that are present, by id; None if sysfs does not say.

    What sysfs does not have for a CPU that is offline is that of socket, core and NUMA node 0.
    """
    folder = sysfs / _CPUS
    present = _list(folder / "present")
    online = _list(folder / "online")
    if not present or online is None:
        return None
    nodes = {
        cpu: node
        for node in _list(sysfs / _NODES / "online") or ()
        for cpu in _list(sysfs / _NODES / f"node{node}" / "cpulist") or ()
    }
    return tuple(
        Cpu(
            id=cpu,
            core=_number(folder / f"cpu{cpu}/topology/core_id"),
            socket=_number(folder / f"cpu{cpu}/topology/physical_package_id"),
            numa_node=nodes.get(cpu, 0),
            l3=_l3(folder / f"cpu{cpu}/cache"),
            is_online=cpu in online,
        )
        for cpu in sorted(present)
    )


def read_memory(sysfs: Path) -> dict[int, int]:
    """Bytes of memory by NUMA node; empty if sysfs does not say."""
    memory: dict[int, int] = {}
    for node in sorted(_list(sysfs / _NODES / "online") or ()):
        with suppress(OSError, ValueError):
            text = (sysfs / _NODES / f"node{node}" / "meminfo").read_text(encoding="ascii")
            if match := _MEM_TOTAL.search(text):
                memory[node] = int(match[1]) * 1024
    return memory


def read_processor(sysfs: Path, procfs: Path) -> Processor:
    """The processor; what cannot be read counts as absent, as for koordlet."""
    folder = sysfs / _CPUS
    turbo = folder / "intel_pstate/no_turbo"
    return Processor(
        model=_model(procfs),
        has_hyper_threads=_text(folder / "smt/active") == "1",
        # The first is of Intel's driver, the other one of all the others.
        has_turbo=_text(turbo) == "0" if turbo.exists() else _text(folder / "cpufreq/boost") == "1",
    )


def _model(procfs: Path) -> str:
    try:
        # The first CPU is enough; thousands of them make megabytes.
        with (procfs / "cpuinfo").open(encoding="utf-8", errors="replace") as file:
            match = _MODEL_NAME.search(file.read(16_384))
    except OSError:
        return ""
    return match[1].strip() if match else ""


def _l3(cache: Path) -> int:
    """Id of the cache of level 3; -1 without one."""
    for index in range(8):
        level = _text(cache / f"index{index}/level")
        if not level:
            break
        if level == "3":
            return _number(cache / f"index{index}/id", -1)
    return -1


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _number(path: Path, default: int = 0) -> int:
    """A number; the kernel writes -1 for what it does not know (sysfs of some virtual machines)."""
    text = _text(path)
    if not (text.isdecimal() and len(text) <= 10):
        return default
    return min(int(text), _MAX_PACKAGES)


def _list(path: Path) -> frozenset[int] | None:
    try:
        return parse_cpu_list(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
