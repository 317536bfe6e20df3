"""The daemon with settings of the kernel, and with idle pods."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc
from runtimeproxy.testing.builders import (
    KubeletQos,
    container_config,
    create_container_request,
    pod_sandbox_config,
)
from runtimeproxy.testing.cgroups import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.sysctl import FILE, NAME, changeable_sysctl
from tests.node.objects_of import config_map, write
from tests.service.api.conftest import status_of

YIELDING = {"clusterStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}


def unapplied(socket: Path) -> dict[str, str]:
    """Reasons by field."""
    with CriClient(socket) as client:
        status = status_of(api_pb2_grpc.RuntimeProxyStub(client.channel))
    return {each.field: each.reason for each in status.ledger.unapplied}


def test_a_sysctl_is_set_and_given_back(daemons: Daemons, cgroup_files: CgroupFiles) -> None:
    cgroup_files.make("/kubepods/besteffort")
    with changeable_sysctl() as before:
        system: dict[str, Any] = {
            # A ten thousandth of the memory is too little.
            "minFreeKbytesFactor": 1,
            "watermarkScaleFactor": before + 1,
            "memcgReapBackGround": 1,
            "schedFeatures": {"NO_SUCH_FEATURE_AT_ALL": True, "ID_NOT_OF_THIS_KERNEL": True},
        }
        daemon = daemons.prepare("[policies.system-config]\nenabled = true\n")
        daemon.objects_folder.mkdir()
        file = daemon.objects_folder / "slo.yaml"
        write(file, config_map(system_config={"clusterStrategy": system}))
        daemon.start()
        wait_until(lambda: FILE.read_text() == f"{before + 1}\n" or None, f"{NAME} is set")
        feature = "kernel_settings[sched_features.ID_NOT_OF_THIS_KERNEL]"
        wait_until(lambda: feature in unapplied(daemon.socket) or None, "reasons")
        found = unapplied(daemon.socket)
        assert found[feature].startswith("the kernel has no scheduler feature ID_NOT_OF_THIS_KERNEL")
        assert "only kernels of Anolis OS" in found["kernel_settings[mm.memcg_reaper.reap_background]"]
        # By a reload that switches it off.
        config = daemon.config_file.read_text()
        daemon.config_file.write_text(config.replace("enabled = true", "enabled = false"))
        daemon.signal(signal.SIGHUP)
        wait_until(lambda: FILE.read_text() == f"{before}\n" or None, "the value of before")
        wait_until(lambda: not unapplied(daemon.socket) or None, "nothing is wanted any more")


def test_a_pod_is_idle_while_it_runs(daemons: Daemons, cgroup_files: CgroupFiles) -> None:
    daemon = daemons.prepare("[policies.cpu-idle]\nenabled = true\n")
    daemon.objects_folder.mkdir()
    file = daemon.objects_folder / "slo.yaml"
    write(file, config_map(resource_qos_config=YIELDING))
    cgroup_files.make("/kubepods/burstable")
    pod = pod_sandbox_config("batch", qos="BE", kubelet_qos=KubeletQos.BESTEFFORT)
    path = pod.linux.cgroup_parent
    cgroup_files.make(path)
    cgroup_files.write(path, "cpu.weight", "1")
    daemon.start()
    resources = api_pb2.LinuxContainerResources(cpu_shares=2)
    with CriClient(daemon.socket) as client:
        run = api_pb2.RunPodSandboxRequest(config=pod)
        pod_id = client.runtime.RunPodSandbox(run, timeout=CALL_TIMEOUT_S).pod_sandbox_id
        create = create_container_request(pod_id, container_config("main", pod=pod, resources=resources), pod)
        container = client.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        client.runtime.StartContainer(
            api_pb2.StartContainerRequest(container_id=container), timeout=CALL_TIMEOUT_S
        )
        wait_until(lambda: cgroup_files.read(path, "cpu.idle") == "1" or None, "the pod is idle")
        assert cgroup_files.read(f"{path}/{container}", "cpu.idle") == "0"
        # The runtime writes the weight of the container whenever the kubelet updates it.
        update = api_pb2.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        client.runtime.UpdateContainerResources(update, timeout=CALL_TIMEOUT_S)
        assert cgroup_files.read(path, "cpu.idle") == "1"
    write(file, config_map(resource_qos_config={"clusterStrategy": {}}))
    # Plain files do not forget the weight, so only the end of idle is seen here.
    wait_until(lambda: cgroup_files.read(path, "cpu.idle") == "0" or None, "the pod is not idle any more")
    assert cgroup_files.read(path, "cpu.weight") == "1"
