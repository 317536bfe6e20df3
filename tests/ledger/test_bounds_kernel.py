"""Bounds of a QoS class on this machine's own cgroup version 1: its kernel takes them, and all goes back."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT
from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.records import Level
from tests.lab import cgroup_v1
from tests.lab.programs import need_controllers_of_v1

QUOTA, CPUS = "cpu.cfs_quota_us", "cpuset.cpus"
OWNER = Claimant("cpu-suppress", ClaimantKind.PLUGIN)
ALL = f"0-{(os.cpu_count() or 1) - 1}"


class Node:
    """The cgroups of a best-effort class, and a ledger that writes there."""

    def __init__(self, top: str, state: Path) -> None:
        self.qos = f"{top}/kubepods/besteffort"
        self.pod, self.other = f"{self.qos}/pod1", f"{self.qos}/pod2"
        self.box = f"{self.pod}/box"
        self.make(self.box)
        self.make(f"{self.other}/box")
        self.ledger = Ledger(CgroupWriter(), Journal(state, "boot"), "boot")
        self.ledger.measure_weights(Level.POD, {})

    def make(self, cgroup: str) -> None:
        """Each new cgroup begins with the CPUs of the one above, as runc and the kubelet make them."""
        for controller in ("cpu", "cpuset"):
            parts = cgroup.strip("/").split("/")
            for length in range(1, len(parts) + 1):
                folder = DEFAULT_ROOT / controller / "/".join(parts[:length])
                if not folder.exists():
                    folder.mkdir()
                    if controller == "cpuset":
                        for name in ("cpuset.cpus", "cpuset.mems"):
                            (folder / name).write_text((folder.parent / name).read_text())

    def read(self, cgroup: str, name: str = QUOTA) -> str:
        return cgroup_v1.read(name.partition(".")[0], cgroup, name)

    def put(self, cgroup: str, value: object, name: str = QUOTA) -> None:
        cgroup_v1.file(name.partition(".")[0], cgroup, name).write_text(str(value))

    def bound(self, value: int | str | None, name: str = QUOTA) -> dict[str, str]:
        """Bounds the class, or ends that; returns what could not be written."""
        claims = () if value is None else (Claim(OWNER, Role.AT_MOST, value),)
        target = CgroupTarget(Level.QOS_CLASS, self.qos, "QoS class BestEffort")
        wanted = Wanted(target, {name: claims}, owner=OWNER, binds_descendants=name == CPUS)
        applied = self.ledger.change([wanted])
        return {each.cgroup: each.error for each in applied if each.outcome is WriteOutcome.FAILED}

    def claim(self, cgroup: str, level: Level, quota_us: int) -> None:
        claims = {QUOTA: (Claim(Claimant("batch-resource"), Role.SET, quota_us),)}
        self.ledger.change([Wanted(CgroupTarget(level, cgroup), claims)])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    need_controllers_of_v1("cpu", "cpuset")
    top = f"/koord-test-{uuid.uuid4().hex[:12]}"
    try:
        yield Node(top, tmp_path)
    finally:
        cgroup_v1.remove_tree(top)


def test_all_below_a_bound_are_unlimited_and_get_their_own_quotas_back(node: Node) -> None:
    node.claim(node.pod, Level.POD, 50_000)
    node.claim(node.box, Level.CONTAINER, 30_000)
    # Nothing of ours: another agent's, or the kubelet's.
    node.put(node.other, 80_000)
    node.put(f"{node.other}/box", 70_000)
    before = cgroup_v1.texts(node.qos)
    assert node.bound(20_000) == {}
    assert node.read(node.qos) == "20000"
    below = (node.pod, node.box, node.other, f"{node.other}/box")
    assert [node.read(each) for each in below] == ["-1"] * 4
    assert node.bound(60_000) == {}
    node.ledger.verify(list(Level))
    claims = {QUOTA: (Claim(Claimant("batch-resource"), Role.SET, 50_000),)}
    assert not node.ledger.books.differs(Wanted(CgroupTarget(Level.POD, node.pod), claims))
    assert not node.ledger.books.differs(Wanted(CgroupTarget(Level.POD, node.other), {}))
    assert [node.read(each) for each in (node.qos, *below)] == ["60000", "-1", "-1", "-1", "-1"]
    assert node.bound(None) == {}
    assert cgroup_v1.texts(node.qos) == before
    node.ledger.verify(list(Level))
    assert cgroup_v1.texts(node.qos) == before


def test_what_begins_below_a_bound_has_its_quota_when_that_ends(node: Node) -> None:
    node.bound(20_000)
    node.claim(node.pod, Level.POD, 50_000)
    assert node.ledger.within_bounds(node.pod, {QUOTA: 30_000, "cpu.shares": 2}) == {QUOTA: -1}
    node.claim(node.box, Level.CONTAINER, 30_000)
    assert [node.read(each) for each in (node.pod, node.box)] == ["-1", "-1"]
    node.bound(None)
    assert [node.read(each) for each in (node.qos, node.pod, node.box)] == ["-1", "50000", "30000"]
    assert node.ledger.within_bounds(node.pod, {QUOTA: 30_000}) == {}


def test_a_bound_that_the_kernel_refuses_is_written_with_the_next_look(node: Node) -> None:
    node.bound(60_000)
    node.put(node.box, 55_000)
    assert "EINVAL" in node.bound(20_000)[node.qos]
    assert node.read(node.qos) == "60000"
    node.ledger.verify([Level.QOS_CLASS])
    assert [node.read(each) for each in (node.qos, node.box)] == ["20000", "-1"]
    node.bound(None)
    assert [node.read(each) for each in (node.qos, node.box)] == ["-1", "55000"]


def test_a_pod_that_was_made_below_a_bound_has_all_cpus_when_that_ends(node: Node) -> None:
    if os.cpu_count() == 1:
        pytest.skip("needs 2 CPUs")
    before = cgroup_v1.texts(node.qos)
    assert node.bound("0", CPUS) == {}
    new = f"{node.qos}/pod3"
    node.make(f"{new}/box")
    assert node.read(f"{new}/box", CPUS) == "0"
    assert node.bound("1", CPUS) == {}
    assert [node.read(each, CPUS) for each in (new, f"{new}/box")] == ["1", "1"]
    late = f"{node.qos}/pod4"
    node.make(f"{late}/box")
    assert node.bound(None, CPUS) == {}
    for each in (new, f"{new}/box", late, f"{late}/box"):
        assert node.read(each, CPUS) == ALL
    assert before.items() <= cgroup_v1.texts(node.qos).items()


def test_a_message_gets_cpus_within_the_bound(node: Node) -> None:
    if os.cpu_count() == 1:
        pytest.skip("needs 2 CPUs")
    node.bound("1", CPUS)
    assert node.ledger.within_bounds(node.pod, {CPUS: "0"}) == {CPUS: "1"}
    assert node.ledger.within_bounds(node.pod, {CPUS: ALL}) == {CPUS: "1"}
    assert node.ledger.within_bounds(node.pod, {CPUS: "1"}) == {}


def test_pods_get_back_what_the_cgroup_above_has_left_and_more_when_that_grows(node: Node) -> None:
    if os.cpu_count() == 1:
        pytest.skip("needs 2 CPUs")
    kubepods = node.qos.rpartition("/")[0]
    assert node.bound("1", CPUS) == {}
    # Another program takes CPUs from all pods of the node.
    node.put(kubepods, "1", CPUS)
    assert node.bound(None, CPUS) == {}
    below = (node.qos, node.pod, node.box, node.other)
    assert [node.read(each, CPUS) for each in below] == ["1"] * 4
    for each in (kubepods, node.qos):
        node.put(each, ALL, CPUS)
    node.ledger.verify([Level.POD])
    assert [node.read(each, CPUS) for each in (node.pod, node.other)] == [ALL] * 2
