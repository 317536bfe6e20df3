"""Strategies of running pods on a real containerd: values in the kernel's files, and the way back.

After each test everything is withdrawn, and every file that holds a value has its text of before.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e import desired_state
from tests.e2e.desired_state import (
    BATCH_QUOTA_US,
    POOL_LABEL,
    QUOTA_US,
    Site,
    Texts,
    burst_of,
    normalized,
)
from tests.lab.containerd import Containerd

pytestmark = pytest.mark.parametrize("containerd_version", ["1.6"], indirect=True)

KILLS = 50
SEED = 12
AFTER_A_KILL_S = 10.0
"""From a start to the values: the records come from the checkpoint, then the strategies count."""
LONGEST_DELAY_S = 0.8
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
def site(containerd: Containerd, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    own = Path(tempfile.mkdtemp(dir=folder))
    with desired_state.site(containerd, own, tmp_path_factory.mktemp("logs")) as made:
        yield made


@pytest.fixture(autouse=True)
def all_withdrawn(site: Site) -> Iterator[None]:
    yield
    took_s = site.withdraw()
    print(f"withdrawn after {took_s:.2f} s")


@pytest.mark.parametrize("name", STEPS)
def test_a_change_counts_for_running_pods(name: str, site: Site) -> None:
    step = STEPS[name]
    values = step.values(site)
    since_s = step.begin(site)
    print(f"{name}: {len(values)} files after {site.wait_for(values, since_s):.2f} s")


def test_one_change_after_the_other(site: Site) -> None:
    for name, step in STEPS.items():
        since_s = step.begin(site)
        print(f"{name}: after {site.wait_for(step.values(site), since_s):.2f} s")


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
