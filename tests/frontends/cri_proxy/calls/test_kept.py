"""What records keep of annotations, and what is charged for calls that the runtime has not answered."""

from __future__ import annotations

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import StatusCode
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallSettings
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import FailurePolicy, Hook, PodChange, PodView
from runtimeproxy.pods.resources import LAST_APPLIED, MAX_KEPT_BYTES
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.frontends.cri_proxy.calls.scripted import (
    CONTAINER_ID,
    POD_ID,
    RecordedReply,
    Surroundings,
    policy,
    server,
)

KUBELETS = {"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": "2026-01-02T03:04:05Z"}
MOST = {"k" * 8: "v" * (MAX_KEPT_BYTES - 8)}
"""As much as the API server allows."""


def run_request(
    annotations: dict[str, str], cgroup_parent: str = "/kubepods/pod1"
) -> api_pb2.RunPodSandboxRequest:
    config = pod_sandbox_config(annotations={**KUBELETS, **annotations})
    config.linux.cgroup_parent = cgroup_parent
    return api_pb2.RunPodSandboxRequest(config=config)


async def test_as_much_as_the_api_server_allows_is_kept() -> None:
    desk = Surroundings()
    await desk.load()
    call = desk.call("RunPodSandbox", run_request(MOST))
    await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID))
    record = desk.store.pods.get(POD_ID)
    assert record is not None
    assert record.annotations == {**MOST, **KUBELETS}
    (kept_bytes,) = call.reply.kept
    assert MAX_KEPT_BYTES < kept_bytes < MAX_KEPT_BYTES + 1000
    await desk.close()


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(run_request({**MOST, "one": "more"}), id="annotations"),
        pytest.param(run_request({}, cgroup_parent="/" + "x" * MAX_KEPT_BYTES), id="cgroup-parent"),
    ],
)
@pytest.mark.parametrize("on_unparsable", FailurePolicy)
async def test_more_counts_as_a_request_that_cannot_be_read(
    request_: api_pb2.RunPodSandboxRequest, on_unparsable: FailurePolicy
) -> None:
    desk = Surroundings(CallSettings(budget_s=30.0, on_unparsable=on_unparsable))
    await desk.load(policy("p", pod=PodChange(labels={"a": "b"})))
    call = desk.call("RunPodSandbox", request_)
    await call.reply.done()
    assert desk.core.problems.counts["RunPodSandbox", "unreadable"] == 1
    if on_unparsable is FailurePolicy.FAIL:
        assert [code for code, _ in call.reply.refused] == [StatusCode.INVALID_ARGUMENT]
    else:
        assert call.reply.forwarded == [None]
        await call.ended(Outcome.SUCCEEDED)
        assert desk.unsettled == 1
    assert len(desk.store.pods) == 0
    assert call.reply.kept == []
    await desk.close()


@pytest.mark.parametrize("size_bytes", [20_000, 100_000])
@pytest.mark.parametrize("on_unparsable", FailurePolicy)
async def test_a_pod_for_which_the_records_have_no_room_counts_so_too(
    size_bytes: int, on_unparsable: FailurePolicy
) -> None:
    desk = Surroundings(CallSettings(budget_s=30.0, on_unparsable=on_unparsable))
    await desk.load(policy("p", pod=PodChange(labels={"a": "b"})))
    desk.store.max_bytes = 8 * size_bytes
    call = desk.call("RunPodSandbox", run_request({"koordinator.sh/large": "x" * size_bytes}))
    await call.reply.done()
    assert desk.core.problems.counts["RunPodSandbox", "unreadable"] == 1
    assert desk.failures.causes == ["TooMuchToKeepError"]
    if on_unparsable is FailurePolicy.FAIL:
        assert [code for code, _ in call.reply.refused] == [StatusCode.INVALID_ARGUMENT]
    else:
        assert call.reply.forwarded == [None]
    assert len(desk.store.pods) == 0
    await desk.close()


@pytest.mark.parametrize("size_bytes", [20_000, 100_000])
async def test_annotations_that_no_policy_reads_stop_no_pod_where_there_is_no_room(size_bytes: int) -> None:
    desk = Surroundings()
    await desk.load(policy("p", pod=PodChange(labels={"a": "b"})))
    desk.store.max_bytes = 8 * size_bytes
    call = desk.call("RunPodSandbox", run_request({"example.com/large": "x" * size_bytes}))
    await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID))
    assert (await call.sent(api_pb2.RunPodSandboxRequest)).config.labels["a"] == "b"
    record = desk.store.pods.get(POD_ID)
    assert record is not None
    assert (record.trimmed, record.annotations, record.labels["a"]) == (True, KUBELETS, "b")
    await desk.close()


@pytest.mark.parametrize("size_bytes", [100, 100_000])
async def test_the_manifest_of_kubectl_is_shown_in_a_call_and_never_kept(size_bytes: int) -> None:
    """Hook servers are sent the annotations of a call's request, as before."""
    desk = Surroundings()
    asked = server({Hook.PRE_RUN_POD_SANDBOX: None})
    await desk.load(asked)
    manifest = {LAST_APPLIED: "x" * size_bytes}
    call = desk.call("RunPodSandbox", run_request({**manifest, "other": "stays"}))
    await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID))
    ((_, view),) = asked.seen
    assert isinstance(view, PodView)
    assert view.annotations == {**KUBELETS, **manifest, "other": "stays"}
    record = desk.store.pods.get(POD_ID)
    assert record is not None
    assert record.annotations == {**KUBELETS, "other": "stays"}
    await desk.close()


@pytest.mark.parametrize("size_bytes", [100, 100_000])
async def test_without_room_a_call_is_forwarded_and_no_record_kept(size_bytes: int) -> None:
    desk = Surroundings()
    await desk.load(policy("p", pod=PodChange(annotations={"added": "yes"})))
    reply = RecordedReply()
    reply.may_keep = False
    call = desk.call("RunPodSandbox", run_request({"long": "x" * size_bytes}), reply=reply)
    sent = await call.sent(api_pb2.RunPodSandboxRequest)
    assert sent.config.annotations["added"] == "yes"
    await call.ended(Outcome.SUCCEEDED)
    assert desk.unsettled == 1
    assert len(desk.store.pods) == 0
    assert desk.failures.causes == ["NoDecisionError"]
    await desk.close()


async def test_annotations_of_many_updates_do_not_add_up() -> None:
    desk = Surroundings()
    await desk.load()
    config = pod_sandbox_config()
    await desk.run_pod(config, POD_ID)
    await desk.create(POD_ID, config, container_config(annotations={"first": "one"}), CONTAINER_ID)
    for number in range(5):
        request = api_pb2.UpdateContainerResourcesRequest(
            container_id=CONTAINER_ID, annotations={f"k{number}": "v" * 60_000}
        )
        await desk.call("UpdateContainerResources", request).succeeded(
            api_pb2.UpdateContainerResourcesResponse()
        )
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    assert {f"k{number}" for number in range(5)} & record.annotations.keys() == {"k0", "k1", "k2", "k3"}
    assert record.annotations["first"] == "one"
    await desk.close()
