"""Devices of a host, from folders laid out as sysfs and /dev."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimeproxy.node.devices import HostDevice, HostDevices, read_devices
from runtimeproxy.node.facts import REFRESH_S, NodeReader


class Host:
    """Folders that stand for sysfs and /dev."""

    def __init__(self, folder: Path) -> None:
        self.sysfs, self.devfs = folder / "sys", folder / "dev"
        self.sysfs.mkdir()
        self.devfs.mkdir()

    def add_rdma(self, address: str, name: str, numbers: str = "231:192\n") -> None:
        """As the kernel does: the class has links to folders below the PCI device, and these one back."""
        function = self.sysfs / "devices/pci0000:00" / address
        own = function / "infiniband_verbs" / name
        own.mkdir(parents=True)
        (own / "dev").write_text(numbers)
        (own / "device").symlink_to(f"../../../{address}")
        place = self.sysfs / "class/infiniband_verbs"
        place.mkdir(parents=True, exist_ok=True)
        (place / name).symlink_to(f"../../devices/pci0000:00/{address}/infiniband_verbs/{name}")

    def remove_rdma(self, name: str) -> None:
        (self.sysfs / "class/infiniband_verbs" / name).unlink()

    def read(self) -> HostDevices:
        found = read_devices(self.sysfs, self.devfs)
        assert found is not None
        return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_host_without_devices_is_known_to_have_none(host: Host, tmp_path: Path) -> None:
    assert host.read() == HostDevices()
    assert read_devices(tmp_path / "none", host.devfs) is None


def test_rdma_devices_by_the_address_of_their_function(host: Host) -> None:
    host.add_rdma("0000:1F:00.0", "uverbs0")
    host.add_rdma("0000:1f:00.2", "uverbs2", "231:194")
    # Of several the first by name, as Go's ReadDir sorts them.
    host.add_rdma("0000:1f:00.3", "uverbs9", "231:201")
    host.add_rdma("0000:1f:00.3", "uverbs10", "231:202")
    assert host.read().rdma == {
        "0000:1f:00.0": HostDevice("/dev/infiniband/uverbs0", 231, 192),
        "0000:1f:00.2": HostDevice("/dev/infiniband/uverbs2", 231, 194),
        "0000:1f:00.3": HostDevice("/dev/infiniband/uverbs10", 231, 202),
    }


@pytest.mark.parametrize("numbers", ["", "231", "231:", "a:b", "-1:2", "231:192:1", "1" * 30 + ":1", "\xff"])
def test_a_device_without_numbers_is_none(host: Host, numbers: str) -> None:
    host.add_rdma("0000:1f:00.0", "uverbs0", numbers)
    assert host.read().rdma == {}


def test_a_device_that_goes_while_it_is_read_is_none(host: Host) -> None:
    host.add_rdma("0000:1f:00.0", "uverbs0")
    (host.sysfs / "class/infiniband_verbs/abi_version").write_text("6\n")
    (host.sysfs / "class/infiniband_verbs/uverbs7").symlink_to("../../devices/gone")
    assert list(host.read().rdma) == ["0000:1f:00.0"]


def test_connection_manager_and_driver(host: Host) -> None:
    (host.sysfs / "class/misc/rdma_cm").mkdir(parents=True)
    (host.sysfs / "class/misc/rdma_cm/dev").write_text("10:122\n")
    (host.sysfs / "bus/pci/drivers/nvidia").mkdir(parents=True)
    found = host.read()
    assert found.rdma_cm == HostDevice("/dev/infiniband/rdma_cm", 10, 122)
    assert found.has_nvidia_driver


def test_nodes_of_gpus_by_the_address_of_their_function(host: Host) -> None:
    addresses = {"renderD129": "0000:0E:00.0", "card1": "0000:0E:00.0", "card2": "0000:0f:00.0"}
    for name, address in addresses.items():
        own = host.sysfs / "class/drm" / name
        own.mkdir(parents=True)
        (own / "dev").write_text(f"226:{name.removeprefix('renderD').removeprefix('card')}\n")
        (own / "device").symlink_to(f"../../../{address}")
    (host.sysfs / "class/drm/version").write_text("drm 1.1.0\n")
    connector = host.sysfs / "class/drm/card2-DP-1"
    connector.mkdir()
    (connector / "device").symlink_to("../../card2")
    (host.sysfs / "class/drm/card3").mkdir()
    assert host.read().drm == {
        "0000:0e:00.0": (HostDevice("/dev/dri/card1", 226, 1), HostDevice("/dev/dri/renderD129", 226, 129)),
        "0000:0f:00.0": (HostDevice("/dev/dri/card2", 226, 2),),
    }


def test_of_dev_the_accelerators_alone(host: Host) -> None:
    names = (
        "nvidia0",
        "nvidiactl",
        "nvidia-uvm-tools",
        "davinci7",
        "davinci_manager",
        "cambricon_dev0",
        "mxcd",
    )
    for name in (*names, "mxed", "mxcd0", "sda", "null", "loop0", "tty1", "xnvidia0", "nvidia 0"):
        (host.devfs / name).touch()
    assert host.read().accelerators == {f"/dev/{name}" for name in names}


def test_a_function_that_is_bound_anew_is_known_within_a_second(host: Host, tmp_path: Path) -> None:
    """Another function may have its number by then."""
    now_s = [0.0]
    reader = NodeReader(host.sysfs, tmp_path / "cgroup", lambda: now_s[0], host.devfs)
    host.add_rdma("0000:1f:00.2", "uverbs2")
    before = reader.facts().devices
    host.remove_rdma("uverbs2")
    host.add_rdma("0000:1f:00.3", "uverbs2")
    assert reader.facts().devices is before
    now_s[0] += REFRESH_S
    after = reader.facts().devices
    assert after is not None
    assert list(after.rdma) == ["0000:1f:00.3"]
