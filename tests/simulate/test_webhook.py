"""What Koordinator's webhook adds to a pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.simulate.manifests import ManifestPod, read_pods
from runtimeproxy.simulate.webhook import mutated
from runtimeproxy.slo.names import EXTENDED_RESOURCE_SPEC

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
NATIVE = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1500m"}}


def pod(resources: dict[str, Any], spec: dict[str, Any] | None = None, **labels: str) -> ManifestPod:
    names = {"qos": "koordinator.sh/qosClass", "priority": "koordinator.sh/priority-class"}
    document = {
        "kind": "Pod",
        "metadata": {"labels": {names[key]: label for key, label in labels.items()}},
        "spec": {
            "containers": [{"name": "main", "resources": resources}],
            "initContainers": [{"name": "setup", "resources": resources}],
            **(spec or {}),
        },
    }
    (found,) = read_pods([document])
    return found


@pytest.mark.parametrize(
    "given",
    [
        pod(NATIVE, qos="BE"),
        pod(NATIVE, priority="koord-batch"),
        pod(NATIVE, {"priority": 5500}),
        pod(NATIVE, {"priorityClassName": "koord-batch"}),
    ],
)
def test_a_batch_pod_gets_batch_resources(given: ManifestPod) -> None:
    found, added = mutated(given)
    assert found.labels == {"koordinator.sh/qosClass": "BE", **given.labels}
    # A memory limit is the request, as that of an extended resource must be; init containers have no entry.
    assert json.loads(found.annotations[EXTENDED_RESOURCE_SPEC]) == {
        "containers": {
            "main": {
                "requests": {CPU: "500", MEMORY: str(2**30)},
                "limits": {CPU: "1500", MEMORY: str(2**30)},
            }
        }
    }
    assert found.qos is KubeQoSClass.BEST_EFFORT
    assert all(not {"cpu", "memory"} & each.requests.keys() for each in found.containers)
    assert f"cpu and memory become {CPU} and {MEMORY}" in added


def test_batch_resources_that_are_written_by_hand_are_carried_to_the_node() -> None:
    given = pod({"requests": {CPU: "500"}, "limits": {CPU: "500"}}, qos="BE", priority="koord-batch")
    found, added = mutated(given)
    text = '{"containers":{"main":{"requests":{"%s":"500"},"limits":{"%s":"500"}}}}' % (CPU, CPU)  # noqa: UP031
    assert found.annotations == {EXTENDED_RESOURCE_SPEC: text}
    assert added == (f"annotation {EXTENDED_RESOURCE_SPEC}: {text}",)
    assert mutated(found) == (found, ())


def test_mid_resources_have_no_annotation() -> None:
    found, _ = mutated(pod(NATIVE, priority="koord-mid"))
    assert found.containers[1].requests == {
        "kubernetes.io/mid-cpu": 500,
        "kubernetes.io/mid-memory": 2**30,
    }
    assert not found.annotations


@pytest.mark.parametrize(
    "given", [pod(NATIVE), pod(NATIVE, qos="LS"), pod(NATIVE, qos="LSR", priority="koord-prod")]
)
def test_other_pods_keep_native_resources(given: ManifestPod) -> None:
    assert mutated(given) == (given, ())
