"""Idle pods on a real kernel and runtime: the policy `cpu-idle`, and what others write meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, BURSTABLE, as_resources
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod, start_container, update_resources
from tests.lab.node_objects import NodeObjects
from tests.lab.pods import ContainerSpec, PodSpec, sandbox_config
from tests.lab.programs import ContainerdVersion, missing, need_controllers_of_v1
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

YIELDING = {"clusterStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}
IDLE, NOT_IDLE = ("1", "3"), ("0", "2")
"""`cpu.idle` and `cpu.shares` of a pod. Source: Linux kernel/sched/sched.h, WEIGHT_IDLEPRIO."""
MAIN = ContainerSpec(resources=as_resources(BEST_EFFORT))
PLAIN = PodSpec("idle", "besteffort", qos("BE"), {}, (MAIN,))
BATCH = PodSpec("batch", "besteffort", qos("BE"), extended_resources({"main": BATCH_500}), (MAIN,))
REQUESTING = PodSpec(
    "requesting", "burstable", qos("BE"), {}, (ContainerSpec(resources=as_resources(BURSTABLE)),)
)


def weight(cgroup: str) -> tuple[str, str]:
    return cgroup_v1.read("cpu", cgroup, "cpu.idle"), cgroup_v1.read("cpu", cgroup, "cpu.shares")


def wait_for(pod: RunningPod, wanted: tuple[str, str]) -> None:
    cgroup = pod.spec.cgroup_parent
    wait_until(lambda: weight(cgroup) == wanted or None, f"{pod.spec.name}: {wanted}, not {weight(cgroup)}")


@pytest.fixture
def containerd(containerd_version: ContainerdVersion) -> Iterator[Containerd]:
    """A runtime of its own: a daemon of other tests that came to know these pods would keep their values."""
    with Containerd(containerd_version) as running:
        yield running


@pytest.fixture
def own(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def test_idle_pods(containerd: Containerd, own: Path, tmp_path: Path) -> None:
    need_controllers_of_v1("cpu")
    proxy = ProxyProcess(
        own, ProxyOptions(str(containerd.socket), config="[policies.cpu-idle]\nenabled = true\n")
    )
    objects = NodeObjects(proxy.objects_folder)
    objects.strategies({"resource-qos-config": YIELDING})
    with proxy, CriClient(proxy.socket) as client:
        written = {"cpu.shares": "2"}
        with (
            running_pod(client, PLAIN, tmp_path, written) as plain,
            running_pod(client, BATCH, tmp_path, written) as batch,
            running_pod(client, REQUESTING, tmp_path, {"cpu.shares": str(BURSTABLE.cpu_shares)}) as asking,
        ):
            if not cgroup_v1.file("cpu", PLAIN.cgroup_parent, "cpu.idle").exists():
                missing("this kernel has no cpu.idle: Linux has it since 5.15")
            wait_for(plain, IDLE)
            # Two owners of the weight: that of the request counts.
            wait_for(batch, ("0", "512"))
            wait_for(asking, NOT_IDLE)
            # A container starts, and is updated, in an idle pod: the runtime writes its weight.
            config = sandbox_config(PLAIN, str(plain.log_directory))
            late = ContainerSpec("late", as_resources(BEST_EFFORT))
            second = start_container(client, plain.sandbox_id, config, PLAIN, late)
            for container in (plain.container_id(), second):
                update_resources(client, container, as_resources(BEST_EFFORT))
                assert weight(f"{PLAIN.cgroup_parent}/{container}") == NOT_IDLE
            assert weight(PLAIN.cgroup_parent) == IDLE
            # As koordlet or the kubelet would, by mistake.
            with pytest.raises(OSError, match="Invalid argument"):
                cgroup_v1.file("cpu", PLAIN.cgroup_parent, "cpu.shares").write_text("2")
            proxy.kill()
            proxy.start()
            assert weight(PLAIN.cgroup_parent) == IDLE
            objects.strategies({"resource-qos-config": {"clusterStrategy": {}}})
            wait_for(plain, NOT_IDLE)
            wait_for(asking, ("0", str(BURSTABLE.cpu_shares)))
            objects.strategies({"resource-qos-config": YIELDING})
            wait_for(plain, IDLE)
            proxy.terminate()
            done = proxy.run("restore")
            said = f"{done.stdout}{done.stderr}"
            assert done.returncode == 0, said
            weights = [weight(each.cgroup_parent) for each in (PLAIN, BATCH, REQUESTING)]
            # The pods are removed through the proxy, whatever is found.
            proxy.start()
            assert weights == [NOT_IDLE, NOT_IDLE, ("0", str(BURSTABLE.cpu_shares))], said
