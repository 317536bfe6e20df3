"""What follows from events: values that wait until the sandbox runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.cpu_burst import CpuBurst
from policies.cpu_idle import CpuIdle
from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome
from runtimeproxy.core.events import write_before
from runtimeproxy.core.questions import decided_pod
from runtimeproxy.hooks import PodView, Resources
from runtimeproxy.hooks.decision import Decision, evaluate
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.node.snapshot import Feature, Node
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.slo.schema import ClassQoS, CpuBurstPolicy, CpuBurstStrategy, CpuQoS, QoSStrategy
from runtimeproxy.slo.strategies import Strategies
from runtimeproxy.testing import CgroupFiles

POD = "/kubepods/besteffort/podone"


@pytest.fixture
def files(tmp_path: Path) -> CgroupFiles:
    made = CgroupFiles(tmp_path / "cgroup", version=1)
    made.make(POD)
    made.write(POD, "cpu.cfs_quota_us", "50000")
    return made


@pytest.fixture
def ledger(files: CgroupFiles, tmp_path: Path) -> Iterator[Ledger]:
    journal = Journal(tmp_path / "state", "boot")
    yield Ledger(CgroupWriter(files.root), journal, "boot")
    journal.close()


def decision(hook: Hook) -> Decision:
    be = ClassQoS(cpu_qos=CpuQoS(enable=True, group_identity=-1))
    burst = CpuBurstStrategy(policy=CpuBurstPolicy.AUTO, cpu_burst_percent=10)
    strategies = Strategies(qos=QoSStrategy(be_class=be), cpu_burst=burst)
    node = Node(strategies=strategies, features=frozenset({Feature.IDLE, Feature.BURST}))
    view = PodView(uid="u", kube_qos=KubeQoSClass.BEST_EFFORT, resources=Resources(cpu_quota_us=50_000))
    return evaluate([bind(CpuIdle()), bind(CpuBurst())], view, node, hook=hook)


def test_a_pod_is_idle_once_its_sandbox_runs(ledger: Ledger, files: CgroupFiles) -> None:
    """The kubelet and the runtime make its cgroups, and write weights."""
    found = decision(Hook.PRE_RUN_POD_SANDBOX)
    results = write_before(ledger, found, POD)
    assert {name: each.outcome for name, each in results.items()} == {
        "cpu.cfs_burst_us": WriteOutcome.WRITTEN,
        "cpu.idle": WriteOutcome.PENDING,
    }
    assert (files.read(POD, "cpu.idle"), files.read(POD, "cpu.cfs_burst_us")) == ("0", "5000")
    late = decided_pod(found).late
    assert late is not None
    assert late.claims.keys() == {"cpu.idle", "cpu.cfs_burst_us"}
    ledger.change([late._replace(target=late.target._replace(cgroup=POD))])
    assert files.read(POD, "cpu.idle") == "1"


def test_one_that_runs_is_idle_at_once(ledger: Ledger, files: CgroupFiles) -> None:
    assert write_before(ledger, decision(Hook.EVALUATE_POD), POD)["cpu.idle"].outcome is WriteOutcome.WRITTEN
    assert files.read(POD, "cpu.idle") == "1"
