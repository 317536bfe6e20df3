"""The log: one line per changed container, and nothing secret."""

import os
import re
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod, pod
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient, outcome_of
from tests.lab.deadline import wait_until
from tests.lab.procfs import thread_states
from tests.lab.proxy_process import ProxyProcess

SECRET = "c0rrect-h0rse-battery"  # noqa: S105
BROKEN = {"node.koordinator.sh/extended-resource-spec": f'{{"broken": "{SECRET}-annotation"'}

RECOVERED = "records recovered"

WITH_STANDARD_ERROR = """
import os, sys
os.dup2(int(sys.argv[1]), 2)
os.execv(sys.argv[2], sys.argv[2:])
"""


def audit(daemon: ProxyProcess) -> list[dict[str, Any]]:
    return [record for record in daemon.log_records if record["logger"] == "runtimeproxy.audit"]


def test_one_line_per_changed_container(daemon: ProxyProcess, client: CriClient) -> None:
    for name in ("one", "two"):
        batch_pod(client, name).run().create().start()
        pod(client, f"{name}-plain").run().create().start()
    assert daemon.terminate() == 0
    containers = [record for record in audit(daemon) if record["container"]]
    assert [(record["pod"], record["container"], record["kind"]) for record in containers] == [
        ("default/one", "main", "changed"),
        ("default/two", "main", "changed"),
    ]
    changed = {change["field"]: change for change in containers[0]["changes"]}
    assert changed["resources.cpu_shares"]["from"] == "2"
    assert changed["resources.cpu_shares"]["to"] == "512"
    assert changed["resources.cpu_shares"]["policy"] == "batch-resource"
    assert "resources.cpu_shares 2 -> 512 (batch-resource)" in containers[0]["message"]


def test_a_dry_run_policy_says_what_it_would_change(daemons: Daemons) -> None:
    daemon = daemons.start('[policies.batch-resource]\nmode = "dry-run"\n')
    with CriClient(daemon.socket) as client:
        batch_pod(client).run().create()
    (record,) = wait_until(
        lambda: [record for record in audit(daemon) if record["container"]], "the audit's line"
    )
    assert record["kind"] == "would-change"


def test_environment_values_and_annotations_are_in_no_line(daemons: Daemons) -> None:
    daemon = daemons.start(log_level="debug", arguments=("--log-format", "text"))
    with CriClient(daemon.socket) as client:
        for made in (batch_pod(client, "one"), pod(client, "two", BROKEN)):
            made.envs = {"PASSWORD": SECRET}
            made.run().create().start().update(1 << 26)
            made.remove()
        client.runtime.CreateContainer.future(
            batch_pod(client, "nowhere").create_request, timeout=30
        ).exception()
    assert daemon.terminate() == 0
    log = "\n".join(daemon.log)
    assert "one/main changed" in log
    assert SECRET not in log


def test_a_text_line_says_its_changes_once(daemons: Daemons) -> None:
    daemon = daemons.start(arguments=("--log-format", "text"))
    with CriClient(daemon.socket) as client:
        batch_pod(client).run().create()
    assert daemon.terminate() == 0
    (line,) = [line for line in daemon.log if "batch/main changed" in line]
    assert line.count("resources.cpu_shares") == 1


def test_a_pods_lines_have_the_old_value_and_what_was_not_written(
    client: CriClient, daemon: ProxyProcess, cgroup_files: CgroupFiles
) -> None:
    made = batch_pod(client)
    parent = made.config.linux.cgroup_parent
    cgroup_files.make(parent)
    (cgroup_files.folder(parent) / "memory.max").unlink()
    made.run()
    assert daemon.terminate() == 0
    changed, left_out = audit(daemon)
    quota = "cgroup[cpu.cfs_quota_us] -1 -> 50000 (batch-resource)"
    memory = "left-out: cgroup[memory.limit_in_bytes] 134217728 (batch-resource: ENOENT: "
    assert quota in changed["message"]
    assert "memory" not in changed["message"]
    assert memory in left_out["message"]
    assert (changed["level"], left_out["level"]) == ("info", "warning")
    assert left_out["uid"] == made.config.metadata.uid


