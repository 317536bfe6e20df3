"""Katalyst's pools by an advisor of a real manager, on a real containerd: what the kernel's files say.

Two CPUs are enough: the service requests one of them, and with `dynamic-quota` pods of `reclaimed_cores` run
on all of them. The advisor may not bound the class: other tests run pods of it.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.daemon.failures.scene import WITH_STATEMENTS
from tests.e2e.values import BEST_EFFORT, GUARANTEED, as_resources
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod
from tests.lab.node_objects import kubelet_files
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec
from tests.lab.programs import CONTAINERD_WITHOUT_EVENTS
from tests.lab.proxy_process import ManagerProcess, ProxyOptions, ProxyProcess

LEVEL: Final = "katalyst.kubewharf.io/qos_level"
CONFIG: Final = """
[node]
kubelet_dir = "{kubelet}"

[policies.cpuset]
enabled = false

[policies.katalyst-pools]
enabled = true

[policies.katalyst-pools.options]
enable_reclaim = true
overlap = true
reclaim_reserve = 1
ramp_up_s = 0.0

[plugins.katalyst-advisor]
mode = "enforce"

[plugins.katalyst-advisor.options]
policy = "dynamic-quota"

[owners.katalyst-advisor]
allow = ["pool.required_cpus set pool", "pool.overlap_cpus set pool", "pool.headroom_millicpu set pool"]
"""
SHORT_LEASE: Final = "import runtimeproxy.ledger.leases as it; it.LEASE_S = 6.0"
"""Longer than the time between two renewals."""


class Site:
    """A daemon, its configuration for a manager, a service and a pod of `reclaimed_cores`."""

    def __init__(self, proxy: ProxyProcess, web: RunningPod, batch: RunningPod) -> None:
        self.proxy = proxy
        self._web = web
        self._batch = batch

    @property
    def is_advised(self) -> bool:
        """Whether the pod of `reclaimed_cores` has all CPUs, as the service has at any time."""
        everything = cgroup_v1.read("cpuset", "/", "cpuset.cpus")
        assert self._cpus(self._web) == everything
        return self._cpus(self._batch) == everything

    def _cpus(self, pod: RunningPod) -> str:
        return cgroup_v1.read("cpuset", pod.container_cgroup(), "cpuset.cpus")


def pod_spec(name: str, kube_qos: KubeQos, level: str) -> PodSpec:
    values = BEST_EFFORT if kube_qos == "besteffort" else GUARANTEED
    return PodSpec(name, kube_qos, {}, {LEVEL: level}, (ContainerSpec(resources=as_resources(values)),))


@pytest.fixture
def site(containerd: Containerd, folder: Path, tmp_path: Path) -> Iterator[Site]:
    own = Path(tempfile.mkdtemp(dir=folder))
    kubelet_files(own / "kubelet", {})
    options = ProxyOptions(
        str(containerd.socket),
        config=CONFIG.format(kubelet=own / "kubelet"),
        wrapper=(sys.executable, "-c", WITH_STATEMENTS, SHORT_LEASE),
    )
    with ExitStack() as stack:
        proxy = stack.enter_context(ProxyProcess(own, options))
        client = stack.enter_context(CriClient(proxy.socket))
        pods = (
            pod_spec("web", "guaranteed", "shared_cores"),
            pod_spec("batch", "besteffort", "reclaimed_cores"),
        )
        web, batch = (stack.enter_context(running_pod(client, each, tmp_path)) for each in pods)
        yield Site(proxy, web, batch)


@pytest.mark.parametrize("containerd_version", [CONTAINERD_WITHOUT_EVENTS], indirect=True)
def test_reclaimed_pods_run_on_all_cpus_as_long_as_the_advisor_lives(site: Site) -> None:
    wait_until(lambda: not site.is_advised, "pools by request")
    manager = ManagerProcess(site.proxy.folder, site.proxy.config_file, site.proxy.socket)
    try:
        manager.start()
        wait_until(lambda: site.is_advised, f"advised pools; {manager.log[-5:]}")
        manager.signal(signal.SIGSTOP)
        wait_until(lambda: not site.is_advised, "pools by request")
        manager.signal(signal.SIGCONT)
        wait_until(lambda: site.is_advised, "advised pools again")
    finally:
        manager.close()
