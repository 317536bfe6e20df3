"""What only kernels of Anolis OS and Alibaba Cloud Linux have: data only, one row for each group of files.

Status, `doctor`, reasons and documents say by it why a value is not in force on another kernel. Sources:
Koordinator pkg/koordlet/util/system (IsAnolisOS) and apis/slo/v1alpha1; for files that the mainline has in
cgroup version 2, Linux Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from runtimeproxy.vocabulary import RESCTRL_MOUNT_COMMAND

ANOLIS: Final = "kernels of Anolis OS and Alibaba Cloud Linux"


class AnolisFiles(NamedTuple):
    """Files that belong together: a kernel has all of them, or none."""

    names: tuple[str, ...]
    """Cgroup parameters, sysctls and kernel settings, by the names that policies use."""
    use: str
    """For people."""
    feature: str = ""
    """The `Feature` of kernels that have them; empty for none."""
    is_mainline_v2: bool = False
    """Whether each kernel has them in cgroup version 2, where version 1 lacks them."""
    instead: str = ""
    """The nearest of other kernels, for people; empty for nothing."""


ANOLIS_FILES: Final = (
    AnolisFiles(
        ("cpu.bvt_warp_ns",),
        "group identity: which pods the scheduler prefers",
        "bvt",
        instead="the policy `cpu-idle`",
    ),
    AnolisFiles(
        ("kernel.sched_group_identity_enabled",), "the switch of group identity", "group-identity-sysctl"
    ),
    AnolisFiles(
        ("kernel.sched_core",), "the switch of core scheduling", instead="core scheduling without a switch"
    ),
    AnolisFiles(("kernel.sched_idle_saver_wmark",), "how long a CPU is idle before it expels, in ns"),
    AnolisFiles(
        ("memory.wmark_ratio", "memory.wmark_scale_factor", "memory.wmark_min_adj"),
        "reclaim in the background, by cgroup",
        "memory-wmark",
        instead="`memory.high`",
    ),
    AnolisFiles(
        ("memory.priority", "memory.use_priority_oom"),
        "whose processes the OOM killer ends first",
        "memory-priority",
        instead="the OOM score",
    ),
    AnolisFiles(
        ("memory.oom.group",),
        "the OOM killer ends all processes of a cgroup",
        "memory-oom-group",
        is_mainline_v2=True,
    ),
    AnolisFiles(
        ("memory.min", "memory.low", "memory.high"),
        "protection and throttling of memory",
        "memory-protection",
        is_mainline_v2=True,
    ),
    AnolisFiles(
        (
            "memory.pagecache_limit.enable",
            "memory.pagecache_limit.size",
            "memory.pagecache_limit.sync",
        ),
        "the page cache of a pod is bounded",
        "memory-pagecache-limit",
    ),
    AnolisFiles(("mm.pagecache_limit.enabled",), "the switch of page cache limits"),
    AnolisFiles(("mm.memcg_reaper.reap_background",), "removed cgroups are reclaimed in the background"),
    AnolisFiles(
        ("blkio.cost.weight", "blkio.cost.qos", "blkio.cost.model"),
        "weights of block I/O in cgroup version 1",
        instead="`io.weight`, `io.cost.*` of version 2",
    ),
)

ANOLIS_FILE: Final[Mapping[str, AnolisFiles]] = {name: each for each in ANOLIS_FILES for name in each.names}
"""By name."""
_BY_FEATURE: Final = {each.feature: each for each in ANOLIS_FILES if each.feature}


def only_anolis(name: str, version: int | None = None) -> str:
    """Return, for people, that only Anolis kernels have a file; empty if others have it, too.

    `version`: of the cgroups; None: not known, or no matter.
    """
    found = ANOLIS_FILE.get(name)
    if found is None or (found.is_mainline_v2 and version != 1):
        return ""
    where = " in cgroup version 1" if found.is_mainline_v2 else ""
    return f"only {ANOLIS} have {name}{where}"


def lacking_text(features: Iterable[str]) -> str:
    """Return features that a kernel lacks, for people, with the kernels that have them if these are few."""
    names = sorted(features)
    rows = [_BY_FEATURE[name] for name in names if name in _BY_FEATURE]
    files = [each.names[0] for each in rows if not each.is_mainline_v2]
    text = ", ".join(names)
    if "resctrl-mounted" in names and "resctrl" not in names:
        text = text.replace("resctrl-mounted", f"resctrl-mounted ({RESCTRL_MOUNT_COMMAND})")
    return f"{text} (only {ANOLIS} have {', '.join(files)})" if files else text
