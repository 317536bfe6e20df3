"""What `doctor --record-tree` writes: all that the daemon's code reads of a node, and nothing secret."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.doctor.tree import Tree, parse_tree, record_tree, tree_text
from runtimeproxy.node.facts import NodeReader
from runtimeproxy.node.inputs import InputPlaces, NodeInputs
from runtimeproxy.node.machine import network_features, read_processor
from runtimeproxy.node.resctrl import read_resctrl
from runtimeproxy.node.snapshot import FIELDS, Input
from tests.platforms.trees import node_of

_OF_THE_MACHINE = (Input.CPUS, Input.MEMORY, Input.CGROUPS)
_OF_OTHERS = ("cgroup_driver",)
"""What other tests change at the same time: their pods' cgroups come and go."""
UID = "1f3a2c5e-0000-4000-8000-00000000beef"
SECRETS = (
    UID,
    UID.replace("-", "_"),
    "deadbeef",
    "payroll",
    "vg-finance",
    "/mnt/people",
    "10.1.2.3",
    "--token",
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with cgroup version 2, a pod with the systemd driver, LVM, and much that is private."""
    cgroup = {
        "cgroup.controllers": "cpu memory\n",
        "cgroup.procs": "4711\n",
        "cpu.max": "max 100000\n",
        "cpu.weight": "79\n",
        "memory.max": "max\n",
        "memory.stat": "anon 4096\n",
    }
    pod = f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID.replace('-', '_')}.slice"
    folders = (
        "kubepods.slice",
        "kubepods.slice/kubepods-besteffort.slice",
        pod,
        f"{pod}/cri-containerd-deadbeef.scope",
    )
    places = ("", *folders, "system.slice", "payroll.service", "payroll2.service")
    for place in places:
        write(tmp_path / "sys/fs/cgroup" / place, cgroup)
    write(
        tmp_path,
        {
            "etc/hostname": "payroll\n",
            "etc/os-release": 'ID=debian\nVERSION_ID="12"\nBUILD_ID=payroll\n',
            "proc/cpuinfo": "processor : 0\nmodel name : A CPU\nserial : payroll\n\nmodel name : A CPU\n",
            "proc/filesystems": "nodev\tcgroup2\n",
            "proc/meminfo": "MemTotal: 1024 kB\nMemFree: 1 kB\n",
            "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n/dev/sda1 /mnt/people ext4 rw 0 0\n",
            "proc/4711/cmdline": "server\0--token\0",
            "proc/net/route": "10.1.2.3\n",
            "sys/devices/system/cpu/online": "0\n",
            "sys/devices/system/cpu/present": "0\n",
            "sys/devices/system/cpu/possible": "0\n",
            "sys/fs/resctrl/schemata": "L3:0=fffff\n",
            "sys/fs/resctrl/info/L3/cbm_mask": "fffff\n",
            "sys/fs/resctrl/info/L3/num_closids": "16\n",
            "sys/fs/resctrl/info/L3_MON/num_rmids": "176\n",
            "sys/fs/resctrl/payroll/schemata": "L3:0=f\n",
            "sys/devices/pci0/payroll/block/sda/dev": "8:0\n",
            "sys/devices/pci0/payroll/block/sda/sda1/dev": "8:1\n",
            "sys/devices/pci0/payroll/block/sda/sda1/partition": "1\n",
            "sys/devices/virtual/block/dm-0/dev": "253:0\n",
            "sys/devices/virtual/block/dm-0/dm/name": "vg--finance-payroll\n",
            "sys/devices/virtual/block/dm-0/dm/uuid": "LVM-deadbeef\n",
        },
    )
    slaves = tmp_path / "sys/devices/virtual/block/dm-0/slaves"
    slaves.mkdir()
    (slaves / "sda1").symlink_to("../../../../pci0/payroll/block/sda/sda1")
    links = tmp_path / "sys/class/block"
    links.mkdir(parents=True)
    (links / "sda").symlink_to("../../devices/pci0/payroll/block/sda")
    (links / "sda1").symlink_to("../../devices/pci0/payroll/block/sda/sda1")
    (links / "dm-0").symlink_to("../../devices/virtual/block/dm-0")
    return tmp_path


def again(tree: Tree) -> Tree:
    return parse_tree(tree_text(tree, "1.2.3"))


def test_nothing_secret_is_in_it(root: Path) -> None:
    text = tree_text(record_tree(root), "1.2.3")
    assert not [secret for secret in SECRETS if secret in text]
    assert "A CPU" in text


def test_it_is_read_as_it_was_written(root: Path) -> None:
    tree = record_tree(root, "containerd 2.2", {"the runtime's log": "it has none"})
    assert again(tree) == tree


def test_each_file_has_a_line_for_people(root: Path) -> None:
    lines = tree_text(record_tree(root), "1.2.3").splitlines()
    pod = "/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0.slice"
    assert f'"{pod}/container0/cpu.weight": ["0644", "79\\n"],' in lines
    assert f'"{pod}/container0/memory.stat": ["0644"],' in lines


def test_cgroups_of_others_are_there_once_without_a_name(root: Path) -> None:
    files = record_tree(root).files
    assert {path.split("/")[3] for path in files if path.endswith("/cpu.weight") and "other" in path} == {
        "other-1"
    }
    assert "sys/fs/cgroup/system.slice/cpu.weight" in files


def test_disks_partitions_and_volumes_are_what_they_were(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    devices = node_of(again(record_tree(root)), tmp_path_factory.mktemp("again")).block_devices
    assert devices is not None
    assert devices.disks["sda1"] == "8:0"
    assert list(devices.volume_groups.values()) == [("8:0",)]


def test_resctrl_is_what_it_was(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = node_of(again(record_tree(root)), tmp_path_factory.mktemp("again")).resctrl
    assert found == read_resctrl(root / "sys")
    assert found is not None
    assert (found.closids, found.rmids) == (16, 176)


def test_of_this_machine_the_daemons_code_sees_the_same(tmp_path: Path) -> None:
    """Whatever `NodeInputs` begins to read has to be recorded, too."""
    tree = again(record_tree())
    here = NodeInputs(InputPlaces(), NodeReader()).look(0.0, is_first=True).node
    there = node_of(tree, tmp_path)
    names = [name for each in _OF_THE_MACHINE for name in FIELDS[each] if name not in _OF_OTHERS]
    there = replace(there, features=there.features | network_features())
    assert {name: getattr(there, name) for name in names} == {name: getattr(here, name) for name in names}
    assert there.facts.controllers == here.facts.controllers
    assert there.facts.online_cpus == here.facts.online_cpus
    assert read_processor(tmp_path / "sys", tmp_path / "proc") == read_processor(Path("/sys"), Path("/proc"))


def test_what_may_not_be_read_is_said(root: Path) -> None:
    if os.geteuid() == 0:
        # Root may read everything but itself.
        place = root / "proc/sys/vm/min_free_kbytes"
        place.mkdir(parents=True)
    else:
        place = root / "proc/filesystems"
        place.chmod(0)
    assert f"/{place.relative_to(root)}" in record_tree(root).unread


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"files": {"/proc/../etc/passwd": ["0644", ""]}},
        {"files": {"etc/passwd": ["0644", ""]}},
        {"files": {"/proc/version": ["rw"]}},
        {"files": []},
        {"links": {"/sys//x": "y"}},
    ],
)
def test_a_tree_of_others_is_checked(root: Path, change: dict[str, object]) -> None:
    read = json.loads(tree_text(record_tree(root), "1.2.3"))
    with pytest.raises(ValueError, match=r"format|path|recorded|invalid literal"):
        parse_tree(json.dumps(read | change))
