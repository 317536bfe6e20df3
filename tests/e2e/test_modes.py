"""From one mode to another beside a real containerd: pods of each mode keep their values in all others."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.test_nri import status_of
from tests.e2e.values import BATCH_500, BEST_EFFORT, HALF_A_CORE, as_resources, on_this_machine
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.cri_client import CriClient
from tests.lab.deadline import quickest_s, time_s, wait_until
from tests.lab.node import RunningPod, running_pod, update_resources
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

pytestmark = pytest.mark.golang

MODES = ("proxy", "standalone", "nri", "proxy", "nri", "standalone")
REPAIRED_S = 4.0
"""How long an update of the kubelet may be in force: 2 s, and as much for a busy machine."""
POD = PodSpec(
    "",
    "besteffort",
    qos("BE"),
    extended_resources({"main": BATCH_500}),
    (ContainerSpec("main", as_resources(BEST_EFFORT)),),
)


@pytest.fixture
def runtime() -> Iterator[Containerd]:
    with Containerd("2.2", PATIENT) as running:
        yield running


@pytest.fixture
def daemon(runtime: Containerd, folder: Path) -> Iterator[ProxyProcess]:
    made = ProxyProcess(Path(tempfile.mkdtemp(dir=folder)), ProxyOptions(str(runtime.socket)))
    yield made
    made.close()


def start(daemon: ProxyProcess, runtime: Containerd, mode: str) -> None:
    daemon.config_file.write_text(
        f'[daemon]\nmode = "{mode}"\nlock = "{daemon.folder}/front-end.lock"\n'
        f'[nri]\nsocket = "{runtime.nri_socket}"\n'
    )
    daemon.start()
    wait_until(lambda: not status_of(daemon).problems, "a daemon that is well")
    assert status_of(daemon).daemon.mode == mode


def repaired_s(kubelet: CriClient, pods: Sequence[RunningPod]) -> float:
    """Updates all pods that the kubelet knows, whoever has started them; after how long all is as before."""
    wanted = on_this_machine(HALF_A_CORE)
    for pod in pods:
        update_resources(kubelet, pod.container_id(), as_resources(BEST_EFFORT))
    return time_s(lambda: wait_until(lambda: all(pod.values() == wanted for pod in pods), "the values again"))


def test_pods_of_each_mode_keep_their_values(
    runtime: Containerd, daemon: ProxyProcess, tmp_path: Path
) -> None:
    wanted = on_this_machine(HALF_A_CORE)
    with ExitStack() as stack:
        direct = stack.enter_context(CriClient(runtime.socket))
        pods: list[RunningPod] = []
        for number, mode in enumerate(MODES):
            start(daemon, runtime, mode)
            for pod in pods:
                assert (pod.values(), pod.pod_values()) == (wanted, wanted)
            kubelet = stack.enter_context(CriClient(daemon.socket)) if mode == "proxy" else direct
            spec = replace(POD, name=f"in-{mode}-{number}", uid=str(uuid.uuid4()))
            pods.append(stack.enter_context(running_pod(kubelet, spec, tmp_path, remover=direct)))
            wait_until(lambda: pods[-1].values() == pods[-1].pod_values() == wanted, f"values in mode {mode}")
            assert quickest_s(partial(repaired_s, kubelet, pods), REPAIRED_S) < REPAIRED_S
            assert not status_of(daemon).problems
            assert daemon.terminate() == 0
        restored = daemon.run("restore")
        assert restored.returncode == 0, restored.stdout + restored.stderr
        for pod in pods:
            assert pod.values() == on_this_machine(BEST_EFFORT)
