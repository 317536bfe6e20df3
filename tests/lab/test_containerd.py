"""The laboratory's containerd: what it offers, what it survives, what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import cgroup_v1, procfs
from tests.lab.busybox_image import IMAGE
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.node import run_sandbox, running_pod, start_container
from tests.lab.pods import PodSpec, sandbox_config
from tests.lab.programs import CONTAINERD_VERSIONS, ContainerdVersion, need_root_and_cgroup_v1

pytestmark = pytest.mark.containerd


@pytest.fixture(params=CONTAINERD_VERSIONS)
def version(request: pytest.FixtureRequest) -> ContainerdVersion:
    wanted: ContainerdVersion = request.param
    return wanted


def test_runs_a_pod_and_outlives_kill_and_restart(version: ContainerdVersion, tmp_path: Path) -> None:
    with Containerd(version) as containerd, CriClient(containerd.socket) as client:
        answer = client.wait_until_serving(30)
        assert client.has_image(IMAGE)
        with running_pod(client, PodSpec("lab"), tmp_path) as pod:
            process = pod.main_pid()
            started = procfs.start_ticks(process)
            containerd.kill()
            containerd.start()
            containerd.restart()
            client.wait_until_serving(30)
            output = client.exec(pod.container_id(), "/bin/echo", "still here")
            assert (pod.main_pid(), procfs.start_ticks(process)) == (process, started)

    assert answer.runtime_version.lstrip("v").startswith(version)
    assert output == "still here\n"


def test_leaves_nothing_of_pods_that_were_not_removed(version: ContainerdVersion, tmp_path: Path) -> None:
    spec = PodSpec("left")
    config = sandbox_config(spec, str(tmp_path))
    with cgroup_v1.pod_cgroup(spec.cgroup_parent):
        with Containerd(version) as containerd, CriClient(containerd.socket) as client:
            sandbox = run_sandbox(client, config)
            container = start_container(client, sandbox, config, spec, spec.containers[0])
            cgroup = f"{spec.cgroup_parent}/{container}"
            process = cgroup_v1.processes(cgroup)[0]
            folder = containerd.socket.parent
        gone = not cgroup_v1.file("cpu", cgroup, "cgroup.procs").exists()

    assert gone
    assert not procfs.runs(process)
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert not any(str(folder) in " ".join(procfs.command_line(pid)) for pid in procfs.all_pids())


def test_pod_cgroup_is_removed_with_everything_below_it() -> None:
    need_root_and_cgroup_v1()
    path = PodSpec("empty", "besteffort").cgroup_parent
    with cgroup_v1.pod_cgroup(path):
        cgroup_v1.file("memory", path, "below").mkdir()
        cpus = cgroup_v1.read("cpuset", path, "cpuset.cpus")
        folders = [point / path.lstrip("/") for point in cgroup_v1.controllers().values()]
        assert all(folder.is_dir() for folder in folders)

    assert cpus == cgroup_v1.read("cpuset", "/", "cpuset.cpus")
    assert not any(folder.exists() for folder in folders)
