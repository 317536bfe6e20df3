"""Malachite as a source of samples: HTTP on a real socket, all that a server can do wrong, and its end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.eviction import EvictOptions
from runtimeproxy.qosmanager.plugin import Need, PluginContext
from runtimeproxy.qosmanager.plugins.memory_evict import MemoryEvict
from runtimeproxy.qosmanager.samples.malachite import (
    POLL_S,
    STALE_S,
    HttpConnection,
    MalachiteSource,
    RequestError,
)
from runtimeproxy.qosmanager.samples.malachite_answers import AnswerError
from runtimeproxy.qosmanager.snapshot import (
    LOOK_BACK_S,
    NODE_CGROUP,
    Level,
    Metric,
    Snapshot,
    Strategies,
)
from runtimeproxy.slo.schema import Threshold
from runtimeproxy.vocabulary import MetricsSource
from tests.qosmanager.samples.malachite_server import (
    PAGE_BYTES,
    Answer,
    Document,
    Files,
    MalachiteServer,
    Output,
    as_json,
    compute,
    http_answer,
    of_documents,
    port_without_a_server,
)
from tests.qosmanager.samples.trees import Tree
from tests.qosmanager.snapshots import node_of, pod_of

POD = "/kubepods/pod1"
BODY = http_answer(b"{}")
_MIB = 1 << 20
_MOST = 1 << 16
PATIENT_S = 60.0
"""Longer than any machine takes for an answer."""


# Requests


def endless(start: bytes, piece: bytes) -> Answer:
    def answer(output: Output, _: str) -> None:
        output.write(start)
        while True:
            output.write(piece)

    return answer


def sending(data: bytes) -> Answer:
    """Sends this and ends the connection."""

    def answer(output: Output, _: str) -> bool:
        output.write(data)
        return False

    return answer


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TOO_LONG = "the answer is too long"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (endless(HEAD + f"Content-Length: {64 * _MIB}\r\n\r\n".encode(), b"x" * 65536), TOO_LONG),
        (endless(HEAD + b"\r\n", b"x" * 65536), TOO_LONG),
        (endless(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"), TOO_LONG),
        (endless(CHUNKED, b"1\r\nx\r\n" * 1000), TOO_LONG),
        (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), TOO_LONG),
        (endless(HEAD, b"X-Many: 1\r\n" * 99), "100 headers|too long"),
        (endless(HEAD + b"X-Long: ", b"x" * 65536), "header line|too long"),
        (sending(CHUNKED + b"FFFFFFFFFFFFFFFF\r\nx"), "IncompleteRead|too long|OverflowError"),
        (sending(CHUNKED + b"-5\r\nx"), "IncompleteRead|ValueError"),
        (sending(HEAD + b"Content-Length: 99999999999999999999\r\n\r\nx"), TOO_LONG),
        (sending(HEAD + b"Content-Length: 10\r\n\r\nx"), "ended too early"),
        (sending(b""), "RemoteDisconnected"),
        (sending(b"SSH-2.0-OpenSSH\r\n"), "BadStatusLine"),
        (sending(b"\x00" * 100), "BadStatusLine|RemoteDisconnected|LineTooLong"),
    ],
)
def test_answers_that_are_none(answer: Answer, reason: str) -> None:
    with MalachiteServer(answer) as server:
        connection = HttpConnection(server.url, limit_s=PATIENT_S)
        with pytest.raises(RequestError, match=reason):
            connection.get("/a", _MOST)
        # The next one has another connection.
        server.answer = lambda output, _: output.write(BODY)
        assert connection.get("/b", _MOST) == b"{}"
        assert server.paths == ["/a", "/b"]
        connection.close()


@pytest.mark.parametrize("start", [b"", HEAD, HEAD + b"Content-Length: 10\r\n\r\n", CHUNKED + b"5"])
def test_an_answer_that_does_not_end_in_time(start: bytes) -> None:
    """None of the pauses is long; the answer as a whole takes too long."""
    gone = threading.Event()

    def answer(output: Output, _: str) -> None:
        output.write(start)
        while not gone.wait(0.02):
            output.write(b"0")

    with MalachiteServer(answer) as server:
        connection = HttpConnection(server.url, limit_s=0.2)
        with pytest.raises(RequestError, match=r"no whole answer within 0\.2 s"):
            connection.get("/a", _MIB)
        gone.set()
        connection.close()


def test_one_connection_for_many_answers_and_another_one_where_the_server_has_ended_it() -> None:
    with MalachiteServer(lambda output, _: output.write(BODY)) as server:
        connection = HttpConnection(server.url, limit_s=PATIENT_S)
        for _ in range(3):
            assert connection.get("/a", _MIB) == b"{}"
        assert server.connections == 1
        server.answer = sending(BODY)
        assert connection.get("/a", _MIB) == b"{}"
        # It is found to be closed with the next request, which is sent once more.
        assert connection.get("/a", _MIB) == b"{}"
        server.answer = sending(http_answer(b"{}", "200 OK", "Connection: close"))
        assert connection.get("/a", _MIB) == b"{}"
        assert connection.get("/a", _MIB) == b"{}"
        connection.close()


@pytest.mark.parametrize("chunks", [(b"{}",), (b"{", b"}")])
def test_chunks(chunks: tuple[bytes, ...]) -> None:
    data = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
    with MalachiteServer(lambda output, _: output.write(CHUNKED + data)) as server:
        connection = HttpConnection(server.url, limit_s=PATIENT_S)
        assert connection.get("/a", _MIB) == connection.get("/a", _MIB) == b"{}"
        connection.close()


def test_no_redirects_and_no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    with MalachiteServer(sending(BODY)) as other, MalachiteServer(sending(BODY)) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, other.url)
        server.answer = sending(http_answer(b"", "302 Found", f"Location: {other.url}/a"))
        connection = HttpConnection(server.url, limit_s=PATIENT_S)
        with pytest.raises(AnswerError, match="HTTP status 302"):
            connection.get("/a", _MIB)
        assert server.paths == ["/a"]
        assert other.paths == []
        connection.close()


def test_nothing_listens() -> None:
    with port_without_a_server() as url:
        connection = HttpConnection(url, limit_s=PATIENT_S)
        with pytest.raises(RequestError, match="ConnectionRefusedError"):
            connection.get("/a", _MIB)
        connection.close()


def test_a_host_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the resolver of a machine says of a name is nothing to rely on: it is not asked here."""

    def request() -> str:
        connection = HttpConnection("http://host..invalid:1", limit_s=PATIENT_S)
        with pytest.raises(RequestError) as caught:
            connection.get("/a", _MIB)
        connection.close()
        return str(caught.value)

    # No name has an empty label, so this one does not come to the resolver.
    assert "Unicode" in request()
    found: list[object] = []

    def resolve(*_: object, **__: object) -> list[object]:
        if not found:
            return found
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert "the host has no address" in request()
    found.append(None)
    assert "gaierror" in request()


