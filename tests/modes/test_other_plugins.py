"""Mode nri beside plugins by others on a real containerd: both work, and ours has its values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod
from tests.lab.nri_plugins import Balloons, GoPlugin, GoPluginOptions, MemoryQos
from tests.lab.pods import NAMESPACE
from tests.lab.programs import CONTAINERDS_WITH_NRI, WITH_ALL_VERSIONS, ContainerdVersion
from tests.modes.first_act import cgroup_values, first_seen
from tests.modes.pods import specs_of
from tests.modes.runs import node, normalize, output_of, running

pytestmark = pytest.mark.containerd

WITHIN_S = 8.0
"""After an update by another plugin; sooner than by the comparison of files, every 10 s."""
QUOTA = "cpu/cpu.cfs_quota_us"


@pytest.fixture(scope="module", params=CONTAINERDS_WITH_NRI)
def runtime(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    version: ContainerdVersion = request.param
    with Containerd(version, PATIENT) as running_:
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


def test_a_field_of_another_plugin_is_left_out_of_the_answer_and_written_to_its_file(
    runtime: Containerd, tmp_path: Path, stack: ExitStack
) -> None:
    if runtime.version == "1.7":
        pytest.skip("its NRI tells no plugin what others have set")
    shares = {"linux": {"resources": {"cpu": {"shares": {"value": "700"}}}}}
    stack.enter_context(GoPlugin(runtime.nri_socket, tmp_path, GoPluginOptions("other", "10", shares)))
    here = stack.enter_context(node("nri", runtime, learns_owners=True))
    # Of a container that no policy changes the runtime tells whose fields it has.
    (free,) = stack.enter_context(running(here.client, specs_of("none", tmp_path / "free", 1), tmp_path))
    assert value(free, "cpu/cpu.shares") == "700"
    (batch,) = stack.enter_context(running(here.client, specs_of("be-batch", tmp_path / "out", 1), tmp_path))
    assert value(batch, "cpu/cpu.shares") == first_seen(output_of(batch, "main"))["cpu/cpu.shares"] == "512"
    assert value(batch, QUOTA) == "41667"
    nri = here.status().nri
    assert ("resources.cpu_shares", "10-other") in [(each.field, each.plugin) for each in nri.conflicts]
    assert "10-other" in [f"{each.index}-{each.name}" for each in nri.other_plugins]
    assert nri.failed_creates == 0
    reason = "the runtime's plugin 10-other sets it, too: it goes by file"
    name = f"{NAMESPACE}/{batch.spec.name}"
    explained = here.command("explain", name)
    assert reason in explained
    assert "its specification has 700" in explained
    assert f"resources.cpu_shares: {reason}" in here.command("audit", "--kind", "conflict", "--pod", name)


def test_a_container_that_a_validator_rejects_is_told(
    runtime: Containerd, tmp_path: Path, stack: ExitStack
) -> None:
    if runtime.version == "1.7":
        pytest.skip("its NRI has no validators")
    judge = GoPluginOptions("judge", "80", rejection="no")
    stack.enter_context(GoPlugin(runtime.nri_socket, tmp_path, judge))
    here = stack.enter_context(node("nri", runtime, learns_owners=True))
    (spec,) = specs_of("be-batch", tmp_path / "out", 1)
    with pytest.raises(grpc.RpcError, match="80-judge"):
        stack.enter_context(running(here.client, [spec], tmp_path))
    wait_until(lambda: here.status().nri.failed_creates == 1, "the undone creation")
    audit = here.command("audit", "--kind", "conflict")
    assert f"{NAMESPACE}/{spec.name}/main" in audit
    assert "a validator or the runtime refused it" in audit


@pytest.mark.skipif(not WITH_ALL_VERSIONS, reason="of `make e2e-versions`")
def test_balloons_and_memory_qos_work_beside_ours(tmp_path: Path, stack: ExitStack) -> None:
    pool = {"balloonTypes": [{"name": "lab", "namespaces": [NAMESPACE], "minCPUs": 1}], "pinCPU": True}
    reserved = [{**pool, "reservedResources": {"cpu": f"cpuset:{cpu}"}} for cpu in "01"]
    runtime = stack.enter_context(Containerd("2.2", PATIENT))
    balloons = stack.enter_context(Balloons(runtime.nri_socket, tmp_path, reserved[0]))
    settings = {"unifiedAnnotations": ["memory.high"]}
    memory_qos = stack.enter_context(MemoryQos(runtime.nri_socket, tmp_path, settings))
    here = stack.enter_context(node("nri", runtime))
    specs = [*specs_of("ls", tmp_path / "ls", 1), *specs_of("be-batch", tmp_path / "be", 1)]
    ls, be = stack.enter_context(running(here.client, specs, tmp_path))
    assert (value(ls, "cpuset/cpuset.cpus"), value(be, "cpuset/cpuset.cpus")) == ("1", "1")
    assert (value(ls, QUOTA), value(be, QUOTA)) == ("83334", "41667")
    normalize(here.objects, "1.60")
    wait_until(lambda: value(ls, QUOTA) == "62500", "the other ratio")
    # It updates all containers without being asked.
    balloons.configure(reserved[1])
    wait_until(lambda: value(ls, "cpuset/cpuset.cpus") == "0", "the other CPU")
    wait_until(lambda: value(ls, QUOTA) == "62500", "our value", WITHIN_S)
    wait_until(lambda: value(be, QUOTA) == "31250", "the other's value", WITHIN_S)
    memory_qos.wait_for_log("no adjustments")
    assert list(here.status().problems) == []
