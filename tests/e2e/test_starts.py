"""Start-up boosts in the kernel's quotas: each end, other owners of the same quota, kill -9, crash loops."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2 as api
from runtimeproxy.slo.names import STARTUP_BOOST
from tests.e2e.katalyst_site import LONG_LEASES
from tests.e2e.koordinator import qos
from tests.lab import cgroup_v1
from tests.lab.boosts import QUOTA, BoostNode, idle_procfs
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.cri_client import CALL_TIMEOUT_S
from tests.lab.crio import runtime_with_nri
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod, start_container, update_resources
from tests.lab.pods import ContainerSpec, PodSpec, sandbox_config
from tests.lab.runtime_process import RuntimeProcess

LIMIT: Final = cri.LinuxContainerResources(cpu_shares=512, cpu_period=100_000, cpu_quota=5_000)
LIMITED: Final = ("5000", "5000")
BOOSTED: Final = ("10000", "10000")
"""Of container and pod, with 200 percent."""
BUSY: Final = ("/bin/sh", "-c", "while :; do :; done")
"""Never below 80 percent of its small limit, on the busiest machine."""


class Scene(BoostNode):
    """With pods that have a boost, and claims on the quota of others."""

    def __init__(
        self, stack: ExitStack, folder: Path, runtime: RuntimeProcess, mode: str, logs: Path
    ) -> None:
        super().__init__(stack, folder, runtime, mode, idle_procfs(folder), LONG_LEASES)
        self._logs = logs

    def pod(self, name: str, max_seconds: int = 600) -> PodSpec:
        boost = {STARTUP_BOOST: json.dumps({"limitPercent": 200, "maxSeconds": max_seconds})}
        return PodSpec(name, "burstable", qos("LS"), boost, (ContainerSpec("main", LIMIT, BUSY),))

    def run(self, stack: ExitStack, spec: PodSpec) -> RunningPod:
        """As the kubelet does, with the pod's quota."""
        files = {QUOTA: LIMITED[1]}
        prefix = self.runtime.cgroup_prefix
        return stack.enter_context(running_pod(self.client, spec, self._logs, files, prefix))

    def ended(self, cause: str) -> bool:
        """Whether the log says that a boost has ended so."""
        end = f"has ended: {cause}"
        return any(str(record["message"]).endswith(end) for record in self.daemon.log_records)

    def wait_for_end(self, cause: str) -> None:
        """Waits for the line: the log is written by a thread of its own, and the quota may come first."""
        wait_until(lambda: self.ended(cause), f"a boost that has ended: {cause}")

    def claim(
        self, owner: str, target: api.ClaimTarget, role: api.ExplainedClaim.Role.ValueType, value: str
    ) -> None:
        """Claims this quota, and nothing else."""
        key = api.ClaimKey(target=target, field=QUOTA, role=role)
        answer = self.set_claims(owner, [api.Claim(key=key, value=value)] if value else [])
        assert answer.outcome == api.SetClaimsResponse.OUTCOME_TAKEN
        assert not answer.refused


