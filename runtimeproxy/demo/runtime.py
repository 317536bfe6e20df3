"""The runtime of the demo: the one that is there, or the built-in fake."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing.cgroups import CgroupDriver

USUAL_SOCKETS: Final = ("/run/containerd/containerd.sock", "/run/crio/crio.sock")
"""Where containerd and CRI-O listen by default."""

RUN_LABEL: Final = "koord-runtime-proxy/demo"
"""Label of the demo's pods; its value tells one run from another."""

CALL_TIMEOUT_S: Final = 5.0
REMOVE_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class DemoRuntime:
    """A runtime that can run the demo's pods.

    Attributes:
        socket_path: its socket.
        name: what it calls itself.
        image: an image that it has; pods of the demo pull nothing.
        driver: how it wants cgroup parents written.
    """

    socket_path: str
    name: str
    image: str
    driver: CgroupDriver


def channel(socket_path: str) -> grpc.Channel:
    """Opens a channel as the kubelet does."""
    options = (("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", -1))
    return grpc.insecure_channel(f"unix:{socket_path}", options=options)


def find_runtime(candidates: Iterable[str]) -> tuple[DemoRuntime | None, str]:
    """Returns the first runtime that answers and has an image, or None and why."""
    reason = "no runtime listens on its usual socket"
    for path in dict.fromkeys(str(Path(candidate).resolve()) for candidate in candidates):
        if not _listens(path):
            continue
        try:
            runtime = _asked(path)
        except grpc.RpcError as error:
            reason = f"{path} does not answer: {error.code().name}"
            continue
        if runtime is not None:
            return runtime, ""
        reason = f"{path} has no image, and the demo pulls none"
    return None, reason


def remove_demo_pods(runtime: DemoRuntime, run: str) -> None:
    """Removes what a run did not remove itself, at the runtime: the proxy may be what failed."""
    label = api_pb2.PodSandboxFilter(label_selector={RUN_LABEL: run})
    with channel(runtime.socket_path) as opened, contextlib.suppress(grpc.RpcError):
        calls = api_pb2_grpc.RuntimeServiceStub(opened)
        left = calls.ListPodSandbox(api_pb2.ListPodSandboxRequest(filter=label), timeout=CALL_TIMEOUT_S).items
        for pod in left:
            with contextlib.suppress(grpc.RpcError):
                stop = api_pb2.StopPodSandboxRequest(pod_sandbox_id=pod.id)
                calls.StopPodSandbox(stop, timeout=REMOVE_TIMEOUT_S)
                remove = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=pod.id)
                calls.RemovePodSandbox(remove, timeout=REMOVE_TIMEOUT_S)


def _listens(path: str) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _asked(path: str) -> DemoRuntime | None:
    with channel(path) as opened:
        runtime = api_pb2_grpc.RuntimeServiceStub(opened)
        images = api_pb2_grpc.ImageServiceStub(opened)
        version = runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
        listed = images.ListImages(api_pb2.ListImagesRequest(), timeout=CALL_TIMEOUT_S).images
        names = [(image.size, image.repo_tags[0]) for image in listed if image.repo_tags]
        if not names:
            return None
        name = f"{version.runtime_name} {version.runtime_version}"
        return DemoRuntime(path, name, min(names)[1], _driver(runtime))


def _driver(runtime: api_pb2_grpc.RuntimeServiceStub) -> CgroupDriver:
    """The cgroup driver; runtimes before CRI 1.28 do not tell, and most of them are on cgroupfs."""
    try:
        answer = runtime.RuntimeConfig(api_pb2.RuntimeConfigRequest(), timeout=CALL_TIMEOUT_S)
    except grpc.RpcError:
        return CgroupDriver.CGROUPFS
    is_systemd = answer.HasField("linux") and answer.linux.cgroup_driver == api_pb2.SYSTEMD
    return CgroupDriver.SYSTEMD if is_systemd else CgroupDriver.CGROUPFS