# The source


class Node:
    """A tree with two samplers, one of which asks a Malachite that reads the same files every ten seconds."""

    def __init__(self, folder: Path, version: int, server: MalachiteServer) -> None:
        self.tree = Tree(folder / "tree", version)
        self.tree.now_s = 1_000.5
        self.server = server
        server.answer = self.answer
        self.pod = self.tree.cgroup(POD)
        self.files = Files(self.tree.mounts, self.tree.root / "proc")
        self.cores = 1.0
        self.load = 1.0
        self.documents: dict[str, Document] = {}
        self.change: Callable[[dict[str, Document]], object] = lambda _: None
        """Harms the documents."""
        self.is_read = True
        """Whether Malachite goes on reading."""
        self.offset_s = 0.0
        """How far its clock goes wrong."""
        self.source: MalachiteSource = self.tree.sampler.malachite_source(server.url)
        self.source._connection = HttpConnection(server.url, limit_s=PATIENT_S)
        self.source._wall_clock = lambda: self.tree.now_s
        self.tree.sampler.take_from(self.source)
        self._poll_s = self._read_s = 0.0
        self.seconds = 0
        self.pod_cores = 1.0
        self._used_s = 0.0
        self.used_bytes = 8 << 30
        """Of the node, half of it page cache."""

    def answer(self, output: Output, path: str) -> object:
        return of_documents(self.documents)(output, path)

    def run(self, seconds: int, *needs: Need) -> None:
        """So many seconds, in which half of the pod's periods are throttled."""
        tree = self.tree
        for _ in range(seconds):
            tree.now_s += 1.0
            self.seconds += 1
            self._used_s += self.pod_cores
            self.pod.set_cpu(self._used_s, periods=10 * self.seconds, throttled=5 * self.seconds)
            self.pod.set_pressure(250_000 * self.seconds, 125_000 * self.seconds)
            tree.set_node(self.seconds * 1.0, self.used_bytes, 250_000 * self.seconds)
            if self.is_read and tree.now_s >= self._read_s + POLL_S:
                self._read_s = tree.now_s
                update_time = int(tree.now_s + self.offset_s)
                documents = self.files.documents([POD], update_time)
                documents["compute"] = compute(self.cores, 4, update_time, self.load)
                self.change(documents)
                self.documents = documents
            while tree.now_s >= self._poll_s:
                self._poll_s = max(self._poll_s, tree.now_s - 1.0) + self.source.poll()
            tree.sampler.read(tree.targets, needs or NEEDS)

    def last(self, metric: Metric, cgroup: str = POD) -> float | None:
        return self.tree.sampler.last(cgroup, metric, LOOK_BACK_S)

    @property
    def in_use(self) -> tuple[MetricsSource, str]:
        return self.tree.sampler.metrics_source


