"""What cannot be evaluated is a problem of that pod, record, file or claim alone: all others follow.

Each kind of it is there before a restart, and is found after one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2 as api_pb2_cri
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH, Pod, batch_pod
from tests.daemon.installed import ANSWER
from tests.daemon.site import site_folder
from tests.daemon.test_running_pods import OFF, ON, configure
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.ledger.test_evaluate import IMPOSSIBLE

DEEP = "[" * 100_000
TEXTS = {
    "scheduling.koordinator.sh/resource-status": ['{"cpuset":"9-1"}', '{"cpuset":', DEEP, '{"cpuset":1e999}'],
    "node.koordinator.sh/extended-resource-spec": [
        '{"containers":{"main":7}}',
        DEEP,
        '{"containers":"\\ud800"}',
    ],
    "koordinator.sh/cpuBurst": [DEEP, '{"policy":1e999}'],
    "koordinator.sh/memoryQOS": [DEEP, '{"policy":[]}'],
}
"""Annotations that cannot be read."""


@pytest.fixture
def installed(socket_folder: Path) -> Mapping[str, str]:
    return site_folder(socket_folder, answering="installed:Answering")


@pytest.fixture
def daemon(daemons: Daemons) -> ProxyProcess:
    return daemons.start(OFF)


@pytest.fixture
def good(client: CriClient, cgroup_files: CgroupFiles) -> Pod:
    """A pod with nothing wrong."""
    return batch_pod(client, "good").run().create().start()


@pytest.fixture
def status(client: CriClient) -> Any:
    stub = api_pb2_grpc.RuntimeProxyStub(client.channel)

    def get() -> api_pb2.GetStatusResponse:
        answer: api_pb2.GetStatusResponse = stub.GetStatus(
            api_pb2.GetStatusRequest(), timeout=30, wait_for_ready=True
        )
        return answer

    return get


class Follows:
    """Switches a policy on and off; the good pod has to follow each time."""

    def __init__(self, daemon: ProxyProcess, good: Pod, files: CgroupFiles) -> None:
        self._daemon = daemon
        self._files = files
        self._cgroup = f"{good.config.linux.cgroup_parent}/{good.container}"

    def quota(self) -> str:
        return self._files.read(self._cgroup, "cpu.max").partition(" ")[0]

    def both_ways(self) -> None:
        for config, quota in ((ON, "50000"), (OFF, "max")):
            configure(self._daemon, config)
            wait_until(lambda quota=quota: self.quota() == quota, f"the quota {quota}")  # type: ignore[misc]
        # A reload ends with READY=1, too.
        self._daemon.forget_states()


@pytest.fixture
def follows(daemon: ProxyProcess, good: Pod, cgroup_files: CgroupFiles) -> Follows:
    return Follows(daemon, good, cgroup_files)


def problem_of(status: Any, *texts: str) -> None:
    """Waits until a problem has these texts."""
    wait_until(
        lambda: any(all(text in problem for text in texts) for problem in status().problems),
        f"a problem with {texts}",
    )


@pytest.mark.slow
def test_cgroup_parents_that_cannot_be(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, follows: Follows, status: Any
) -> None:
    for number, parent in enumerate(IMPOSSIBLE):
        config = pod_sandbox_config(f"bad{number}", qos="BE", annotations=BATCH)
        made = Pod(client, config).run().create().start()
        # A runtime that takes anything, and does not tell this proxy alone.
        with runtime.state.lock:
            runtime.state.sandboxes[made.id].config.linux.cgroup_parent = parent
    with sqlite_of(daemon) as saved:
        saved.execute("DELETE FROM records WHERE kind < 3")
    daemon.start()
    for _ in range(2):
        follows.both_ways()
        for number in range(len(IMPOSSIBLE)):
            problem_of(status, f"Pod default/bad{number} cannot be evaluated: ")
        wait_until(lambda: status().ledger.unevaluated_pods == len(IMPOSSIBLE), "all of them")
        assert not status().daemon.internal_errors
        assert "Traceback" not in "".join(daemon.log)
        daemon.restart()


@pytest.mark.parametrize("config", [OFF, ON])
def test_calls_on_pods_with_such_parents_go_on(
    daemons: Daemons, cgroup_files: CgroupFiles, config: str
) -> None:
    cgroup_files.make("/kubepods/x")
    daemon = daemons.start(config)
    with CriClient(daemon.socket) as client:
        for parent in IMPOSSIBLE[:6]:
            made = batch_pod(client)
            made.config.linux.cgroup_parent = parent
            made.run().create().start()
            linux = api_pb2_cri.LinuxContainerResources(cpu_quota=30_000, cpu_period=100_000)
            request = api_pb2_cri.UpdateContainerResourcesRequest(container_id=made.container, linux=linux)
            client.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)
        stub = api_pb2_grpc.RuntimeProxyStub(client.channel)
        status = stub.GetStatus(api_pb2.GetStatusRequest(), timeout=30, wait_for_ready=True)
        assert not status.daemon.internal_errors
        assert not status.calls.undecided


@pytest.mark.slow
def test_a_refused_sandbox_leaves_no_record(daemon: ProxyProcess, client: CriClient, status: Any) -> None:
    for parent in ("/kubepods/a\0b", f"/kubepods/{'x' * 256}"):
        config = pod_sandbox_config("refused", qos="BE", annotations=BATCH)
        config.linux.cgroup_parent = parent
        with pytest.raises(grpc.RpcError):
            Pod(client, config).run()
    batch_pod(client).run()
    for _ in range(2):
        wait_until(lambda: status().records.is_recovered, "the records are compared")
        assert status().records.pods == 1
        daemon.forget_states()
        daemon.restart()


@pytest.mark.slow
def test_annotations_and_answers_that_cannot_be_used(
    daemon: ProxyProcess, client: CriClient, follows: Follows, status: Any
) -> None:
    made: list[Pod] = []
    for key, texts in TEXTS.items():
        # Pods of the class BE have no CPU burst.
        qos = "LS" if key.startswith("koordinator.sh/") else "BE"
        for text in texts:
            config = pod_sandbox_config(f"bad{len(made)}", qos=qos, annotations={**BATCH, key: text})
            made.append(Pod(client, config).run().create().start())
    for answer in ("raises", "no change", "no value"):
        config = pod_sandbox_config(answer.replace(" ", "-"), qos="BE", annotations={ANSWER: answer})
        made.append(Pod(client, config).run().create().start())
    for _ in range(2):
        follows.both_ways()
        problem_of(status, "Policy answering failed")
        configure(daemon, ON + "[policies.memory-qos]\nenabled = true\n")
        for key in TEXTS:
            problem_of(status, key)
        daemon.forget_states()
        assert not status().daemon.internal_errors
        assert status().records.pods == 1 + len(made)
        daemon.restart()


@contextmanager
def sqlite_of(daemon: ProxyProcess) -> Iterator[sqlite3.Connection]:
    """The checkpoint of a daemon, which ends before."""
    assert daemon.terminate() == 0
    with closing(sqlite3.connect(daemon.state_folder / "records.db")) as opened, opened:
        yield opened


BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def book(entries: object, originals: object = None) -> str:
    originals = {} if originals is None else originals
    return json.dumps({"version": 1, "level": 2, "boot": BOOT_ID, "originals": originals, "entries": entries})


def entry(value: object) -> list[object]:
    return [[["batch-resource", "set", value, 40, "", None]], value, value, value, False, False]


POD = "/kubepods/besteffort/podbad"
ROWS = [
    (1, "bad-json", DEEP),
    (1, "bad-type", '{"name": 7}'),
    (2, "bad-container", '{"requested": {"cpu_shares": "x"}}'),
    (2, "bad-number", '{"attempt": 1e999}'),
    (1, "late", '{"created_s": 1e300}'),
    (1, "infinite", '{"created_s": Infinity}'),
    (1, "many-attempts", f'{{"attempt": {10**30}}}'),
    (1, "no-character", '{"name": "\\ud800"}'),
    (2, "no-character", '{"labels": {"\\ud800": ""}}'),
    (3, POD, "[]"),
    (9, "bad-kind", "{}"),
]
"""Of records: kind, id and body."""
BOOKS = [
    (POD, DEEP),
    (f"{POD}1", book({"cpuset.cpus": entry("9-1")})),
    (f"{POD}2", book({"cpuset.cpus": entry(-1)})),
    (f"{POD}3", book({"memory.min": entry("abc")})),
    (f"{POD}4", book({"cpu.shares": entry(10**30)})),
    (f"{POD}5", book({"cpu.shares": entry(2)}, {"cpu.weight": [7, 0]})),
]
USABLE_BOOKS = [
    ("/../outside", book({"cpu.shares": entry(2)})),
    (f"{POD}6", book({"of.another.version": entry("x")}, {"../../x": ["\0", 0]})),
]
"""That can be read, and lead to nothing."""


def pods_watched(client: CriClient) -> set[str]:
    """The names of all pods in a snapshot of `WatchPods`."""
    request = api_pb2.WatchPodsRequest(snapshot_only=True)
    parts = api_pb2_grpc.RuntimeProxyStub(client.channel).WatchPods(request, timeout=30, wait_for_ready=True)
    return {pod.name for part in parts for pod in part.snapshot.pods}


@pytest.mark.slow
def test_rows_of_the_checkpoint_that_cannot_be_read(
    daemon: ProxyProcess, client: CriClient, follows: Follows, status: Any
) -> None:
    with sqlite_of(daemon) as saved:
        saved.executemany("INSERT INTO records(kind, id, rank, body) VALUES (?, ?, 2, ?)", ROWS)
        saved.executemany("INSERT INTO books(id, body) VALUES (?, ?)", [*BOOKS, *USABLE_BOOKS])
    daemon.start()
    for _ in range(2):
        follows.both_ways()
        problem_of(status, f"{len(ROWS) + len(BOOKS)} rows of the checkpoint could not be read")
        assert pods_watched(client) == {"good"}
        assert not status().daemon.internal_errors
        assert "Traceback" not in "".join(daemon.log)
        daemon.restart()


FILES = {
    "allocations.json": (DEEP, '{"pods": 7}'),
    "modes.json": (DEEP, '{"version": 1, "overrides": [{"set_s": 1e999}]}'),
    "evictions.json": (DEEP, '{"version": 1, "evictions": [[1e999, 1]]}'),
    "unrenewed.json": (DEEP, '{"plugin": "x"}'),
    "advice.json": (DEEP, json.dumps({"boot_id": BOOT_ID, "owners": 7})),
    "claims.json": (DEEP, '{"owners": 7}'),
    "sysctls.json": (DEEP, '{"sysctls": 7}'),
}
"""Of the state folder, with what cannot be read."""


@pytest.mark.slow
def test_files_of_the_state_folder_that_cannot_be_read(
    daemon: ProxyProcess, daemons: Daemons, follows: Follows, status: Any
) -> None:
    daemons.environment["KOORD_RUNTIMEPROXY_NODE_SHARED_POOLS"] = "computed"
    for number in range(2):
        assert daemon.terminate() == 0
        for name, texts in FILES.items():
            (daemon.state_folder / name).write_text(texts[number])
        (daemon.state_folder / "handed-over.json").write_text(DEEP)
        daemon.start()
        follows.both_ways()
        for name in FILES:
            problem_of(status, name, "not usable")
        assert not status().daemon.internal_errors
        assert "Traceback" not in "".join(daemon.log)
    daemon.restart()
    follows.both_ways()
    # What this process has saved takes their places.
    assert not any("allocations.json" in problem for problem in status().problems)


def mode(**members: object) -> str:
    """A file of modes with one, of a policy that is loaded."""
    override = {
        "policy": "batch-resource",
        "mode": "enforce",
        "namespaces": ["elsewhere"],
        "match_labels": {},
        "match_expressions": [],
        "set_s": 1.0,
        "until_s": None,
        "reason": "",
    }
    return json.dumps({"version": 1, "overrides": [{**override, **members}]})


MODES = [
    mode(set_s=1e300),
    mode(until_s=1e300),
    mode(reason="\ud800"),
    json.dumps({"version": "x" * 9_000_000}),
]


@pytest.mark.slow
def test_files_of_the_state_folder_that_no_status_can_hold(
    daemon: ProxyProcess, follows: Follows, status: Any, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("1\n")
    sysctls = json.dumps({"boot_id": BOOT_ID, "sysctls": {str(victim): {"original": "0", "written": "1"}}})
    for modes in (*MODES, None):
        assert daemon.terminate() == 0
        # At last what this process has left.
        if modes is not None:
            (daemon.state_folder / "modes.json").write_text(modes)
            (daemon.state_folder / "sysctls.json").write_text(sysctls)
        daemon.start()
        follows.both_ways()
        for name in ("modes.json", "sysctls.json"):
            problem_of(status, name, "not usable")
        assert max(map(len, status().problems)) < 1_000
        assert not status().daemon.internal_errors
        assert "Traceback" not in "".join(daemon.log)
        assert victim.read_text() == "1\n"


def journal_line(*fields: object) -> str:
    return json.dumps([BOOT_ID, POD, *fields])


LINES = [
    DEEP,
    journal_line(2, {"f": [None, 0]}, {}, {}).replace("0]", "1e999]"),
    "7",
    journal_line(2, {}, {"cpuset.cpus": 1}, {}),
    journal_line(2, {}, {}, {}, {"cpu.cfs_quota_us": [["plugin:x", "floor"]]}),
    journal_line(2, {"cpu.weight": ["\ud800", 0]}, {}, {}),
]
USABLE_LINES = [journal_line(2, {}, {"of.later": 2}, {"of.later": 1})]


@pytest.mark.slow
def test_lines_of_a_journal_that_cannot_be_read(daemon: ProxyProcess, follows: Follows, status: Any) -> None:
    for _ in range(2):
        assert daemon.terminate() == 0
        text = "".join(f"{line}\n" for line in [*LINES, *USABLE_LINES])
        (daemon.state_folder / "journal-1-poison.jsonl").write_text(text)
        daemon.start()
        follows.both_ways()
        problem_of(status, "journal-1-poison.jsonl", f"{len(LINES)} lines of the journal are not usable")
        assert not status().daemon.internal_errors
        assert "Traceback" not in "".join(daemon.log)


@pytest.mark.slow
def test_claims_that_cannot_be_applied(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, good: Pod, follows: Follows, status: Any
) -> None:
    bad = batch_pod(client, "bad").run().create().start()
    with runtime.state.lock:
        runtime.state.sandboxes[bad.id].config.linux.cgroup_parent = "/.."
    with sqlite_of(daemon) as saved:
        saved.execute("DELETE FROM records WHERE kind < 3")
    daemon.start()
    for sequence in range(2):
        wait_until(lambda: status().records.is_recovered, "the records are compared")
        with grpc.insecure_channel(f"unix:{daemon.folder / 'admin' / 'api.sock'}") as channel:
            admin = api_pb2_grpc.AdminStub(channel)
            request = api_pb2.SetClaimsRequest(
                owner="cpu-burst",
                session=f"s{sequence}",
                sequence=1,
                is_whole=True,
                claims=[claim(bad.container), claim(good.container)],
            )
            answer = admin.SetClaims(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
            assert [each.index for each in answer.refused] == [0]
            assert "not known" in answer.refused[0].reason
            wait_until(lambda: follows.quota() == "max", "no quota to add to")
        problem_of(status, "1 claims of cpu-burst were refused")
        assert not status().daemon.internal_errors
        daemon.restart()


def claim(container: str) -> api_pb2.Claim:
    key = api_pb2.ClaimKey(
        target=api_pb2.ClaimTarget(container_id=container),
        field="cpu.cfs_quota_us",
        role=api_pb2.ExplainedClaim.ROLE_ADD,
    )
    return api_pb2.Claim(key=key, value="1000", ceiling=200_000)
