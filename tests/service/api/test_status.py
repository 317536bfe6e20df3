"""GetStatus: what a healthy daemon says, and each kind of trouble."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy import api_names
from runtimeproxy.config.settings import NriSettings
from runtimeproxy.frontends.nri.state import (
    MOST_CONFLICTS,
    NriState,
    OtherPlugin,
    PluginConflict,
    UncarriedField,
)
from runtimeproxy.service.api import status as status_module
from runtimeproxy.service.api.nri import notes_of_nri, nri_status, problems_of_nri
from runtimeproxy.service.api.status import problems_of, read_memory
from runtimeproxy.testing import FakeRuntime
from runtimeproxy.vocabulary import PluginReport
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod, pod, release
from tests.daemon.installed import WAIT_FOR
from tests.daemon.test_reload import reload
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.conftest import status_of
from tests.service.api.test_admin import socket_of

Policy = api_pb2.PolicyStatus
RAISING = """
from runtimeproxy.hooks.policy import Policy

class Raising(Policy):
    name = "raising"

    def container(self, container, node):
        raise ValueError("no luck")
"""


def call(client: CriClient, method: str, data: bytes) -> bytes:
    """One call with a message of any bytes."""
    send: Any = client.channel.unary_unary(method)
    response: bytes = send(data, timeout=30, wait_for_ready=True)
    return response


def test_a_healthy_daemon(api: Any, module_daemon: ProxyProcess, module_runtime: FakeRuntime) -> None:
    wait_until(lambda: status_of(api).records.is_recovered, "recovered")
    status = status_of(api)
    assert list(status.problems) == []
    assert status.daemon.pid == module_daemon.pid
    assert status.daemon.state == api_pb2.Daemon.STATE_SERVING
    assert status.daemon.endpoint == str(module_daemon.socket)
    assert status.daemon.config_path == str(module_daemon.folder / "config.toml")
    assert status.daemon.memory_bytes > 1_000_000
    assert not status.bypass.is_on
    assert not status.breaker.is_open
    assert (status.runtime.name, status.runtime.answers) == ("fake-runtime", True)
    assert status.runtime.endpoint == str(module_runtime.socket_path)
    cpuset = next(each for each in status.policies if each.name == "cpuset")
    assert (cpuset.state, cpuset.mode, cpuset.priority) == (Policy.STATE_LOADED, api_pb2.MODE_ENFORCE, 40)
    assert cpuset.origin == "policies.cpuset:Cpuset"
    assert not status.ledger.is_enabled
    inputs = {each.name: each for each in status.node.inputs}
    assert "cpuset" in inputs["pools"].policies
    assert not status.HasField("last_reload")


def test_a_client_with_fields_that_the_daemon_does_not_know(shared_client: CriClient) -> None:
    unknown = b"\xfa\x3f\x03new"  # field 1023
    answer = call(shared_client, "/runtimeproxy.v1.RuntimeProxy/GetStatus", unknown)
    assert api_pb2.GetStatusResponse.FromString(answer).daemon.version


def test_a_client_older_than_the_daemon(api: Any) -> None:
    newer = status_of(api).SerializeToString() + b"\xfa\x3f\x03new"
    assert api_pb2.GetStatusResponse.FromString(newer).daemon.version


@pytest.mark.parametrize(
    ("method", "data", "code"),
    [
        ("/runtimeproxy.v1.RuntimeProxy/GetStatus", b"\x0a\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ("/runtimeproxy.v1.RuntimeProxy/OfTomorrow", b"", grpc.StatusCode.UNIMPLEMENTED),
        ("/runtimeproxy.v1.Admin/SetBypass", b"", grpc.StatusCode.UNIMPLEMENTED),
    ],
)
def test_calls_that_cannot_be_answered(
    shared_client: CriClient, method: str, data: bytes, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(shared_client, method, data)
    assert caught.value.code() is code


def test_a_runtime_that_is_away(api: Any, shared_runtime: FakeRuntime) -> None:
    assert status_of(api).runtime.answers
    shared_runtime.kill()
    try:
        status = status_of(api)
        assert not status.runtime.answers
        assert status.runtime.HasField("away_since")
        assert f"The runtime does not answer on {shared_runtime.socket_path}." in status.problems
    finally:
        shared_runtime.start()
    wait_until(lambda: status_of(api).runtime.answers, "the runtime answers again")
    assert not status_of(api).runtime.HasField("away_since")


def test_the_bypass_and_what_began_it(own_api: Any, daemon: ProxyProcess) -> None:
    daemon.signal(signal.SIGUSR1)
    wait_until(lambda: status_of(own_api).bypass.is_on, "bypass")
    status = status_of(own_api)
    assert status.bypass.cause == api_pb2.Bypass.CAUSE_SIGNAL
    assert status.bypass.HasField("since")
    assert "The bypass is on (signal): policies do not run." in status.problems
    daemon.signal(signal.SIGUSR2)
    wait_until(lambda: not status_of(own_api).bypass.is_on, "no bypass")
    reload(daemon, "[hooks]\nenabled = false\n")
    status = status_of(own_api)
    assert status.bypass.cause == api_pb2.Bypass.CAUSE_CONFIGURATION
    assert status.HasField("last_reload")
    assert not status.last_reload.has_failed


def test_a_reload_that_fails_and_keys_that_need_a_restart(own_api: Any, daemon: ProxyProcess) -> None:
    (daemon.folder / "config.toml").write_text("[proxy]\ndrain_s = 'soon'\n")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: status_of(own_api).last_reload.has_failed, "the reload failed")
    status = status_of(own_api)
    assert "proxy.drain_s" in status.last_reload.error
    assert any(each.startswith("The last reload failed") for each in status.problems)
    reload(daemon, "[hooks]\nworker_threads = 2\n")
    wait_until(lambda: not status_of(own_api).last_reload.has_failed, "the reload")
    assert list(status_of(own_api).last_reload.need_restart) == ["hooks.worker_threads"]


def test_policies_that_fail_and_cannot_be_loaded(daemons: Daemons) -> None:
    prepared = daemons.prepare()
    prepared.policies_folder.mkdir(exist_ok=True)
    (prepared.policies_folder / "raising.py").write_text(RAISING)
    (prepared.policies_folder / "broken.py").write_text("import nothing_like_it\n")
    prepared.start()
    with CriClient(prepared.socket) as client:
        api: Any = api_pb2_grpc.RuntimeProxyStub(client.channel)
        batch_pod(client, "one").run().create()
        wait_until(lambda: "raising" in str(status_of(api).problems), "the failure")
        status = status_of(api)
    policies = {each.name: each for each in status.policies}
    raising = policies["raising"]
    assert (raising.state, raising.failures.raised) == (Policy.STATE_LOADED, 1)
    assert raising.last_failure.pod == "default/one"
    assert raising.last_failure.hook == "pre_create_container"
    assert raising.last_failure.reason.startswith("ValueError")
    broken = next(each for each in status.policies if each.state == Policy.STATE_FAILED)
    assert "nothing_like_it" in broken.reason
    assert any("is not loaded" in each for each in status.problems)


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"daemon": {"internalErrors": "2"}}, "There were 2 errors in the proxy's own code"),
    ({"daemon": {"lostLogLines": "3"}}, "3 log lines were lost."),
    ({"daemon": {"adminProblem": "denied"}}, "The admin socket does not serve: denied."),
    ({"records": {"checkpointProblem": "disk full"}}, "The records are not saved: disk full."),
    ({"auditFile": {"problem": "/a: disk full", "lost": 2}}, "2 lines of its file are lost: /a: disk full."),
    ({"tracing": {"problem": "no answer", "lost": "3"}}, "3 spans are lost: no answer."),
    ({"node": {"pollingReason": "no inotify"}}, "which are polled: no inotify."),
    ({"ledger": {"occupiedPods": 2}}, "2 pods own CPUs that others have not left."),
    ({"ledger": {"sysctlProblems": ["sysctls are left"]}}, "Sysctls are left."),
    ({"records": {"checkpointSetAside": "/x.bad"}}, "is set aside as /x.bad."),
    ({"records": {"checkpointLost": "2"}}, "was removed or replaced, times: 2; it is made anew."),
    ({"records": {"isRecovered": False}}, "have not been compared with the runtime"),
    (
        {"clients": {"ownCallsWithoutRoom": "7", "ownCallsWithoutRoomAt": "2026-01-01T00:00:00Z"}},
        "own services have too little memory, as clients do not end requests or do not read responses: 7",
    ),
    (
        {"records": {"keptBytes": "33", "maxBytes": "64"}},
        "Labels and annotations of pods take 33 of at most 64 bytes; 0 records lack",
    ),
    ({"records": {"keptBytes": "9", "maxBytes": "64", "trimmed": 2}}, "2 records lack some of theirs."),
    ({"upgrade": {"error": "no"}}, "The last upgrade failed: no."),
    ({"hookServers": [{"name": "a", "isBreakerOpen": True, "lastError": "late"}]}, "answers again: late."),
    ({"hookServers": [{"name": "a", "isUnused": True}]}, "beyond the limit"),
    ({"registrationProblems": ["x: bad"]}, "Hook server registration: x: bad."),
    ({"node": {"problems": ["slo.yaml: bad"]}}, "Node: slo.yaml: bad."),
    ({"node": {"hangsSince": "2026-01-01T00:00:00Z"}}, "inputs hangs"),
    (
        {"policies": [{"name": "p", "lastLeftOut": {"pod": "a/b", "field": "f", "reason": "is 3"}}]},
        "A field of policy p cannot be used, for f of a/b: is 3.",
    ),
    ({"policies": [{"name": "p", "hangingThreads": 1}]}, "`koord-runtime-proxy upgrade` ends its thread."),
    (
        {"policies": [{"name": "p", "hangingThreads": 2, "replacedThreads": 2}]},
        "2 threads hang in policy p as it was before a reload",
    ),
    ({"records": {"misspelledNames": ["a/b: c is not known"]}}, "Pod a/b: c is not known."),
    (
        {"records": {"refused": [{"pod": "a/b/c", "reason": "broken"}], "refusedRecords": 1}},
        "a/b/c: the runtime does not tell its details: broken.",
    ),
    ({"records": {"refusedRecords": 4}}, "does not tell the details of 4 more pods and containers."),
    ({"policies": [{"name": "p", "isKept": True, "reason": "r"}]}, "as it was loaded before: r."),
    ({"ledger": {"yielded": [{"field": "f", "cgroup": "/c", "ours": "1", "theirs": "2"}]}}, "writing 2"),
    ({"ledger": {"failedWrites": [{"field": "f", "cgroup": "/c", "error": "busy"}]}}, "/c: busy."),
    ({"ledger": {"left": [{"reason": "unknown"}]}}, "1 values are left as they are: unknown."),
    ({"ledger": {"journalProblem": "the journal cannot"}}, "The journal cannot."),
    ({"ledger": {"changeProblem": "a change ended"}}, "A change ended."),
    ({"ledger": {"allocationProblem": "allocations cannot"}}, "Allocations cannot."),
    ({"ledger": {"hangingFiles": 1}}, "1 reads or writes of files hang."),
    (
        {"claimOwners": [{"name": "o", "refused": 2, "refusal": "it may not claim f"}]},
        "2 claims of o were refused, the last one as it may not claim f.",
    ),
    (
        {
            "ledger": {
                "unapplied": [
                    {"field": "sysctl[vm.x]", "wanted": "1", "cause": "foreign", "reason": "others write 7"}
                ]
            }
        },
        "sysctl[vm.x] is not 1: others write 7.",
    ),
    (
        {
            "ledger": {
                "unapplied": [
                    {
                        "field": "cpuset.cpus",
                        "target": "a/b",
                        "cause": "invalid",
                        "reason": "no CPU 9",
                    }
                ]
            }
        },
        "1 values of what runs cannot be used, such as cpuset.cpus of a/b: no CPU 9.",
    ),
    ({"qosManager": {"state": "STATE_MISSING", "note": "Start it."}}, "Start it."),
    (
        {"nri": {"socket": "/n.sock", "problem": "it is refused"}},
        "The runtime does not ask the daemon (/n.sock): it is refused; containers start with the kubelet's",
    ),
    ({"nri": {"socket": "/n.sock"}}, "the runtime has not answered yet"),
    (
        {
            "qosManager": {
                "state": "STATE_RUNNING",
                "report": {
                    "plugins": [
                        {"name": "p", "mode": "MODE_ENFORCE", "isWanted": True, "problem": "it hangs"},
                        {"name": "q", "mode": "MODE_OFF", "isWanted": True, "problem": "it hangs"},
                    ]
                },
            }
        },
        "koord-qos-manager: p does nothing: it hangs.",
    ),
    (
        {
            "daemon": {"mode": "nri"},
            "koordlets": [{"pid": 9, "isNriPlugin": True, "policies": ["cpu-burst", "cpuset"]}],
        },
        "Koordlet (process 9) is an NRI plugin, too, with the hooks of cpuset: the runtime fails",
    ),
    ({"lastReload": {"changedCode": ["x is new"]}}, "x is new; an upgrade takes it into use."),
]
HEALTHY: dict[str, Any] = {"runtime": {"answers": True}, "records": {"isRecovered": True}}


@pytest.mark.parametrize(("trouble", "sentence"), PROBLEMS)
def test_the_sentence_of_each_problem(trouble: dict[str, Any], sentence: str) -> None:
    status = json_format.ParseDict(
        {
            **HEALTHY,
            **{
                key: {**HEALTHY.get(key, {}), **each} if isinstance(each, dict) else each
                for key, each in trouble.items()
            },
        },
        api_pb2.GetStatusResponse(),
    )
    (found,) = problems_of(status)
    assert sentence in found


def test_what_is_as_configured_is_no_problem() -> None:
    waits = {"field": "memory.limit_in_bytes", "cause": "lower-limit", "reason": "why"}
    left = {"state": "STATE_LEFT", "note": "koordlet does it"}
    status = {**HEALTHY, "ledger": {"unapplied": [waits]}, "qosManager": left}
    assert not list(problems_of(json_format.ParseDict(status, api_pb2.GetStatusResponse())))


@pytest.mark.parametrize(
    ("mode", "koordlet"),
    [
        ("proxy", {"isNriPlugin": True, "policies": ["cpuset"]}),
        ("nri", {"isNriPlugin": True, "policies": ["cpu-burst"]}),
        ("nri", {"policies": ["cpuset"]}),
    ],
)
def test_a_koordlet_that_costs_no_container_is_no_problem(mode: str, koordlet: dict[str, Any]) -> None:
    status = {**HEALTHY, "daemon": {"mode": mode}, "koordlets": [koordlet]}
    assert not list(problems_of(json_format.ParseDict(status, api_pb2.GetStatusResponse())))


def test_a_runtime_that_asks_is_no_problem_and_what_it_drops_is_a_note() -> None:
    state = NriState(
        is_connected=True, connected_since_s=1.5, runtime_name="containerd", runtime_version="1.7"
    )
    state.not_carried.update((UncarriedField("b", "containerd 1.7"), UncarriedField("a", "containerd 1.7")))
    state.other_plugins.update((OtherPlugin("10", "balloons"), OtherPlugin("", "logger")))
    state.late_replies.update(("CreateContainer", "CreateContainer", "UpdateContainer"))
    for number in range(MOST_CONFLICTS + 5):
        state.add_conflict(str(number), PluginConflict(f"c{number}", "env[A]", "10-balloons"))
    found = nri_status(state, NriSettings(plugin_index="07"))
    assert not list(problems_of_nri(found))
    assert list(notes_of_nri(found)) == [
        "containerd 1.7 does not carry a, b: what has a file goes there.",
        "The plugin 10-balloons has env[A] of c24, and 24 times before.",
        "3 replies to the runtime had no decision in time: their values went by file.",
    ]
    assert (len(found.conflicts), found.conflicts[0].container) == (MOST_CONFLICTS, "c24")
    assert [each.name for each in found.other_plugins] == ["logger", "balloons"]
    assert (found.plugin_index, found.connected_since.nanos) == ("07", 500_000_000)
    assert not list(notes_of_nri(nri_status(NriState(), NriSettings())))


def test_a_second_plugin_of_the_same_name_is_a_problem() -> None:
    state = NriState(is_connected=True, own_name="20-launched")
    state.other_plugins.add(OtherPlugin("50", "koord-runtime-proxy"))
    assert not list(problems_of_nri(nri_status(state, NriSettings())))
    state.other_plugins.add(OtherPlugin("20", "launched"))
    (problem,) = problems_of_nri(nri_status(state, NriSettings()))
    assert "a second plugin 20-launched" in problem


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (NriState(), "NRI plugin, not connected: no answer yet"),
        (NriState(problem="/n.sock: no such socket"), "NRI plugin, not connected: /n.sock: no such socket"),
        (NriState(is_connected=True), "NRI plugin of the runtime"),
        (
            NriState(is_connected=True, runtime_name="cri-o", runtime_version="1.34"),
            "NRI plugin of cri-o 1.34",
        ),
    ],
)
def test_the_line_for_systemctl_status(state: NriState, text: str) -> None:
    assert state.summary == text


def test_no_problem() -> None:
    assert not list(problems_of(json_format.ParseDict(HEALTHY, api_pb2.GetStatusResponse())))


def declared(message: Descriptor, seen: set[str]) -> Iterator[tuple[str, str]]:
    """The fields of a message and of all below it, by the names of the messages."""
    is_own = message.file.package == "runtimeproxy.v1" and not message.GetOptions().map_entry
    if message.name in seen or not is_own:
        return
    seen.add(message.name)
    for field in message.fields:
        yield message.name, field.name
        if field.message_type is not None:
            yield from declared(field.message_type, seen)


def filled() -> Iterator[tuple[str, str]]:
    """The fields that the API's code sets: keywords of messages, and what it sets in a status."""
    for path in (*Path(status_module.__file__).parent.glob("*.py"), Path(api_names.__file__)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("status."):
                yield "GetStatusResponse", ast.unparse(node.targets[0]).removeprefix("status.")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield from ((node.func.attr, each.arg) for each in node.keywords if each.arg)
                # Such as status.problems.extend(...)
                is_inside = node.func.attr in ("CopyFrom", "extend")
                if is_inside and isinstance(node.func.value, ast.Attribute):
                    yield "GetStatusResponse", node.func.value.attr
    # `api_names.plugin_status` copies them by name.
    yield from (("QosPluginStatus", each) for each in PluginReport._fields)


def test_every_declared_field_is_filled() -> None:
    status = set(declared(api_pb2.GetStatusResponse.DESCRIPTOR, set()))
    assert len(status) > 150
    # The servicer knows the watchers.
    assert sorted(status - set(filled())) == [("Clients", "watchers")]


def test_what_goes_on_now(own_api: Any, daemon: ProxyProcess, fifo: Path) -> None:
    wait_until(socket_of(daemon).exists, "the admin socket")
    admin_channel = grpc.insecure_channel(f"unix:{socket_of(daemon)}")
    with CriClient(daemon.socket) as client, admin_channel:
        batch_pod(client).run().create()
        watching = own_api.WatchAudit(api_pb2.WatchAuditRequest(follow=True), timeout=60)
        assert next(watching).entries
        admin: Any = api_pb2_grpc.AdminStub(admin_channel)
        recorded = admin.Record(api_pb2.RecordRequest(), timeout=60, wait_for_ready=True)
        assert next(recorded).lines
        held = pod(client, "held", {WAIT_FOR: str(fifo)}).run()
        creating = client.runtime.CreateContainer.future(held.create_request, timeout=60)
        wait_until(lambda: status_of(own_api).clients.intercepted_streams == 1, "the held call")
        status = status_of(own_api)
        release(fifo)
        creating.result(60)
        wait_until(lambda: status_of(own_api).clients.intercepted_streams == 0, "its end")
        recorded.cancel()
        wait_until(lambda: not status_of(own_api).HasField("recording"), "the end of the recording")
        watching.cancel()
        wait_until(lambda: status_of(own_api).clients.watchers == 0, "the end of the watch")
    # The held call, the watch, and the call for the status.
    assert (status.clients.streams, status.clients.watchers) == (3, 1)
    assert (status.calls.changed, status.recording.calls) == (1, 1)
    assert status.recording.HasField("started_at")


def test_memory() -> None:
    assert read_memory() > 1_000_000


def test_nothing_of_it_is_loaded_before_the_first_call() -> None:
    script = (
        "import runtimeproxy.service.daemon, runtimeproxy.service.parts, sys; print(*sys.modules);"
        "import runtimeproxy.service.local_services; print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = (set(line.split()) for line in run.stdout.splitlines())
    assert "grpc" not in before
    assert "cri_api.runtimeproxy.v1.api_pb2" not in after
    assert "runtimeproxy.service.api.servicer" not in after
