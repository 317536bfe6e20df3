"""Strategies of running pods on a real containerd: values in the kernel's files, and the way back.

After each test everything is withdrawn, and every file that holds a value has its text of before.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from tests.e2e import desired_state
from tests.e2e.desired_state import (
    BATCH_QUOTA_US,
    POOL_LABEL,
    QUOTA_US,
    WITHIN_S,
    Site,
    Texts,
    burst_of,
    normalized,
    of_container,
    of_own_cgroup,
    of_pod,
)
from tests.e2e.values import BURSTABLE
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S
from tests.lab.deadline import quickest_s, wait_until
from tests.lab.go_clients import KubeletClient
from tests.lab.node import RunningPod, update_resources
from tests.lab.programs import ContainerdVersion

pytestmark = pytest.mark.parametrize("containerd_version", ["1.6"], indirect=True)

KILLS = 25
SEED = 12
AFTER_A_KILL_S = 30.0
"""From a start to the values: the records come from the checkpoint, then the strategies count."""
LONGEST_DELAY_S = 0.5
"""Between a change and the kill: a change is carried out within that."""


def burst(percent: int, **more: object) -> dict[str, object]:
    return {"policy": "cpuBurstOnly", "cpuBurstPercent": percent, **more}


CLUSTER = {"clusterStrategy": burst(20)}
OF_NODE = {
    **CLUSTER,
    "nodeStrategies": [{"name": "pool-a", "nodeSelector": {"matchLabels": {POOL_LABEL: "a"}}, **burst(30)}],
}


def of_pods(*, overrides: bool) -> dict[str, object]:
    strategy = {
        "name": "web",
        "namespace": "lab",
        "podSelector": {"matchLabels": {"app": "web"}},
        "overridePod": overrides,
        **burst(40),
    }
    return {**OF_NODE, "podStrategies": [strategy]}


@dataclass(frozen=True)
class Step:
    """What an operator configures, and the values that follow from it, by file and kind of pod."""

    keys: Mapping[str, object]
    labels: Mapping[str, str] = field(default_factory=dict)
    topology: Mapping[str, str] = field(default_factory=dict)
    values: Callable[[Site], Texts] = lambda _: {}

    def begin(self, site: Site) -> float:
        """Changes the files; returns when the last one was."""
        site.objects.node(self.labels)
        site.objects.topology(self.topology)
        return site.objects.strategies(self.keys)


def bursts(**percent: int) -> Callable[[Site], Texts]:
    """Each pod has one container, so its own burst is that of the container."""
    return lambda site: site.values(
        "cpu.cfs_burst_us", **{kind: burst_of(each) for kind, each in percent.items()}
    )


def quotas(**quota_us: int) -> Callable[[Site], Texts]:
    return lambda site: site.values("cpu.cfs_quota_us", **quota_us)


def shared_cpus(site: Site) -> Texts:
    return site.container_values("cpuset.cpus", web="1", annotated="1", plain="1")


POOL_A = {POOL_LABEL: "a"}
BY_RATIO = {"enable": True, "defaultRatio": 1.25}
SLOW = normalized(QUOTA_US, 1.25)

STEPS = {
    "cluster strategy": Step({"cpu-burst-config": CLUSTER}, values=bursts(web=20, annotated=5, plain=20)),
    "a node strategy that is for other nodes": Step(
        {"cpu-burst-config": OF_NODE}, values=bursts(web=20, annotated=5, plain=20)
    ),
    "node strategy": Step(
        {"cpu-burst-config": OF_NODE}, POOL_A, values=bursts(web=30, annotated=5, plain=30)
    ),
    "pod strategy": Step(
        {"cpu-burst-config": of_pods(overrides=False)},
        POOL_A,
        values=bursts(web=40, annotated=5, plain=30),
    ),
    "pod strategy over the annotation": Step(
        {"cpu-burst-config": of_pods(overrides=True)},
        POOL_A,
        values=bursts(web=40, annotated=40, plain=30),
    ),
    "more burst than quota": Step(
        {"cpu-burst-config": {"clusterStrategy": burst(1000)}},
        values=bursts(web=100, annotated=5, plain=100),
    ),
    "batch quota of suppression": Step(
        {"resource-threshold-config": {"clusterStrategy": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}}},
        values=quotas(batch=-1),
    ),
    "CPU normalization": Step(
        {"cpu-normalization-config": BY_RATIO},
        values=quotas(web=SLOW, annotated=SLOW, plain=SLOW, batch=normalized(BATCH_QUOTA_US, 1.25)),
    ),
    "shared pools": Step(
        {},
        topology={"node.koordinator.sh/cpu-shared-pools": '[{"socket": 0, "node": 0, "cpuset": "1"}]'},
        values=shared_cpus,
    ),
}


@pytest.fixture(scope="module")
def site(
    containerd_version: ContainerdVersion, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """On a runtime of its own: other daemons that list its pods would give them their values."""
    own = Path(tempfile.mkdtemp(dir=folder))
    with (
        Containerd(containerd_version) as containerd,
        desired_state.site(containerd, own, tmp_path_factory.mktemp("logs")) as made,
    ):
        yield made


@pytest.fixture(autouse=True)
def all_withdrawn(site: Site) -> Iterator[None]:
    yield
    pod = site.pods["web"][0]
    if int(cgroup_v1.read("cpu", pod.spec.cgroup_parent, "cpu.cfs_quota_us")) != QUOTA_US:
        resize(site, pod, QUOTA_US)
    took_s = site.withdraw()
    print(f"withdrawn after {took_s:.2f} s")


@pytest.mark.parametrize("name", STEPS)
def test_a_change_counts_for_running_pods(name: str, site: Site) -> None:
    """Within the time that is promised, at one of three tries: other tests run beside this one."""
    step = STEPS[name]
    values = step.values(site)

    def took_s() -> float:
        seconds = site.wait_for(values, step.begin(site))
        if seconds >= WITHIN_S:
            site.withdraw()
        return seconds

    quickest = quickest_s(took_s, WITHIN_S)
    print(f"{name}: {len(values)} files after {quickest:.2f} s")
    assert quickest < WITHIN_S


SOURCES = {
    "cluster strategy": ["cluster strategy", "annotation"],
    "node strategy": ["node strategy", "annotation"],
    "pod strategy": ["pod strategy", "annotation"],
    "pod strategy over the annotation": ["pod strategy", "pod strategy"],
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_source_of_each_value_is_shown(name: str, site: Site) -> None:
    step = STEPS[name]
    site.wait_for(step.values(site), step.begin(site))
    reports = [site.checked(site.pods[kind][0]) for kind in ("web", "annotated")]
    percents = [
        each
        for report in reports
        for each in report["pod"]["strategy"]
        if each["path"] == "cpuBurst.cpuBurstPercent"
    ]
    print(f"{name}: {percents}")
    assert [each["source"] for each in percents] == SOURCES[name]
    # What the annotation says holds without any strategy, too.
    kinds = ("web", "plain") if "annotation" in SOURCES[name] else ("web", "annotated", "plain")
    touched = sum(len(site.pods[kind]) for kind in kinds)
    assert {report["runningPods"]["touched"] for report in reports} == {touched}


def test_one_change_after_the_other(site: Site) -> None:
    for name, step in STEPS.items():
        since_s = step.begin(site)
        print(f"{name}: after {site.wait_for(step.values(site), since_s):.2f} s")


@pytest.mark.timeout(600)
def test_killed_in_the_middle_of_each_change(site: Site) -> None:
    chances = random.Random(SEED)
    names = [*STEPS, "withdrawn"]
    slowest_s = 0.0
    for number in range(KILLS):
        step = STEPS.get(names[number % len(names)], Step({}))
        step.begin(site)
        # The moment is what is tested: anywhere between the change and its end.
        time.sleep(chances.uniform(0, LONGEST_DELAY_S))
        site.proxy.kill()
        site.proxy.start()
        since_s = time.monotonic()
        slowest_s = max(slowest_s, site.wait_for(step.values(site), since_s, AFTER_A_KILL_S))
    print(f"{KILLS} kills; values at most {slowest_s:.2f} s after the start")


def resize(site: Site, pod: RunningPod, quota_us: int) -> None:
    """What the kubelet does to resize a pod: the pod's own cgroup first where it grows, else last.

    Source: kubelet, kuberuntime_manager doPodResizeAction.
    """
    quota = cgroup_v1.file("cpu", pod.spec.cgroup_parent, "cpu.cfs_quota_us")
    update = api_pb2.LinuxContainerResources(cpu_period=100_000, cpu_quota=quota_us)
    pod_update = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod.sandbox_id, resources=update)
    grows = quota_us > int(quota.read_text())
    for step in ("pod", "container") if grows else ("container", "pod"):
        if step == "container":
            update_resources(site.client, pod.container_id(), update)
        else:
            quota.write_text(str(quota_us))
            with suppress(grpc.RpcError):  # containerd 1.6 does not know the call, 2.2 does nothing
                site.client.runtime.UpdatePodSandboxResources(pod_update, timeout=CALL_TIMEOUT_S)


BURST_AND_RATIO = Step({"cpu-burst-config": CLUSTER, "cpu-normalization-config": BY_RATIO})


def held(site: Site, quota_us: int, percent: int) -> Texts:
    """The files under `BURST_AND_RATIO` when the first `web` pod was resized to this quota."""
    pod = site.pods["web"][0]
    ratio_only = quotas(web=SLOW, annotated=SLOW, plain=SLOW, batch=normalized(BATCH_QUOTA_US, 1.25))
    own_quota, own_burst = normalized(quota_us, 1.25), quota_us * percent // 100
    return {
        **ratio_only(site),
        **bursts(web=20, annotated=5, plain=20)(site),
        **of_pod(pod, "cpu.cfs_quota_us", own_quota),
        **of_pod(pod, "cpu.cfs_burst_us", own_burst),
    }


def test_the_kubelet_resizes_a_pod(site: Site) -> None:
    since_s = BURST_AND_RATIO.begin(site)
    site.wait_for(held(site, QUOTA_US, 20), since_s)
    pod = site.pods["web"][0]
    for quota_us in (2 * QUOTA_US, QUOTA_US // 2, QUOTA_US):
        resize(site, pod, quota_us)
        since_s = time.monotonic()
        # The pod's own file was written by the kubelet: it is put right when the call has passed.
        print(f"resized to {quota_us}: {site.wait_for(held(site, quota_us, 20), since_s):.2f} s")


def test_a_quota_below_the_burst_is_taken(site: Site) -> None:
    """The runtime alone fails: the kernel refuses a quota below the burst."""
    full = Step({"cpu-burst-config": {"clusterStrategy": burst(100)}})
    site.wait_for(bursts(web=100, annotated=5, plain=100)(site), full.begin(site))
    pod = site.pods["web"][0]
    resize(site, pod, QUOTA_US // 2)
    smaller = of_pod(pod, "cpu.cfs_quota_us", QUOTA_US // 2)
    smaller |= of_pod(pod, "cpu.cfs_burst_us", QUOTA_US // 2)
    site.wait_for({**bursts(web=100, annotated=5, plain=100)(site), **smaller}, time.monotonic())
    resize(site, pod, QUOTA_US)


@pytest.mark.golang
def test_updates_of_something_else_keep_what_strategies_changed(site: Site) -> None:
    """The runtime applies all that it has booked: an update of the shares alone would put the quota back."""
    values = held(site, QUOTA_US, 20)
    site.wait_for(values, BURST_AND_RATIO.begin(site))
    kubelet = KubeletClient(site.proxy.socket)
    pod = site.pods["web"][0]
    shares = BURSTABLE.cpu_shares
    for changed in (2 * shares, shares):
        kubelet.update(pod.container_id(), api_pb2.LinuxContainerResources(cpu_shares=changed))
        own = of_container(pod, "cpu.shares", changed)
        site.wait_for({**values, **own}, time.monotonic())


@pytest.mark.golang
def test_the_cpu_manager_of_the_kubelet_moves_a_container(site: Site) -> None:
    """The pool of CPUs stays the container's while it counts; afterwards it has what the CPU manager said."""
    pools = STEPS["shared pools"]
    values = dict(pools.values(site))
    site.wait_for(values, pools.begin(site))
    kubelet = KubeletClient(site.proxy.socket)
    pod = site.pods["web"][0]
    kubelet.update(pod.container_id(), api_pb2.LinuxContainerResources(cpuset_cpus="0"))
    site.wait_for(values, time.monotonic())
    own = of_container(pod, "cpuset.cpus", "0")
    site.wait_for(own, Step({}).begin(site))
    every = cgroup_v1.read("cpuset", "/", "cpuset.cpus")
    kubelet.update(pod.container_id(), api_pb2.LinuxContainerResources(cpuset_cpus=every))


REPAIRED_S = 30.0
"""Files of pods are compared every 10 s."""


def test_another_writer_is_repaired_and_then_yielded_to(site: Site) -> None:
    """Three values of someone else's within 5 minutes; the other pods keep theirs."""
    step = STEPS["cluster strategy"]
    values = step.values(site)
    site.wait_for(values, step.begin(site))
    pod = site.pods["web"][0]
    (path,) = of_own_cgroup(pod, "cpu.cfs_burst_us", 0)
    file = cgroup_v1.text_file(path)
    for number in range(2):
        file.write_text(str(1000 + number))
        site.wait_for(values, time.monotonic(), REPAIRED_S)
    begun = len(site.proxy.log)
    file.write_text("1002")
    wait_until(
        lambda: any("1002" in line and str(burst_of(20)) in line for line in site.proxy.log[begun:]),
        "both values are reported",
        REPAIRED_S,
    )
    assert file.read_bytes() == b"1002\n"
    # Withdrawn, the file is the other writer's: it is left alone.
    file.write_text("0")