NEEDS = [Need(level, metric, 30) for level in (Level.NODE, Level.POD) for metric in Metric]
CPU = Need(Level.POD, Metric.CPU_USAGE, 30)
MEMORY = Need(Level.POD, Metric.MEMORY_USAGE, 30)


@pytest.fixture(params=[1, 2])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    (tmp_path / "tree").mkdir()
    with MalachiteServer(sending(b"")) as server:
        made = Node(tmp_path, request.param, server)
        yield made
        made.tree.sampler.close()


def test_its_values_are_those_of_the_kernels_files(node: Node) -> None:
    node.pod.set_memory(64 * PAGE_BYTES, inactive_file=8 * PAGE_BYTES, active_file=PAGE_BYTES)
    node.run(35)
    kernel = Tree(node.tree.root.parent / "kernel", node.tree.version)
    kernel.cgroup(POD).set_memory(64 * PAGE_BYTES, inactive_file=8 * PAGE_BYTES, active_file=PAGE_BYTES)
    other = kernel.targets[POD]
    assert other is Level.POD
    pod = kernel.cgroup(POD)
    for second in range(1, 4):
        pod.set_memory(64 * PAGE_BYTES, inactive_file=8 * PAGE_BYTES, active_file=PAGE_BYTES)
        pod.set_cpu(second * 1.0, periods=10 * second, throttled=5 * second)
        pod.set_pressure(250_000 * second, 125_000 * second)
        kernel.set_node(second * 1.0, 8 << 30, 250_000 * second)
        kernel.tick(*NEEDS)
    for cgroup in (POD, NODE_CGROUP):
        for metric in Metric:
            of_kernel = kernel.sampler.last(cgroup, metric, LOOK_BACK_S)
            found = node.last(metric, cgroup)
            if metric is Metric.MEMORY_NUMA:
                windows = node.tree.sampler.numa_windows(cgroup, LOOK_BACK_S)
                expected = kernel.sampler.numa_windows(cgroup, LOOK_BACK_S)
                assert {key: each.last for key, each in windows.items()} == {
                    key: each.last for key, each in expected.items()
                }
            elif metric is Metric.CPU_LOAD:
                # In the files it is another one.
                assert found == (node.load if cgroup == NODE_CGROUP else None)
            elif of_kernel is None:
                assert found is None, metric
            else:
                assert found == pytest.approx(of_kernel, rel=0.001), (cgroup, metric)
    kernel.sampler.close()
    assert node.in_use == (MetricsSource.MALACHITE, "")


