"""Watches against a server that forgets, refuses, cuts off and sends nonsense."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from runtimeproxy.documents.reading import InputError
from runtimeproxy.kubernetes.client import ApiClient
from runtimeproxy.kubernetes.watch import Resource, Watch, WatchState, WatchTimes
from tests.kubernetes.api_server import ApiServer, Fault, Handler, cutting, hanging, refusing, sending
from tests.lab.deadline import wait_until

PATH = "/api/v1/pods"
PODS = Resource("Pod", PATH, "spec.nodeName=n")
QUICK = WatchTimes(first_delay_s=0.001, longest_delay_s=0.01, healthy_s=0.0, missing_s=0.0)


class Objects:
    """A sink that keeps the names and versions of the present objects."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.lists = 0

    def on_listed(self, objects: Iterable[Any]) -> None:
        self.found = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in objects}
        self.lists += 1

    def on_changed(self, document: Any) -> None:
        self.found[document["metadata"]["name"]] = document["metadata"]["resourceVersion"]

    def on_deleted(self, document: Any) -> None:
        del self.found[document["metadata"]["name"]]

    def wait_for(self, *names: str) -> None:
        wait_until(lambda: sorted(self.found) == sorted(names) or None, f"objects {names}")


@pytest.fixture
def objects() -> Objects:
    return Objects()


Start = Callable[..., Watch]


@pytest.fixture
def start(client: ApiClient, objects: Objects) -> Iterator[Start]:
    started: list[Watch] = []

    def start(resource: Resource = PODS, pace: WatchTimes = QUICK) -> Watch:
        watch = Watch(client, resource, objects, pace)
        started.append(watch)
        watch.start()
        return watch

    yield start
    for watch in started:
        watch.stop()
    client.close()
    for watch in started:
        watch.join(60)
        assert watch.state is WatchState.STOPPED


def test_a_list_and_then_changes(server: ApiServer, objects: Objects, start: Start) -> None:
    server.put(PATH, "a")
    watch = start()
    objects.wait_for("a")
    server.put(PATH, "b")
    objects.wait_for("a", "b")
    server.delete(PATH, "a")
    objects.wait_for("b")
    # An event is counted once the sink has it.
    wait_until(lambda: watch.events == 2 or None, "the count of events")
    assert (objects.lists, watch.lists) == (1, 1)
    assert (watch.state, watch.problem) == (WatchState.WATCHING, "")
    listing, watching = server.requests
    assert listing.query == {"fieldSelector": "spec.nodeName=n", "resourceVersion": "0"}
    assert watching.query["allowWatchBookmarks"] == "true"
    assert watching.query["resourceVersion"] == "101"
    assert 300 <= int(watching.query["timeoutSeconds"]) <= 600


def test_a_watch_that_is_lost_goes_on_from_the_last_bookmark(
    server: ApiServer, objects: Objects, start: Start
) -> None:
    mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "105"}}}
    server.put(PATH, "a")
    listing = sending(json.dumps(server.listed(PATH)).encode())
    server.faults += [(PATH, listing), (PATH, cutting(json.dumps(mark).encode() + b"\n"))]
    watch = start()
    _, second = server.wait_for(PATH, is_watch=True, count=2)
    assert second.query["resourceVersion"] == "105"
    objects.wait_for("a")
    wait_until(lambda: watch.state is WatchState.WATCHING or None, "the watch")
    assert (objects.lists, watch.problem) == (1, "")


def test_what_happened_while_away_is_made_up_for(server: ApiServer, objects: Objects, start: Start) -> None:
    server.put(PATH, "a")
    lost = server.listed(PATH)

    def change_and_cut(handler: Handler) -> None:
        server.put(PATH, "b")
        cutting(b"")(handler)

    server.faults += [(PATH, sending(json.dumps(lost).encode())), (PATH, change_and_cut)]
    start()
    objects.wait_for("a", "b")
    assert objects.lists == 1


def test_after_410_the_list_is_read_anew(server: ApiServer, objects: Objects, start: Start) -> None:
    server.put(PATH, "a")
    server.put(PATH, "old")
    listing = sending(json.dumps(server.listed(PATH)).encode())
    server.delete(PATH, "old")
    server.forget(PATH)
    server.faults.append((PATH, listing))
    watch = start()
    objects.wait_for("a")
    # A list is counted once the sink has it.
    wait_until(lambda: watch.lists == 2 or None, "the count of lists")
    first, second = server.wait_for(PATH, is_watch=False, count=2)
    assert first.query["resourceVersion"] == "0"
    assert second.query["resourceVersion"] == "102"  # not older than what is known


@pytest.mark.parametrize("status", [410, 504])
def test_a_version_that_no_server_knows_is_dropped(
    server: ApiServer, objects: Objects, start: Start, status: int
) -> None:
    server.put(PATH, "a")
    server.faults += [
        (PATH, sending(json.dumps(server.listed(PATH)).encode())),
        (PATH, refusing(status, "too large resource version")),
        (PATH, refusing(status, "too large resource version")),
    ]
    watch = start()
    _, known, newest = server.wait_for(PATH, is_watch=False, count=3)
    assert known.query["resourceVersion"] == "101"
    assert "resourceVersion" not in newest.query
    wait_until(lambda: watch.state is WatchState.WATCHING or None, "the watch")
    objects.wait_for("a")


