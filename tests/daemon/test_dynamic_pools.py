"""Katalyst's dynamic configuration changes pools, bursts and levels of pods that run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.units import format_cpu_list
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod
from tests.daemon.pool_site import BOUND, DEDICATED, RECLAIMED, SHARED, PoolSite, pool_site
from tests.daemon.test_dynamic_config import write
from tests.katalyst.objects import target
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import time_s, wait_until

pytestmark = pytest.mark.slow

LEVELS: Final = "[policies.katalyst-qos]\nenabled = true\n"


def config(*, reclaim: bool, least: str, percent: int) -> dict[str, Any]:
    return {
        "reclaimedResourceConfig": {
            "enableReclaim": reclaim,
            "minReclaimedResourceForAllocate": {"cpu": least},
        },
        "fineGrainedResourceConfig": {
            "cpuBurstConfig": {
                "enableDedicatedCoresDefaultCPUBurst": True,
                "defaultCPUBurstPercent": percent,
            }
        },
        "runtimeProxyConfig": {"defaultLevel": "shared_cores"},
    }


class Seen(NamedTuple):
    """What a target has changed."""

    pools: Mapping[str, str]
    """In the file of the state."""
    cpus: Mapping[str, str]
    """Of the pods' containers, in the files of their cgroups."""
    burst: str
    """Of the dedicated container, likewise, in microseconds."""
    plain_class: str
    """Of the pod without an annotation, in the API."""


def seen(site: PoolSite, pods: Mapping[str, Pod]) -> Seen:
    with CriClient(site.daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        parts = api.WatchPods(api_pb2.WatchPodsRequest(snapshot_only=True), timeout=CALL_TIMEOUT_S)
        classes = {pod.name: pod.qos_class for part in parts for pod in part.snapshot.pods}
    own = pods["own"]
    burst = site.files.read(f"{own.config.linux.cgroup_parent}/{own.container}", "cpu.max.burst")
    cpus = {name: site.cpus(pod) for name, pod in pods.items()}
    pools = {name: format_cpu_list(numbers) for name, numbers in site.saved.pools.items()}
    return Seen(pools, cpus, burst, classes.get("plain", ""))


def expected(share: str, reclaim: str, burst: str, plain_class: str) -> Seen:
    cpus = {"own": "2-5", "web": share, "plain": share, "batch": reclaim}
    return Seen({"reserve": "0,8", "share": share, "reclaim": reclaim}, cpus, burst, plain_class)


def test_running_pods_follow_a_target(
    daemons: Daemons, cgroup_files: CgroupFiles, runtime: FakeRuntime, socket_folder: Path
) -> None:
    with pool_site(daemons, cgroup_files, runtime, socket_folder, more=LEVELS) as site:
        own = site.pod("own", {**DEDICATED, **BOUND}, 4)
        own.resources.cpu_quota = 400_000
        pods = {
            "own": own.run().create().start(),
            "web": site.start("web", SHARED, 2),
            "plain": site.start("plain", {}, 1),
            "batch": site.start("batch", RECLAIMED, 1),
        }

        def wait_for(what: Seen) -> None:
            wait_until(lambda: seen(site, pods) == what, str(what))

        wait_for(expected("1,6-7,9-11", "12-15", "0", ""))
        calls = len(runtime.recorded.of("UpdateContainerResources"))
        folder = site.daemon.objects_folder
        folder.mkdir(exist_ok=True)
        steps = (
            (config(reclaim=True, least="6", percent=40), expected("1,6-7", "9-15", "160000", "LS")),
            (config(reclaim=False, least="2", percent=10), expected("1,6-7,9-13", "14-15", "40000", "LS")),
        )
        for written, after in steps:
            write(folder / "katalyst.json", target("all", config=written))
            print(f"a target applies after {time_s(partial(wait_for, after)):.2f} s")
        wait_until(lambda: not site.problems, "the end of all problems")
        # All of it by file.
        assert len(runtime.recorded.of("UpdateContainerResources")) == calls
        # A process that finds the target there has the same.
        site.daemon.kill()
        site.daemon.start()
        wait_until(lambda: site.status().cpu_pools.pods == len(pods), "all pods in the pools")
        wait_for(steps[-1][1])