@pytest.mark.parametrize("harmed", ["", "vmstat_pgsteal_kswapd", "vm_watermark_scale_factor", "load"])
def test_what_the_eviction_under_memory_pressure_and_the_advisor_need_of_the_node(
    node: Node, harmed: str
) -> None:
    """What an earlier Malachite does not have, comes from the files in the same pass."""

    def harm(documents: dict[str, Document]) -> None:
        documents["memory"]["system"].pop(harmed, None)
        documents["compute"].pop(harmed, None)

    node.change = harm
    node.load = 1.5
    metrics = (Metric.CPU_LOAD, Metric.WATERMARK_SCALE, Metric.KSWAPD_STEAL)
    node.run(35, *(Need(Level.NODE, metric, 30) for metric in metrics))
    source, problem = node.in_use
    assert source is MetricsSource.MALACHITE
    assert bool(problem) is bool(harmed)
    assert f"has no {harmed}" in problem or not harmed
    # The load of the files is the number of seconds.
    load = node.seconds if harmed == "load" else node.load
    found = [node.last(metric, NODE_CGROUP) for metric in metrics]
    assert found == [pytest.approx(load), 10, pytest.approx(100.0)]


def test_its_values_take_the_place_of_the_files(node: Node) -> None:
    node.run(35)
    assert node.in_use == (MetricsSource.MALACHITE, "")
    read = node.tree.tick(CPU, MEMORY).files
    # What nothing needs is read of the files in turns.
    assert read <= 1
    node.cores = 3.0
    before = node.last(Metric.CPU_USAGE, NODE_CGROUP)
    node.run(12)
    assert (before, node.last(Metric.CPU_USAGE, NODE_CGROUP)) == (1.0, 3.0)


def test_only_what_plugins_need_is_asked_for(node: Node) -> None:
    node.run(25, MEMORY)
    assert {path.partition("?")[0] for path in node.server.paths} == {"/api/v1/cgroup/groups"}
    count = len(node.server.paths)
    assert count <= 25 / POLL_S + 1
    node.run(25, Need(Level.NODE, Metric.CPU_USAGE, 30))
    assert set(node.server.paths[count:]) == {"/api/v1/system/compute"}
    count = len(node.server.paths)
    node.run(25, Need(Level.CONTAINER, Metric.CPU_USAGE, 30))
    assert len(node.server.paths) == count
    assert node.in_use == (MetricsSource.KERNEL, "")


def test_until_it_has_answered_twice_the_files_are_read(node: Node) -> None:
    for _ in range(30):
        node.run(1, CPU, MEMORY)
        if node.seconds > 2:
            assert node.last(Metric.CPU_USAGE) == pytest.approx(1.0)
            assert node.last(Metric.MEMORY_USAGE) == 0
    assert node.in_use == (MetricsSource.MALACHITE, "")


def away(node: Node) -> None:
    node.server.answer = lambda *_: False


def late(node: Node) -> None:
    node.is_read = False


def wrong_status(node: Node) -> None:
    node.server.answer = lambda output, _: output.write(as_json({}, status=1))


def server_error(node: Node) -> None:
    node.server.answer = lambda output, _: output.write(http_answer(b"", "500 Internal Server Error"))


def too_long(node: Node) -> None:
    node.server.answer = endless(HEAD + b"\r\n", b"x" * 65536)


