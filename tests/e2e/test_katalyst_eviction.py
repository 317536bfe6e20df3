"""A pod that uses more memory than it requests is evicted: containerd ends its container, and no other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as own_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc as own_grpc
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import kubelet_files
from tests.lab.pods import ContainerSpec, PodSpec, container_config, sandbox_config
from tests.lab.programs import debian_program
from tests.lab.proxy_process import ManagerProcess, ProxyOptions, ProxyProcess

CONFIG = """
[node]
kubelet_dir = "{kubelet}"
[policies.katalyst-qos]
enabled = true
[qosmanager]
interval_s = 0.2
[plugins.cpu-suppress]
mode = "off"
[plugins.katalyst-rss-overuse]
mode = "enforce"
"""
USES_48_MIB = ("-c", "import time; x = b'a' * (48 << 20); time.sleep(1_000_000)")
PATIENT_S = 90.0


def pod_of(name: str, requested: str) -> PodSpec:
    """A pod of `reclaimed_cores` whose request an annotation tells."""
    annotations: Mapping[str, str] = {
        "katalyst.kubewharf.io/qos_level": "reclaimed_cores",
        "pod.kubernetes.io/pod-aggregated-requests": json.dumps({"memory": requested}),
    }
    # The interpreter of this machine, as the image has none.
    mounts = {each: str(Path(each).resolve()) for each in ("/usr", "/lib", "/lib64") if Path(each).is_dir()}
    command = (str(debian_program("python3")), *USES_48_MIB)
    container = ContainerSpec(command=command, mounts=mounts)
    return PodSpec(name, "besteffort", annotations=annotations, containers=(container,))


def start(client: CriClient, pod: PodSpec) -> str:
    """Returns the id of its container."""
    calls, (container,) = client.runtime, pod.containers
    sandbox = sandbox_config(pod, "")
    request = api_pb2.RunPodSandboxRequest(config=sandbox)
    sandbox_id = calls.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id
    create = api_pb2.CreateContainerRequest(
        pod_sandbox_id=sandbox_id, config=container_config(pod, container), sandbox_config=sandbox
    )
    identity: str = calls.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
    calls.StartContainer(api_pb2.StartContainerRequest(container_id=identity), timeout=CALL_TIMEOUT_S)
    return identity


def test_a_pod_above_its_memory_request_is_evicted(tmp_path: Path, folder: Path) -> None:
    kubelet = tmp_path / "kubelet"
    kubelet_files(kubelet, {})
    pods = {"hog": pod_of("hog", "32Mi"), "modest": pod_of("modest", "256Mi")}
    with ExitStack() as stack:
        for pod in pods.values():
            stack.enter_context(cgroup_v1.pod_cgroup(pod.cgroup_parent))
        containerd = stack.enter_context(Containerd("1.6"))
        own = folder / "katalyst-eviction"
        own.mkdir()
        options = ProxyOptions(str(containerd.socket), config=CONFIG.format(kubelet=kubelet))
        proxy = stack.enter_context(ProxyProcess(own, options))
        client = stack.enter_context(CriClient(proxy.socket))
        direct = stack.enter_context(CriClient(containerd.socket))
        containers = {name: start(client, pod) for name, pod in pods.items()}

        def status(name: str) -> api_pb2.ContainerStatus:
            request = api_pb2.ContainerStatusRequest(container_id=containers[name])
            answer = direct.runtime.ContainerStatus(request, timeout=CALL_TIMEOUT_S)
            found: api_pb2.ContainerStatus = answer.status
            return found

        manager = ManagerProcess(proxy.folder, proxy.config_file, proxy.socket, proxy.options.environment)
        stack.callback(manager.close)
        manager.start()
        wait_until(
            lambda: status("hog").state == api_pb2.CONTAINER_EXITED, f"the end; {manager.log}", PATIENT_S
        )
        assert status("hog").exit_code == 137
        # It uses as much, and requests more.
        assert status("modest").state == api_pb2.CONTAINER_RUNNING
        api = own_grpc.RuntimeProxyStub(client.channel)
        answers = api.WatchAudit(own_pb2.WatchAuditRequest(), timeout=CALL_TIMEOUT_S)
        entries = [each for answer in answers for each in answer.entries if each.field == "eviction"]
        (entry,) = entries
        assert (entry.pod, entry.after) == ("hog", "evicted")
        assert "MiB used, above 1.05 times 32 requested" in entry.reason
