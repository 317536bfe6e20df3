"""Simulate: the answer is what a call then leads to."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.node.snapshot import Node
from runtimeproxy.service.api.simulate import calls_of
from runtimeproxy.testing import FakeRuntime
from tests.daemon.driving import batch_pod, shares_of
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.service.api.conftest import status_of

Field = api_pb2.SimulatedField
POD = """
kind: Pod
apiVersion: v1
metadata: {name: one, namespace: shop, labels: {koordinator.sh/qosClass: BE}}
spec:
  containers:
  - name: main
    resources: {limits: {kubernetes.io/batch-cpu: "500", kubernetes.io/batch-memory: 64Mi}}
"""


def simulated(api: Any, **request: Any) -> list[api_pb2.SimulatedPod]:
    answer = api.Simulate(api_pb2.SimulateRequest(**request), timeout=60, wait_for_ready=True)
    return list(answer.pods)


def test_a_manifest(api: Any) -> None:
    (pod,) = simulated(api, manifest=POD, with_webhook=True)
    assert any("webhook" in each for each in pod.notes)
    assert (pod.namespace, pod.name, pod.qos_class) == ("shop", "one", "BE")
    levels = [(each.level, each.container) for each in pod.targets]
    assert levels == [(api_pb2.LEVEL_POD, ""), (api_pb2.LEVEL_CONTAINER, "main")]
    fields = {field.name: field for field in pod.targets[1].fields}
    shares = fields["resources.cpu_shares"]
    assert (shares.policy, shares.after) == ("batch-resource", "512")
    assert shares.reason
    assert shares.certainty in (Field.CERTAINTY_EXACT, Field.CERTAINTY_DEPENDS_ON)
    assert shares.claims[0].owner == "batch-resource"


def test_a_recorded_call_is_simulated_as_it_then_happens(client: CriClient) -> None:
    api: Any = api_pb2_grpc.RuntimeProxyStub(client.channel)
    pod = batch_pod(client, "one").run()
    message = pod.create_request.SerializeToString()
    call = api_pb2.CriCall(method="CreateContainer", message=message)
    (found,) = simulated(api, call=call)
    fields = {field.name: field for target in found.targets for field in target.fields}
    assert fields["resources.cpu_shares"].after == str(shares_of(pod.create()))


def test_variables_of_a_recorded_call_are_those_that_were_sent() -> None:
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main"), envs=[cri.KeyValue(key="PATH", value=b"/bin")]
    )
    message = cri.CreateContainerRequest(pod_sandbox_id="a", config=config)
    call = api_pb2.CriCall(method="CreateContainer", message=message.SerializeToString())
    (found,) = calls_of(api_pb2.SimulateRequest(call=call), Node())
    assert found.containers[0].config == config
    call = api_pb2.CriCall(
        json='{"pod_sandbox_id": "a", "config": {"metadata": {"name": "main"}, '
        '"envs": [{"key": "PATH", "value": "/bin"}]}}'
    )
    (found,) = calls_of(api_pb2.SimulateRequest(call=call), Node())
    assert found.containers[0].config == config


def test_one_policy_only(api: Any) -> None:
    (pod,) = simulated(api, manifest=POD, policy="cpuset")
    assert not [
        field for target in pod.targets for field in target.fields if field.policy == "batch-resource"
    ]


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "no manifest and no call is given"),
    ({"manifest": "kind: Service\nmetadata: {name: x}\n"}, "Service"),
    ({"manifest": "{"}, ""),
    ({"manifest": POD, "policy": "no-such"}, "no policy in use is named no-such"),
    ({"call": {"method": "Version", "message": b""}}, "calls of Version are not simulated"),
    ({"call": {"method": "CreateContainer", "message": b"\xff\xff"}}, "is not a request of CreateContainer"),
]


@pytest.mark.parametrize(("request_", "text"), BAD)
def test_what_cannot_be_simulated(api: Any, request_: dict[str, Any], text: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        simulated(api, **request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in str(caught.value.details())


def test_nothing_happens_on_the_node(api: Any, shared_runtime: FakeRuntime) -> None:
    wait_until(lambda: status_of(api).records.is_recovered, "the runtime's lists")
    before = status_of(api)
    simulated(api, manifest=POD)
    after = status_of(api)
    assert after.records == before.records
    assert after.ledger.values == before.ledger.values
