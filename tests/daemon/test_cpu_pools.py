"""Katalyst's pools on a real daemon: who has which CPUs, by the messages and the files."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime
from runtimeproxy.units import SHARES_PER_CPU, parse_cpu_list
from tests.daemon.conftest import Daemons
from tests.daemon.pool_site import BOUND, DEDICATED, EXCLUSIVE, RECLAIMED, SHARED, SYSTEM, PoolSite, pool_site
from tests.lab.cri_client import CALL_TIMEOUT_S
from tests.lab.deadline import wait_until

OWN = {**DEDICATED, **BOUND}
Sites: TypeAlias = Callable[..., AbstractContextManager[PoolSite]]


@pytest.fixture
def sites(daemons: Daemons, cgroup_files: CgroupFiles, runtime: FakeRuntime, socket_folder: Path) -> Sites:
    return partial(pool_site, daemons, cgroup_files, runtime, socket_folder)


@pytest.fixture
def site(sites: Sites) -> Iterator[PoolSite]:
    with sites() as site:
        yield site


def code_of(error: pytest.ExceptionInfo[grpc.RpcError]) -> grpc.StatusCode:
    found: grpc.StatusCode = error.value.code()  # type: ignore[attr-defined]
    return found


def text_of(error: pytest.ExceptionInfo[grpc.RpcError]) -> str:
    return str(error.value.details())  # type: ignore[attr-defined]


def test_others_leave_dedicated_cpus_before_the_runtime_makes_the_pod(site: PoolSite) -> None:
    runtime, web = site.runtime, site.start("web", SHARED, 2)
    # 16 CPUs, of which 0 and 8 are reserved, and 4 are for reclaimed pods.
    site.wait_for(web, "1-6,9-12")
    runtime.on("RunPodSandbox", hang=True, times=1)
    own = site.pod("own", OWN, 4)
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(own.run)
        runtime.recorded.wait("RunPodSandbox", 2)
        # The runtime has the call: the state is saved, and the pod has left.
        assert [pod[0] for pod in site.saved["pods"]] == ["uid-own", "uid-web"]
        wait_until(lambda: bool(site.cpus(web)), "a file that is not just being written")
        assert parse_cpu_list(site.cpus(web)).isdisjoint({2, 3, 4, 5})
        runtime.release("RunPodSandbox")
        running.result(30)
    own.create()
    assert (site.created().cpuset_cpus, site.created().cpuset_mems) == ("2-5", "0")
    own.start()
    # What is bound leaves its NUMA node to none that is not.
    site.wait_for(web, "1,6-7,9-11")
    assert site.mems(web) == "1"
    own.remove()
    site.wait_for(web, "1-6,9-12")
    assert site.status().cpu_pools.pods == 1
    assert not site.status().problems


def test_each_level_has_its_pool(sites: Sites) -> None:
    with sites(options="enable_reclaim = true") as site:
        made = {
            "share": site.start("web", SHARED, 2),
            "reclaim": site.start("batch", RECLAIMED, 1),
            "reserve": site.start("agent", SYSTEM, 1),
            "dedicated": site.start("own", {**DEDICATED, **EXCLUSIVE}, 4),
        }
        pools = {each.name: each.cpus for each in site.status().cpu_pools.pools}
        for name, pod in made.items():
            site.wait_for(pod, pools[name])
        assert pools["dedicated"] == "1-7"
        assert not site.status().problems


def test_an_update_of_the_kubelet_carries_the_pools_cpus(site: PoolSite) -> None:
    web = site.start("web", SHARED, 2)
    site.wait_for(web, "1-6,9-12")
    linux = cri.LinuxContainerResources(cpuset_cpus="0-15", cpuset_mems="0-1")
    request = cri.UpdateContainerResourcesRequest(container_id=web.container, linux=linux)
    site.client.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)
    sent = site.runtime.recorded.of("UpdateContainerResources")[-1].message.linux
    assert (sent.cpuset_cpus, sent.cpuset_mems) == ("1-6,9-12", "0-1")


def test_a_pod_without_room_is_refused_with_the_reason(site: PoolSite) -> None:
    site.start("own", {**DEDICATED, **EXCLUSIVE}, 4)
    site.start("other", {**DEDICATED, **EXCLUSIVE}, 4)
    with pytest.raises(grpc.RpcError) as error:
        site.pod("third", {**DEDICATED, **EXCLUSIVE}, 4).run()
    assert code_of(error) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "katalyst-pools: " in text_of(error)
    assert len(site.runtime.recorded.of("RunPodSandbox")) == 2
    assert site.status().cpu_pools.pods == 2


def test_a_pod_without_room_is_one_of_share_where_nothing_is_refused(sites: Sites) -> None:
    with sites(on_error="fallback") as site:
        site.start("own", {**DEDICATED, **EXCLUSIVE}, 4)
        late = site.start("late", {**DEDICATED, **EXCLUSIVE}, 14)
        wait_until(lambda: site.status().cpu_pools.unplaced_pods == 1, "the pod that has no room")
        assert "default/late" in str(site.status().problems)
        assert parse_cpu_list(site.cpus(late)).isdisjoint(range(1, 8))


def test_dedicated_cpus_are_not_resized(site: PoolSite) -> None:
    own = site.start("own", OWN, 4)
    linux = cri.LinuxContainerResources(cpu_shares=2 * SHARES_PER_CPU, cpu_period=100_000)
    request = cri.UpdateContainerResourcesRequest(container_id=own.container, linux=linux)
    with pytest.raises(grpc.RpcError) as error:
        site.client.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)
    assert code_of(error) is grpc.StatusCode.FAILED_PRECONDITION
    assert not site.runtime.recorded.of("UpdateContainerResources")


def test_a_pod_that_the_runtime_does_not_make_frees_its_cpus(site: PoolSite) -> None:
    web = site.start("web", SHARED, 2)
    site.wait_for(web, "1-6,9-12")
    site.runtime.on("RunPodSandbox", error=CallError("UNAVAILABLE"), times=1)
    with pytest.raises(grpc.RpcError):
        site.pod("own", OWN, 4).run()
    site.wait_for(web, "1-6,9-12")
    wait_until(lambda: site.status().cpu_pools.pods == 1, "the end of the pod")


@pytest.mark.parametrize("on_error", ["reject", "fallback"])
def test_a_state_that_cannot_be_saved(sites: Sites, on_error: str) -> None:
    with sites(on_error=on_error) as site:
        file = site.daemon.state_folder / "cpu_pools.json"
        file.unlink(missing_ok=True)
        file.mkdir()
        own = site.pod("own", OWN, 4)
        if on_error == "reject":
            with pytest.raises(grpc.RpcError) as error:
                own.run()
            assert code_of(error) is grpc.StatusCode.UNAVAILABLE
            assert "cannot be saved" in text_of(error)
            assert not site.runtime.recorded.of("RunPodSandbox")
        else:
            own.run().create().start()
            site.wait_for(own, "2-5")
        wait_until(lambda: "cannot be saved" in str(site.status().problems), "the problem")
        file.rmdir()
        own = site.start("later", SHARED, 1)
        wait_until(lambda: not site.status().problems, "the end of the problem")
        assert "uid-later" in [pod[0] for pod in site.saved["pods"]]


@pytest.mark.parametrize("on_error", ["reject", "fallback"])
def test_a_pod_that_cannot_be_made_to_leave(sites: Sites, on_error: str) -> None:
    with sites(on_error=on_error) as site:
        web = site.start("web", SHARED, 2)
        site.wait_for(web, "1-6,9-12")
        path = site.files.folder(f"{web.config.linux.cgroup_parent}/{web.container}") / "cpuset.cpus"
        path.unlink()
        path.mkdir()
        own = site.pod("own", OWN, 4)
        if on_error == "reject":
            with pytest.raises(grpc.RpcError) as error:
                own.run()
            assert code_of(error) is grpc.StatusCode.UNAVAILABLE
            assert "default/web has not left CPUs 2-5" in text_of(error)
        else:
            own.run().create().start()
            site.wait_for(own, "2-5")
            assert "default/web has not left CPUs 2-5" in str(site.status().cpu_pools.overlaps)
        path.rmdir()
        path.write_text("1-6,9-12\n")
        if on_error == "reject":
            wait_until(lambda: not site.status().problems, "the end of all problems", 20)
            own.run().create().start()
        wait_until(lambda: not site.status().cpu_pools.overlaps, "the end of the overlap", 60)
        site.wait_for(web, "1,6-7,9-11")


def test_pools_are_off_while_the_kubelet_gives_cpus_itself(site: PoolSite) -> None:
    web = site.start("web", SHARED, 2)
    site.wait_for(web, "1-6,9-12")
    config = site.kubelet / "config.yaml"
    text = config.read_text()
    config.write_text(f"{text}memoryManagerPolicy: Static\n")
    wait_until(lambda: "memory manager policy is Static" in site.status().cpu_pools.off_reason, "the reason")
    own = site.pod("own", OWN, 4).run().create()
    assert not site.created().cpuset_cpus
    config.write_text(text)
    wait_until(lambda: not site.status().cpu_pools.off_reason, "pools")
    own.start()
    site.wait_for(own, "2-5")
    site.wait_for(web, "1,6-7,9-11")


def test_what_runs_when_pools_are_switched_on_is_adopted(site: PoolSite) -> None:
    config = site.daemon.config_file
    text = config.read_text()
    config.write_text(text.replace("[policies.katalyst-pools]\nenabled = true", ""))
    site.daemon.signal(signal.SIGHUP)
    wait_until(lambda: not site.status().HasField("cpu_pools"), "the end of the pools")
    own = site.pod("own", OWN, 4).run().create()
    assert not site.created().cpuset_cpus
    own.start()
    config.write_text(text)
    site.daemon.signal(signal.SIGHUP)
    site.wait_for(own, "2-5")
    assert not site.status().problems