@pytest.mark.parametrize(
    "fault",
    [
        refusing(500, "broken"),
        refusing(429, "too many", Retry_After="0"),
        refusing(401, "Unauthorized"),
        refusing(403, "forbidden"),
        refusing(404, "not found"),
        sending(b"nonsense"),
        sending(b'{"kind": "PodList", "items": [{}'),
        cutting(b'{"kind": "PodList", "items": [{}'),
        sending(b""),
    ],
)
def test_a_list_that_fails_is_tried_again_and_changes_nothing(
    server: ApiServer, objects: Objects, start: Start, fault: Fault
) -> None:
    server.put(PATH, "a")
    objects.found = {"known": "1"}
    server.faults += [(PATH, fault)] * 3
    watch = start()
    objects.wait_for("a")
    wait_until(lambda: watch.state is WatchState.WATCHING or None, "the watch")
    assert (objects.lists, watch.problem) == (1, "")


@pytest.mark.parametrize(
    "fault",
    [
        refusing(503, "starting"),
        sending(b"nonsense\n"),
        sending(b'{"type": "ADDED", "object": []}\n'),
        sending(b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": 7}}}\n'),
        cutting(b'{"type": "ADDED", "obj'),
        sending(b'{"type": "ERROR", "object": {"code": 500, "message": "broken"}}\n'),
        sending(b'{"type": "ERROR", "object": {"code": "x"}}\n'),
        sending(b'{"type": "UNKNOWN", "object": {"metadata": {}}}\n'),
        sending(b""),
    ],
)
def test_a_watch_that_fails_is_begun_again(
    server: ApiServer, objects: Objects, start: Start, fault: Fault
) -> None:
    server.put(PATH, "a")
    listing = sending(json.dumps(server.listed(PATH)).encode())
    server.faults += [(PATH, listing), (PATH, fault)]
    start()
    objects.wait_for("a")
    server.put(PATH, "b")
    objects.wait_for("a", "b")


def test_a_sink_that_raises_ends_in_a_new_list(server: ApiServer, objects: Objects, start: Start) -> None:
    server.put(PATH, "a")
    takes = objects.on_changed
    raised: list[Exception] = [RuntimeError("a bug"), InputError("is bad")]

    def on_changed(document: Any) -> None:
        if raised:
            raise raised.pop()
        takes(document)

    objects.on_changed = on_changed  # type: ignore[method-assign]
    start()
    for name in "bcd":
        server.put(PATH, name)
    objects.wait_for(*"abcd")


def test_a_server_that_pauses_for_too_long_is_left(server: ApiServer, objects: Objects, start: Start) -> None:
    server.put(PATH, "a")
    server.faults += [(PATH, sending(json.dumps(server.listed(PATH)).encode())), (PATH, hanging)]
    start(pace=QUICK._replace(pause_s=0.2))
    server.wait_for(PATH, is_watch=True, count=2)
    objects.wait_for("a")


def test_a_kind_that_the_server_does_not_have(server: ApiServer, objects: Objects, start: Start) -> None:
    server.missing.add(PATH)
    objects.found = {"known": "1"}
    watch = start(PODS._replace(is_optional=True))
    objects.wait_for()
    wait_until(lambda: watch.state is WatchState.ABSENT or None, "the state")
    assert watch.problem == ""
    server.put(PATH, "a")
    server.missing.clear()
    objects.wait_for("a")
    wait_until(lambda: watch.state is WatchState.WATCHING or None, "the state")


def test_such_a_kind_counts_on_for_some_time(server: ApiServer, objects: Objects, start: Start) -> None:
    server.missing.add(PATH)
    objects.found = {"known": "1"}
    watch = start(PODS._replace(is_optional=True), QUICK._replace(missing_s=3600))
    server.wait_for(PATH, is_watch=False, count=5)
    assert objects.found == {"known": "1"}
    assert "the server has no Pod: its CustomResourceDefinition is not installed" in watch.problem


def test_failures_say_what_they_are(server: ApiServer, objects: Objects, start: Start) -> None:
    server.faults += [(PATH, refusing(403, "pods is forbidden"))] * 1000
    watch = start(pace=QUICK._replace(first_delay_s=3600, longest_delay_s=3600))
    wait_until(lambda: watch.state is WatchState.WAITING or None, "the state")
    assert watch.problem == "403: pods is forbidden; see systemd/kubernetes/rbac.yaml"
    assert watch.lists == 0
    assert objects.lists == 0


def test_the_delay_doubles_up_to_a_bound(client: ApiClient, objects: Objects) -> None:
    watch = Watch(client, PODS, objects, WatchTimes(first_delay_s=1.0, longest_delay_s=60.0, healthy_s=3600))
    watch._began_s = float("inf")
    delays = [watch._fail("no") for _ in range(40)]
    for count, delay_s in enumerate(delays):
        longest_s = min(2.0**count, 60.0)
        assert longest_s / 2 <= delay_s <= longest_s
    assert len(set(delays)) == len(delays)  # by chance, so that nodes do not come at once
