"""The environment that processes see in containers of pods with GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.conftest import Endpoint
from tests.e2e.koordinator import gpus, qos
from tests.lab.cri_client import CriClient
from tests.lab.node import running_pod
from tests.lab.pods import ContainerSpec, PodSpec

HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
ONE_HALF = gpus(1, gpu_core="50", gpu_memory="16Gi", gpu_memory_ratio="50")
FROM_THE_POD = (("FIRST", "1"), ("NVIDIA_VISIBLE_DEVICES", "all"), ("LAST", "2"))

CASES = {
    "no GPU": ({}, {}, {}),
    "two GPUs": (qos("LS"), gpus(0, 1), {"NVIDIA_VISIBLE_DEVICES": "0,1"}),
    "half a GPU": (
        {**qos("LS"), **HAMI},
        ONE_HALF,
        {
            "NVIDIA_VISIBLE_DEVICES": "1",
            "CUDA_DEVICE_MEMORY_LIMIT": "17179869184",
            "CUDA_DEVICE_SM_LIMIT": "50",
            "LD_PRELOAD": "/usr/local/vgpu/libvgpu.so",
        },
    ),
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


def environment(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())
