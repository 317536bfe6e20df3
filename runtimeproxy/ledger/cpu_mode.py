"""How the kernel's scheduler tells pods apart: not at all, by group identity, or by core scheduling. Pure.

The kernel takes one of the two, and may hang with both. So the mode is resolved before all values, and a
change of it is a barrier: the values of other modes are cleared everywhere, that is read back, the sysctls
are switched, and then the values of the new mode are written. What has to be cleared follows from what is
wanted and what was written to the sysctls: a process that is killed in between leaves nothing else to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from runtimeproxy.fields.kernel_settings import SCHED_FEATURES

GROUP_IDENTITY_SYSCTL: Final = "kernel.sched_group_identity_enabled"
CORE_SCHED_SYSCTL: Final = "kernel.sched_core"
CORE_SCHED_FEATURE: Final = f"{SCHED_FEATURES}CORE_SCHED"
"""Of kernels without that sysctl."""
SYSCTLS: Final = (GROUP_IDENTITY_SYSCTL, CORE_SCHED_SYSCTL, CORE_SCHED_FEATURE)
"""The switches of the modes. Source: Koordinator pkg/koordlet/util/system."""


class CpuMode(StrEnum):
    """The kernel's way to tell pods apart."""

    OFF = "off"
    GROUP_IDENTITY = "group identity"
    CORE_SCHEDULING = "core scheduling"


OWN: Final[Mapping[CpuMode, frozenset[str]]] = {
    CpuMode.OFF: frozenset(),
    CpuMode.GROUP_IDENTITY: frozenset({"cpu.bvt_warp_ns"}),
    CpuMode.CORE_SCHEDULING: frozenset({"core_sched_group"}),
}
"""The parameters that need a mode: identities, and the cookies of tasks."""
OF_MODES: Final = frozenset().union(*OWN.values())
"""Those of all modes; no two modes have one in common."""


class Switch(NamedTuple):
    """The steps to a mode."""

    mode: CpuMode
    is_change: bool
    """Whether another mode is in force now."""
    excluded: frozenset[str]
    """Parameters that must be neutral everywhere before the sysctls are switched."""
    sysctls: Mapping[str, str]
    """Of the mode, in the order of their writes: what is switched off comes first."""
    problem: str = ""
    """Why it is not the mode that policies want."""


def plan(wanted: Mapping[str, int | str], written: Mapping[str, str]) -> Switch:
    """Return what leads to the mode that policies want.

    Args:
        wanted: sysctls that policies want, by name; others than those of the mode do not matter.
        written: sysctls that were written since the boot and not given back.
    """
    asked = {name: str(wanted[name]) for name in SYSCTLS if name in wanted}
    known = {name: written[name] for name in SYSCTLS if name in written}
    problem = ""
    if asked.get(GROUP_IDENTITY_SYSCTL) == "1" and _mode(asked) is CpuMode.CORE_SCHEDULING:
        asked, problem = known, "policies want group identity and core scheduling"
    mode, before = _mode(asked), _mode(known)
    excluded = OF_MODES - OWN[mode]
    if mode is CpuMode.OFF and all(asked.get(name) == value for name, value in known.items()):
        excluded = frozenset()  # other policies may use the parameters of modes that are not ours
    ordered = dict(sorted(asked.items(), key=lambda each: each[1] != "0"))
    return Switch(mode, mode is not before, excluded, ordered, problem)


def _mode(sysctls: Mapping[str, str]) -> CpuMode:
    if "1" in (sysctls.get(CORE_SCHED_SYSCTL), sysctls.get(CORE_SCHED_FEATURE)):
        return CpuMode.CORE_SCHEDULING
    return CpuMode.GROUP_IDENTITY if sysctls.get(GROUP_IDENTITY_SYSCTL) == "1" else CpuMode.OFF
