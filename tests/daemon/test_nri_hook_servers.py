"""Hook servers in NRI mode: what they are shown, what becomes of their answers, what is told of the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.daemon.hook_servers import ALL_HOOKS, Servers, use
from tests.daemon.test_nri import configuration, nri, status_of
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.deadline import wait_until
from tests.lab.nri_adaptation import NriAdaptation, NriAnswer
from tests.lab.proxy_process import ProxyProcess

__all__ = ["configuration", "nri"]

pytestmark = pytest.mark.golang

GPUS = json.dumps({"gpu": [{"minor": 1}]})
OVERLAY = {
    "cpu_shares": 300,
    "cpuset_cpus": "0",
    "labels": {"team": "a", "tier": "b"},
    "annotations": {"given": "1"},
    "cgroup_parent": "/kubepods/other",
    "env": {"GIVEN": "1"},
}
NOT_CARRIED = [
    "pre_create_container: cgroup_parent",
    "pre_run_pod_sandbox: annotations, cgroup_parent, labels, resources.cpuset_cpus",
]


def pod(number: int) -> dict[str, Any]:
    uid = f"{number}1111111-1111-1111-1111-111111111111"
    return {
        "id": f"sandbox{number}",
        "name": f"pod{number}",
        "namespace": "default",
        "uid": uid,
        "labels": {"koordinator.sh/qosClass": "LS"},
        "annotations": {
            "scheduling.koordinator.sh/device-allocated": GPUS,
            "io.kubernetes.cri.sandbox-id": "x",
        },
        "linux": {"cgroup_parent": f"/kubepods/burstable/pod{uid}"},
    }


def container(number: int) -> dict[str, Any]:
    return {
        "id": str(number) * 64,
        "pod_sandbox_id": f"sandbox{number}",
        "name": "main",
        "env": ["PATH=/bin", "EMPTY="],
        "annotations": {"io.kubernetes.container.restartCount": "2"},
        "linux": {"resources": {"cpu": {"shares": {"value": "512"}}, "memory": {}}},
    }


class Scene:
    """A daemon in NRI mode with a hook server."""

    def __init__(
        self, daemon: ProxyProcess, runtime: NriAdaptation, server: HookServerProcess, files: CgroupFiles
    ) -> None:
        self.daemon, self.runtime, self.server, self.files = daemon, runtime, server, files
        server.register(daemon.hook_folder, "koordlet.json", *ALL_HOOKS)
        use(daemon, "koordlet.json")

    def run(self, number: int) -> NriAnswer:
        """A pod with a container, which starts; returns the answer to its creation."""
        made, box = pod(number), container(number)
        parent = made["linux"]["cgroup_parent"]
        self.files.make(parent)
        self.runtime.run_pod(made)
        created = self.runtime.call("CreateContainer", pod=made, container=box)
        self.runtime.call("PostCreateContainer", pod=made, container=box)
        self.files.make(f"{parent}/{box['id']}")
        self.runtime.call("StartContainer", pod=made, container=box)
        self.runtime.call("PostStartContainer", pod=made, container=box)
        return created


@pytest.fixture
def scene(
    daemons: Daemons, nri: NriAdaptation, configuration: str, cgroup_files: CgroupFiles, socket_folder: Path
) -> Iterator[Scene]:
    with ExitStack() as stack:
        server = Servers(socket_folder, stack).start(overlay=OVERLAY)
        daemon = daemons.start(configuration)
        nri.wait_for_plugins(1)
        nri.synchronized()
        yield Scene(daemon, nri, server, cgroup_files)


def test_a_server_is_asked_as_by_the_proxy(scene: Scene) -> None:
    scene.run(1)
    made = pod(1)
    (about,) = scene.server.asked("PreRunPodSandboxHook")
    assert about.pod.pod_meta.uid == made["uid"]
    assert dict(about.pod.labels) == made["labels"]
    assert dict(about.pod.annotations) == {"scheduling.koordinator.sh/device-allocated": GPUS}, "no runtime's"
    assert about.pod.cgroup_parent == made["linux"]["cgroup_parent"]
    (created,) = scene.server.asked("PreCreateContainerHook")
    assert (created.container.container_meta.name, created.container.container_meta.id) == ("main", "")
    assert created.container.container_meta.attempt == 2
    assert dict(created.container.container_envs) == {
        "PATH": "/bin",
        "EMPTY": "",
        "NVIDIA_VISIBLE_DEVICES": "1",
    }
    assert created.container.container_resources.cpu_shares == 512
    assert dict(created.container.pod_labels) == made["labels"]
    (started,) = scene.server.asked("PreStartContainerHook")
    assert started.container.container_meta.id == "1" * 64
    assert started.container.container_resources.cpu_shares == 300
    wait_until(lambda: scene.server.asked("PostStartContainerHook"), "the post hook")


def test_its_answers_are_in_the_reply_and_in_files(scene: Scene) -> None:
    created = scene.run(1)
    adjust = created.response["adjust"]
    assert adjust["linux"]["resources"]["cpu"] == {"shares": {"value": "300"}, "cpus": "0"}
    env = {each["key"]: each.get("value", "") for each in adjust["env"]}
    assert env == {"GIVEN": "1", "NVIDIA_VISIBLE_DEVICES": "1"}
    assert adjust["annotations"] == {"given": "1"}
    parent = pod(1)["linux"]["cgroup_parent"]
    wait_until(lambda: scene.files.read(parent, "cpu.weight") == "12", "the pod's weight by file")


def test_what_nri_does_not_carry_is_told_once(scene: Scene) -> None:
    for number in (1, 2, 3):
        scene.run(number)
    status = status_of(scene.daemon)
    (server,) = status.hook_servers
    assert (list(server.not_carried), list(server.hooks_not_asked)) == (NOT_CARRIED, [])
    assert not status.problems

    def entries() -> list[dict[str, Any]]:
        records = [each for each in scene.daemon.log_records if each["logger"] == "runtimeproxy.audit"]
        return [change for each in records if each["kind"] == "left-out" for change in each["changes"]]

    wait_until(lambda: len(entries()) >= 5, "the audit")
    fields = sorted(each["field"] for each in entries())
    assert fields == ["annotations", "cgroup_parent", "cgroup_parent", "labels", "resources.cpuset_cpus"]
    assert "mode nri does not carry of its answers pre_create" in scene.daemon.run("status").stdout
