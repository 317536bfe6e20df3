"""Settings of the kernel that are neither sysctls nor files of cgroups: data, and the form of their files.

Policies set them by name in `NodeChange.kernel_settings`. A sysctl needs no row here: its name says its file.
What has no row and is no scheduler feature cannot be named at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from runtimeproxy.fields.anolis import only_anolis
from runtimeproxy.fields.network import NETWORK_QOS, OFF, shares_problem
from runtimeproxy.vocabulary import RESCTRL_MOUNT_COMMAND

SCHED_FEATURES: Final = "sched_features."
"""Begins the name of a feature of the scheduler, such as `sched_features.NEXT_BUDDY`: 1 is on, 0 off."""
SCHED_FEATURE_FILES: Final = ("kernel/debug/sched/features", "kernel/debug/sched_features")
"""Below sysfs. Source: Koordinator pkg/koordlet/util/system; Linux kernel/sched/debug.c, which moved the file
in 5.13."""
RESCTRL_GROUPS: Final = "resctrl."
"""Begins the name of a resctrl group of a class, such as `resctrl.BE`; its value is the group's schemata."""
RESCTRL_SCHEMATA: Final = (
    r"(?:(?:L3(?:CODE|DATA)?|MB):[0-9]{1,9}=[0-9a-f]{1,16}(?:;[0-9]{1,9}=[0-9a-f]{1,16}){0,255}"
    r"(?:,(?!$)|$)){1,3}"
)
"""The lines of a schemata file as one word, with commas between them: `L3:0=3f;1=3f,MB:0=20;1=20`; masks in
hexadecimal, bandwidths in decimal. Source: Linux Documentation/filesystems/resctrl.rst."""
RESCTRL: Final = "resctrl"
NETWORK: Final = "network"
NO_NETWORK: Final = "the network is not managed here: node.procfs_root is not the node's own procfs"
NO_GROUP: Final = "none"
"""The value of a resctrl group that is not there."""
_RESCTRL_GROUP: Final = re.compile(r"LSR|LS|BE")
_SCHED_FEATURE: Final = re.compile(r"(?!NO_)[A-Z][A-Z0-9_]{0,63}")
"""Source: Linux kernel/sched/features.h; `NO_` before a name switches it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSetting:
    """One value of a file below sysfs."""

    name: str
    files: tuple[str, ...]
    """Paths below sysfs; the first that exists is the file."""
    maximum: int = 1
    """The least value is 0."""
    absent: str = "0"
    """What a kernel without it does: wanted there, nothing is missing."""
    access: str = ""
    """`RESCTRL` or `NETWORK` for objects that are ours alone: `absent` is its value without them.
    Empty if it is a file."""
    feature: str = ""
    """The scheduler's name of it, where the file lists many; empty if the file has this one value."""
    group: str = ""
    """The class of a resctrl group, which is made by its first value, and removed where no policy wants it:
    see `cgroups/resctrl.py`."""

    @property
    def missing(self) -> str:
        """Why a kernel may lack it, for people."""
        if self.access == NETWORK:
            return NO_NETWORK
        if self.access == RESCTRL:
            return f"resctrl is not mounted: {RESCTRL_MOUNT_COMMAND}"
        if self.feature:
            return f"the kernel has no scheduler feature {self.feature}, or debugfs is not mounted"
        return f"the kernel has no {self.name}: {only_anolis(self.name) or 'it is not built with it'}"

    def value_of(self, text: str) -> str | None:
        """Return the value in the file's content; None if the file does not list it."""
        if not self.feature:
            return text.strip()
        words = text.split()
        if self.feature in words:
            return "1"
        return "0" if f"NO_{self.feature}" in words else None

    def written(self, value: str) -> str:
        """Return what is to be written to the file to have a value, without the line's end."""
        if not self.feature:
            return value
        # Source: Linux kernel/sched/debug.c, sched_feat_set.
        return self.feature if value == "1" else f"NO_{self.feature}"

    def problem_of(self, value: object) -> str:
        """Return why a value cannot be set; empty if it can."""
        if self.access == RESCTRL:
            is_schemata = isinstance(value, str) and re.fullmatch(RESCTRL_SCHEMATA, value)
            return "" if is_schemata else "takes schemata such as L3:0=3f;1=3f,MB:0=20;1=20"
        if self.access == NETWORK:
            return shares_problem(value)
        if type(value) is int and 0 <= value <= self.maximum:
            return ""
        return f"takes a whole number of 0 to {self.maximum}"


KERNEL_SETTINGS: Final[Mapping[str, KernelSetting]] = {
    each.name: each
    for each in (
        # Source: Koordinator pkg/koordlet/util/system, MemcgReapBackGround, PageCacheLimitEnabled.
        KernelSetting(
            name="mm.memcg_reaper.reap_background", files=("kernel/mm/memcg_reaper/reap_background",)
        ),
        KernelSetting(name="mm.pagecache_limit.enabled", files=("kernel/mm/pagecache_limit/enabled",)),
        KernelSetting(name=NETWORK_QOS, files=(), absent=OFF, access=NETWORK),
    )
}


def kernel_setting(name: object) -> KernelSetting | None:
    """Return the setting with a name; None if there is none, so also for each sysctl."""
    if not isinstance(name, str):
        return None
    group = name.removeprefix(RESCTRL_GROUPS)
    if group != name:
        if not _RESCTRL_GROUP.fullmatch(group):
            return None
        return KernelSetting(name=name, files=(), absent=NO_GROUP, access=RESCTRL, group=group)
    feature = name.removeprefix(SCHED_FEATURES)
    if feature == name:
        return KERNEL_SETTINGS.get(name)
    if not _SCHED_FEATURE.fullmatch(feature):
        return None
    return KernelSetting(name=name, files=SCHED_FEATURE_FILES, feature=feature)
