"""Katalyst's pools where the kubelet calls the runtime itself: NRI and stand-alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    NriAdaptation,
    NriRuntimeState,
    PodCgroups,
)
from tests.daemon.conftest import PATIENT_NRI, Daemons
from tests.daemon.pool_site import SHARED, pool_site
from tests.daemon.test_cpu_pools import ALONE, BESIDE_OWN, OWN, WHOLE
from tests.lab.deadline import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def state(socket_folder: Path, cgroup_files: CgroupFiles) -> NriRuntimeState:
    adaptation = NriAdaptation(socket_folder / "nri.sock", PATIENT_NRI)
    return NriRuntimeState(adaptation, PodCgroups(CgroupDriver.CGROUPFS, cgroup_files))


@pytest.fixture
def nri_runtime(socket_folder: Path, state: NriRuntimeState) -> Iterator[FakeRuntime]:
    with FakeRuntime(socket_folder / "runtime.sock", state=state) as fake:
        yield fake


def test_nri(
    daemons: Daemons,
    nri_runtime: FakeRuntime,
    state: NriRuntimeState,
    cgroup_files: CgroupFiles,
    socket_folder: Path,
) -> None:
    lock = socket_folder / "front-end.lock"
    mode = f'[daemon]\nmode = "nri"\nlock = "{lock}"\n[nri]\nsocket = "{state.nri.socket_path}"\n'
    with pool_site(daemons, cgroup_files, nri_runtime, socket_folder, more=mode, at_runtime=True) as site:
        state.nri.wait_for_plugins("50-koord-runtime-proxy")
        web = site.start("web", SHARED, 2)
        site.wait_for(web, ALONE)
        own = site.pod("own", OWN, 4).run()
        # Others have left before the sandbox is there.
        own.create()
        assert state.find_container(own.container).resources.cpuset_cpus == "2-5"
        own.start()
        site.wait_for(web, BESIDE_OWN)
        with pytest.raises(grpc.RpcError) as error:
            site.pod("late", WHOLE, 14).run()
        assert "katalyst-pools" in str(error.value)
        assert site.status().cpu_pools.limits
        site.daemon.restart()
        own.remove()
        site.wait_for(web, ALONE)
        wait_until(lambda: not site.problems, "the end of all problems")


def test_standalone(
    daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles, socket_folder: Path
) -> None:
    cgroup_files.root.mkdir(parents=True, exist_ok=True)
    mode = f'[daemon]\nmode = "standalone"\nlock = "{socket_folder / "front-end.lock"}"\n'
    with pool_site(daemons, cgroup_files, runtime, socket_folder, more=mode, at_runtime=True) as site:
        web = site.start("web", SHARED, 2)
        site.wait_for(web, ALONE)
        own = site.start("own", OWN, 4)
        site.wait_for(own, "2-5")
        site.wait_for(web, BESIDE_OWN)
        late = site.start("late", WHOLE, 14)
        wait_until(lambda: "default/late" in str(site.problems), "the pod without room")
        late.remove()
        own.remove()
        site.wait_for(web, ALONE)
        wait_until(lambda: not site.problems, "the end of all problems")
