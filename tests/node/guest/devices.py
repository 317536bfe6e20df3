"""A device that a policy gives stays when systemd applies the container's unit again."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.pods import ContainerSpec
from tests.node.guest.kubelet import remove_pod, run_pod
from tests.node.guest.machine import (
    ENDPOINT,
    PATIENCE_S,
    SERVICE,
    Journal,
    UnexpectedError,
    expect_text,
    run,
    systemctl,
)
from tests.node.guest.node import Check, Node
from tests.node.guest.pods import SlicePodSpec

_POLICY = Path("/etc/koord-runtime-proxy/policies.d/test_device.py")
_ANNOTATION = "test.koordinator.sh/device"
_DEVICE = Path("/dev/fuse")
_NOT_GIVEN = "/dev/not-given"
_TEXT = f"""
from runtimeproxy.hooks import ContainerChange, DeviceSpec, PodSelector, Policy


class TestDevice(Policy):
    "Gives a harmless device."

    name = "test-device"
    selector = PodSelector(annotations=("{_ANNOTATION}",))

    def container(self, container, node):
        device = DeviceSpec(host_path="{_DEVICE}", container_path="{_DEVICE}")
        return ContainerChange(devices=(device,), reason="test")
"""


def a_device_outlives_daemon_reload(node: Node) -> str:
    """Runs a pod with the systemd driver, whose container opens the device before and after."""
    run("modprobe", "fuse")
    numbers = _DEVICE.stat().st_rdev
    link = Path(f"/dev/char/{os.major(numbers)}:{os.minor(numbers)}")
    # runc of this Debian leaves out of DeviceAllow= what udev has made no link of.
    wait_until(link.exists, "udev's link of the device", PATIENCE_S)
    _POLICY.parent.mkdir(parents=True, exist_ok=True)
    _POLICY.write_text(_TEXT)
    _POLICY.chmod(0o644)
    journal = Journal()
    systemctl("reload", SERVICE)
    wait_until(lambda: "test-device" in str(journal.lines()), "the policy", PATIENCE_S)
    spec = SlicePodSpec("device", "burstable", {}, {_ANNOTATION: "yes"}, (ContainerSpec(),))
    systemctl("start", spec.slice_unit)
    logs = node.logs / spec.uid
    logs.mkdir()
    with CriClient(ENDPOINT) as client:
        sandbox, container = run_pod(client, spec, str(logs), "systemd")
        client.exec(container, "/bin/mknod", _NOT_GIVEN, "c", "1", "11")
        _opens(client, container)
        unit = f"cri-containerd-{container}.scope"
        devices = systemctl("show", "--property", "DeviceAllow", unit)
        allowed = expect_text("DeviceAllow=", devices, f"{link} rwm")
        for _ in range(3):
            systemctl("daemon-reload")
            _opens(client, container)
        remove_pod(client, sandbox)
    systemctl("stop", spec.slice_unit)
    _POLICY.unlink()
    systemctl("reload", SERVICE)
    return f"{unit[:22]}... has DeviceAllow={allowed}; opened after 3 times"


def _opens(client: CriClient, container: str) -> None:
    """The container opens the device that it was given, and no other one."""
    client.exec(container, "/bin/sh", "-c", f": <>{_DEVICE}")
    try:
        client.exec(container, "/bin/sh", "-c", f": <{_NOT_GIVEN}")
    except RuntimeError as error:
        expect_text("another device", str(error), "not permitted")
    else:
        raise UnexpectedError("the container opens a device that it was not given")


CHECKS = (
    Check("a device that a policy gives outlives systemctl daemon-reload", a_device_outlives_daemon_reload),
)
