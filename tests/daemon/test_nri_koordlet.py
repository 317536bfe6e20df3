"""koordlet's own NRI plugin beside this one, played by a plugin in Go with its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.daemon.test_nri import configuration, nri, status_of
from tests.daemon.test_nri_hook_servers import container, pod
from tests.lab.nri_adaptation import NriAdaptation, NriAnswer
from tests.lab.nri_plugins import GoPlugin, GoPluginOptions
from tests.lab.proxy_process import ProxyProcess

__all__ = ["configuration", "nri"]

pytestmark = pytest.mark.golang

LIBRARY, LOCK = "libvgpu.so", "/tmp/vgpulock"
HALF = {"gpu-core": "50", "gpu-memory": "16Gi", "gpu-memory-ratio": "50"}
GPU = {"minor": 1, "resources": {f"koordinator.sh/{name}": value for name, value in HALF.items()}}
POD = pod(1)
POD["labels"]["koordinator.sh/gpu-isolation-provider"] = "HAMi-core"
POD["annotations"]["scheduling.koordinator.sh/device-allocated"] = json.dumps({"gpu": [GPU]})


@pytest.fixture
def library(socket_folder: Path) -> str:
    """HAMi's library on this host."""
    path = socket_folder / LIBRARY
    path.touch()
    return str(path)


def env_of(library: str) -> dict[str, str]:
    """Of the container, by koordlet and by gpu-env."""
    return {
        "NVIDIA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_MEMORY_LIMIT": str(16 << 30),
        "CUDA_DEVICE_SM_LIMIT": "50",
        "LD_PRELOAD": library,
    }


def koordlets(library: str, **changed: str) -> dict[str, Any]:
    """Its adjustment. Source: Koordinator pkg/koordlet/runtimehooks/hooks/gpu/gpu.go."""
    return {
        "env": [{"key": key, "value": value} for key, value in {**env_of(library), **changed}.items()],
        "mounts": [
            {"destination": path, "type": "bind", "source": path, "options": ["rbind"]}
            for path in (library, LOCK)
        ],
    }


@contextmanager
def both(
    runtime: NriAdaptation, daemons: Daemons, configuration: str, folder: Path, adjustment: dict[str, Any]
) -> Iterator[ProxyProcess]:
    """koordlet's plugin comes first by its index."""
    koordlet = GoPluginOptions(name="koordlet_nri", index="00", adjustment=adjustment)
    options = f'[policies.gpu-env.options]\nhami_library_path = "{folder}/{LIBRARY}"\n'
    daemon = daemons.start(configuration + options)
    runtime.wait_for_plugins(1)
    runtime.synchronized()
    with GoPlugin(runtime.socket, folder, koordlet):
        runtime.wait_for_plugins(2)
        yield daemon


def create(runtime: NriAdaptation, files: CgroupFiles, number: int = 1) -> NriAnswer:
    files.make(POD["linux"]["cgroup_parent"])
    return runtime.call("CreateContainer", pod=POD, container={**container(1), "id": str(number) * 64})


def test_what_both_give_a_container_with_a_gpu_is_no_conflict(
    daemons: Daemons,
    nri: NriAdaptation,
    configuration: str,
    cgroup_files: CgroupFiles,
    socket_folder: Path,
    library: str,
) -> None:
    with both(nri, daemons, configuration, socket_folder, koordlets(library)) as daemon:
        nri.run_pod(POD)
        adjust = create(nri, cgroup_files).response["adjust"]
        assert {each["key"]: each["value"] for each in adjust["env"]} == env_of(library)
        assert [each["destination"] for each in adjust["mounts"]] == [library, LOCK]
        assert not status_of(daemon).problems


def test_what_both_set_to_other_values_is_this_plugins(
    daemons: Daemons,
    nri: NriAdaptation,
    configuration: str,
    cgroup_files: CgroupFiles,
    socket_folder: Path,
    library: str,
) -> None:
    others = koordlets(library, NVIDIA_VISIBLE_DEVICES="7,8")
    others["mounts"][0]["source"] = "/elsewhere/libvgpu.so"
    with both(nri, daemons, configuration, socket_folder, others):
        nri.run_pod(POD)
        adjust = create(nri, cgroup_files).response["adjust"]
    assert {each["key"]: each["value"] for each in adjust["env"]} == env_of(library)
    mounts = {each["destination"]: each["source"] for each in adjust["mounts"]}
    assert mounts == {library: library, LOCK: LOCK}
    assert len(adjust["mounts"]) == len(mounts)
