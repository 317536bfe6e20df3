"""Devices that policies give, on a real runtime: processes in containers open them, by the proxy and by NRI.

The "RDMA devices" are harmless ones of this machine, under the names that a fake sysfs gives them.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import pytest

from tests.e2e.koordinator import qos
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.programs import CONTAINERDS_WITH_NRI, ContainerdVersion, missing
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

ADDRESS: Final = "0000:1f:00.2"
DEVICES: Final = Path("/dev/infiniband")
FUSE: Final = Path("/dev/fuse")
TUN: Final = Path("/dev/net/tun")
REFUSE: Final = 'failure_policy = "fail"\n'


@dataclass(frozen=True)
class RdmaHost:
    """A sysfs with one RDMA function, and the nodes in /dev."""

    sysfs: Path
    numbers: Mapping[str, tuple[int, int]]
    """By path."""

    @property
    def config(self) -> str:
        return f'[node]\nsysfs_root = "{self.sysfs}"\n[policies.rdma-devices]\nenabled = true\n'


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RdmaHost]:
    if os.geteuid() != 0:
        missing("devices need root")
    if DEVICES.exists():
        missing(f"{DEVICES} of this machine is in the way")
    if not (FUSE.exists() and TUN.exists()):
        missing(f"{FUSE} and {TUN} are not here")
    numbers = {path: _numbers(of) for path, of in ((DEVICES / "uverbs2", FUSE), (DEVICES / "rdma_cm", TUN))}
    sysfs = tmp_path / "sys"
    function = sysfs / "devices" / ADDRESS / "infiniband_verbs/uverbs2"
    manager = sysfs / "class/misc/rdma_cm"
    for folder, path in ((function, DEVICES / "uverbs2"), (manager, DEVICES / "rdma_cm")):
        folder.mkdir(parents=True)
        (folder / "dev").write_text("{}:{}\n".format(*numbers[path]))
    (function / "device").symlink_to(f"../../../{ADDRESS}")
    (sysfs / "class/infiniband_verbs").mkdir()
    (sysfs / "class/infiniband_verbs/uverbs2").symlink_to(function)
    with ExitStack() as stack:
        DEVICES.mkdir()
        stack.callback(DEVICES.rmdir)
        for path, pair in numbers.items():
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(*pair))
            stack.callback(path.unlink)
            path.chmod(0o666)
        yield RdmaHost(sysfs, {str(path): pair for path, pair in numbers.items()})


def _numbers(path: Path) -> tuple[int, int]:
    found = path.stat().st_rdev
    return os.major(found), os.minor(found)


def rdma_pod(address: str = ADDRESS, **annotations: str) -> PodSpec:
    """A pod with two containers, and a function that the scheduler has allocated to it."""
    device = {"minor": 0, "id": "0000:1f:00.0", "extension": {"vfs": [{"minor": 0, "busID": address}]}}
    allocated = {"scheduling.koordinator.sh/device-allocated": json.dumps({"rdma": [device]})}
    containers = (ContainerSpec("init"), ContainerSpec("main"))
    return PodSpec("rdma", "burstable", qos("LS"), {**allocated, **annotations}, containers)


def check_devices(client: CriClient, pod: RunningPod, host: RdmaHost) -> None:
    """Each container opens the devices, and no other one of the same driver."""
    for name in pod.container_ids:
        identity = pod.container_id(name)
        for path, numbers in host.numbers.items():
            # For reading and for writing: the driver itself is not asked for anything.
            client.exec(identity, "/bin/sh", "-c", f": <>{path}")
            shown = client.exec(identity, "/bin/stat", "-c", "%t %T %a", path).split()
            assert (int(shown[0], 16), int(shown[1], 16)) == numbers
            assert shown[2] == "666"
        client.exec(identity, "/bin/mknod", "/tmp-kvm", "c", "10", "232")
        with pytest.raises(RuntimeError, match="not permitted"):
            client.exec(identity, "/bin/sh", "-c", ": </tmp-kvm")


@contextmanager
def nri_daemon(
    version: ContainerdVersion, folder: Path, config: str
) -> Iterator[tuple[CriClient, ProxyProcess]]:
    own = Path(tempfile.mkdtemp(dir=folder))
    with Containerd(version, PATIENT) as containerd:
        text = (
            f'[daemon]\nmode = "nri"\nlock = "{own}/front-end.lock"\n'
            f'[nri]\nsocket = "{containerd.nri_socket}"\n{config}'
        )
        with ProxyProcess(own, ProxyOptions(str(containerd.socket), config=text)) as daemon:
            wait_until(lambda: "registered with the runtime" in str(daemon.log), "the registration")
            with CriClient(containerd.socket) as client:
                yield client, daemon


def test_rdma_devices_by_the_proxy(containerd: Containerd, host: RdmaHost, folder: Path, logs: Path) -> None:
    own = Path(tempfile.mkdtemp(dir=folder))
    with (
        ProxyProcess(own, ProxyOptions(str(containerd.socket), config=host.config)) as proxy,
        CriClient(proxy.socket) as client,
        running_pod(client, rdma_pod(), logs) as pod,
    ):
        check_devices(client, pod, host)


@pytest.mark.golang
@pytest.mark.parametrize("version", CONTAINERDS_WITH_NRI)
def test_rdma_devices_by_nri(version: ContainerdVersion, host: RdmaHost, folder: Path, logs: Path) -> None:
    """The daemon needs no sight of /dev: systemd's PrivateDevices= hides it."""
    with (
        nri_daemon(version, folder, host.config) as (client, _),
        running_pod(client, rdma_pod(), logs) as pod,
    ):
        check_devices(client, pod, host)


def test_a_function_that_is_not_there_by_the_proxy(
    containerd: Containerd, host: RdmaHost, folder: Path, logs: Path
) -> None:
    """Without it, or refused: as the failure policy says."""
    own = Path(tempfile.mkdtemp(dir=folder))
    with ProxyProcess(own, ProxyOptions(str(containerd.socket), config=host.config)) as proxy:
        with CriClient(proxy.socket) as client, running_pod(client, rdma_pod("0000:1f:00.7"), logs) as pod:
            seen = client.exec(pod.container_id(), "/bin/ls", "/dev/infiniband").split()
            assert seen == ["rdma_cm"]
        wait_until(lambda: "0000:1f:00.7 has no RDMA device" in str(proxy.log), "the reason")
    own = Path(tempfile.mkdtemp(dir=folder))
    options = ProxyOptions(str(containerd.socket), config=host.config + REFUSE)
    with ProxyProcess(own, options) as proxy, CriClient(proxy.socket) as client:
        with pytest.raises(grpc.RpcError) as caught, running_pod(client, rdma_pod("0000:1f:00.7"), logs):
            pass
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "rdma-devices: PCI device 0000:1f:00.7 has no RDMA device" in str(caught.value.details())
        with running_pod(client, rdma_pod(), logs) as pod:
            check_devices(client, pod, host)


@pytest.mark.golang
@pytest.mark.parametrize("version", CONTAINERDS_WITH_NRI)
def test_a_function_that_is_not_there_refuses_by_nri(
    version: ContainerdVersion, host: RdmaHost, folder: Path, logs: Path
) -> None:
    with nri_daemon(version, folder, host.config + REFUSE) as (client, _):
        with pytest.raises(grpc.RpcError) as caught, running_pod(client, rdma_pod("0000:1f:00.7"), logs):
            pass
        assert "rdma-devices: PCI device 0000:1f:00.7 has no RDMA device" in str(caught.value.details())
        with running_pod(client, rdma_pod(), logs) as pod:
            check_devices(client, pod, host)
