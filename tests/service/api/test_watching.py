"""Watchers: what they get, and what becomes of those that do not read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, AuditRing
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.hooks.views import Resources
from runtimeproxy.katalyst.levels import AGGREGATED_REQUESTS
from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.pods.records import PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.service.api.audit_feed import AuditFeed, entry_message, matches
from runtimeproxy.service.api.pod_feed import PodFeed
from runtimeproxy.service.api.pods import (
    PodAmounts,
    PodMessages,
    amounts_of,
    annotated_requests,
    extended_amounts,
)
from runtimeproxy.service.api.watching import (
    SLOW_S,
    SlowWatcherError,
    WatchEndedError,
    Watcher,
    Watchers,
)
from runtimeproxy.testing.builders import pod_sandbox_config
from runtimeproxy.units import MAX_INT64
from tests.daemon.driving import Pod, batch_pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.conftest import status_of

Responses = Iterator[api_pb2.WatchPodsResponse]


class TestQueue:
    """One watcher."""

    async def test_a_full_queue_becomes_a_snapshot(self) -> None:
        watcher = Watcher[int](restarts=True, most=3)
        watcher.take_snapshot()
        for number in range(4):
            watcher.put(number)
        assert watcher.needs_snapshot
        assert watcher.take() == []
        watcher.take_snapshot()
        watcher.put(5)
        await watcher.wait()
        assert watcher.take() == [5]

    async def test_one_that_does_not_read_is_cut_off(self) -> None:
        now_s = [0.0]
        watcher = Watcher[int](restarts=True, most=1, clock=lambda: now_s[0])
        watcher.take_snapshot()
        watcher.put(1)
        watcher.put(2)
        now_s[0] = SLOW_S
        watcher.put(3)
        await watcher.wait()
        now_s[0] = SLOW_S + 1
        watcher.put(4)
        with pytest.raises(SlowWatcherError):
            await watcher.wait()

    async def test_one_without_snapshots_is_cut_off_at_once(self) -> None:
        watcher = Watcher[int](restarts=False, most=2)
        for number in range(3):
            watcher.put(number)
        with pytest.raises(SlowWatcherError):
            await watcher.wait()

    async def test_the_end(self) -> None:
        watchers = Watchers[int](lambda: None, lambda: None)
        watcher = Watcher[int](restarts=False)
        watchers.add(watcher)
        waiting = asyncio.ensure_future(watcher.wait())
        await asyncio.sleep(0)
        watchers.end(WatchEndedError("over"))
        with pytest.raises(WatchEndedError):
            await waiting
        late = Watcher[int](restarts=False)
        watchers.add(late)
        with pytest.raises(WatchEndedError):
            await late.wait()

    async def test_the_first_and_the_last(self) -> None:
        seen: list[str] = []
        watchers = Watchers[int](lambda: seen.append("first"), lambda: seen.append("last"))
        one, two = Watcher[int](restarts=False), Watcher[int](restarts=False)
        watchers.add(one)
        watchers.add(two)
        watchers.remove(one)
        watchers.remove(two)
        assert seen == ["first", "last"]


ENTRY = AuditEntry(
    1.5,
    Hook.PRE_CREATE_CONTAINER,
    AuditKind.CHANGED,
    "cpuset",
    Mode.ENFORCE,
    "shop",
    "web",
    "uid-1",
    "main",
    "sandbox",
)


def test_an_entry_names_its_call_and_trace() -> None:
    message = entry_message(ENTRY._replace(call="CreateContainer", trace_id="ab" * 16))
    assert (message.call, message.trace_id) == ("CreateContainer", "ab" * 16)


@pytest.mark.parametrize(
    ("request_", "is_match"),
    [
        ({}, True),
        ({"pod": "web"}, True),
        ({"pod": "shop/web"}, True),
        ({"pod": "uid-1"}, True),
        ({"pod": "other"}, False),
        ({"policy": "cpuset"}, True),
        ({"policy": "cpu-burst"}, False),
        ({"kinds": ["refused"]}, False),
        ({"kinds": ["refused", "changed"], "pod": "web", "policy": "cpuset"}, True),
        ({"since": Timestamp(seconds=1, nanos=500_000_000)}, True),
        ({"since": Timestamp(seconds=1, nanos=500_000_001)}, False),
        ({"until": Timestamp(seconds=1, nanos=500_000_000)}, True),
        ({"until": Timestamp(seconds=1)}, False),
        ({"since": Timestamp(seconds=1), "until": Timestamp(seconds=2), "pod": "web"}, True),
    ],
)
def test_filters_of_the_audit(request_: dict[str, Any], is_match: bool) -> None:
    assert matches(api_pb2.WatchAuditRequest(**request_), ENTRY) is is_match


async def test_the_past_is_in_the_order_of_time_and_its_beginning_is_said() -> None:
    ring = AuditRing()
    for time_s in (3.0, 5.0, 4.0):
        ring(ENTRY._replace(time_s=time_s))
    feed = AuditFeed(ring, lambda: None)

    async def answers(**request: Any) -> list[api_pb2.WatchAuditResponse]:
        return [each async for each in feed.watch(api_pb2.WatchAuditRequest(**request))]

    (plain,) = await answers(limit=2)
    assert [each.time.seconds for each in plain.entries] == [4, 5]
    assert not plain.HasField("oldest")
    first, second = await answers(since=Timestamp(seconds=4))
    assert (first.oldest.seconds, len(first.entries)) == (3, 0)
    assert [each.time.seconds for each in second.entries] == [4, 5]


def pods(api: Any, **request: Any) -> Any:
    return api.WatchPods(api_pb2.WatchPodsRequest(**request), timeout=60, wait_for_ready=True)


def test_a_pod_comes_changes_and_goes(own_api: Any, client: CriClient) -> None:
    batch_pod(client, "before").run()
    stream = pods(own_api)
    first = next(stream)
    assert [pod.name for pod in first.snapshot.pods] == ["before"]
    made = batch_pod(client, "one").run()
    added = next(each for each in stream if each.WhichOneof("event") == "added").added
    assert (added.name, added.qos_class, added.state) == ("one", "BE", api_pb2.Pod.STATE_READY)
    made.create().start()
    running = api_pb2.Container.STATE_RUNNING
    changed = next(
        each.changed for each in stream if [box.state for box in each.changed.containers] == [running]
    )
    assert "batch-resource" in changed.policies
    owned = {field.name: field for field in changed.containers[0].fields}
    assert owned["cgroup[cpu.shares]"].owner == "batch-resource"
    assert abs(changed.created_at.seconds - time.time()) < 60
    assert set(changed.labels) == {"koordinator.sh/qosClass"}
    assert set(changed.annotations) == {"node.koordinator.sh/extended-resource-spec"}
    strategies = {each.path: each.value for each in changed.strategies}
    assert strategies["cpu_burst.policy"] == '"none"'
    assert strategies["eviction.is_enabled"] == "false"
    (box,) = changed.containers
    assert (box.requests["kubernetes.io/batch-cpu"], box.limits["kubernetes.io/batch-memory"]) == (500, 2**27)
    assert (box.requested.cpu_quota_us, box.scaled_cpu_quota_us) == (0, 50_000)
    assert status_of(own_api).clients.watchers == 1
    made.remove()
    removed = next(each for each in stream if each.WhichOneof("event") == "removed").removed
    assert removed.sandbox_id == added.sandbox_id
    stream.cancel()
    wait_until(lambda: status_of(own_api).clients.watchers == 0, "the watcher is gone")


@pytest.mark.parametrize(
    ("requested", "known", "requests", "limits"),
    [
        (Resources(), {}, {}, {}),
        (Resources(cpu_shares=2), {}, {}, {}),
        (Resources(cpu_shares=512), {}, {"cpu": 500}, {}),
        (Resources(cpu_shares=512), {"cpu": 501, "memory": 7}, {"cpu": 501, "memory": 7}, {}),
        (
            Resources(cpu_quota_us=30_000, cpu_period_us=10_000, memory_limit_bytes=9),
            {},
            {},
            {"cpu": 3000, "memory": 9},
        ),
        (Resources(cpu_quota_us=-1, memory_limit_bytes=-1), {}, {}, {}),
        (Resources(cpu_quota_us=MAX_INT64, cpu_period_us=1), {}, {}, {"cpu": MAX_INT64}),
        (Resources(cpu_quota_us=MAX_INT64, cpu_period_us=-1), {}, {}, {}),
    ],
)
def test_what_a_container_asks_for(
    requested: Resources, known: dict[str, int], requests: dict[str, int], limits: dict[str, int]
) -> None:
    assert amounts_of(requested, known) == (requests, limits)
    both = amounts_of(requested, known, PodAmounts({"kubernetes.io/batch-cpu": 1}, {}))
    assert both == ({**requests, "kubernetes.io/batch-cpu": 1}, limits)


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"containers": {"main": {"requests": 7}}}'])
def test_an_annotation_that_cannot_be_read(text: str) -> None:
    found = extended_amounts({"node.koordinator.sh/extended-resource-spec": text})
    assert all(each == ({}, {}) for each in found.values())


def test_batch_and_mid_resources_of_an_annotation() -> None:
    entry = {
        "Requests": {"kubernetes.io/batch-cpu": "1k", "kubernetes.io/mid-memory": 2, "cpu": "9"},
        "limits": {
            "kubernetes.io/batch-cpu": -1,
            "kubernetes.io/batch-memory": "x",
            "kubernetes.io/mid-cpu": True,
        },
    }
    text = json.dumps({"containers": {"main": entry, "none": None}})
    found = extended_amounts({"node.koordinator.sh/extended-resource-spec": text})
    assert found == {
        "main": ({"kubernetes.io/batch-cpu": 1000, "kubernetes.io/mid-memory": 2}, {}),
        "none": ({}, {}),
    }


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, {}),
        (
            {AGGREGATED_REQUESTS: '{"cpu": "1500m", "memory": "1Gi", "other": 1}'},
            {"cpu": 1_500, "memory": 1 << 30},
        ),
        ({AGGREGATED_REQUESTS: "no JSON", RECLAIMED_MILLICPU: "2000"}, {RECLAIMED_MILLICPU: 2_000}),
        ({AGGREGATED_REQUESTS: '{"memory": -1, "cpu": []}', RECLAIMED_MEMORY: "-5"}, {}),
        (
            {AGGREGATED_REQUESTS: json.dumps({RECLAIMED_MEMORY: 7}), RECLAIMED_MEMORY: "2Ki"},
            {RECLAIMED_MEMORY: 2_048},
        ),
        ({AGGREGATED_REQUESTS: "[" * 20_000, RECLAIMED_MILLICPU: "x" * 99}, {}),
    ],
)
def test_requests_that_annotations_tell(annotations: dict[str, str], expected: dict[str, int]) -> None:
    assert annotated_requests(annotations) == expected


def test_a_pod_has_the_cpus_that_the_scheduler_gave_it(own_api: Any, client: CriClient) -> None:
    # With the default shared pools nothing is allocated here: BE pods have to leave them all the same.
    annotations = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "0-1"}'}
    for qos in ("LSE", "LSR", "LS", "BE"):
        Pod(client, pod_sandbox_config(f"pod-{qos.lower()}", qos=qos, annotations=annotations)).run()
    (answer,) = pods(own_api, snapshot_only=True)
    found = {each.qos_class: each.allocated_cpus for each in answer.snapshot.pods}
    assert found == {"LSE": "0-1", "LSR": "0-1", "LS": "", "BE": ""}


class OnePoisoned(PodMessages):
    """No message can be made of a pod with a negative attempt."""

    def __init__(self) -> None:
        inventory: Any = SimpleNamespace(store=PodStore())
        ledger: Any = SimpleNamespace(books=SimpleNamespace(on_change=None))
        node: Any = SimpleNamespace(on_change=None, on_pods_changed=None)
        super().__init__(inventory, ledger, node)

    def put(self, name: str, **fields: Any) -> None:
        self.inventory.store.pods.put(PodRecord(id=name, name=name, namespace="shop", **fields))

    def of(self, pod: PodRecord) -> api_pb2.Pod:
        return api_pb2.Pod(sandbox_id=pod.id, name=pod.name, attempt=pod.attempt)


async def test_a_pod_without_a_message_costs_watchers_no_other(caplog: pytest.LogCaptureFixture) -> None:
    messages = OnePoisoned()
    for name in ("bad", "good"):
        messages.put(name, attempt=-1 if name == "bad" else 0)
    feed = PodFeed(messages)
    stream = feed.watch(api_pb2.WatchPodsRequest())
    snapshot = (await anext(stream)).snapshot
    assert [pod.name for pod in snapshot.pods] == ["good"]
    messages.put("another")
    messages.put("bad", attempt=-2)
    messages.put("good", attempt=1)
    assert [(await anext(stream)).WhichOneof("event") for _ in range(2)] == ["added", "changed"]
    messages.put("bad", attempt=1)
    assert (await anext(stream)).added.name == "bad"
    assert [text for text in caplog.messages if "watchers are not told of pod shop/bad: ValueError" in text]
    await stream.aclose()


def test_a_snapshot_only_and_one_namespace(own_api: Any, client: CriClient) -> None:
    batch_pod(client, "one").run()
    (answer,) = pods(own_api, snapshot_only=True)
    assert [pod.name for pod in answer.snapshot.pods] == ["one"]
    (answer,) = pods(own_api, snapshot_only=True, namespace="elsewhere")
    assert not answer.snapshot.pods


def test_the_audit_of_the_past_and_of_now(own_api: Any, client: CriClient) -> None:
    batch_pod(client, "one").run().create()

    def audit(**request: Any) -> Any:
        return own_api.WatchAudit(api_pb2.WatchAuditRequest(**request), timeout=60)

    def remembered() -> list[api_pb2.AuditEntry]:
        return [entry for answer in audit(pod="default/one") for entry in answer.entries]

    assert any(each.call == "CreateContainer" for each in remembered()), "without any wait"
    shares = next(each for each in remembered() if each.field == "resources.cpu_shares")
    assert (shares.policy, shares.mode, shares.pod) == ("batch-resource", api_pb2.MODE_ENFORCE, "one")
    assert shares.after != shares.before
    assert len([entry for answer in audit(limit=2) for entry in answer.entries]) == 2
    follow = audit(follow=True, skip_recent=True, pod="two")
    wait_until(lambda: status_of(own_api).clients.watchers == 1, "it is followed")
    batch_pod(client, "two").run().create()
    entries = (entry for answer in follow for entry in answer.entries)
    assert {entry.pod for entry in islice(entries, 3)} == {"two"}


def test_the_end_of_the_daemon_ends_watches(own_api: Any, daemon: ProxyProcess) -> None:
    stream = pods(own_api)
    next(stream)
    daemon.terminate()
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