def test_libraries_write_no_debug_lines_of_their_own(daemons: Daemons) -> None:
    daemon = daemons.start(log_level="debug")
    with Family(daemon) as family:
        with CriClient(daemon.socket) as client:
            batch_pod(client).run().create().start()
            wait_until(
                lambda: outcome_of(lambda: client.raw("/grpc.health.v1.Health/Check"))[0] == "OK", "health"
            )
        successor = family.upgrade()
        assert daemon.wait() == 0
        family.signal(signal.SIGTERM)
        family.wait_until_ended(successor)
    assert daemon.log
    assert [line for line in daemon.log if not line.startswith("{")] == []
    assert {record["logger"].partition(".")[0] for record in daemon.log_records} == {"runtimeproxy"}


@pytest.mark.parametrize(
    "path",
    [
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/runtimeproxy.v1.RuntimeProxy/GetStatus",
    ],
)
def test_requests_that_do_not_parse_are_one_line(daemon: ProxyProcess, path: str) -> None:
    with CriClient(daemon.socket) as client:
        wait_until(
            lambda: outcome_of(lambda: client.raw("/grpc.health.v1.Health/Check"))[0] == "OK", "health"
        )
        codes = {outcome_of(lambda: client.raw(path, b"\x0a\xff"))[0] for _ in range(50)}
        assert codes == {"INVALID_ARGUMENT"}
    assert daemon.terminate() == 0
    assert [record["message"] for record in daemon.log_records if "error" in record] == []
    lines = [record["message"] for record in daemon.log_records if "cannot be read" in record["message"]]
    # The last one counts the others.
    assert lines[0] == f"own services: a request of {path.rpartition('/')[2]} cannot be read"
    assert len(lines) <= 2


def test_a_crash_leaves_the_stacks_of_all_threads(daemon: ProxyProcess) -> None:
    wait_until_idle(daemon)
    daemon.signal(signal.SIGSEGV)
    assert daemon.wait() == -signal.SIGSEGV
    assert_stacks("\n".join(line for line in daemon.log if not line.startswith("{")))


def test_a_crash_of_a_successor_leaves_its_stacks_in_the_journal(daemons: Daemons) -> None:
    ours, journal = socket.socketpair()
    with ours, journal, ThreadPoolExecutor(1) as reader, ours.makefile(errors="replace") as text:
        lines: list[str] = []
        reading = reader.submit(lambda: lines.extend(iter(text.readline, "")))
        status = os.fstat(journal.fileno())
        try:
            daemon = daemons.prepare(
                wrapper=(sys.executable, "-c", WITH_STANDARD_ERROR, str(journal.fileno())),
                inherited=(journal.fileno(),),
                environment=daemons.environment | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"},
            )
            daemon.start()
            with Family(daemon) as family:
                successor = family.upgrade()
                assert daemon.wait() == 0
                wait_until(lambda: sum(RECOVERED in line for line in lines) == 2, "the successor's records")
                wait_until_threads_sleep(successor)
                family.signal(signal.SIGABRT)
                family.wait_until_ended(successor)
        finally:
            journal.shutdown(socket.SHUT_WR)
        reading.result()
    crash = [line for line in lines if not re.match(r"<\d>\{", line)]
    assert len(crash) < len(lines)
    assert_stacks("".join(crash))


def wait_until_idle(daemon: ProxyProcess) -> None:
    wait_until(lambda: any(RECOVERED in line for line in daemon.log), "the records")
    wait_until_threads_sleep(daemon.pid)


def wait_until_threads_sleep(pid: int) -> None:
    """The stack of a thread that runs cannot be read: it changes meanwhile."""
    looks: list[bool] = []

    def is_idle() -> bool:
        # What follows the records takes a moment, and its threads sleep between two steps of it.
        looks.append(thread_states(pid) == {"S"})
        return looks[-10:] == [True] * 10

    wait_until(is_idle, "threads that sleep")


def assert_stacks(crash: str) -> None:
    assert crash.startswith("Fatal Python error: ")
    assert "hread 0x" in crash
    assert "logs.py" in crash
    assert "daemon.py" in crash
