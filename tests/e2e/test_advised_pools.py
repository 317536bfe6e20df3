"""Katalyst's pools by an advisor of a real manager, on a real containerd: what the kernel's files say.

A service whose processes idle, want all CPUs, and idle again, beside pods of `reclaimed_cores`. Two CPUs are
enough: with `dynamic-quota` these pods run on all CPUs, within a quota. With two CPUs the service's pool
needs one, whatever it does, and only the headroom follows; with more the pool follows, too.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from cri_api.runtime.v1.api_pb2 import LinuxContainerResources
from runtimeproxy.katalyst.names import QosLevel
from tests.e2e.katalyst_site import KatalystSite, Mode, katalyst_site, of_level, using_mib
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.node import RunningPod
from tests.lab.pods import PodSpec
from tests.lab.programs import CONTAINERD_WITHOUT_EVENTS, WITH_ALL_VERSIONS, ContainerdVersion

CPUS: Final = os.cpu_count() or 1
MOST_REQUIRED: Final = CPUS - 1
"""The pool `reclaim` keeps one."""
HEADROOM_UNDER_LOAD_MILLICPU: Final = 300
"""At most, while processes want all CPUs."""
STEADY_REPORTS: Final = 3
ADVISOR: Final = "katalyst-advisor"
RSS: Final = "katalyst-rss-overuse"
PLUGINS: Final = {
    # A margin with which a service needs all of its CPUs though a busy machine gives it a few.
    ADVISOR: {
        "policy": "dynamic-quota",
        "window_s": 2.0,
        "hold_s": 1.0,
        "fall_percent": 100,
        "margin": 9.0,
    },
    "katalyst-reporter": {},
    RSS: {},
}
WORKER: Final = "while :; do if [ -e /lab/high ]; then :; else sleep 1; fi; done &"
PROXY: Final = ("proxy", *CONTAINERD_WITHOUT_EVENTS.values)
CASES: Final = [
    pytest.param(*PROXY, id="proxy-containerd-1.6"),
    *(
        pytest.param(mode, version, id=f"{mode}-containerd-{version}", marks=pytest.mark.golang)
        for mode, version in (("proxy", "2.4"), ("nri", "2.2"), ("standalone", "1.6"))
        if WITH_ALL_VERSIONS
    ),
]


def service(folder: Path) -> PodSpec:
    """A pod of `shared_cores` that requests all but one CPU and may use all; a file `high` makes it busy."""
    return of_level(
        "web",
        QosLevel.SHARED,
        kube_qos="burstable",
        resources=LinuxContainerResources(cpu_period=100_000, cpu_shares=1_024 * MOST_REQUIRED),
        command=("/bin/sh", "-c", f"{WORKER * CPUS} wait"),
        mounts={"/lab": str(folder)},
    )


class Observed:
    """What the kernel and the daemon say of the pools of a site."""

    def __init__(self, site: KatalystSite, web: RunningPod, batch: RunningPod) -> None:
        self._site = site
        self._web = web
        self._batch = batch
        self._everything = cgroup_v1.read("cpuset", "/", "cpuset.cpus")

    def is_advised(self) -> bool:
        """Whether the pod of `reclaimed_cores` has all CPUs, as the service has at any time."""
        return self._cpus(self._web) == self._cpus(self._batch) == self._everything

    def is_by_request(self) -> bool:
        cpus = self._cpus(self._batch)
        return self._cpus(self._web) == self._everything and cpus not in ("", self._everything)

    def required(self) -> int | None:
        """What the service's pool needs by the advisor; None: its lease has ended, as on a busy machine."""
        found = self._site.advice().get("share")
        return found.required_cpus if found is not None else None

    def quota_us(self) -> int:
        """Of all pods of the class, in the kernel."""
        return int(cgroup_v1.read("cpu", "/kubepods/besteffort", "cpu.cfs_quota_us"))

    def wait_for(self, required: int) -> None:
        """Waits until the pool needs so many CPUs, and the kernel has a quota of the others."""
        self._site.wait_until(lambda: self.required() == required, f"a need of {required} CPUs")
        quota_us = (CPUS - required) * 100_000
        self._site.wait_until(lambda: self.quota_us() == quota_us, f"a quota of {quota_us} us")

    def wait_for_little_headroom(self) -> None:
        def is_little() -> bool:
            headroom = self._site.headroom_millicpu()
            return headroom is not None and headroom <= HEADROOM_UNDER_LOAD_MILLICPU

        self._site.wait_until(is_little, "little headroom")

    def steady(self) -> tuple[set[int], int]:
        """What its pool needs in some reports at a constant load, and the most headroom then."""
        needs, headrooms, heard = set[int](), set[int](), set[int]()

        def have_come() -> bool:
            required = self.required()
            if required is not None:
                needs.add(required)
                headrooms.add(self._site.headroom_millicpu() or 0)
                heard.add(self._site.status().last_heard.ToNanoseconds())
            return len(heard) > STEADY_REPORTS

        self._site.wait_until(have_come, "reports of the manager")
        return needs, max(headrooms)

    def _cpus(self, pod: RunningPod) -> str:
        return cgroup_v1.read("cpuset", pod.container_cgroup(), "cpuset.cpus")


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    mode: Mode,
    containerd_version: ContainerdVersion,
    folder: Path,
    tmp_path: Path,
) -> Iterator[KatalystSite]:
    own, logs = Path(tempfile.mkdtemp(dir=folder)), tmp_path / "logs"
    logs.mkdir()
    with ExitStack() as stack:
        if mode == "nri":
            runtime = stack.enter_context(Containerd(containerd_version, PATIENT))
        else:
            runtime = request.getfixturevalue("containerd")
        yield stack.enter_context(katalyst_site(runtime, own, logs, mode))


@pytest.mark.parametrize(("mode", "containerd_version"), CASES, indirect=["containerd_version"])
def test_pools_and_headroom_follow_a_service_as_long_as_the_advisor_lives(
    site: KatalystSite, tmp_path: Path
) -> None:
    high = tmp_path / "high"
    # The service goes first, lest the others have no CPU to end with.
    with site.pods(of_level("batch", QosLevel.RECLAIMED), service(tmp_path)) as pods:
        observed = Observed(site, pods["web"], pods["batch"])
        site.wait_until(observed.is_by_request, "pools by request")
        site.configure(PLUGINS)
        site.wait_until(observed.is_advised, "advised pools")
        observed.wait_for(1)
        high.touch()
        observed.wait_for(MOST_REQUIRED)
        observed.wait_for_little_headroom()
        needs, headroom = observed.steady()
        assert needs == {MOST_REQUIRED}
        assert headroom <= HEADROOM_UNDER_LOAD_MILLICPU
        high.unlink()
        observed.wait_for(1)
        # Beside it an eviction, which the daemon carries out in any mode.
        hog = of_level("hog", QosLevel.RECLAIMED, requests={"memory": "16Mi"}, command=using_mib(48))
        with site.pods(hog) as more:
            site.wait_for_eviction({**pods, **more}, "hog")
        site.manager.signal(signal.SIGSTOP)
        site.wait_until(observed.is_by_request, "pools by request")
        site.manager.signal(signal.SIGCONT)
        site.wait_until(observed.is_advised, "advised pools again")
