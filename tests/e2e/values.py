"""Values of containers that several tests ask for and expect."""

from __future__ import annotations

from dataclasses import replace

from cri_api.runtime.v1.api_pb2 import LinuxContainerResources
from tests.e2e.koordinator import batch
from tests.lab import cgroup_v1
from tests.lab.cgroup_v1 import CgroupValues

MIB = 1024 * 1024
ALL_CPUS = "all"

GUARANTEED = CgroupValues(1024, 100000, 64 * MIB, ALL_CPUS)
BURSTABLE = CgroupValues(512, 100000, 64 * MIB, ALL_CPUS)
BEST_EFFORT = CgroupValues(2, -1, None, ALL_CPUS)

BATCH_500 = {"requests": batch(500, "64Mi"), "limits": batch(500, "64Mi")}
HALF_A_CORE = CgroupValues(512, 50000, 64 * MIB, ALL_CPUS)


def as_resources(values: CgroupValues) -> LinuxContainerResources:
    """What the kubelet sends: a limit that is not there is sent as zero."""
    return LinuxContainerResources(
        cpu_period=100000,
        cpu_shares=values.cpu_shares,
        cpu_quota=max(values.cpu_quota_us, 0),
        memory_limit_in_bytes=values.memory_limit_bytes or 0,
    )


def on_this_machine(values: CgroupValues) -> CgroupValues:
    if values.cpuset_cpus != ALL_CPUS:
        return values
    return replace(values, cpuset_cpus=cgroup_v1.read("cpuset", "/", "cpuset.cpus"))
