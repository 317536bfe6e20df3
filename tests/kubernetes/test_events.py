"""Events: gathered, bounded, and never in anybody's way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.kubernetes import events
from runtimeproxy.kubernetes.client import ApiClient
from runtimeproxy.kubernetes.events import EventRates, EventRecorder, PodEvent
from tests.kubernetes.api_server import ApiServer, Handler, Request, refusing
from tests.lab.deadline import wait_until

PATH = "/api/v1/namespaces/ns/events"
EVENT = PodEvent("ns", "web", "uid-1", "EvictedForQoS", "memory")
FAST = EventRates(burst=1000, each_s=0.001, repeat_s=0.0)
ENTRY = AuditEntry(
    1.0,
    Hook.PRE_RUN_POD_SANDBOX,
    AuditKind.REFUSED,
    "strict",
    Mode.ENFORCE,
    "ns",
    "web",
    "uid-1",
    "",
    reason="no room",
)


@pytest.fixture
def recorder(client: ApiClient) -> Iterator[EventRecorder]:
    found = EventRecorder(client, "node-a", FAST)
    yield found
    client.close()
    found.close(10)


def _sent(server: ApiServer, count: int) -> list[Request]:
    return wait_until(lambda: server.requests if len(server.requests) >= count else None, f"{count} requests")


def test_a_refusal_becomes_an_event(server: ApiServer, recorder: EventRecorder) -> None:
    recorder.start()
    recorder.on_audit(ENTRY._replace(kind=AuditKind.CHANGED))
    recorder.on_audit(ENTRY._replace(mode=Mode.DRY_RUN))
    recorder.on_audit(ENTRY._replace(pod_name="", target="node"))
    recorder.on_audit(ENTRY._replace(container="app"))
    (request,) = _sent(server, 1)
    assert (request.method, request.path) == ("POST", PATH)
    body = request.body
    assert body["metadata"]["name"].startswith("web.")
    assert body["involvedObject"]["uid"] == "uid-1"
    assert (body["type"], body["reason"]) == ("Warning", "RefusedByPolicy")
    assert body["message"] == "container app: policy strict: no room"
    assert (body["count"], body["source"]["host"]) == (1, "node-a")
    wait_until(lambda: recorder.sent or None, "the count")


def test_an_eviction_becomes_an_event(server: ApiServer, recorder: EventRecorder) -> None:
    recorder.start()
    eviction = ENTRY._replace(kind=AuditKind.LEFT_OUT, field="eviction", new="refused", policy="memory-evict")
    recorder.on_audit(eviction)
    recorder.on_audit(eviction._replace(kind=AuditKind.WOULD_CHANGE, new="dry-run"))
    recorder.on_audit(eviction._replace(kind=AuditKind.CHANGED, new="evicted"))
    (request,) = _sent(server, 1)
    assert (request.body["reason"], request.body["message"]) == ("EvictedForQoS", "memory-evict: no room")
    wait_until(lambda: recorder.sent or None, "the count")


def test_the_same_again_raises_the_count(server: ApiServer, recorder: EventRecorder) -> None:
    for _ in range(5):
        recorder.report(EVENT)
    recorder.start()
    (first,) = _sent(server, 1)
    assert first.body["count"] == 5
    wait_until(lambda: recorder.sent or None, "the first one")
    recorder.report(EVENT)
    _, second = _sent(server, 2)
    assert (second.method, second.body["count"]) == ("PATCH", 6)
    assert second.path == f"{PATH}/{first.body['metadata']['name']}"
    assert second.content_type == "application/merge-patch+json"


def test_an_event_that_the_server_has_deleted_is_made_anew(
    server: ApiServer, recorder: EventRecorder
) -> None:
    recorder.start()
    recorder.report(EVENT)
    wait_until(lambda: recorder.sent or None, "the first one")
    server.faults.append((f"{PATH}/{server.requests[0].body['metadata']['name']}", refusing(404)))
    recorder.report(EVENT)
    _, patch, third = _sent(server, 3)
    assert (patch.method, third.method, third.body["count"]) == ("PATCH", "POST", 2)


def test_repetitions_wait_and_many_events_have_a_rate(client: ApiClient, server: ApiServer) -> None:
    now_s = [0.0]
    recorder = EventRecorder(client, "n", EventRates(burst=2, each_s=10.0, repeat_s=30.0), lambda: now_s[0])
    for index in range(4):
        recorder.report(EVENT._replace(pod=f"p{index}"))

    def send_what_is_due() -> int:
        count = 0
        while (due := recorder._next_due()) is not None and due[1] <= 0:
            sent = recorder._events[due[0]]
            recorder._tokens -= 1
            recorder._send(due[0], sent, sent.count, sent.unsent)
            count += 1
        return count

    assert send_what_is_due() == 2
    assert recorder._next_due() == (EVENT._replace(pod="p2"), 10.0)
    now_s[0] = 10.0
    assert send_what_is_due() == 1
    now_s[0] = 20.0
    assert send_what_is_due() == 1
    recorder.report(EVENT._replace(pod="p3"))
    now_s[0] = 45.0
    assert send_what_is_due() == 0  # a token is there, but the same one was sent 25 s ago
    now_s[0] = 50.0
    assert send_what_is_due() == 1


def test_what_does_not_fit_is_lost_and_counted(client: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_KEPT", 2)
    recorder = EventRecorder(client, "n", FAST)
    for index in range(5):
        recorder.report(EVENT._replace(pod=f"p{index}"))
    assert (len(recorder._events), recorder.lost) == (2, 3)
    for sent in recorder._events.values():
        sent.unsent = 0
    recorder.report(EVENT)
    assert list(recorder._events)[-1] == EVENT
    assert (len(recorder._events), recorder.lost) == (2, 3)


def test_an_old_one_is_a_new_event(client: ApiClient) -> None:
    recorder = EventRecorder(client, "n", FAST)
    recorder.report(EVENT)
    recorder._events[EVENT].last_s -= 1000
    recorder.report(EVENT)
    assert recorder._events[EVENT].count == 1


def test_a_server_that_refuses_loses_events_only(server: ApiServer, recorder: EventRecorder) -> None:
    server.faults.append((PATH, refusing(403, "events is forbidden")))
    recorder.start()
    recorder.report(EVENT)
    wait_until(lambda: recorder.lost or None, "the loss")
    recorder.report(EVENT)
    wait_until(lambda: recorder.sent or None, "the next one")
    assert recorder.lost == 1


def test_a_server_that_hangs_delays_no_other_event(server: ApiServer, recorder: EventRecorder) -> None:
    may_end = threading.Event()

    def hang(handler: Handler) -> None:
        may_end.wait(60)
        handler.close_connection = True

    server.faults.append((PATH, hang))
    recorder.start()
    recorder.report(EVENT)
    _sent(server, 1)
    began_s = time.monotonic()
    for index in range(100):
        recorder.report(EVENT._replace(pod=f"p{index}"))
    assert time.monotonic() - began_s < 10
    assert recorder.lost == 0
    # Else the recorder's end waits for the answer.
    may_end.set()


def test_long_messages_are_cut(client: ApiClient) -> None:
    recorder = EventRecorder(client, "n", FAST)
    recorder.report(EVENT._replace(message="x" * 5000))
    (event,) = recorder._events
    assert len(event.message) == 1024
