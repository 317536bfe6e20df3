"""Labels and annotations as Koordinator's scheduler and webhook write them."""

from __future__ import annotations

import json
from collections.abc import Mapping

QOS_LABEL = "koordinator.sh/qosClass"
BATCH_CPU = "kubernetes.io/batch-cpu"
BATCH_MEMORY = "kubernetes.io/batch-memory"


def qos(name: str) -> dict[str, str]:
    """The label of a QoS class, none for the empty name."""
    return {QOS_LABEL: name} if name else {}


def extended_resources(containers: Mapping[str, object]) -> dict[str, str]:
    """Batch resources by container; cpu in milli-cores."""
    text = json.dumps({"containers": containers})
    return {"node.koordinator.sh/extended-resource-spec": text}


def batch(cpu_millicores: int, memory: str) -> dict[str, str]:
    """One requests or limits object of `extended_resources`."""
    return {BATCH_CPU: str(cpu_millicores), BATCH_MEMORY: memory}


def cpuset(cpus: str) -> dict[str, str]:
    """The CPUs that the scheduler has given to the pod."""
    return {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus})}


def gpus(*minors: int, **resources: str) -> dict[str, str]:
    """The GPUs that the scheduler has given to the pod, each with the same resources."""
    named = {f"koordinator.sh/{name.replace('_', '-')}": text for name, text in resources.items()}
    devices = [{"minor": minor, "id": f"GPU-{minor}", "resources": named} for minor in minors]
    return {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": devices})}
