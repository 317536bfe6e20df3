"""Block devices on folders laid out like sysfs, and on this machine."""

from __future__ import annotations

from pathlib import Path

from runtimeproxy.node.block_devices import BlockDevices, read_block_devices

UID = "0f5cbbd9-e6b9-4c1c-bb61-a5f0e2a3a4c1"


class Sysfs:
    """The folders of block devices, and the mounts."""

    def __init__(self, root: Path) -> None:
        self.sysfs, self.procfs = root / "sys", root / "proc"
        (self.sysfs / "class/block").mkdir(parents=True)
        (self.procfs / "self").mkdir(parents=True)

    def add(self, device: str, number: str, *below: str, partition_of: str = "", **dm: str) -> None:
        folder = self.sysfs / "devices/block" / partition_of / device
        (folder / "slaves").mkdir(parents=True)
        (folder / "dev").write_text(f"{number}\n")
        for each in below:
            (folder / "slaves" / each).mkdir()
        if partition_of:
            (folder / "partition").write_text("1\n")
        for key, text in dm.items():
            (folder / "dm").mkdir(exist_ok=True)
            (folder / "dm" / key).write_text(f"{text}\n")
        (self.sysfs / "class/block" / device).symlink_to(folder)

    def mount(self, number: str, point: str, source: str, kind: str = "ext4") -> None:
        with (self.procfs / "self/mountinfo").open("a") as file:
            file.write(f"36 35 {number} / {point} rw,noatime master:1 - {kind} {source} rw\n")

    def read(self) -> BlockDevices:
        found = read_block_devices(self.sysfs, self.procfs)
        assert found is not None
        return found


def volume(name: str, uid: str = UID) -> str:
    return f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{name}/mount"


def filled(root: Path) -> Sysfs:
    made = Sysfs(root)
    made.add("sda", "8:0")
    made.add("sda1", "8:1", partition_of="sda")
    made.add("sda3", "8:3", partition_of="sda")
    made.add("sdb", "8:16")
    made.add("cciss!c0d0", "104:0")
    made.add("md0", "9:0", "sda1", "sdb")
    made.add("dm-0", "253:0", "sda3", name="fast--pool-data--1", uuid="LVM-abc")
    made.add("dm-1", "253:1", "sdb", "md0", name="fast--pool-logs", uuid="LVM-abd")
    made.add("dm-2", "253:2", "dm-0", name="secret", uuid="CRYPT-LUKS2-1")
    return made


def test_disks_and_partitions_by_name(tmp_path: Path) -> None:
    disks = filled(tmp_path).read().disks
    assert disks["sda"] == disks["sda1"] == disks["sda3"] == "8:0"
    assert (disks["cciss/c0d0"], disks["md0"], disks["dm-0"]) == ("104:0", "9:0", "253:0")
    assert (disks["mapper/fast--pool-logs"], disks["mapper/secret"]) == ("253:1", "253:2")


def test_a_volume_group_is_on_the_disks_below_its_volumes(tmp_path: Path) -> None:
    assert filled(tmp_path).read().volume_groups == {"fast-pool": ("8:0", "8:16")}


def test_volumes_of_pods_are_on_the_disks_below_their_mounts(tmp_path: Path) -> None:
    made = filled(tmp_path)
    made.mount("8:1", volume("pvc-1"), "/dev/sda1")
    made.mount("253:2", volume("pvc-2"), "/dev/mapper/secret", "xfs")
    made.mount("0:52", volume("pvc-3"), "/dev/sdb", "btrfs")
    made.mount("0:53", volume("pvc-4"), "server:/export", "nfs4")
    made.mount("8:16", volume("pvc-5", "other"), "/dev/sdb")
    made.mount("8:16", f"{volume('pvc-6')}/below", "/dev/sdb")
    made.mount("8:16", "/var/lib/kubelet/pods/x/volumes/kubernetes.io~empty-dir/cache", "/dev/sdb")
    with (made.procfs / "self/mountinfo").open("a") as file:
        file.write(f"a line about {volume('pvc-7')} that is cut")
    assert made.read().pod_volumes == {
        (UID, "pvc-1"): ("8:0",),
        (UID, "pvc-2"): ("8:0",),
        (UID, "pvc-3"): ("8:16",),
        (UID, "pvc-4"): (),
        ("other", "pvc-5"): ("8:16",),
    }


def test_devices_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    made = Sysfs(tmp_path)
    made.add("dm-0", "253:0", "dm-1", name="a-b", uuid="LVM-1")
    made.add("dm-1", "253:1", "dm-0", "gone", name="a-c", uuid="LVM-2")
    made.add("sdx", "many")
    found = made.read()
    assert found.volume_groups == {"a": ()}
    assert set(found.disks) == {"dm-0", "dm-1", "mapper/a-b", "mapper/a-c"}


def test_without_sysfs_they_are_not_known(tmp_path: Path) -> None:
    assert read_block_devices(tmp_path, tmp_path) is None


def test_this_machine() -> None:
    found = read_block_devices(Path("/sys"), Path("/proc"))
    assert found is not None
    folders = {each.name for each in Path("/sys/block").iterdir()}
    for name in folders:
        number = Path("/sys/block", name, "dev")
        if number.exists():
            assert found.disks[name.replace("!", "/")] == number.read_text().strip()
