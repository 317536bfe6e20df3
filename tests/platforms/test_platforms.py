"""The daemon's own code on trees of nodes: which policies are on, and why others are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.doctor.tree import parse_tree
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.node.machine import WithoutFiles
from runtimeproxy.node.snapshot import Feature
from tests.platforms.table import DOCUMENT, cell, nodes, written
from tests.platforms.trees import FOLDER, Platform, node_of, platforms

COMMAND = "python -m tests.platforms.table"
PLATFORMS = {f"{each.file}-{each.architecture}": each for each in platforms()}


def test_the_document_has_the_present_tables() -> None:
    """Whoever adds a tree or a policy runs the command, and reads what has changed."""
    assert DOCUMENT.read_text() == written(), f"run `{COMMAND}`, and read the difference"


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
def test_a_tree_tells_all_that_policies_need(platform: Platform) -> None:
    """One without CPUs, memory, controllers or a pod's files was not recorded as it should be."""
    node = next(node for each, node in nodes() if each == platform)
    assert node.cpus
    assert node.memory_bytes
    assert node.block_devices is not None
    assert node.facts.cgroup_version == platform.cgroup_version
    assert node.facts.files.keys() >= {"cpu", "cpuset", "memory"}
    assert not node.facts.parameter_problem("cpu.cfs_quota_us")


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
def test_a_described_tree_has_its_sources(platform: Platform) -> None:
    assert platform.is_seen or platform.sources


@pytest.mark.parametrize(
    ("policy", "remove", "state", "note"),
    [
        ("cpu-burst", "cpu.max.burst", "off", "the kernel lacks burst"),
        ("block-io", "io.cost.qos", "part", "without io-cost"),
        ("cpuset", "cpu.max.burst", "on", ""),
    ],
)
def test_a_file_that_a_kernel_lacks(policy: str, remove: str, state: str, note: str, tmp_path: Path) -> None:
    tree = parse_tree((FOLDER / "debian-12-amd64-v2.json").read_text())
    files = {path: each for path, each in tree.files.items() if not path.endswith(f"/{remove}")}
    platform = Platform(name="", file="", tree=replace(tree, files=files))
    (found,) = (each for each in built_in() if each.name == policy)
    assert cell(bind(found()), platform, node_of(platform.tree, tmp_path)) == (state, note)


def test_the_system_call_for_cookies_is_in_the_tree(tmp_path: Path) -> None:
    tree = parse_tree((FOLDER / "debian-12-amd64-v2.json").read_text())
    assert Feature.CORE_SCHED not in node_of(tree, tmp_path / "without").features
    with_cookies = replace(tree, without_files=WithoutFiles(has_cookies=True))
    assert Feature.CORE_SCHED in node_of(with_cookies, tmp_path / "with").features
