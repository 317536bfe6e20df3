"""A pod with one container, created through intercepted calls, and what is recorded of it."""

from __future__ import annotations

from runtimeproxy.hooks import ContainerChange, ResourceChange
from runtimeproxy.pods.records import ContainerRecord
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings

SHARES = ContainerChange(resources=ResourceChange(cpu_shares=2048))


async def with_container(desk: Surroundings) -> None:
    """Runs the pod and creates its container; their post hooks may still run."""
    pod = pod_sandbox_config("web", qos="BE", uid="u1")
    await desk.run_pod(pod, POD_ID)
    await desk.create(POD_ID, pod, container_config(pod=pod), CONTAINER_ID)


def record_of(desk: Surroundings) -> ContainerRecord:
    """The container's record."""
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    return record
