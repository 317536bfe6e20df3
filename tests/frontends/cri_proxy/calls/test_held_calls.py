"""Held calls that create and update, from request to record, on a scripted reply."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import (
    CLEAR,
    ContainerChange,
    ContainerView,
    FailurePolicy,
    LabelOperator,
    LabelRequirement,
    LabelSelector,
    PodChange,
    PodSelector,
    PodView,
    ResourceChange,
)
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.pods.records import Lifecycle, PodRecord
from runtimeproxy.qos import QoSClass
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.frontends.cri_proxy.calls.one_container import SHARES, record_of, with_container
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, create, policy


async def test_a_call_that_no_policy_wants_is_answered_at_once_with_the_original(desk: Surroundings) -> None:
    await desk.load(policy(container=SHARES))
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=pod_sandbox_config()))
    assert call.reply.forwarded == [None]
    assert desk.tasks == 0


@pytest.mark.parametrize("qos", ["BE", "LS"])
async def test_a_pod_that_concerns_no_policy_costs_no_thread(desk: Surroundings, qos: str) -> None:
    found = policy(
        selector=PodSelector(qos_classes=frozenset({QoSClass.BE})), container=SHARES, on_started=None
    )
    await desk.load(found)
    pod = pod_sandbox_config(qos=qos)
    await desk.run_pod(pod, POD_ID)
    request = api_pb2.CreateContainerRequest(
        pod_sandbox_id=POD_ID, config=container_config(), sandbox_config=pod
    )
    call = desk.call("CreateContainer", request)
    assert call.reply.is_done is (qos == "LS")
    await call.succeeded(api_pb2.CreateContainerResponse(container_id=CONTAINER_ID))
    start = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id=CONTAINER_ID))
    await start.succeeded(api_pb2.StartContainerResponse())
    assert bool(desk.tasks) is (qos == "BE")
    await desk.idle()
    assert len(found.seen) == (2 if qos == "BE" else 0)


@pytest.mark.parametrize("is_about", [True, False])
@pytest.mark.parametrize("condition", ["namespace", "label"])
@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainerResources"])
async def test_a_pod_is_chosen_by_namespace_and_labels_without_a_thread(
    desk: Surroundings, method: str, condition: str, is_about: bool
) -> None:
    if condition == "namespace":
        selector = PodSelector(namespaces=frozenset({"prod" if is_about else "test"}))
    else:
        selector = PodSelector(labels=LabelSelector(match_labels={"app": "web" if is_about else "db"}))
    found = policy(selector=selector, container=SHARES)
    await desk.load(found)
    pod = pod_sandbox_config(namespace="prod", labels={"app": "web"})
    await desk.run_pod(pod, POD_ID)
    await desk.create(POD_ID, pod, container_config(pod=pod), CONTAINER_ID)
    asked = len(found.seen)
    assert bool(asked) is is_about
    if method == "UpdateContainerResources":
        call = desk.call(method, api_pb2.UpdateContainerResourcesRequest(container_id=CONTAINER_ID))
        assert call.reply.is_done is not is_about
        await call.reply.done()
        assert len(found.seen) == (asked + 1 if is_about else 0)


async def test_looking_whether_a_pod_concerns_anybody_leaves_no_trace_in_the_request(
    desk: Surroundings,
) -> None:
    """A map of a message takes in what is looked up in it the wrong way."""
    selector = PodSelector(
        annotations=("example.com/absent", "example.com/a"),
        labels=LabelSelector(
            match_labels={"app": "web"},
            match_expressions=(
                LabelRequirement(key="gone", operator=LabelOperator.DOES_NOT_EXIST),
                LabelRequirement(key="absent", operator=LabelOperator.EXISTS),
            ),
        ),
    )
    other = policy("other", selector=selector, container=None)
    await desk.load(other, policy(container=SHARES))
    pod = pod_sandbox_config(labels={"app": "web"}, annotations={"example.com/a": "b"})
    await desk.run_pod(pod, POD_ID)
    call = await desk.create(POD_ID, pod, container_config(pod=pod), CONTAINER_ID)
    sent = await call.sent(api_pb2.CreateContainerRequest)
    assert sent.config.linux.resources.cpu_shares == 2048
    assert sent.sandbox_config == pod
    assert other.seen == []


@pytest.mark.conformance(9)
async def test_a_call_that_no_policy_changes_is_forwarded_as_it_came(desk: Surroundings) -> None:
    same = ContainerChange(resources=ResourceChange(cpu_shares=2))
    await desk.load(policy(container=None), policy("same", container=same))
    request = api_pb2.CreateContainerRequest(pod_sandbox_id=POD_ID, config=container_config())
    call = desk.call("CreateContainer", request)
    await call.reply.done()
    assert call.reply.forwarded == [None]


async def test_a_policy_changes_a_container_and_the_record_keeps_both_values(desk: Surroundings) -> None:
    found = policy(container=SHARES)
    await desk.load(found)
    pod = pod_sandbox_config(qos="BE", uid="u1")
    await desk.run_pod(pod, POD_ID)
    call = await desk.create(POD_ID, pod, container_config(pod=pod), CONTAINER_ID)
    sent = await call.sent(api_pb2.CreateContainerRequest)
    assert sent.config.linux.resources.cpu_shares == 2048
    record = record_of(desk)
    assert (record.requested.cpu_shares, record.booked.cpu_shares) == (2, 2048)
    assert record.owners["resources.cpu_shares"] == (Claimant("test"),)
    (_, view), *_ = found.seen
    assert (view.pod.qos, view.pod.id, dict(view.env)) == ("BE", POD_ID, {"PATH": b"/bin"})
    assert view.pod.cgroup_parent == "/kubepods/besteffort/podu1"


async def test_environment_values_are_not_kept(desk: Surroundings) -> None:
    await desk.load(policy(container=SHARES))
    pod = pod_sandbox_config()
    await desk.create(POD_ID, pod, container_config(envs={"TOKEN": "s3cret-value"}), CONTAINER_ID)
    assert "s3cret" not in repr([*desk.store.containers, *desk.store.pods])


async def test_a_policy_changes_a_pod_and_its_containers_are_shown_the_changes(desk: Surroundings) -> None:
    change = PodChange(
        labels={"new": "1"},
        annotations={"kubernetes.io/config.source": CLEAR},
        cgroup_parent="/other/podu1",
        cgroup={"cpu.shares": 10},
    )
    found = policy(pod=change, container=None)
    await desk.load(found)
    pod = pod_sandbox_config(uid="u1")
    run = await desk.run_pod(pod, POD_ID)
    sent = await run.sent(api_pb2.RunPodSandboxRequest)
    assert sent.config.labels["new"] == "1"
    assert sent.config.linux.cgroup_parent == "/other/podu1"
    assert desk.ledger.written == [("/other/podu1", {"cpu.shares": 10})]
    create = await desk.create(POD_ID, pod, container_config(pod=pod), CONTAINER_ID)
    created = await create.sent(api_pb2.CreateContainerRequest)
    assert created.sandbox_config.linux.cgroup_parent == "/other/podu1"
    assert created.sandbox_config.labels == pod.labels
    view = found.seen[-1][1].pod
    assert view.labels["new"] == "1"
    assert "kubernetes.io/config.source" not in view.annotations
    assert view.cgroup_parent == "/other/podu1"


async def test_a_changed_cgroup_parent_is_carried_on_without_any_policy_at_creation(
    desk: Surroundings,
) -> None:
    await desk.load(policy(pod=PodChange(cgroup_parent="/other")))
    pod = pod_sandbox_config()
    await desk.run_pod(pod, POD_ID)
    create = await desk.create(POD_ID, pod, container_config(), CONTAINER_ID)
    created = await create.sent(api_pb2.CreateContainerRequest)
    assert created.sandbox_config.linux.cgroup_parent == "/other"


@pytest.mark.parametrize("named", ["", "/kubepods/podu1"])
async def test_a_cgroup_parent_that_nobody_changed_is_left_alone(desk: Surroundings, named: str) -> None:
    await desk.load(policy(container=None))
    desk.store.pods.put(PodRecord(id=POD_ID, cgroup_parent="/kubepods/pod"))
    pod = pod_sandbox_config(cgroup_parent=named)
    create = await desk.create(POD_ID, pod, container_config(), CONTAINER_ID)
    assert create.reply.forwarded == [None]


async def test_a_container_in_a_sandbox_that_nobody_saw_gets_its_policies(desk: Surroundings) -> None:
    found = policy(container=SHARES)
    await desk.load(found)
    pod = pod_sandbox_config("web", qos="LS", uid="u1")
    call = await desk.create(POD_ID, pod, container_config(pod=pod), CONTAINER_ID)
    assert (await call.sent(api_pb2.CreateContainerRequest)).config.linux.resources.cpu_shares == 2048
    assert found.seen[0][1].pod.qos == "LS"
    assert desk.runtime.asked == [f"pod {POD_ID}"]
    record = desk.store.pods.get(POD_ID)
    assert record is not None
    assert (record.uid, record.detailed) == ("u1", False)


async def test_a_creation_without_any_configuration_goes_through(desk: Surroundings) -> None:
    await desk.load(policy(container=None, pod=None))
    for method in ("CreateContainer", "RunPodSandbox", "RestorePod"):
        call = desk.call(method, b"\0\0\0\0\0")
        await call.reply.done()
        assert call.reply.forwarded == [None]


async def test_an_update_of_a_pod(desk: Surroundings) -> None:
    change = PodChange(resources=ResourceChange(cpu_quota_us=-1), cgroup={"cpu.cfs_quota_us": -1})
    found = policy(pod=lambda pod: change if pod.id else None)
    await desk.load(found)
    await with_container(desk)
    request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID)
    request.resources.cpu_quota = 50_000
    call = desk.call("UpdatePodSandboxResources", request)
    await call.succeeded(api_pb2.UpdatePodSandboxResourcesResponse())
    await desk.idle()
    sent = await call.sent(api_pb2.UpdatePodSandboxResourcesRequest)
    assert sent.resources.cpu_quota == -1
    assert not sent.HasField("overhead")
    assert desk.ledger.written == [("/kubepods/besteffort/podu1", {"cpu.cfs_quota_us": -1})]
    assert [(entry.kind, entry.field) for entry in desk.audit] == [
        (AuditKind.CHANGED, "resources.cpu_quota_us"),
        (AuditKind.PENDING, "cgroup[cpu.cfs_quota_us]"),
        (AuditKind.CHANGED, "cgroup[cpu.cfs_quota_us]"),
    ]
    record = desk.store.pods.get(POD_ID)
    assert record is not None
    assert (record.requested.cpu_quota_us, record.booked.cpu_quota_us) == (50_000, -1)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNKNOWN])
async def test_an_update_of_a_pod_that_fails_was_made_by_the_kubelet_all_the_same(
    desk: Surroundings, outcome: Outcome
) -> None:
    """It writes to the cgroup first, and a runtime need not have the call. What is not known is repeated."""
    found = policy(pod=lambda pod: PodChange(cgroup={"cpu.shares": pod.resources.cpu_shares or 2}))
    await desk.load(found)
    await with_container(desk)
    desk.ledger.written.clear()
    desk.runtime.pods[POD_ID] = PodRecord(id=POD_ID)
    request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID)
    request.resources.cpu_shares = 700
    call = desk.call("UpdatePodSandboxResources", request)
    await call.reply.done()
    assert desk.ledger.written == []
    await call.ended(outcome)
    await desk.idle()
    record = desk.store.pods.get(POD_ID)
    assert record is not None
    is_failed = outcome is Outcome.FAILED
    assert (record.requested.cpu_shares == 700) is is_failed
    assert record.booked.cpu_shares is None
    assert desk.ledger.written == ([("/kubepods/besteffort/podu1", {"cpu.shares": 700})] if is_failed else [])


@pytest.mark.conformance(99)
async def test_a_restored_pod_is_a_pod_and_its_containers(desk: Surroundings) -> None:
    found = policy(
        pod=PodChange(labels={"restored": "1"}, cgroup={"cpu.shares": 3}),
        container=replace(SHARES, cgroup={"memory.use_priority_oom": 0}),
        on_started=None,
    )
    await desk.load(found)
    pod = pod_sandbox_config("web", uid="u1", qos="BE")
    request = api_pb2.RestorePodRequest(
        config=pod, container_configs=[container_config("a"), container_config("b")]
    )
    call = desk.call("RestorePod", request)
    response = api_pb2.RestorePodResponse(pod_sandbox_id=POD_ID)
    response.restored_containers.add(name="a", container_id=CONTAINER_ID)
    response.restored_containers.add(name="x", container_id="other")
    await call.succeeded(response)
    await desk.idle()
    sent = await call.sent(api_pb2.RestorePodRequest)
    assert sent.config.labels["restored"] == "1"
    assert [each.linux.resources.cpu_shares for each in sent.container_configs] == [2048, 2048]
    methods = [method for method, _ in found.seen]
    assert methods == ["pod", "container", "container", "on_started", "on_started"]
    assert found.seen[1][1].pod.labels["restored"] == "1"
    record = record_of(desk)
    assert (record.state, record.booked.cpu_shares) == (Lifecycle.RUNNING, 2048)
    assert desk.ledger.written[0] == ("/kubepods/besteffort/podu1", {"cpu.shares": 3})
    values = {"memory.use_priority_oom": 0}
    assert desk.ledger.written[1:] == [(f"/kubepods/besteffort/podu1/{CONTAINER_ID}", values)]
    assert record.pending_cgroup == {}


async def test_values_that_a_restored_pod_gets_late_are_audited_in_the_loop(desk: Surroundings) -> None:
    """As all entries: a sink may use the loop."""
    found: list[tuple[str, str]] = []

    def sink(entry: AuditEntry) -> None:
        asyncio.get_running_loop()
        found.append((str(entry.kind), entry.field))

    chain = await desk.load()
    loaded = bind(policy(pod=PodChange(cgroup={"cpu.shares": 3})))
    desk.core.chain = Chain([loaded], chain.workers, sink=sink)
    request = api_pb2.RestorePodRequest(config=pod_sandbox_config("web", uid="u1", qos="BE"))
    await desk.call("RestorePod", request).reply.done()
    assert found == [("pending", "cgroup[cpu.shares]"), ("changed", "cgroup[cpu.shares]")]


async def test_a_call_keeps_the_policies_that_it_began_with(desk: Surroundings) -> None:
    newer = policy("newer", container=SHARES)

    def reloaded(_: PodView) -> None:
        desk.core.chain = Chain([bind(newer)], desk.workers)

    older = policy("older", pod=reloaded, container=None)
    await desk.load(older)
    pod = pod_sandbox_config("web", uid="u1", qos="BE")
    request = api_pb2.RestorePodRequest(config=pod, container_configs=[container_config("a")])
    await desk.call("RestorePod", request).reply.done()
    assert [method for method, _ in older.seen] == ["pod", "container"]
    assert newer.seen == []


async def test_the_skip_label_leaves_a_pod_to_itself_but_it_is_recorded() -> None:
    desk = Surroundings()
    desk.skip_label = ("koordinator.sh/hooks", "off")
    found = policy(pod=PodChange(labels={"a": "b"}), container=SHARES, on_started=None)
    await desk.load(found)
    pod = pod_sandbox_config(labels={"koordinator.sh/hooks": "off"})
    run = await desk.run_pod(pod, POD_ID)
    create = await desk.create(POD_ID, pod, container_config(), CONTAINER_ID)
    start = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id=CONTAINER_ID))
    await start.succeeded(api_pb2.StartContainerResponse())
    await desk.idle()
    assert [*run.reply.forwarded, *create.reply.forwarded] == [None, None]
    assert not found.seen
    assert record_of(desk).state is Lifecycle.RUNNING
    await desk.close()


async def test_the_skip_label_as_an_annotation_skips_nothing_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Surroundings()
    desk.skip_label = ("koordinator.sh/hooks", "off")
    found = policy(pod=PodChange(labels={"a": "b"}))
    await desk.load(found)
    pod = pod_sandbox_config(annotations={"koordinator.sh/hooks": "off"})
    with caplog.at_level("WARNING"):
        for _ in range(2):
            await desk.run_pod(pod, POD_ID)
    assert len(found.seen) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "skip label: default/pod has koordinator.sh/hooks as an annotation: only a label counts"
    ]
    await desk.close()


async def test_a_dry_run_changes_nothing_that_the_runtime_sees(desk: Surroundings) -> None:
    from runtimeproxy.hooks import Mode

    change = ContainerChange(resources=ResourceChange(cpu_shares=2048), cgroup={"cpu.shares": 5})
    await desk.load(policy(container=change), test=PolicySettings(mode=Mode.DRY_RUN))
    call = await desk.create(POD_ID, pod_sandbox_config(), container_config(), CONTAINER_ID)
    assert call.reply.forwarded == [None]
    assert record_of(desk).booked.cpu_shares == 2
    assert not desk.ledger.written


def read_only(view: PodView) -> None:
    for entries in (view.labels, view.annotations, view.resources.unified, view.overhead.unified):
        with pytest.raises(TypeError):
            entries["a"] = "b"  # type: ignore[index]


async def test_a_policy_cannot_change_what_it_is_shown(desk: Surroundings) -> None:
    def read_only_container(view: ContainerView) -> None:
        read_only(view.pod)
        for entries in (view.labels, view.annotations, view.requested.unified):
            with pytest.raises(TypeError):
                entries["a"] = "b"  # type: ignore[index]

    found = policy(pod=read_only, container=read_only_container)
    await desk.load(found, test=PolicySettings(failure_policy=FailurePolicy.FAIL))
    config = pod_sandbox_config()
    config.linux.resources.unified["memory.high"] = "1"
    config.linux.overhead.unified["memory.high"] = "1"
    await desk.run_pod(config, POD_ID)
    update = desk.call(
        "UpdatePodSandboxResources", api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID)
    )
    await update.succeeded(api_pb2.UpdatePodSandboxResourcesResponse())
    await desk.create(POD_ID, config, container_config(), CONTAINER_ID)
    request = api_pb2.UpdateContainerResourcesRequest(container_id=CONTAINER_ID)
    await desk.call("UpdateContainerResources", request).reply.done()
    assert len(found.seen) == 4


async def test_a_policy_that_was_given_up_sees_no_change_of_the_request(desk: Surroundings) -> None:
    """It looks for the first time when others' changes are made, in another thread."""
    let_go, looked = threading.Event(), threading.Event()
    names: list[str] = []

    def late(view: ContainerView) -> None:
        let_go.wait(30)
        names.extend(view.env)
        looked.set()

    slow = policy("a-slow", container=late)
    changing = policy("changing", container=ContainerChange(env={"ADDED": "x", "A": CLEAR}))
    await desk.load(slow, changing, a_slow=PolicySettings(timeout_s=0.05))
    call = desk.call("CreateContainer", create(envs={"A": "1", "B": "2"}))
    sent = await call.sent(api_pb2.CreateContainerRequest)
    assert [variable.key for variable in sent.config.envs] == ["B", "ADDED"]
    let_go.set()
    assert await asyncio.to_thread(looked.wait, 30)
    assert names == ["A", "B"]


