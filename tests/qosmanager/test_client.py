"""What the manager knows of the daemon, and that a daemon that was away is found again."""

import asyncio
import json
from pathlib import Path

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.logs import FailureLog
from runtimeproxy.qosmanager import client as client_module
from runtimeproxy.qosmanager.client import DaemonClient
from runtimeproxy.qosmanager.snapshot import CacheUse
from tests.peers.aio import RawServer, soon
from tests.peers.error_codes import Codes
from tests.qosmanager.conftest import Client
from tests.qosmanager.fake_daemon import FakeDaemon, pod_message


def names(client: Client) -> list[str]:
    observed = client.client.observed
    return [] if observed is None else [pod.name for pod in observed.pods]


async def test_pods_come_in_parts_and_then_one_by_one(daemon: FakeDaemon, client: Client) -> None:
    daemon.part = 2
    for name in ("e", "d", "c", "b", "a"):
        daemon.add_pod(pod_message(name))
    await client.wait_for(lambda: names(client) == ["a", "b", "c", "d", "e"])
    daemon.add_pod(pod_message("f"))
    daemon.remove_pod("s-a")
    await client.wait_for(lambda: names(client) == ["b", "c", "d", "e", "f"])
    daemon.add_pod(pod_message("b", priority=9_500))
    await client.wait_for(lambda: (it := client.client.observed) and it.pods[0].priority == 9_500)
    stopped = pod_message("b")
    stopped.state = api_pb2.Pod.STATE_STOPPED
    daemon.add_pod(stopped)
    await client.wait_for(lambda: names(client) == ["c", "d", "e", "f"])
    daemon.send(api_pb2.WatchPodsResponse(snapshot=api_pb2.PodSnapshot(pods=[pod_message("z"), stopped])))
    await client.wait_for(lambda: names(client) == ["z"])


async def test_only_what_has_changed_gets_another_version(daemon: FakeDaemon, client: Client) -> None:
    await client.wait_for(lambda: client.client.observed)
    first = client.client.observed
    assert first is not None
    daemon.change_node(lambda node: node.capacity.update({"cpu": 8_000}))
    await client.wait_for(lambda: client.client.observed != first)
    second = client.client.observed
    assert second is not None
    assert second.node.capacity == {"cpu": 8_000}
    pods, node, strategies = (
        now - before for before, now in zip(first.versions, second.versions, strict=True)
    )
    assert (pods, node, strategies) == (0, 1, 0)
    enabled = api_pb2.StrategyField(path="threshold.enable", value=json.dumps(obj=True))
    daemon.change_node(lambda message: message.plugin_strategies.append(enabled))
    await client.wait_for(lambda: (it := client.client.observed) and it.strategies.threshold.enable)
    third = client.client.observed
    assert third is not None
    assert [now - before for before, now in zip(second.versions, third.versions, strict=True)] == [0, 0, 1]


