"""Sixty pods of all classes, with every kind of value that this kernel has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.koordinator import batch, cpuset, extended_resources, gpus, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, BURSTABLE, GUARANTEED, as_resources
from tests.lab.cgroup_v1 import CgroupValues
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec
from tests.modes.first_act import observing

EXTRAS: Final = {"lab/extras": "all"}
"""Pods for which the policy `lab` sets what no policy of Koordinator does."""
DEVICE: Final = "/dev/lab-null"
MOUNT: Final = "/lab/mount"
PATHS: Final = (DEVICE, MOUNT)
NORMALIZATION_RATIO: Final = "1.20"
BURST_PERCENT: Final = 20
OOM_SCORE_ADJ: Final = 321

POLICY: Final = f"""
from runtimeproxy.hooks import ContainerChange, DeviceSpec, MountSpec, Policy, ResourceChange
class Lab(Policy):
    name = "lab"
    def container(self, container, node):
        if container.pod.labels.get("lab/extras") != "all":
            return None
        return ContainerChange(
            resources=ResourceChange(oom_score_adj={OOM_SCORE_ADJ}, cpu_period_us=50000, cpu_quota_us=25000),
            cgroup={{"cpu.cfs_burst_us": 10000}},
            env={{"LAB": "set"}},
            annotations={{"lab/annotation": "set"}},
            mounts=(MountSpec(host_path="/etc", container_path="{MOUNT}"),),
            devices=(DeviceSpec(host_path="/dev/null", container_path="{DEVICE}"),),
            reason="test",
        )
"""


@dataclass(frozen=True)
class Kind:
    """Pods that are the same but for their names; of each container what the kubelet asks for."""

    kube_qos: KubeQos
    requested: CgroupValues
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[str, ...] = ("main",)

    def pod(self, name: str, folder: Path) -> PodSpec:
        """A pod whose programs write what they see to this folder."""
        each = (ContainerSpec(name, as_resources(self.requested)) for name in self.containers)
        containers = tuple(observing(spec, folder, PATHS) for spec in each)
        return PodSpec(name, self.kube_qos, self.labels, self.annotations, containers)


_TWO = {"main": BATCH_500, "side": {"limits": batch(1000, "64Mi")}}
_HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}

KINDS: Final = {
    "lse": Kind("guaranteed", GUARANTEED, qos("LSE"), cpuset("0")),
    "lsr": Kind("guaranteed", GUARANTEED, qos("LSR"), cpuset("0-1")),
    "lsr-free": Kind("guaranteed", GUARANTEED, qos("LSR")),
    "ls": Kind("burstable", BURSTABLE, qos("LS")),
    "ls-burst": Kind(
        "burstable",
        BURSTABLE,
        qos("LS"),
        {"koordinator.sh/cpuBurst": '{"policy": "cpuBurstOnly", "cpuBurstPercent": 5}'},
    ),
    "ls-two": Kind("burstable", BURSTABLE, qos("LS"), containers=("main", "side")),
    "system": Kind("guaranteed", GUARANTEED, qos("SYSTEM")),
    "none": Kind("burstable", BURSTABLE),
    "none-bound": Kind("guaranteed", GUARANTEED, {}, cpuset("1")),
    "be": Kind("besteffort", BEST_EFFORT, qos("BE")),
    "be-batch": Kind("besteffort", BEST_EFFORT, qos("BE"), extended_resources({"main": BATCH_500})),
    "be-requests": Kind(
        "besteffort",
        BEST_EFFORT,
        qos("BE"),
        extended_resources({"main": {"requests": batch(500, "64Mi")}}),
    ),
    "be-two": Kind("besteffort", BEST_EFFORT, qos("BE"), extended_resources(_TWO), ("main", "side")),
    "gpu": Kind(
        "burstable",
        BURSTABLE,
        {**qos("LS"), **_HAMI},
        gpus(1, gpu_core="50", gpu_memory="16Gi", gpu_memory_ratio="50"),
    ),
    "extras": Kind("guaranteed", GUARANTEED, EXTRAS),
}


def pods(folder: Path, of_each: int) -> Iterator[PodSpec]:
    """So many pods of each kind; each writes to a folder of its name."""
    for kind in KINDS:
        yield from specs_of(kind, folder, of_each)


def specs_of(kind: str, folder: Path, count: int) -> list[PodSpec]:
    """Pods of one kind."""
    specs = []
    for number in range(count):
        name = f"{kind}-{number}"
        (folder / name).mkdir(parents=True)
        specs.append(KINDS[kind].pod(name, folder / name))
    return specs
