"""A value that waits is seen everywhere: in `explain --all`, `audit` and `status`."""

from __future__ import annotations

import signal

import pytest

from cri_api.runtime.v1 import api_pb2 as cri_pb2
from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.cli import main
from runtimeproxy.signals import BYPASS_OFF, BYPASS_ON
from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod, batch_pod, policy_file
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

OFF = "[policies.batch-resource]\nenabled = false\n"
FIELD = "memory.limit_in_bytes"


def configure(daemon: ProxyProcess, config: str) -> None:
    (daemon.folder / "config.toml").write_text(config)
    daemon.signal(signal.SIGHUP)


def unapplied(client: CriClient) -> list[api_pb2.UnappliedValue]:
    api = api_pb2_grpc.RuntimeProxyStub(client.channel)
    status = api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
    assert len(status.ledger.unapplied) == status.ledger.unapplied_values
    assert not status.problems
    return list(status.ledger.unapplied)


def run_unlimited(client: CriClient, files: CgroupFiles) -> Pod:
    made = batch_pod(client)
    files.make(made.config.linux.cgroup_parent)
    made.run().create().start()
    return made


def test_a_memory_limit_that_waits_is_seen_everywhere(
    daemons: Daemons,
    cgroup_files: CgroupFiles,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_CONFIG", "")
    daemon = daemons.start(OFF)
    with CriClient(daemon.socket) as client:
        made = run_unlimited(client, cgroup_files)
        configure(daemon, "")
        wait_until(lambda: len(unapplied(client)) == 2, "the pod's and the container's limit")
        for each in unapplied(client):
            assert (each.field, each.cause, each.is_problem) == (FIELD, "lower-limit", False)
            assert list(each.owners) == ["batch-resource"]
            assert each.wanted.isdigit()
            assert each.HasField("since")
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        found = api.Explain(api_pb2.ExplainRequest(pod=made.config.metadata.uid), timeout=CALL_TIMEOUT_S)
        levels = {
            target.level
            for target in found.targets
            for field in target.fields
            if field.name == FIELD and "lower_memory_limits" in field.problem and field.unapplied
        }
        assert levels == {api_pb2.LEVEL_POD, api_pb2.LEVEL_CONTAINER}

        def shown(*words: str) -> str:
            assert main((*words, "--endpoint", str(daemon.socket))) == 0
            return capsys.readouterr().out

        for words in (("explain", made.config.metadata.uid, "--all"), ("explain", made.config.metadata.uid)):
            assert "lower_memory_limits is false" in shown(*words)
        wait_until(
            lambda: "lower-limit" in shown("audit", "--kind", "not-applied"),
            "its entry in the audit",
        )
        status = shown("status")
        assert "NOT APPLIED" in status
        assert "lower_memory_limits" in status
        assert "no problems" in status
        configure(daemon, OFF)
        wait_until(lambda: not unapplied(client), "nothing that waits")


def test_what_the_runtime_does_not_name_the_cgroup_of_is_seen(
    daemons: Daemons,
    runtime: FakeRuntime,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_CONFIG", "")
    with CriClient(runtime.socket_path) as client:
        made = batch_pod(client).run().create().start()
        request = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=made.id)
        runtime.on("PodSandboxStatus", response=client.runtime.PodSandboxStatus(request))
    daemon = daemons.start()
    with CriClient(daemon.socket) as client:

        def lines() -> list[api_pb2.UnappliedValue]:
            api = api_pb2_grpc.RuntimeProxyStub(client.channel)
            status = api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
            return [each for each in status.ledger.unapplied if each.cause == "cgroup-unknown"]

        wait_until(lambda: any(each.field == FIELD for each in lines()), "its memory limit")
        assert all(each.is_problem and list(each.owners) == ["batch-resource"] for each in lines())
    assert main(("explain", made.config.metadata.uid, "--endpoint", str(daemon.socket))) == 0
    assert "the runtime's status of it lacks the cgroup" in capsys.readouterr().out


def test_a_pod_of_which_the_runtime_tells_nothing_is_a_problem(
    daemons: Daemons, runtime: FakeRuntime
) -> None:
    with CriClient(runtime.socket_path) as client:
        for name in ("one", "two"):
            batch_pod(client, name).run().create().start()
    runtime.on("PodSandboxStatus", error=CallError("UNKNOWN", "metadata are\nbroken"), times=1)
    daemon = daemons.start()
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)

        def status() -> api_pb2.GetStatusResponse:
            found: api_pb2.GetStatusResponse = api.GetStatus(
                api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S
            )
            return found

        wait_until(lambda: status().records.is_recovered, "the records")
        (problem,) = status().problems
        assert "the runtime does not tell its details: PodSandboxStatus: " in problem
        assert problem.startswith(("default/one: ", "default/two: "))
        assert problem.endswith("metadata are broken.")
        # After a bypass all is compared.
        daemon.signal(BYPASS_ON)
        wait_until(lambda: status().bypass.is_on, "the bypass")
        daemon.signal(BYPASS_OFF)
        wait_until(lambda: not status().problems, "the details")


@pytest.mark.slow
def test_after_a_restart_values_have_the_names_of_pods(daemons: Daemons, cgroup_files: CgroupFiles) -> None:
    daemon = daemons.prepare()
    policy_file(daemon, "sets")
    daemon.start()
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        cgroup_files.make(made.config.linux.cgroup_parent)
        made.run().create().start()
    for _ in range(2):
        with CriClient(daemon.socket) as client:
            wait_until(lambda: unapplied(client), "the shares that another policy sets")
            assert [(each.target, each.cause) for each in unapplied(client)] == [
                ("default/batch/main", "conflict")
            ]
        daemon.restart()
