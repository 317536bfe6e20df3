"""Katalyst's evictions with samples of a Malachite, over HTTP, while a real containerd runs the pods.

The server says of a pod that it uses far too much. Whatever is wrong with the answers, that stops nothing;
what the kernel says does, and what the server says once nothing is wrong any more.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.node.machine import read_memory
from runtimeproxy.vocabulary import MetricsSource
from tests.e2e.katalyst_site import KatalystSite, katalyst_site, of_level, using_mib
from tests.lab.containerd import Containerd
from tests.lab.procfs import rss_bytes
from tests.lab.programs import CONTAINERD_WITHOUT_EVENTS, REPOSITORY
from tests.qosmanager.samples.malachite_faults import FAULTS, MIB, trickling
from tests.qosmanager.samples.malachite_server import (
    Document,
    Files,
    MalachiteServer,
    Output,
    of_documents,
    port_without_a_server,
)

pytestmark = pytest.mark.parametrize("containerd_version", [CONTAINERD_WITHOUT_EVENTS], indirect=True)

RSS: Final = "katalyst-rss-overuse"
MEMORY: Final = "katalyst-memory-pressure"
GIB: Final = 1 << 30
NUMA_KIB: Final = {each: size >> 10 for each, size in read_memory(Path("/sys"), Path("/proc")).items()}
"""The size of each NUMA node."""
OPTIONS: Final = {
    "system": False,
    "numa": False,
    "kswapd_pages_per_second": 1e9,
    "numa_least_share": 0.0,
}
MOST_GROWTH: Final = 20 * MIB
SHORT: Final = """
from runtimeproxy.qosmanager.samples import malachite
malachite.POLL_S = 0.3
malachite._FAILURE_PAUSES_S = (0.0, 0.1)
malachite._HELD_S = 3.0
malachite.STALE_S = 5.0
malachite.HttpConnection.__init__.__kwdefaults__["limit_s"] = 1.0
"""
"""How often it is asked, how long data is held after its time, when it is too old (the plugins' own limit
stays), and how long an answer may take."""
WRONG: Final = {"slow": trickling, **{name: fault for name, (fault, _) in FAULTS.items()}}
REASONS: Final = {
    **{name: reason for name, (_, reason) in FAULTS.items()},
    "late": "no whole answer within 1 s",
    "wrong-types": "total_rss is not a number of 64 bits",
    "slow": "no whole answer within 1 s",
}


class Malachite:
    """Reads this machine's files when it is asked, and says of some of them something else."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.age_s = 0
        self.ended = threading.Event()
        self.used: dict[str, int] = {}
        """By cgroup: bytes that it says are used."""
        self.free_kib: int | None = None
        """Of the node and of its first NUMA node; None: as it is."""
        self._files = Files(find_mounts())

    def answer(self, output: Output, path: str) -> object:
        return of_documents(self._documents())(output, path)

    def _documents(self) -> dict[str, Document]:
        update_time = int(time.time()) - self.age_s
        found = self._files.documents([], update_time)
        if self.free_kib is not None:
            found["memory"]["system"] |= {
                "mem_total": sum(NUMA_KIB.values()),
                "mem_free": self.free_kib,
                # Whatever this machine has: of its memory NUMA nodes may have a part only.
                "mem_available": self.free_kib,
                "mem_inactive_file": 0,
                "vm_watermark_scale_factor": 100,
            }
            found["memory"]["numa"] = [
                {"id": each, "mem_used": 0 if each else size - self.free_kib}
                for each, size in NUMA_KIB.items()
            ]
        for cgroup, used in self.used.items():
            found[cgroup] = self._files.cgroup(cgroup, update_time)
            memory = found[cgroup]["sub_system_groups"]["Memory"]["Memory"]["V1"]
            memory["memory_usage_in_bytes"] = memory["total_rss"] = used
        return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with port_without_a_server() as found:
        yield found


@pytest.fixture(scope="module")
def site(
    containerd: Containerd, folder: Path, tmp_path_factory: pytest.TempPathFactory, url: str
) -> Iterator[KatalystSite]:
    own = Path(tempfile.mkdtemp(dir=folder))
    logs = tmp_path_factory.mktemp("logs")
    samples = f'metrics_source = "malachite"\nmalachite_url = "{url}"\n'
    with katalyst_site(containerd, own, logs, samples=samples, of_manager=SHORT) as running:
        yield running