@pytest.fixture(
    scope="module",
    params=["proxy", pytest.param("nri", marks=pytest.mark.golang), "standalone"],
)
def scene(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    mode: str = request.param
    own = Path(tempfile.mkdtemp(dir=folder))
    with ExitStack() as stack:
        runtime = stack.enter_context(
            runtime_with_nri("2.2", PATIENT) if mode == "nri" else Containerd("1.6")
        )
        yield Scene(stack, own, runtime, mode, tmp_path_factory.mktemp("logs"))


WITH_CALLS: Final = pytest.mark.parametrize(
    "scene", ["proxy", pytest.param("nri", marks=pytest.mark.golang)], indirect=True, scope="module"
)
"""Without stand-alone, whose files are written alike: the bench runs it."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def quotas(pod: RunningPod) -> tuple[str, str]:
    """Of container and pod."""
    return cgroup_v1.read("cpu", pod.container_cgroup(), QUOTA), cgroup_v1.read(
        "cpu", pod.spec.cgroup_parent, QUOTA
    )


def wait_for(pod: RunningPod, wanted: tuple[str, str], what: str) -> None:
    try:
        wait_until(lambda: quotas(pod) == wanted, what)
    except TimeoutError as error:
        raise AssertionError(f"{what}: {quotas(pod)}, not {wanted}") from error


@WITH_CALLS
def test_a_boost_outlives_the_daemon_and_updates_and_ends_when_it_is_ready(
    scene: Scene, stack: ExitStack
) -> None:
    pod = scene.run(stack, scene.pod("ready"))
    scene.put_pod(pod, is_ready=False)
    wait_for(pod, BOOSTED, "the boost")
    # As the kubelet does after a restart: the runtime writes its whole specification.
    update_resources(scene.client, pod.container_id(), LIMIT)
    wait_for(pod, BOOSTED, "the boost after an update")
    scene.daemon.kill()
    assert quotas(pod) == BOOSTED
    scene.daemon.start()
    wait_until(lambda: scene.starts.boosts, "the boost after a kill")
    assert quotas(pod) == BOOSTED
    scene.put_pod(pod, is_ready=True)
    wait_for(pod, LIMITED, "the limit")
    scene.wait_for_end("ready")


def test_a_deadline_that_passes_while_no_daemon_runs(scene: Scene, stack: ExitStack) -> None:
    pod = scene.run(stack, scene.pod("dead"))
    wait_for(pod, BOOSTED, "the boost")
    scene.daemon.kill()
    file = scene.daemon.state_folder / "boosts.json"
    saved = json.loads(file.read_text())
    # As if the time had passed meanwhile.
    for each in saved["boosts"]:
        each["begun_s"] -= 1_000.0
        each["end_s"] -= 1_000.0
    file.write_text(json.dumps(saved))
    scene.daemon.start()
    wait_for(pod, LIMITED, "the limit")
    scene.wait_for_end("time")


@WITH_CALLS
def test_pressure_and_time(scene: Scene, stack: ExitStack) -> None:
    pod = scene.run(stack, scene.pod("pressed"))
    wait_for(pod, BOOSTED, "the boost")
    # Its own wait is no reason.
    scene.report_waiting([pod.spec.uid])
    short = scene.run(stack, scene.pod("short", max_seconds=1))
    wait_until(lambda: scene.starts.not_boosted or scene.ended("time"), "its end")
    wait_for(short, LIMITED, "the limit")
    assert quotas(pod) == BOOSTED
    scene.report_waiting([pod.spec.uid, "another"])
    wait_for(pod, LIMITED, "the limit")
    scene.wait_for_end("pressure")
    late = scene.run(stack, scene.pod("late"))
    wait_until(lambda: any(each.waits == "pressure" for each in scene.starts.boosts), "it")
    assert quotas(late) == LIMITED
    scene.report_waiting([])
    wait_for(late, BOOSTED, "the boost")


@WITH_CALLS
def test_with_others_on_the_same_quota(scene: Scene, stack: ExitStack) -> None:
    pod = scene.run(stack, scene.pod("others"))
    wait_for(pod, BOOSTED, "the boost")
    container = api.ClaimTarget(container_id=pod.container_id())
    scene.claim("cpu-burst", container, api.ExplainedClaim.ROLE_ADD, "1000")
    wait_for(pod, ("11000", "11000"), "boost and burst")
    above = api.ClaimTarget(qos_class="Burstable")
    scene.claim("cpu-suppress", above, api.ExplainedClaim.ROLE_AT_MOST, "8000")
    wait_for(pod, ("-1", "-1"), "what a bound of the class leaves")
    assert cgroup_v1.read("cpu", "/kubepods/burstable", QUOTA) == "8000"
    update_resources(scene.client, pod.container_id(), LIMIT)
    wait_for(pod, ("-1", "-1"), "the same after an update")
    scene.claim("cpu-suppress", above, api.ExplainedClaim.ROLE_AT_MOST, "")
    wait_for(pod, ("11000", "11000"), "boost and burst again")
    scene.claim("cpu-burst", container, api.ExplainedClaim.ROLE_ADD, "")
    wait_for(pod, BOOSTED, "the boost alone")


def test_a_crash_loop_has_three_boosts(scene: Scene, stack: ExitStack) -> None:
    spec = scene.pod("loop")
    pod = scene.run(stack, spec)
    config = sandbox_config(spec, str(pod.log_directory))
    identity = pod.container_id()
    for number in range(4):
        now = RunningPod(spec, pod.sandbox_id, {"main": identity}, pod.log_directory, pod.cgroup_prefix)
        if number < 3:
            wait_for(now, BOOSTED, f"boost {number}")
        else:
            wait_until(lambda: any(each.waits == "often" for each in scene.starts.boosts), "why not")
            assert quotas(now) == LIMITED
            break
        runtime = scene.client.runtime
        runtime.StopContainer(cri.StopContainerRequest(container_id=identity), timeout=CALL_TIMEOUT_S)
        runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=identity), timeout=CALL_TIMEOUT_S)
        wait_until(
            lambda: cgroup_v1.read("cpu", spec.cgroup_parent, QUOTA) == LIMITED[1],
            "the pod's limit of before",
        )
        identity = start_container(scene.client, pod.sandbox_id, config, spec, spec.containers[0])
