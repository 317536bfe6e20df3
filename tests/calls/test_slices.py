"""Values of a pod's cgroup on nodes where the cgroup is a slice of systemd's, which resets it."""

from __future__ import annotations

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks import PodChange
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, policy

SLICE = "kubepods-besteffort-podu1.slice"
VALUES = PodChange(cgroup={"cpu.shares": 2})


@pytest.mark.parametrize(
    ("parent", "change", "renewed"),
    [
        pytest.param(SLICE, VALUES, [SLICE, SLICE], id="slice"),
        pytest.param("/kubepods/besteffort/podu1", VALUES, [], id="cgroupfs"),
        pytest.param(SLICE, None, [], id="nothing was written"),
    ],
)
async def test_they_are_looked_after_when_a_scope_was_started(
    desk: Surroundings, parent: str, change: PodChange | None, renewed: list[str]
) -> None:
    await desk.load(policy(pre_run_pod_sandbox=change))
    config = pod_sandbox_config(uid="u1")
    config.linux.cgroup_parent = parent
    await desk.run_pod(config, POD_ID)
    await desk.idle()
    assert desk.writer.renewed == renewed[:1]
    await desk.create(POD_ID, config, container_config(), CONTAINER_ID)
    await desk.idle()
    assert desk.writer.renewed == renewed[:1]
    start = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id=CONTAINER_ID))
    await start.succeeded(api_pb2.StartContainerResponse())
    await desk.idle()
    assert desk.writer.renewed == renewed