def wait_for_source(site: KatalystSite, source: MetricsSource, problem: str) -> None:
    def is_so() -> bool:
        report = site.status().report
        return report.metrics_source == source and problem in report.metrics_problem

    site.wait_until(is_so, f"{source}: {problem}")


def status_command(site: KatalystSite) -> tuple[int, str]:
    """Exit code and output of `koord-qos-manager status`."""
    words = ("status", "--koord-runtimeproxy-endpoint", str(site.proxy.socket))
    done = subprocess.run(
        (sys.executable, "-m", "runtimeproxy.qosmanager", *words),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_whatever_is_wrong_with_malachite(site: KatalystSite, url: str) -> None:
    malachite = Malachite(url)
    specs = [
        of_level(name, QosLevel.RECLAIMED, requests={"memory": amount}, command=using_mib(48))
        for name, amount in (("hog", "32Mi"), ("modest", "256Mi"))
    ]
    with site.pods(*specs) as pods:
        rest = {"modest": pods["modest"]}
        malachite.used = {pods["modest"].spec.cgroup_parent: 5 * GIB}
        site.configure({RSS: {}})
        # It is away: the kernel's files say which one uses too much.
        site.wait_for_eviction(pods, "hog")
        wait_for_source(site, MetricsSource.KERNEL, "ConnectionRefusedError")
        code, text = status_command(site)
        assert (code, "ConnectionRefusedError" in text) == (1, True), text
        before = rss_bytes(site.manager.pid)
        with ExitStack() as stack:
            stack.callback(malachite.ended.set)
            server = stack.enter_context(MalachiteServer(lambda *_: False, url))
            for name, fault in WRONG.items():
                # First: whatever was wrong before, no answer in between is right.
                server.answer = lambda *_: False
                malachite.age_s = 0
                server.answer = fault(malachite)
                wait_for_source(site, MetricsSource.KERNEL, REASONS[name])
            assert rss_bytes(site.manager.pid) - before < MOST_GROWTH
            assert site.running(rest) == {"modest"}
            assert len(site.evictions_by(RSS)) == 1
            # Nothing is wrong any more, and it is as the kernel says.
            malachite.used, malachite.age_s = {pods["modest"].spec.cgroup_parent: 48 * MIB}, 0
            server.answer = malachite.answer
            wait_for_source(site, MetricsSource.MALACHITE, "")
            # Connections that are open end, too.
            server.answer = lambda *_: False
        # It dies. What it has said last is in use for a time.
        wait_for_source(site, MetricsSource.KERNEL, "ConnectionRefusedError")
        assert site.running(rest) == {"modest"}
        malachite.used = {pods["modest"].spec.cgroup_parent: 5 * GIB}
        with MalachiteServer(malachite.answer, url):
            site.wait_for_eviction(rest, "modest")
            assert "5120 MiB used" in site.evictions_by(RSS)[-1].reason


@pytest.mark.parametrize("scope", ["system", "numa"])
def test_memory_at_the_watermark(site: KatalystSite, url: str, scope: str) -> None:
    """As much as the watermark is free, and then 1 KiB less: of the node, and of its NUMA node."""
    malachite = Malachite(url)
    total_kib = NUMA_KIB[0] if scope == "numa" else sum(NUMA_KIB.values())
    watermark_kib = -(-total_kib // 100)
    specs = [
        of_level("web", QosLevel.SHARED, command=using_mib(16)),
        of_level("batch", QosLevel.RECLAIMED, command=using_mib(16)),
    ]
    figures = f"{watermark_kib / 1024:.0f} MiB free of {total_kib / 1024:.0f}, watermark"
    malachite.free_kib = watermark_kib
    with MalachiteServer(malachite.answer, url), site.pods(*specs) as pods:
        malachite.used = {each.spec.cgroup_parent: 16 * MIB for each in pods.values()}
        before = site.evictions_by(MEMORY)
        site.configure({MEMORY: {**OPTIONS, scope: True}})
        wait_for_source(site, MetricsSource.MALACHITE, "")
        site.wait_for(MEMORY, figures if scope == "system" else "no threshold is met")
        assert site.running(pods) == {"web", "batch"}
        assert site.evictions_by(MEMORY) == before
        malachite.free_kib -= 1
        site.wait_for_eviction(pods, "batch")
        *_, last = site.evictions_by(MEMORY)
        assert (last.pod, figures in last.reason) == ("batch", True)
