"""Katalyst's pools on a real daemon: who has which CPUs, by the messages and the files."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.pool_site import BOUND, DEDICATED, SHARED, PoolSite, pool_site
from tests.lab.deadline import wait_until


@pytest.fixture
def site(
    daemons: Daemons, cgroup_files: CgroupFiles, runtime: FakeRuntime, socket_folder: Path
) -> Iterator[PoolSite]:
    with pool_site(daemons, cgroup_files, runtime, socket_folder) as site:
        yield site


def test_others_leave_dedicated_cpus_before_the_runtime_makes_the_pod(site: PoolSite) -> None:
    web = site.start("web", SHARED, 2)
    print("web", site.cpus(web), site.mems(web), site.saved)
    runtime = site.runtime
    runtime.on("RunPodSandbox", hang=True, times=1)
    own = site.pod("own", {**DEDICATED, **BOUND}, 4)
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(own.run)
        runtime.recorded.wait("RunPodSandbox", 2)
        print("web", site.cpus(web), site.mems(web), site.saved)
        runtime.release("RunPodSandbox")
        running.result(30)
    own.create().start()
    print("own", site.cpus(own), site.mems(own), site.created())
    own.remove()
    print(site.status().problems)
