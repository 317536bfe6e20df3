"""The commands that change what the daemon does."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from tests.commands.conftest import Run, Served

CPUSET = api_pb2.PolicyStatus(
    name="cpuset",
    state=api_pb2.PolicyStatus.STATE_LOADED,
    mode=api_pb2.MODE_DRY_RUN,
    mode_source=api_pb2.MODE_SOURCE_COMMAND,
)


def request(run: Run, served: Served, *words: str) -> api_pb2.SetPolicyModeRequest:
    served.api.answers["SetPolicyMode"] = api_pb2.SetPolicyModeResponse(policy=CPUSET)
    done = run("policy", "cpuset", *words, *served.admin_flags)
    assert (done.code, done.err) == (0, "")
    assert "cpuset  loaded  dry-run by command" in done.out
    found = served.api.requests[-1]
    assert isinstance(found, api_pb2.SetPolicyModeRequest)
    return found


def test_the_mode_of_a_policy(run: Run, served: Served) -> None:
    sent = request(run, served, "dry-run", "--for", "10m", "--reason", "ticket 7")
    assert sent.mode == api_pb2.MODE_DRY_RUN
    assert not sent.HasField("selector")
    assert (sent.duration.seconds, sent.reason) == (600, "ticket 7")
    for word, mode in (("enforce", api_pb2.MODE_ENFORCE), ("off", api_pb2.MODE_OFF), ("reset", 0)):
        sent = request(run, served, word)
        assert (sent.mode, sent.HasField("duration")) == (mode, False)


def test_the_mode_for_some_pods(run: Run, served: Served) -> None:
    words = ("--namespace", "a", "--namespace", "b", "--selector", "app=web,tier notin (x)")
    sent = request(run, served, "off", *words)
    assert list(sent.selector.namespaces) == ["a", "b"]
    assert dict(sent.selector.match_labels) == {"app": "web"}
    (expression,) = sent.selector.match_expressions
    assert (expression.key, expression.operator, list(expression.values)) == ("tier", "NotIn", ["x"])


@pytest.mark.parametrize(
    "words",
    [
        ("dryrun",),
        ("off", "--for", "10"),
        ("off", "--selector", "a b"),
        ("off", "--namespace", "A"),
        ("reset", "--for", "10m"),
    ],
)
def test_bad_input(run: Run, served: Served, words: tuple[str, ...]) -> None:
    done = run("policy", "cpuset", *words, *served.admin_flags)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert served.api.requests == []


def test_a_policy_that_is_not_there(run: Run, served: Served) -> None:
    served.api.answers["SetPolicyMode"] = grpc.StatusCode.NOT_FOUND, "no policy is named cpust"
    done = run("policy", "cpust", "off", *served.admin_flags)
    assert (done.code, done.err) == (4, "koord-runtime-proxy: no policy is named cpust\n")


def test_the_bypass_with_a_reason(run: Run, served: Served) -> None:
    bypass = api_pb2.Bypass(is_on=True, cause=api_pb2.Bypass.CAUSE_COMMAND, reason="ticket 7")
    served.api.answers["SetBypass"] = api_pb2.SetBypassResponse(bypass=bypass)
    done = run("bypass", "on", "--reason", "ticket 7", *served.admin_flags)
    assert done.code == 0
    assert done.out == "bypass is on by command: ticket 7; all calls pass without policies\n"
    assert served.api.requests == [api_pb2.SetBypassRequest(is_on=True, reason="ticket 7")]


def test_the_bypass_when_the_api_does_not_answer(run: Run, socket_folder: Path) -> None:
    endpoint = socket_folder / "proxy.sock"
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    lock = os.open(f"{endpoint}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, f"{os.getpid()}\n".encode())
        words = ("--endpoint", str(endpoint), "--admin-socket", str(socket_folder / "none.sock"))
        done = run("bypass", "on", "--reason", "x", *words)
    finally:
        os.close(lock)
        signal.signal(signal.SIGUSR1, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    assert done.out == f"process {os.getpid()}: bypass is on\n"
    assert "a signal is sent, without the reason" in done.err
    assert done.code == 0


def test_the_admin_socket_is_that_of_the_configuration(
    run: Run, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.api.answers["SetPolicyMode"] = api_pb2.SetPolicyModeResponse(policy=CPUSET)
    # Below the folder of the endpoint.
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_API_ADMIN_SOCKET", served.path.name)
    endpoint = str(served.path.with_name("proxy.sock"))
    assert run("policy", "cpuset", "off", "--endpoint", endpoint).code == 0
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_API_ADMIN_SOCKET", "")
    done = run("policy", "cpuset", "off", "--endpoint", endpoint)
    assert done.code == 3
    assert "api.admin_socket is empty: the daemon takes no commands" in done.err
