"""Plugins in processes of their own: the same contract, over a socket."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from cri_api.runtimeproxy.v1 import api_pb2, plugin_pb2, plugin_pb2_grpc
from runtimeproxy.logs import FailureLog
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.qosmanager import remote
from runtimeproxy.qosmanager.examples.squeeze import serve
from runtimeproxy.qosmanager.framework import PluginRunner
from runtimeproxy.qosmanager.from_api import claim_message
from runtimeproxy.qosmanager.plugin import (
    Claim,
    Eviction,
    EvictionOutcome,
    EvictionResult,
    Mode,
    Need,
    Role,
    Target,
)
from runtimeproxy.qosmanager.remote import RemoteOptions, RemotePlugin
from runtimeproxy.qosmanager.snapshot import Level, Metric, Snapshot, SnapshotSource
from tests.lab.deadline import wait_until
from tests.lab.programs import REPOSITORY, missing
from tests.qosmanager.snapshots import BURSTABLE, FixedMetrics, node_of

HALF = Claim(Target(Level.QOS_CLASS, "BestEffort"), "cpu.cfs_quota_us", Role.AT_MOST, 200_000, reason="half")
NODE = api_pb2.GetNodeResponse(
    cpus=[api_pb2.Cpu(id=number, is_online=True) for number in range(4)],
    qos_class_cgroups=[api_pb2.QosClassCgroup(kube_qos_class="Burstable", cgroup=BURSTABLE)],
)
PODS = [api_pb2.Pod(sandbox_id="s", uid="u")]


def snapshot(throttled: float | None = None, pods: Any = PODS) -> Snapshot:
    samples = {} if throttled is None else {(BURSTABLE, Metric.CPU_THROTTLED): throttled}
    node = node_of(4, qos_cgroups={KubeQoSClass.BURSTABLE: BURSTABLE})
    source = SnapshotSource(pods, NODE)
    return Snapshot(now_s=5.0, wall_s=7.5, node=node, metrics=FixedMetrics(samples), source=source)


class Scripted(plugin_pb2_grpc.QoSPluginServicer):
    """Answers what the test says, and keeps the requests."""

    def __init__(self) -> None:
        self.describe = plugin_pb2.DescribeResponse()
        self.decide: Callable[[plugin_pb2.DecideRequest, grpc.ServicerContext], Any] = lambda *_: None
        self.descriptions: list[plugin_pb2.DescribeRequest] = []
        self.requests: list[plugin_pb2.DecideRequest] = []

    def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.descriptions.append(request)
        return self.describe

    def Decide(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        return self.decide(request, context) or plugin_pb2.DecideResponse()


class Peer:
    """A runner with a plugin that is served, or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.service = Scripted()
        self.now_s = 100.0
        plugin = RemotePlugin("own")
        self.runner = PluginRunner(plugin, FailureLog(), lambda: self.now_s, time_limit_s=30.0)
        options = RemoteOptions(str(path), {"limit": 0.2})
        self.runner.configure(Mode.ENFORCE, {"CPUBurst": True}, options)
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(1))
        plugin_pb2_grpc.add_QoSPluginServicer_to_server(self.service, self._server)
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait()

    async def run(self, given: Snapshot | None = None, held: tuple[Claim, ...] = ()) -> Any:
        result = await self.runner.run(given or snapshot(), (1, 1, 1), held)
        return None if result is None else result.decision


