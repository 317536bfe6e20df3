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

SCHED_FEATURES: Final = "sched_features."
"""Begins the name of a feature of the scheduler, such as `sched_features.NEXT_BUDDY`: 1 is on, 0 off."""
SCHED_FEATURE_FILES: Final = ("kernel/debug/sched/features", "kernel/debug/sched_features")
"""Below sysfs. Source: Koordinator pkg/koordlet/util/system; Linux kernel/sched/debug.c, which moved the file
in 5.13."""
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
    is_of_network: bool = False
    """Whether it is no file: `ledger/network.py` has it, and `absent` is its value where nothing is set."""
    feature: str = ""
    """The scheduler's name of it, where the file lists many; empty if the file has this one value."""

    @property
    def missing(self) -> str:
        """Why a kernel may lack it, for people."""
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
        if self.is_of_network:
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
        KernelSetting(name=NETWORK_QOS, files=(), absent=OFF, is_of_network=True),
    )
}


def kernel_setting(name: object) -> KernelSetting | None:
    """Return the setting with a name; None if there is none, so also for each sysctl."""
    if not isinstance(name, str):
        return None
    feature = name.removeprefix(SCHED_FEATURES)
    if feature == name:
        return KERNEL_SETTINGS.get(name)
    if not _SCHED_FEATURE.fullmatch(feature):
        return None
    return KernelSetting(name=name, files=SCHED_FEATURE_FILES, feature=feature)