def no_json(node: Node) -> None:
    node.server.answer = lambda output, _: output.write(http_answer(b"<html>"))


def other_cgroup(node: Node) -> None:
    node.change = lambda documents: documents[POD].update(user_path="/kubepods/pod2")


def in_the_future(node: Node) -> None:
    node.offset_s = 3_600.0


def without_a_time(node: Node) -> None:
    node.offset_s = -10_000.0


def slow(node: Node) -> None:
    node.source._connection = HttpConnection(node.server.url, limit_s=0.05)
    gone = threading.Event()

    def answer(output: Output, _: str) -> None:
        output.write(HEAD)
        while not gone.wait(0.01):
            output.write(b"X")

    node.server.answer = answer


FAULTS = [
    *(away, late),
    *(
        pytest.param(each, marks=pytest.mark.slow)
        for each in (
            *(wrong_status, server_error, too_long, no_json),
            *(other_cgroup, in_the_future, without_a_time, slow),
        )
    ),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_kernels_files_take_over_within_30_seconds_and_it_comes_back(
    node: Node, fault: Callable[[Node], None]
) -> None:
    node.run(25, CPU, MEMORY)
    assert node.in_use[0] is MetricsSource.MALACHITE
    connection, answer = node.source._connection, node.server.answer
    fault(node)
    # What is so from now on is in the files alone.
    node.pod.set_memory(32 * PAGE_BYTES)
    node.pod_cores = 2.0
    for second in range(1, int(STALE_S) + 1):
        node.run(1, CPU, MEMORY)
        # It is never a mean of both times.
        assert node.last(Metric.CPU_USAGE) in (pytest.approx(1.0), pytest.approx(2.0)), second
        assert node.last(Metric.MEMORY_USAGE) in (0, 32 * PAGE_BYTES)
    # No sample that plugins look at is of older data.
    source, problem = node.in_use
    assert source is MetricsSource.KERNEL
    assert f"Malachite at {node.server.url}: " in problem
    assert "2 of 2 groups of values are read from the kernel's files" in problem
    assert node.last(Metric.MEMORY_USAGE) == 32 * PAGE_BYTES
    assert node.last(Metric.CPU_USAGE) == pytest.approx(2.0)
    if node.source._connection is not connection:
        node.source._connection.close()
    node.source._connection, node.server.answer = connection, answer
    node.is_read, node.offset_s, node.change = True, 0.0, lambda _: None
    node.run(40, CPU, MEMORY)
    assert node.in_use == (MetricsSource.MALACHITE, "")
    assert node.last(Metric.CPU_USAGE) == pytest.approx(2.0)


def test_nothing_is_evicted_by_stale_data(node: Node) -> None:
    """Memory evict, at 40 % of 1 TiB, on a full node; then Malachite hangs, and the memory is free."""
    plugin = MemoryEvict()
    context = PluginContext(gates={"BEMemoryEvict": True}, options=EvictOptions(most_pods=1))
    state = replace(plugin.setup(context), cool_until_s=0.0)
    pod = replace(pod_of("batch", QoSClass.BE, priority=5_500), cgroup=POD)
    threshold = Threshold(enable=True, memory_evict_threshold_percent=40)

    def evictions(seconds: int) -> int:
        count = 0
        for _ in range(seconds):
            node.run(1, MEMORY, Need(Level.NODE, Metric.MEMORY_USAGE, 30))
            snapshot = Snapshot(
                now_s=node.tree.now_s,
                pods=(pod,),
                node=node_of(4, capacity={"memory": 1 << 40}),
                strategies=Strategies(threshold=threshold),
                metrics=node.tree.sampler,
            )
            # As if it had evicted nothing before.
            count += len(plugin.run(snapshot, state).evictions)
        return count

    node.pod.set_memory(1 << 30)
    assert evictions(25) == 0
    node.used_bytes = 900 << 30
    assert evictions(40) > 0
    assert node.in_use == (MetricsSource.MALACHITE, "")
    late(node)
    node.used_bytes = 8 << 30
    # Until then by data of up to 30 s.
    assert 0 < evictions(int(STALE_S)) < STALE_S
    assert evictions(60) == 0


def test_a_value_that_is_missing_comes_from_the_files(node: Node) -> None:
    def harm(documents: dict[str, Document]) -> None:
        memory = documents[POD]["sub_system_groups"]["Memory"]["Memory"][f"V{node.tree.version}"]
        memory["memory_usage_in_bytes"] = "much"

    node.change = harm
    node.run(25, CPU, MEMORY)
    # Values come one by one at first: that is no problem.
    assert node.in_use == (MetricsSource.MALACHITE, "")
    node.run(int(STALE_S) - 25 + 1, CPU, MEMORY)
    source, problem = node.in_use
    assert source is MetricsSource.MALACHITE
    assert problem == (
        "1 of 2 groups of values are read from the kernel's files: "
        f"Malachite at {node.server.url}: memory_usage_in_bytes is not a number of 64 bits"
    )
    assert node.last(Metric.CPU_USAGE) == pytest.approx(1.0)
    node.pod.set_memory(3 * PAGE_BYTES)
    node.run(1, CPU, MEMORY)
    assert node.last(Metric.MEMORY_USAGE) == 3 * PAGE_BYTES


def test_counters_that_go_back_or_cannot_be(node: Node) -> None:
    node.run(25, CPU)
    usage = {1: ("new_cpu_basic_info", "cpu_usage", 10**9), 2: ("cpu_stats", "usage_usec", 10**6)}
    part, key, per_s = usage[node.tree.version]

    def harm(documents: dict[str, Document]) -> None:
        cpu = documents[POD]["sub_system_groups"]["Cpuacct"]["Cpu"][f"V{node.tree.version}"]
        cpu[part][key] = node.seconds * 1_000 * per_s

    node.change = harm
    for _ in range(40):
        node.run(1, CPU)
        # A thousand cores are not believed; the counter of before is less than that.
        assert node.last(Metric.CPU_USAGE) == pytest.approx(1.0, rel=0.2)
    assert "its values cannot be" in node.in_use[1]
    node.change = lambda _: None
    for _ in range(40):
        node.run(1, CPU)
        assert node.last(Metric.CPU_USAGE) == pytest.approx(1.0, rel=0.2)
    assert node.in_use == (MetricsSource.MALACHITE, "")


def test_its_own_thread_asks_and_ends(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree", 2)
    tree.cgroup(POD)
    documents = Files(tree.mounts, tree.root / "proc").documents([POD], 1)
    asked = threading.Event()

    def answer(output: Output, path: str) -> object:
        asked.set()
        return of_documents(documents)(output, path)

    tree.tick(MEMORY)
    with MalachiteServer(answer) as server:
        tree.sampler.use_malachite(server.url)
        assert asked.wait(PATIENT_S)
        first = tree.sampler._malachite
        tree.sampler.use_malachite(server.url)
        assert tree.sampler._malachite is first
        tree.sampler.use_malachite("")
        assert first is not None
        first.close(PATIENT_S)
        assert first._thread is not None
        assert not first._thread.is_alive()
        assert tree.sampler.metrics_source == (MetricsSource.KERNEL, "")
        tree.tick(MEMORY)
    tree.sampler.close()


@pytest.mark.parametrize(("is_fresh", "expected"), [(False, 1.0), (True, 3.0)])
def test_what_has_to_be_of_each_second_is_read(node: Node, is_fresh: bool, expected: float) -> None:
    need = CPU._replace(is_fresh=is_fresh)
    node.pod_cores = 1.0
    node.run(35, need, MEMORY)
    node.pod_cores = 3.0
    node.run(2, need, MEMORY)
    assert node.last(Metric.CPU_USAGE) == pytest.approx(expected)
    assert node.in_use[0] is MetricsSource.MALACHITE