@pytest.fixture
def peer(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    # No plugin is hurried, however slow the machine is.
    monkeypatch.setattr(remote, "DESCRIBE_S", 30.0)
    monkeypatch.setattr(remote, "DECIDE_S", 30.0)
    made = Peer(socket_folder / "own.sock")
    made.start()
    yield made
    made.stop()
    made.runner.close()


def claims(*wanted: Claim) -> Callable[..., plugin_pb2.DecideResponse]:
    return lambda *_: plugin_pb2.DecideResponse(claims=map(claim_message, wanted), explanation="a  b\n c")


async def test_a_plugin_says_what_it_needs_and_wants(peer: Peer) -> None:
    need = plugin_pb2.SampleNeed(
        level=plugin_pb2.SAMPLE_LEVEL_QOS_CLASS, metric="cpu_throttled", window=Duration(seconds=10)
    )
    interval = Duration(seconds=5)
    peer.service.describe = plugin_pb2.DescribeResponse(needs=[need], interval=interval)
    peer.service.decide = claims(HALF)
    decision = await peer.run(snapshot(0.5), (HALF._replace(value=100_000),))
    assert (decision.claims, decision.explanation) == ((HALF,), "a b c")
    assert peer.runner.plugin.needs == {Need(Level.QOS_CLASS, Metric.CPU_THROTTLED, 10.0)}
    assert peer.runner.plugin.interval_s == 5.0
    (description,) = peer.service.descriptions
    assert (description.name, description.options) == ("own", '{"limit": 0.2}')
    assert dict(description.feature_gates) == {"CPUBurst": True}
    (request,) = peer.service.requests
    assert (request.now_s, request.time.ToMicroseconds()) == (5.0, 7_500_000)
    assert (list(request.pods.pods), request.node) == (PODS, NODE)
    assert [each.value for each in request.held] == ["100000"]
    (sample,) = request.samples
    assert (sample.cgroup, sample.metric, sample.average, sample.count) == (
        BURSTABLE,
        "cpu_throttled",
        0.5,
        10,
    )
    assert sample.window.seconds == 10


async def test_only_what_has_changed_is_sent_again(peer: Peer) -> None:
    for pods in (PODS, PODS, [*PODS]):
        await peer.run(snapshot(pods=pods))
    first, second, third = peer.service.requests
    assert (first.is_first, second.is_first, third.is_first) == (True, False, False)
    assert [each.HasField("pods") for each in (first, second, third)] == [True, False, True]
    assert [each.HasField("node") for each in (first, second, third)] == [True, False, False]


async def test_a_plugin_that_was_restarted_learns_what_it_claimed(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.service.decide = claims(HALF)
    await peer.run()
    peer.stop()
    assert await peer.run() is None
    assert "own.sock: UNAVAILABLE" in peer.runner.problem
    assert "own: left out for 1 s: " in caplog.text
    assert "Traceback" not in caplog.text
    peer.start()
    await peer.run()
    last = peer.service.requests[-1]
    assert (last.is_first, last.HasField("pods"), last.HasField("node")) == (True, True, True)
    assert [each.value for each in last.held] == ["200000"]
    assert len(peer.service.descriptions) == 2


async def test_what_became_of_evictions_is_sent(peer: Peer) -> None:
    peer.service.decide = lambda *_: plugin_pb2.DecideResponse(
        evictions=[plugin_pb2.ProposedEviction(pod_uid="u", reason="too much")]
    )
    decision = await peer.run()
    assert decision.evictions == (Eviction("u", "too much"),)
    peer.runner.note_evictions([EvictionResult(decision.evictions[0], EvictionOutcome.REFUSED, "no")])
    await peer.run()
    await peer.run()
    results = [[(each.pod_uid, each.outcome) for each in it.results] for it in peer.service.requests]
    assert results == [[], [("u", "refused")], []]


def aborts(_: Any, context: grpc.ServicerContext) -> Any:
    context.abort(grpc.StatusCode.INTERNAL, "oops")


def raises(*_: Any) -> Any:
    raise ValueError("oops")


def details(text: str) -> Callable[..., Any]:
    return lambda _, context: context.abort(grpc.StatusCode.INTERNAL, text)


def with_target(uid: str) -> Callable[..., Any]:
    claim = claim_message(HALF._replace(target=Target(Level.POD, uid)))
    return lambda *_: plugin_pb2.DecideResponse(claims=[claim])


def with_value(value: str | None) -> Callable[..., Any]:
    claim = claim_message(HALF)
    claim.ClearField("value")
    if value is not None:
        claim.value = value
    return lambda *_: plugin_pb2.DecideResponse(claims=[claim])


@pytest.mark.parametrize(
    ("decide", "problem"),
    [
        (aborts, "own.sock: INTERNAL: oops"),
        (raises, "own.sock: UNKNOWN: "),
        (with_value("much"), "the value of a claim cannot be used: "),
        (with_value(None), "a claim has no target, no value, or a role that plugins do not have"),
        (claims(HALF, HALF._replace(value=1)), "two claims for cpu.cfs_quota_us"),
        (with_value("9" * 5_000), "the value of a claim cannot be used: "),
        (with_value("9" * 4_000), "'cpu.cfs_quota_us' of qos_class BestEffort is 9999"),
        (with_value("-Infinity"), "the value of a claim cannot be used: "),
        (with_target("\x1b[2J"), "a claim has the target <ClaimLevel.POD: 'pod'> '\\x1b[2J'"),
        (with_target("p" * 1_000), "a claim has the target <ClaimLevel.POD: 'pod'> 'ppp"),
        (
            lambda *_: plugin_pb2.DecideResponse(claims=[api_pb2.Claim()] * 500_000),
            "RESOURCE_EXHAUSTED: the answer has more than 20000 fields",
        ),
        (
            lambda *_: plugin_pb2.DecideResponse(claims=[api_pb2.Claim(reason="x" * 10)] * 10_001),
            "it answers with 10001 claims, at most 10000 are possible",
        ),
        (
            lambda *_: plugin_pb2.DecideResponse(evictions=[plugin_pb2.ProposedEviction()] * 65),
            "it answers with 65 evictions, at most 64 are possible",
        ),
        (lambda *_: plugin_pb2.DecideResponse(explanation="x" * (5 << 20)), "RESOURCE_EXHAUSTED: "),
        (details("a\nMAINPID=1\x1b[2J"), "own.sock: INTERNAL: a MAINPID=1 [2J"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_a_failed_run(
    peer: Peer, decide: Callable[..., Any], problem: str
) -> None:
    peer.service.decide = decide
    assert await peer.run() is None
    assert problem in peer.runner.problem
    assert not peer.runner.is_due(peer.now_s + 0.9)
    peer.service.decide = claims(HALF)
    assert (await peer.run()).claims == (HALF,)


async def test_texts_of_an_answer_are_lines_without_control_characters(peer: Peer) -> None:
    noisy = HALF._replace(reason="a\n\x1b[2Jb")
    peer.service.decide = lambda *_: plugin_pb2.DecideResponse(
        claims=[claim_message(noisy)],
        evictions=[plugin_pb2.ProposedEviction(pod_uid="u", reason="c\r\nd")],
        explanation="e\n\x07" + "f" * 500_000,
    )
    decision = await peer.run()
    assert decision.claims[0].reason == "a [2Jb"
    assert decision.evictions == (Eviction("u", "c d"),)
    assert decision.explanation.startswith("e ff")
    assert len(decision.explanation) == remote.MOST_EXPLAINED


async def test_windows_of_pods_are_short_and_needs_few(peer: Peer) -> None:
    """Samples of hundreds of cgroups are kept for as long."""
    level, hours = plugin_pb2.SampleLevel, Duration(seconds=1 << 20)
    needs = [
        plugin_pb2.SampleNeed(level=each, metric="cpu_usage", window=hours)
        for each in (level.SAMPLE_LEVEL_NODE, level.SAMPLE_LEVEL_POD, level.SAMPLE_LEVEL_CONTAINER)
    ]
    peer.service.describe = plugin_pb2.DescribeResponse(needs=needs)
    assert await peer.run() is not None
    assert {need.level: need.longest_s for need in peer.runner.plugin.needs} == {
        Level.NODE: 3_600.0,
        Level.POD: 300.0,
        Level.CONTAINER: 300.0,
    }
    peer.stop()
    await peer.run()
    peer.service.describe = plugin_pb2.DescribeResponse(needs=needs * 6)
    peer.start()
    assert await peer.run() is None
    assert peer.runner.problem.endswith("it needs 18 kinds of samples, at most 16")


async def test_needs_that_there_are_not_are_a_failed_run(peer: Peer) -> None:
    need = plugin_pb2.SampleNeed(level=plugin_pb2.SAMPLE_LEVEL_POD, metric="moon_phase")
    peer.service.describe = plugin_pb2.DescribeResponse(needs=[need])
    assert await peer.run() is None
    assert "it needs samples that there are not: 'moon_phase'" in peer.runner.problem


async def test_a_plugin_that_hangs_does_not_keep_its_thread(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "DECIDE_S", 0.05)
    peer.service.decide = lambda _, context: time.sleep(0.2)
    assert await peer.run() is None
    assert "DEADLINE_EXCEEDED" in peer.runner.problem
    monkeypatch.setattr(remote, "DECIDE_S", 30.0)
    peer.service.decide = claims(HALF)
    assert (await peer.run()).claims == (HALF,)


async def test_the_example_in_python(socket_folder: Path) -> None:
    path = socket_folder / "squeeze.sock"
    server = serve(str(path))
    try:
        await decides_as_the_example(path)
    finally:
        server.stop(None).wait()


@pytest.mark.slow
@pytest.mark.golang
async def test_the_example_in_go(tmp_path: Path, socket_folder: Path) -> None:
    program, path = build_go_example(tmp_path), socket_folder / "squeeze.sock"
    process = await asyncio.create_subprocess_exec(program, path)
    try:
        await asyncio.to_thread(wait_until, path.exists, "the socket of the example")
        await decides_as_the_example(path)
    finally:
        process.terminate()
        await process.wait()


def build_go_example(folder: Path) -> Path:
    """Makes the program as the README says."""
    if shutil.which("go") is None:
        missing("Go is not installed")
    source = REPOSITORY / "runtimeproxy" / "qosmanager" / "examples" / "go"
    for name in ("main.go", "go.mod", "go.sum"):
        shutil.copy(source / name, folder)
    environ = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(folder / "bin")}

    def run(*words: str) -> None:
        subprocess.run(words, cwd=folder, env=environ, check=True, capture_output=True, timeout=600)

    # Of the README: versions of the programs, and options of protoc.
    text = (source.parents[1] / "README.md").read_text()
    for module in re.findall(r"^go install (\S+)$", text, re.MULTILINE):
        run("go", "install", module)
    protos = [f"cri_api/runtimeproxy/v1/{name}.proto" for name in ("api", "plugin")]
    options = ",".join(("module=squeeze", *(f"M{each}=squeeze/runtimeproxy" for each in protos)))
    plugins = [f"--plugin={folder}/bin/{name}" for name in ("protoc-gen-go", "protoc-gen-go-grpc")]
    outputs = ["--go_out=.", "--go-grpc_out=.", f"--go_opt={options}", f"--go-grpc_opt={options}"]
    run(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={REPOSITORY}", *plugins, *outputs, *protos)
    run("go", "build", "-buildvcs=false", "-o", "squeeze", ".")
    return folder / "squeeze"


async def decides_as_the_example(path: Path) -> None:
    """Checks a server of the example, in whatever language."""
    assert os.stat(path).st_mode & 0o077 == 0  # noqa: PTH116 - quick
    runner = PluginRunner(RemotePlugin("squeeze"), FailureLog(), time_limit_s=30.0)
    runner.configure(Mode.ENFORCE, {}, RemoteOptions(str(path), {}))
    values: list[list[int | str]] = []
    for throttled in (None, 0.5, None, 0.05):
        result = await runner.run(snapshot(throttled), (1, 1, 1), ())
        assert result is not None, runner.problem
        values.append([each.value for each in result.decision.claims])
    assert values == [[], [200_000], [200_000], []]
    runner.forget()
    result = await runner.run(snapshot(), (1, 1, 1), (HALF,))
    assert result is not None
    assert [each.value for each in result.decision.claims] == [200_000]
    runner.close()
