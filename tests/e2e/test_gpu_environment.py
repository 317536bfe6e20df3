"""The environment that processes see in containers of pods with GPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.conftest import Endpoint
from tests.e2e.koordinator import gpus, qos
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.programs import CONTAINERDS_WITH_NRI, ContainerdVersion
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
ONE_HALF = gpus(1, gpu_core="50", gpu_memory="16Gi", gpu_memory_ratio="50")
FROM_THE_POD = (("FIRST", "1"), ("NVIDIA_VISIBLE_DEVICES", "all"), ("LAST", "2"))

CASES = {
    "no GPU": ({}, {}, {}),
    "two GPUs": (qos("LS"), gpus(0, 1), {"NVIDIA_VISIBLE_DEVICES": "0,1"}),
    # HAMi's library is not on this machine.
    "half a GPU": ({**qos("LS"), **HAMI}, ONE_HALF, {"NVIDIA_VISIBLE_DEVICES": "1"}),
}


@pytest.mark.parametrize(("labels", "annotations", "added"), CASES.values(), ids=CASES.keys())
def test_environment_seen_in_the_container(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    added: Mapping[str, str],
    client: CriClient,
    endpoint: Endpoint,
    logs: Path,
) -> None:
    container = ContainerSpec(env=FROM_THE_POD)
    pod = PodSpec("gpu", "burstable", labels, annotations, (container,))
    with running_pod(client, pod, logs) as running:
        seen = environment(client.exec(running.container_id(), "/bin/env"))

    expected = {"PATH": "/bin", **dict(FROM_THE_POD)}
    if endpoint.through_proxy:
        expected.update(added)
    assert {name: seen.get(name) for name in expected} == expected
    assert set(seen) - set(expected) <= {"HOSTNAME", "HOME"}


class Hami:
    """HAMi's folder with its library, and a pod that has another file in the library's place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "vgpu"
        self.folder.mkdir()
        self.library = self.folder / "libvgpu.so"
        self.library.write_text("the library\n")
        forged = folder / "forged.so"
        forged.write_text("of the pod\n")
        container = ContainerSpec(env=FROM_THE_POD, mounts={f"{self.folder}/./libvgpu.so": str(forged)})
        self.pod = PodSpec("hami", "burstable", {**qos("LS"), **HAMI}, ONE_HALF, (container,))
        options = f'hami_library_path = "{self.library}"\nhami_vgpu_monitor = true\n'
        self.config = f"[policies.gpu-env.options]\n{options}"

    def check(self, client: CriClient, logs: Path) -> None:
        """Runs the pod; its container has library, lock and cache directory."""
        with running_pod(client, self.pod, logs) as running:
            identity = running.container_id()
            seen = environment(client.exec(identity, "/bin/env"))
            access = mounts(client.exec(identity, "/bin/cat", "/proc/self/mounts"))
            assert client.exec(identity, "/bin/cat", str(self.library)) == "the library\n"
            assert seen["LD_PRELOAD"] == str(self.library)
            assert (seen["CUDA_DEVICE_MEMORY_LIMIT"], seen["CUDA_DEVICE_SM_LIMIT"]) == ("17179869184", "50")
            cache = seen["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
            client.exec(identity, "/bin/touch", cache)
        name = f"{self.pod.uid}_main"
        assert cache == f"{self.folder}/{name}.cache"
        assert (self.folder / "containers" / name / f"{name}.cache").exists()
        expected = {str(self.library): "ro", "/tmp/vgpulock": "rw", str(self.folder): "rw"}
        assert {place: access.get(place) for place in expected} == expected


def test_hamis_mounts_by_the_proxy(containerd: Containerd, folder: Path, logs: Path, tmp_path: Path) -> None:
    hami = Hami(tmp_path)
    options = ProxyOptions(str(containerd.socket), config=hami.config)
    own = Path(tempfile.mkdtemp(dir=folder))
    with ProxyProcess(own, options) as proxy, CriClient(proxy.socket) as client:
        hami.check(client, logs)


@pytest.mark.golang
@pytest.mark.parametrize("version", CONTAINERDS_WITH_NRI)
def test_hamis_mounts_by_nri(version: ContainerdVersion, folder: Path, logs: Path, tmp_path: Path) -> None:
    """The runtime makes no folders for NRI: HAMi's installation has to be there."""
    hami, own = Hami(tmp_path), Path(tempfile.mkdtemp(dir=folder))
    Path("/tmp/vgpulock").mkdir(exist_ok=True)
    with Containerd(version, PATIENT) as containerd:
        config = (
            f'[daemon]\nmode = "nri"\nlock = "{own}/front-end.lock"\n'
            f'[nri]\nsocket = "{containerd.nri_socket}"\n{hami.config}'
        )
        with ProxyProcess(own, ProxyOptions(str(containerd.socket), config=config)) as daemon:
            wait_until(lambda: "registered with the runtime" in str(daemon.log), "the registration")
            with CriClient(containerd.socket) as client:
                hami.check(client, logs)


def environment(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def mounts(text: str) -> dict[str, str]:
    """`ro` or `rw` by path, of the mount that is on top."""
    rows = (line.split() for line in text.splitlines())
    return {row[1]: row[3].split(",")[0] for row in rows}
