"""Mode nri beside plugins by others on a real containerd: both work, and ours has its values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.containerd import Containerd
from tests.lab.containerd_config import Nri
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod
from tests.lab.nri_plugins import GoPlugin, GoPluginOptions
from tests.lab.programs import CONTAINERDS_WITH_NRI, ContainerdVersion
from tests.modes.first_act import cgroup_values
from tests.modes.pods import specs_of
from tests.modes.runs import node, normalize, running

pytestmark = pytest.mark.containerd

WITHIN_S = 2.0
QUOTA = "cpu/cpu.cfs_quota_us"


@pytest.fixture(scope="module", params=CONTAINERDS_WITH_NRI)
def runtime(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    version: ContainerdVersion = request.param
    with Containerd(version, Nri()) as running_:
        yield running_


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def value(pod: RunningPod, name: str) -> str:
    return cgroup_values(pod.container_cgroup())[name]


@pytest.mark.parametrize("index", ["10", "90"])
def test_values_are_right_soon_after_an_update_by_another_plugin(
    index: str, runtime: Containerd, tmp_path: Path, stack: ExitStack
) -> None:
    other = stack.enter_context(GoPlugin(runtime.nri_socket, tmp_path, GoPluginOptions("other", index)))
    here = stack.enter_context(node("nri", runtime))
    specs = specs_of("ls", tmp_path / "out", 2)
    pods = stack.enter_context(running(here.client, specs, tmp_path))
    assert [value(pod, QUOTA) for pod in pods] == ["83334", "83334"]
    normalize(here.objects, "1.60")
    wait_until(lambda: {value(pod, QUOTA) for pod in pods} == {"62500"}, "the other ratio")
    for pod in pods:
        resources = {"cpu": {"cpus": "1"}}
        failed = other.update_containers(
            [{"container_id": pod.container_id(), "linux": {"resources": resources}}]
        )
        assert failed == []
    # The runtime has written all values that it knows.
    for pod in pods:
        wait_until(lambda: value(pod, QUOTA) == "62500", "our value", WITHIN_S)  # noqa: B023
        assert value(pod, "cpuset/cpuset.cpus") == "1"
        assert value(pod, "cpu/cpu.cfs_burst_us") == "20000"
