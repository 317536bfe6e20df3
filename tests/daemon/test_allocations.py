"""CPUs of a pod's own, with computed pools: the others leave them before the runtime makes the pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import KubeletQos, pod_sandbox_config
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH, Pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import kubelet_files
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import Machine

CONFIG = """
[node]
shared_pools = "computed"
kubelet_dir = "{kubelet}"
"""
ALL = "0-7"
"""The CPUs of the machine."""


@dataclass
class Site:
    """A daemon on a machine with eight CPUs, and a pod that shares them."""

    daemon: ProxyProcess
    client: CriClient
    files: CgroupFiles
    runtime: FakeRuntime
    web: Pod

    def pod(self, name: str, qos: str, cpus: str = "") -> Pod:
        """A pod that is not there yet; `cpus` are its own."""
        status = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus})} if cpus else {}
        config = pod_sandbox_config(
            name, qos=qos, kubelet_qos=KubeletQos.BURSTABLE, uid=f"uid-{name}", annotations=status
        )
        self.files.make(config.linux.cgroup_parent)
        return Pod(self.client, config)

    def shared(self) -> str:
        """The CPUs of the pod that shares them, by its file."""
        path = f"{self.web.config.linux.cgroup_parent}/{self.web.container}"
        return self.files.read(path, "cpuset.cpus").strip()

    def problems(self) -> list[str]:
        """Those of the status."""
        stub = api_pb2_grpc.RuntimeProxyStub(self.client.channel)
        answer = stub.GetStatus(api_pb2.GetStatusRequest(), timeout=30, wait_for_ready=True)
        return list(answer.problems)

    def wait_for(self, cpus: str) -> None:
        """Waits until these are the shared CPUs."""
        wait_until(lambda: self.shared() == cpus, f"{cpus} as shared CPUs")


@pytest.fixture
def site(
    daemons: Daemons, cgroup_files: CgroupFiles, runtime: FakeRuntime, socket_folder: Path
) -> Iterator[Site]:
    machine = Machine(socket_folder / "machine")
    kubelet_files(socket_folder / "kubelet", {})
    daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(machine.sysfs)
    daemon = daemons.start(CONFIG.format(kubelet=socket_folder / "kubelet"))
    with CriClient(daemon.socket) as client:
        site = Site(daemon, client, cgroup_files, runtime, Pod(client, pod_sandbox_config("unused")))
        site.web = site.pod("web", "LS").run().create().start()
        site.wait_for(ALL)
        yield site


@pytest.mark.slow
def test_pods_of_best_effort_take_no_cpus_and_keep_their_quota(site: Site) -> None:
    greedy = []
    for number in range(7):
        made = site.pod(f"greedy{number}", "BE", str(number))
        greedy.append(made.run().create().start())
    wide = site.pod("wide", "BE", "0-7")
    wide.config.annotations.update(BATCH)
    greedy.append(wide.run().create().start())
    own = site.pod("own", "LSR", "7").run().create().start()
    # All that came before is taken into account by now.
    site.wait_for("0-6")
    cpus = [f"{each.config.linux.cgroup_parent}/{each.container}" for each in (*greedy, own)]
    bound = [site.files.read(cgroup, "cpuset.cpus").strip() for cgroup in cpus]
    assert bound == [*map(str, range(7)), "0-7", "7"]
    assert site.files.read(wide.config.linux.cgroup_parent, "cpu.max").split()[0] == "50000"
    assert (
        site.files.read(f"{wide.config.linux.cgroup_parent}/{wide.container}", "cpu.max").split()[0]
        == "50000"
    )
    problem = "Node: no CPU is left in the shared pool of LS pods, which are bound to none now."
    assert problem not in site.problems()
    rest = site.pod("rest", "LSR", "0-6").run()
    wait_until(lambda: problem in site.problems(), "the problem of the empty pool")
    site.daemon.restart()
    wait_until(lambda: problem in site.problems(), "the same after a restart")
    rest.remove()
    wait_until(lambda: problem not in site.problems(), "the end of the problem")


def test_others_leave_a_pods_cpus_before_the_runtime_makes_it(site: Site) -> None:
    runtime = site.runtime
    runtime.on("RunPodSandbox", hang=True, times=1)
    own = site.pod("own", "LSR", "0-3")
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(own.run)
        runtime.recorded.wait("RunPodSandbox", 2)
        # No time for anything else: the runtime has the call, and the others are away.
        assert site.shared() == "4-7"
        assert json.loads((site.daemon.state_folder / "allocations.json").read_text())["pods"] == {
            "uid-own": {"qos": "LSR", "cpus": "0-3"}
        }
        runtime.release("RunPodSandbox")
        running.result(30)
    own.create().start()
    while "1 pod owns CPUs 0-3" not in site.daemon.wait_for_state("STATUS"):
        continue
    # A new pod gets what is left, and all comes back with the owner's end.
    late = site.pod("late", "LS").run().create()
    created = runtime.recorded.of("CreateContainer")[-1].message
    assert created.config.linux.resources.cpuset_cpus == "4-7"
    own.remove()
    site.wait_for(ALL)
    late.remove()


def test_a_pod_that_was_not_made_frees_its_cpus(site: Site) -> None:
    site.runtime.on("RunPodSandbox", error=CallError("UNAVAILABLE"), times=1)
    with pytest.raises(grpc.RpcError):
        site.pod("own", "LSR", "0-3").run()
    site.wait_for(ALL)


@pytest.mark.slow
def test_a_restart_knows_the_allocations_while_the_runtime_lists_nothing(site: Site) -> None:
    """`kill -9` while a sandbox is being made, and a runtime that answers no list."""
    runtime = site.runtime
    site.pod("first", "LSR", "0-1").run()
    assert site.shared() == "2-7"
    runtime.on("RunPodSandbox", hang=True, times=1)
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(site.pod("second", "LSR", "2-3").run)
        wait_until(lambda: site.shared() == "4-7", "the second pod's CPUs")
        site.daemon.kill()
        with pytest.raises(grpc.RpcError):
            running.result(30)
    runtime.on("ListPodSandbox", hang=True)
    site.daemon.start()
    with CriClient(site.daemon.socket) as client:
        site.client = client
        late = site.pod("late", "LS").run().create()
        created = runtime.recorded.of("CreateContainer")[-1].message
        assert created.config.linux.resources.cpuset_cpus == "4-7"
        late.start()
        # The second sandbox never came to be.
        runtime.clear("ListPodSandbox")
        runtime.release("ListPodSandbox")
        site.wait_for("2-7")


def test_pods_whose_cpus_are_not_left_in_time_are_made_all_the_same(site: Site) -> None:
    path = site.files.folder(f"{site.web.config.linux.cgroup_parent}/{site.web.container}") / "cpuset.cpus"
    path.unlink()
    path.mkdir()
    site.pod("own", "LSR", "0-3").run().create().start()
    assert site.daemon.alive()
