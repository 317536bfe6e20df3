"""The policy `block-io` on a real containerd: limits of a loop device, and what they do to direct writes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.koordinator import qos
from tests.lab import cgroup_v1
from tests.lab.block_io import LoopDevice, write_rate
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.cri_client import CriClient
from tests.lab.crio import runtime_with_nri
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod
from tests.lab.node_objects import NodeObjects
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.programs import need_controllers_of_v1, need_loop_devices
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.lab.runtime_process import RuntimeProcess

ON_1_6 = pytest.mark.parametrize("containerd_version", ["1.6"], indirect=True)

CLASS = "/kubepods/besteffort"
WRITE, READ = "blkio.throttle.write_bps_device", "blkio.throttle.read_bps_device"
LIMIT_BPS, POD_BPS = 4 << 20, 2 << 20
WITHIN_S = 30.0
TRIES = 5
"""A busy machine may give the writing process no CPU for a while; a limit holds all the same."""


@dataclass(frozen=True)
class Site:
    """A daemon, its strategies, a pod without and one with an annotation, and the devices."""

    proxy: ProxyProcess
    objects: NodeObjects
    batch: RunningPod
    annotated: RunningPod
    device: LoopDevice
    other: LoopDevice

    def configure(self, name: str = "", **limits: int) -> None:
        """Limits of the class BE; none withdraws them."""
        block = {"name": name or self.device.path, "type": "device", "ioCfg": limits}
        blkio = {"blkioQOS": {"enable": True, "blocks": [block]}}
        keys = {"resource-qos-config": {"clusterStrategy": {"beClass": blkio}}}
        self.objects.strategies(keys if limits else {})

    def line(self, cgroup: str, name: str) -> str:
        """What the kernel has of the device; empty for nothing."""
        found = [
            each for each in text(cgroup, name).splitlines() if each.startswith(f"{self.device.number} ")
        ]
        return found[0].partition(" ")[2] if found else ""

    def lines(self) -> list[str]:
        """Those of both devices in the directory of BE pods, which other tests use, too."""
        ours = (f"{self.device.number} ", f"{self.other.number} ")
        return [
            each for name in (WRITE, READ) for each in text(CLASS, name).splitlines() if each.startswith(ours)
        ]

    def wait_for(self, what: str, **wanted: int | None) -> None:
        """Waits for the write limits of `class`, `pod`, `container` and `annotated`; None for none."""
        cgroups = {
            "klass": CLASS,
            "pod": self.batch.spec.cgroup_parent,
            "container": self.batch.container_cgroup(),
            "annotated": self.annotated.spec.cgroup_parent,
            "annotated_container": self.annotated.container_cgroup(),
        }

        def found() -> dict[str, str]:
            return {name: self.line(cgroups[name], WRITE) for name in wanted}

        texts = {name: "" if limit is None else str(limit) for name, limit in wanted.items()}
        wait_until(lambda: found() == texts, f"{what}: {texts}", WITHIN_S)


def text(cgroup: str, name: str) -> str:
    return cgroup_v1.read("blkio", cgroup, name)


@contextmanager
def site_on(runtime: RuntimeProcess, mode: str, folder: Path, logs: Path) -> Iterator[Site]:
    need_controllers_of_v1("blkio")
    need_loop_devices()
    own = Path(tempfile.mkdtemp(dir=folder))
    with ExitStack() as stack:
        (own / "other").mkdir()
        device = stack.enter_context(LoopDevice(own, 64 << 20))
        other = stack.enter_context(LoopDevice(own / "other", 1 << 20))
        config = f'[daemon]\nmode = "{mode}"\nlock = "{own}/lock"\n[policies.block-io]\nenabled = true\n'
        if mode == "nri":
            config += f'[nri]\nsocket = "{runtime.nri_socket}"\n'
        proxy = ProxyProcess(own, ProxyOptions(str(runtime.socket), config=config))
        objects = NodeObjects(proxy.objects_folder)
        objects.strategies({})
        stack.enter_context(proxy)
        if mode == "nri":
            wait_until(lambda: "registered with the runtime" in str(proxy.log), "the registration")
        client = stack.enter_context(CriClient(runtime.socket))
        through = stack.enter_context(CriClient(proxy.socket if mode == "proxy" else runtime.socket))
        blocks = [
            {"name": device.path, "type": "device", "ioCfg": {"writeBPS": POD_BPS}},
            {"name": "../../etc/passwd", "type": "device", "ioCfg": {"writeBPS": 1}},
        ]
        annotation = {"koordinator.sh/blkioQOS": json.dumps({"blocks": blocks})}
        batch, annotated = (
            stack.enter_context(running_pod(through, spec, logs, remover=client))
            for spec in (
                PodSpec("batch", "besteffort", qos("BE"), {}, (ContainerSpec(),)),
                PodSpec("annotated", "besteffort", qos("BE"), annotation, (ContainerSpec(),)),
            )
        )
        yield Site(proxy, objects, batch, annotated, device, other)


@pytest.fixture(params=["proxy", "standalone"])
def site(request: pytest.FixtureRequest, containerd: Containerd, folder: Path, logs: Path) -> Iterator[Site]:
    with site_on(containerd, request.param, folder, logs) as made:
        yield made


def rate(site: Site, pod: RunningPod) -> float:
    procs = cgroup_v1.file("blkio", pod.container_cgroup(), "cgroup.procs")
    return write_rate(site.device.path, procs, 2 * LIMIT_BPS)


def assert_follows(site: Site, pod: RunningPod, limit_bps: int) -> None:
    found: list[float] = []
    while not found or (found[-1] < 0.8 * limit_bps and len(found) < TRIES):
        found.append(rate(site, pod))
        assert found[-1] < 1.2 * limit_bps
    assert found[-1] > 0.8 * limit_bps, found


@ON_1_6
def test_limits_of_class_and_pod_come_and_go(site: Site) -> None:
    # Another program's line for another device.
    cgroup_v1.file("blkio", CLASS, WRITE).write_text(f"{site.other.number} 777")
    before = site.lines()
    site.wait_for("by the annotation", annotated=POD_BPS, annotated_container=POD_BPS, klass=None)
    site.configure(writeBPS=LIMIT_BPS, readBPS=LIMIT_BPS)
    of_class = {"klass": LIMIT_BPS, "container": LIMIT_BPS, "pod": None}
    site.wait_for("by the strategy", **of_class, annotated=POD_BPS, annotated_container=POD_BPS)
    assert site.line(CLASS, READ) == str(LIMIT_BPS)
    assert_follows(site, site.batch, LIMIT_BPS)
    assert_follows(site, site.annotated, POD_BPS)

    shown = site.proxy.run("explain", "lab/annotated", "--output", "json").stdout
    assert f"{site.device.number} {POD_BPS}" in shown
    wait_until(lambda: "../../etc/passwd" in "".join(site.proxy.log), "the hostile block is reported")

    site.proxy.kill()
    site.proxy.start()
    site.configure(writeBPS=2 * LIMIT_BPS)
    site.wait_for("after a kill", klass=2 * LIMIT_BPS, container=2 * LIMIT_BPS, annotated_container=POD_BPS)
    assert site.line(CLASS, READ) == ""

    site.configure()
    site.wait_for("withdrawn", klass=None, container=None, annotated=POD_BPS, annotated_container=POD_BPS)
    assert site.lines() == before
    assert any(rate(site, site.batch) > 2 * LIMIT_BPS for _ in range(TRIES))


@ON_1_6
def test_restore_after_a_kill_gives_all_lines_back(site: Site) -> None:
    cgroup_v1.file("blkio", CLASS, WRITE).write_text(f"{site.device.number} 777")
    site.configure(writeBPS=LIMIT_BPS)
    site.wait_for("by the strategy", klass=LIMIT_BPS, container=LIMIT_BPS, annotated_container=POD_BPS)
    site.proxy.kill()
    done = site.proxy.run("restore")
    assert done.returncode == 0, done.stdout + done.stderr
    site.wait_for("restored", klass=777, pod=None, container=None, annotated=None, annotated_container=None)
    cgroup_v1.file("blkio", CLASS, WRITE).write_text(f"{site.device.number} 0")
    site.proxy.start()


@pytest.mark.golang
def test_nri_on_containerd_2(folder: Path, logs: Path) -> None:
    with runtime_with_nri("2.2", PATIENT) as runtime, site_on(runtime, "nri", folder, logs) as site:
        site.configure(writeBPS=LIMIT_BPS)
        site.wait_for("by the strategy", klass=LIMIT_BPS, container=LIMIT_BPS, annotated_container=POD_BPS)
        assert_follows(site, site.annotated, POD_BPS)
        site.configure()
        site.wait_for("withdrawn", klass=None, container=None, annotated_container=POD_BPS)
