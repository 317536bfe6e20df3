"""Fills a state with pods and containers without any call."""

from __future__ import annotations

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.builders import IMAGE, container_config, pod_sandbox_config
from runtimeproxy.testing.state import RuntimeState

QOS_CLASSES = ("LSR", "LS", "BE")
"""Koordinator QoS classes that the pods get in turn."""


def preload(state: RuntimeState, pods: int, containers: int) -> None:
    """Adds ready pods and running containers, the containers spread evenly over the pods.

    Args:
        state: What to fill.
        pods: Number of pods; at least one if there are containers.
        containers: Number of containers over all pods.
    """
    state.images.add(IMAGE)
    driver = state.cgroups.driver
    made = []
    for number in range(max(pods, 1 if containers else 0)):
        qos = QOS_CLASSES[number % len(QOS_CLASSES)]
        pod = pod_sandbox_config(f"pod-{number:04}", qos=qos, driver=driver)
        made.append((state.run_sandbox(pod).id, pod))
    for number in range(containers):
        sandbox_id, pod = made[number % len(made)]
        config = container_config(f"app-{number:04}", pod=pod, resources=_resources(number))
        state.start_container(state.create_container(sandbox_id, config, pod).id)


def _resources(number: int) -> api_pb2.LinuxContainerResources:
    cpus = 1 + number % 4
    return api_pb2.LinuxContainerResources(
        cpu_period=100_000,
        cpu_quota=100_000 * cpus,
        cpu_shares=1024 * cpus,
        memory_limit_in_bytes=cpus * 2**30,
        oom_score_adj=1000 - cpus,
    )
