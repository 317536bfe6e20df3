"""The koordlet of this node, by its process and its flags."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

_NO_NRI: Final = re.compile(r"--?enable-nri-runtime-hook=(?:false|f|0)\b", re.IGNORECASE)
"""NRI is koordlet's default. Source: Koordinator pkg/koordlet/runtimehooks/config.go."""
_GATES: Final = re.compile(r"--?feature-gates[=\0]([^\0]*)")
_TRUE: Final = frozenset({"1", "t", "true"})
"""Source: Go's strconv.ParseBool, in any case."""
_LOOK_S: Final = 30.0

POLICY_GATES: Final[Mapping[str, str]] = {
    "batch-resource": "BatchResource",
    "cpuset": "CPUSetAllocator",
    "gpu-env": "GPUEnvInject",
    "rdma-devices": "RDMADeviceInject",
    "group-identity": "GroupIdentity",
    "core-sched": "CoreSched",
    "cpu-burst": "CPUBurst",
    "cpu-normalization": "CPUNormalization",
    "memory-qos": "CgroupReconcile",
    "block-io": "BlkIOReconcile",
    "oom-score": "OOMScoreAdj",
    "system-config": "SystemConfig",
}
"""The policies that koordlet has, too, and its feature gates. Source: Koordinator
pkg/koordlet/runtimehooks/config.go, pkg/features/koordlet_features.go."""
HOOKS: Final = frozenset(
    {"batch-resource", "cpuset", "gpu-env", "rdma-devices", "group-identity", "cpu-normalization"}
)
"""Those that koordlet has as hooks of calls or of NRI; it only writes files for the others."""
_BETA: Final = frozenset({"BatchResource", "CPUSetAllocator", "GroupIdentity", "CPUBurst"})
"""On by default; the other gates of `POLICY_GATES` are alpha, and off."""


class Koordlet(NamedTuple):
    """A koordlet that runs on this node."""

    pid: int
    uses_nri: bool
    """Whether its NRI mode is on; it needs the runtime's socket, too."""
    gates: frozenset[str] = _BETA
    """The gates of `POLICY_GATES` that are on."""

    def shared(self, policies: Iterable[str]) -> list[str]:
        """Which of these policies it has, too, by name."""
        return sorted({each for each in policies if POLICY_GATES.get(each) in self.gates})


def koordlets(proc: Path) -> Iterator[Koordlet]:
    """The processes called koordlet; the command lines of others are not read."""
    try:
        processes = sorted(path for path in proc.iterdir() if path.name.isdecimal())
    except OSError:
        return
    for process in processes:
        try:
            if (process / "comm").read_text().strip() == "koordlet":
                command = (process / "cmdline").read_bytes().decode("utf-8", "replace")
                yield Koordlet(int(process.name), _NO_NRI.search(command) is None, gates_of(command))
        except OSError:
            continue  # it has ended


def gates_of(command: str) -> frozenset[str]:
    """The gates of `POLICY_GATES` that a command line turns on or leaves on; its arguments end with NUL.

    Source: k8s.io/component-base/featuregate: `AllAlpha` and `AllBeta` concern gates that are not named.
    """
    named: dict[str, bool] = {}
    for given in _GATES.findall(command):
        for entry in given.split(","):
            name, _, value = entry.partition("=")
            named[name.strip()] = value.strip().lower() in _TRUE
    return frozenset(
        gate
        for gate in POLICY_GATES.values()
        if named.get(gate, named.get("AllBeta", True) if gate in _BETA else named.get("AllAlpha", False))
    )


class KoordletLook:
    """Looks for koordlets, at most once in 30 s. Used in one thread at a time; reads files."""

    def __init__(self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._found: tuple[Koordlet, ...] = ()
        self._fresh_until_s = -float("inf")

    def find(self) -> tuple[Koordlet, ...]:
        if self._clock() >= self._fresh_until_s:
            self._found = tuple(koordlets(self._proc))
            self._fresh_until_s = self._clock() + _LOOK_S
        return self._found