async def test_what_pods_use_of_caches_is_known_where_the_node_has_resctrl(
    daemon: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RESCTRL_POLL_S", 0.01)
    counters = [
        api_pb2.ResctrlCounter(cache=1, name="llc_occupancy", value=0),
        api_pb2.ResctrlCounter(cache=1, name="mbm_total_bytes", problem="Unavailable"),
    ]
    pods = [api_pb2.ResctrlPod(uid="u", group="BE", counters=counters)]
    daemon.resctrl = api_pb2.GetResctrlResponse(is_mounted=True, pods=pods)
    daemon.change_node(lambda node: node.features.append("resctrl-mounted"))
    await client.wait_for(lambda: client.client.cache_use)
    assert client.client.cache_use == {
        "u": CacheUse("BE", {(1, "llc_occupancy"): 0}, {(1, "mbm_total_bytes"): "Unavailable"})
    }
    daemon.change_node(lambda node: node.features.pop())
    await client.wait_for(lambda: not client.client.cache_use)


async def test_nothing_is_known_before_the_daemon_knows_what_runs_and_the_strategies(
    daemon: FakeDaemon, client: Client
) -> None:
    daemon.is_recovered = False
    unknown = api_pb2.NodeInput(name="strategies", state=api_pb2.NodeInput.STATE_UNKNOWN)
    daemon.node.inputs.append(unknown)
    await client.wait_for(lambda: client.client.problem == "waits for the daemon's records of what runs")
    assert client.client.observed is None
    daemon.is_recovered = True
    await client.wait_for(lambda: client.client.problem == "waits for the strategies of the node")
    assert client.client.observed is None
    daemon.change_node(lambda node: node.inputs.pop())
    await client.wait_for(lambda: client.client.observed)
    assert client.client.problem == ""


async def test_a_daemon_that_ends_is_known_no_more_and_found_again(
    daemon: FakeDaemon, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.add_pod(pod_message("a"))
    await client.wait_for(lambda: client.client.observed)
    before = client.client.observed
    for _ in range(3):
        await daemon.stop()
        await client.wait_for(lambda: client.client.connection is None and client.client.problem)
        assert client.client.observed is None
        await daemon.start()
        await client.wait_for(lambda: names(client) == ["a"])
    after = client.client.observed
    assert before is not None
    assert after is not None
    assert all(now > then for then, now in zip(before.versions, after.versions, strict=True))
    lines = [each.getMessage() for each in caplog.records]
    away = [line for line in lines if "nothing is computed meanwhile" in line]
    # At most one line a minute for ends, and one for each reason of failed attempts, however many there were.
    assert 1 <= len(away) <= len(set(away)) + 1


async def test_the_daemon_may_start_later(daemon: FakeDaemon, client: Client) -> None:
    await daemon.stop()
    await client.wait_for(lambda: client.client.problem not in ("", "not connected yet"))
    await daemon.start()
    await client.wait_for(lambda: client.client.observed)


async def test_a_watch_that_is_cut_off_begins_again(daemon: FakeDaemon, client: Client) -> None:
    daemon.add_pod(pod_message("a"))
    await client.wait_for(lambda: names(client) == ["a"])
    connection = client.client.connection
    daemon.pods["s-b"] = pod_message("b")
    daemon.send((grpc.StatusCode.RESOURCE_EXHAUSTED, "reads too slowly"))
    await client.wait_for(lambda: names(client) == ["a", "b"])
    assert client.client.connection is connection


@pytest.mark.parametrize(
    ("call", "status", "problem"),
    [
        (
            "GetNode",
            (grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
            "this daemon does not serve",
        ),
        ("GetNode", (grpc.StatusCode.UNAVAILABLE, "koord-runtime-proxy: it drains"), "it drains"),
        ("GetStatus", (grpc.StatusCode.INTERNAL, "oops"), "oops"),
        ("WatchPods", (grpc.StatusCode.UNAVAILABLE, "this process ends; call again"), "this process ends"),
    ],
)
async def test_a_daemon_that_answers_with_an_error_is_away(
    daemon: FakeDaemon, client: Client, call: str, status: tuple[grpc.StatusCode, str], problem: str
) -> None:
    daemon.fail[call] = status
    await client.wait_for(lambda: client.client.problem.startswith(problem))
    assert client.client.observed is None
    del daemon.fail[call]
    await client.wait_for(lambda: client.client.observed)


async def test_a_daemon_that_hangs_is_away(
    daemon: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.wait_for(lambda: client.client.observed)
    monkeypatch.setattr(client_module, "CALL_S", 0.05)
    async with daemon.changed:  # calls wait for it
        await client.wait_for(lambda: client.client.problem == "the daemon does not answer in time")
        assert client.client.connection is None
    monkeypatch.setattr(client_module, "CALL_S", 5.0)
    await client.wait_for(lambda: client.client.observed)


async def test_a_daemon_that_ends_calls_with_any_code_is_away(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CALL_S", 0.3)
    monkeypatch.setattr(client_module, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(client_module, "LONGEST_PAUSE_S", 0.001)
    codes, path = Codes(), socket_folder / "api.sock"
    async with RawServer(path, *codes.scripts):
        following = asyncio.ensure_future(DaemonClient(str(path), FailureLog()).run())
        await soon(codes.all_sent.wait())
        assert not following.done()
        following.cancel()


async def test_a_value_of_a_newer_daemon_is_named(daemon: FakeDaemon, client: Client) -> None:
    field = api_pb2.StrategyField(path="cpu_burst.policy", value='"turbo"')
    daemon.node.plugin_strategies.append(field)
    daemon.add_pod(pod_message("a", strategies=[field]))
    await client.wait_for(lambda: client.client.observed)
    observed = client.client.observed
    assert observed is not None
    assert observed.problems == (
        'cpu_burst.policy: "turbo" is not known here; none is used',
        'shop/a: cpu_burst.policy: "turbo" is not known here; none is used',
    )