THIN = api_pb2.PodSandboxConfig(metadata=pod_sandbox_config().metadata)


async def test_what_a_thin_configuration_says_nothing_of_is_the_record_s(desk: Surroundings) -> None:
    """Koordinator's proxy shows the record's labels and annotations; the kubelet always sends them."""
    asked = policy(
        pod=PodChange(labels={"changed": "yes"}),
        container=None,
        on_started=None,
    )
    await desk.load(asked)
    config = pod_sandbox_config(labels={"own": "label"}, annotations={"own": "annotation"})
    config.linux.cgroup_parent = "/kubepods/podu1"
    config.linux.resources.cpu_shares = 7
    config.linux.overhead.cpu_shares = 3
    await desk.run_pod(config, POD_ID)
    await desk.create(POD_ID, THIN, container_config(), CONTAINER_ID)
    await desk.idle()
    start = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id=CONTAINER_ID))
    await start.succeeded(api_pb2.StartContainerResponse())
    await desk.idle()
    update = api_pb2.UpdateContainerResourcesRequest(container_id=CONTAINER_ID)
    await desk.call("UpdateContainerResources", update).reply.done()
    assert [method for method, _ in asked.seen] == ["pod", "container", "on_started", "container"]
    for pod in (view.pod for _, view in asked.seen[1:]):
        assert {"own": "label", "changed": "yes"}.items() <= pod.labels.items()
        assert pod.annotations["own"] == "annotation"
        assert pod.cgroup_parent == "/kubepods/podu1"
        assert (pod.resources.cpu_shares, pod.overhead.cpu_shares) == (7, 3)


async def test_each_group_that_a_request_gives_counts(desk: Surroundings) -> None:
    """Annotations of a pod may change while it runs."""
    asked = policy(container=None)
    await desk.load(asked)
    config = pod_sandbox_config(labels={"own": "label"}, annotations={"own": "old"})
    await desk.run_pod(config, POD_ID)
    newer = api_pb2.PodSandboxConfig(metadata=config.metadata, annotations={"own": "new"})
    await desk.create(POD_ID, newer, container_config(), CONTAINER_ID)
    ((_, view),) = asked.seen
    assert view.pod.labels["own"] == "label"
    assert view.pod.annotations == {"own": "new"}


async def test_a_thin_configuration_of_an_unknown_sandbox_is_looked_up(desk: Surroundings) -> None:
    asked = policy(container=None)
    await desk.load(asked)
    desk.runtime.pods[POD_ID] = PodRecord(id=POD_ID, uid="u1", labels={"own": "label"})
    await desk.create(POD_ID, THIN, container_config(), CONTAINER_ID)
    ((_, view),) = asked.seen
    assert view.pod.labels == {"own": "label"}
