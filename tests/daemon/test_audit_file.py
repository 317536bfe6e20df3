"""The audit's file of a daemon."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as runtimeproxy_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc
from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, batch_pod
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The lines of the file, if it is there; without one that is just being written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def pods(path: Path) -> set[str]:
    return {row["pod"] for row in rows_of(path) if "pod" in row}


def test_decisions_are_in_the_file_with_the_kubelets_trace(daemons: Daemons, socket_folder: Path) -> None:
    path = socket_folder / "audit" / "audit.jsonl"
    daemon = daemons.start(f"[audit]\nfile = '{path}'\n")
    with CriClient(daemon.socket) as client:
        first = batch_pod(client, "first")
        first.envs = {"TOKEN": "s3cr3t-value"}
        first.run()
        client.runtime.CreateContainer(
            first.create_request,
            timeout=CALL_TIMEOUT_S,
            metadata=(("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"),),
        )
        wait_until(lambda: any(each.get("trace_id") == TRACE for each in rows_of(path)), "the call's line")
        rows = rows_of(path)
        (row,) = [each for each in rows if each.get("trace_id") == TRACE]
        assert (row["call"], row["pod"], row["container"]) == ("CreateContainer", "first", "main")
        changes = {each["field"]: each for each in row["changes"]}
        shares = changes["resources.cpu_shares"]
        assert (shares["policy"], shares["mode"], shares["to"]) == ("batch-resource", "enforce", "512")
        assert all(each.get("call") for each in rows if "hook" in each)
        path.rename(path.with_name("old"))
        daemon.forget_states()
        daemon.signal(signal.SIGHUP)
        daemon.wait_for_state("READY=1")
        batch_pod(client, "second").run().create()
        wait_until(lambda: pods(path) == {"second"}, "the new file")
        assert pods(path.with_name("old")) == {"first"}
        client.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
    assert daemon.terminate() == 0
    assert "s3cr3t" not in path.read_text() + path.with_name("old").read_text()


def test_values_of_running_pods_are_in_the_file_and_in_the_api(
    daemons: Daemons, cgroup_files: CgroupFiles, socket_folder: Path
) -> None:
    path = socket_folder / "audit.jsonl"
    config = f"[audit]\nfile = '{path}'\n"
    daemon = daemons.start(f"{config}[policies.batch-resource]\nenabled = false\n")
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        cgroup_files.make(made.config.linux.cgroup_parent)
        made.run().create().start()
        (daemon.folder / "config.toml").write_text(config)
        daemon.signal(signal.SIGHUP)
        wait_until(
            lambda: any(each.get("hook") == "evaluate_container" for each in rows_of(path)), "the audit"
        )
        request = runtimeproxy_pb2.WatchAuditRequest(pod="default/batch", policy="batch-resource")
    rows = rows_of(path)
    of_pod, of_box = (row for row in rows if row.get("hook", "").startswith("evaluate_"))
    assert (of_pod["namespace"], of_pod["pod"], of_pod["sandbox_id"]) == ("default", "batch", made.id)
    assert (of_pod["hook"], of_box["hook"]) == ("evaluate_pod", "evaluate_container")
    assert of_box["container"] == "main"
    (shares,) = (each for each in of_pod["changes"] if each["field"] == "cgroup[cpu.shares]")
    assert (shares["kind"], shares["policy"], shares["mode"]) == ("changed", "batch-resource", "enforce")
    assert (shares["to"], bool(shares["from"]), bool(shares["reason"])) == (str(BATCH_SHARES), True, True)
    with CriClient(daemon.socket) as client:
        api: Any = api_pb2_grpc.RuntimeProxyStub(client.channel)
        (response,) = api.WatchAudit(request, timeout=CALL_TIMEOUT_S)
    assert {each.hook for each in response.entries} == {"evaluate_pod", "evaluate_container"}
