"""Facts about a node, from folders that stand for sysfs and the cgroup tree."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from runtimeproxy.node.facts import ANY_NODE, REFRESH_S, NodeReader
from runtimeproxy.testing import CgroupFiles

PODS = "/kubepods.slice"


class FakeNode:
    """Folders that stand for a node's, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.sysfs = folder / "sys"
        self.cgroups = folder / "cgroup"
        self.now_s = 0.0
        self.reader = NodeReader(self.sysfs, self.cgroups, lambda: self.now_s)

    def switch(self, what: str, numbers: str, file: str = "online") -> None:
        folder = self.sysfs / "devices/system" / what
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"{numbers}\n")

    def add_cgroup(self, version: Literal[1, 2]) -> None:
        files = CgroupFiles(self.cgroups, version)
        files.make(PODS)
        if version == 2:
            (files.folder(PODS) / "cgroup.controllers").write_text("cpuset cpu memory\n")
            (files.folder(PODS) / "cpu.stat").touch(0o444)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def test_of_an_empty_folder_nothing_is_known(node: FakeNode) -> None:
    assert node.reader.facts() == ANY_NODE


def test_nonsense_is_not_known(node: FakeNode) -> None:
    node.switch("cpu", "all of them")
    assert node.reader.facts().online_cpus is None


def test_cpus_that_are_switched_off_and_on_are_noticed(node: FakeNode) -> None:
    node.switch("cpu", "0-3")
    node.switch("cpu", "0-7", "possible")
    node.switch("node", "0-1")
    facts = node.reader.facts()
    assert facts.online_cpus == frozenset({0, 1, 2, 3})
    assert facts.online_memory_nodes == frozenset({0, 1})
    assert facts.last_cpu == 7
    assert facts.cpus_problem("3-4") == "CPU 4 not online, only 0-3"
    node.switch("cpu", "0-1,4")
    node.now_s = REFRESH_S / 2
    assert node.reader.facts() is facts
    node.now_s = REFRESH_S
    assert node.reader.facts().cpus_problem("1,4") == ""


def test_what_was_read_is_fresh_for_a_while(node: FakeNode) -> None:
    assert node.reader.fresh_until_s == 0.0
    node.now_s = 5.0
    node.reader.facts()
    node.now_s += REFRESH_S / 2
    node.reader.facts()
    assert node.reader.fresh_until_s == 5.0 + REFRESH_S


def test_version_1(node: FakeNode) -> None:
    node.add_cgroup(1)
    facts = node.reader.facts()
    assert facts.cgroup_version == 1
    assert facts.controllers == {"cpu": 1, "cpuacct": 1, "cpuset": 1, "memory": 1, "pids": 1}
    assert facts.parameter_problem("cpu.shares") == ""
    only = "only kernels of Anolis OS and Alibaba Cloud Linux have cpu.bvt_warp_ns"
    assert facts.parameter_problem("cpu.bvt_warp_ns") == f"this kernel has no cpu.bvt_warp_ns: {only}"
    assert "version 1" in facts.unified_problem("memory.high")


def test_version_2(node: FakeNode) -> None:
    node.add_cgroup(2)
    facts = node.reader.facts()
    assert facts.cgroup_version == 2
    assert facts.parameter_problem("cpu.shares") == ""
    only = "only kernels of Anolis OS and Alibaba Cloud Linux have cpu.bvt_warp_ns"
    assert facts.parameter_problem("cpu.bvt_warp_ns") == f"this kernel has no cpu.bvt_warp_ns: {only}"
    assert facts.unified_problem("memory.high") == ""
    assert facts.unified_problem("memory.swap.high") == "this kernel has no memory.swap.high"
    assert facts.unified_problem("cpu.stat") == "cpu.stat is read-only"
    assert facts.unified_problem("pids.max") == "", "no cgroup shows that controller's files"
    assert facts.unified_problem("misc.max") == "this node has no cgroup controller misc"


def test_a_tree_that_comes_later_is_found(node: FakeNode) -> None:
    node.reader.facts()
    node.add_cgroup(2)
    node.now_s = REFRESH_S
    assert node.reader.facts().cgroup_version == 2


def test_this_machine_can_be_read() -> None:
    facts = NodeReader().facts()
    assert facts.online_cpus is None or 0 in facts.online_cpus
    assert facts.parameter_problem("cpu.shares") == ""


def test_nodes_without_memory_are_left_out(tmp_path: Path) -> None:
    nodes = tmp_path / "devices" / "system" / "node"
    nodes.mkdir(parents=True)
    (nodes / "online").write_text("0-1\n")
    assert NodeReader(tmp_path, tmp_path).facts().online_memory_nodes == frozenset({0, 1})
    (nodes / "has_memory").write_text("0\n")
    assert NodeReader(tmp_path, tmp_path).facts().online_memory_nodes == frozenset({0})
