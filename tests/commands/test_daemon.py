"""The commands and a real daemon in front of the fake runtime; one daemon for all tests."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy import __version__
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, PodCgroups, RuntimeState
from tests.commands.conftest import Done, Run
from tests.daemon.driving import BATCH_SHARES, batch_pod, shares_of
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.service.conftest import module_folder

__all__ = ["module_folder"]

UNTOUCHED = 2


@pytest.fixture(scope="module")
def runtime(module_folder: Path) -> Iterator[FakeRuntime]:
    files = CgroupFiles(module_folder / "cgroup", version=2)
    state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, files))
    with FakeRuntime(module_folder / "runtime.sock", state=state) as running:
        yield running


@pytest.fixture(scope="module")
def daemon(module_folder: Path, runtime: FakeRuntime) -> Iterator[ProxyProcess]:
    """With one BE pod, whose CPU shares and quota a policy has set."""
    config = f"[cgroups]\nroot = '{module_folder}/cgroup'\n[node]\nsysfs_root = '{module_folder}/none'\n"
    options = ProxyOptions(str(runtime.socket_path), config=config, is_forked=True)
    with ProxyProcess(module_folder, options) as running, CriClient(running.socket) as client:
        pod = batch_pod(client, "spark").run()
        pod.create()
        yield running


@pytest.fixture
def ask(run: Run, daemon: ProxyProcess) -> Run:
    """Runs a command for the daemon."""

    def ask_daemon(*words: str) -> Done:
        return run(*words, "--koord-runtimeproxy-endpoint", str(daemon.socket))

    return ask_daemon


def status(ask: Run) -> dict[str, Any]:
    done = ask("status", "--output", "json")
    assert done.code in (0, 1), done.err
    found = json.loads(done.out)
    assert (done.code == 1) is bool(found["problems"])
    assert isinstance(found, dict)
    return found


def test_status(ask: Run, daemon: ProxyProcess) -> None:
    wait_until(lambda: status(ask)["records"]["isRecovered"], "the runtime's lists")
    found = status(ask)
    assert found["daemon"]["pid"] == daemon.pid
    assert found["records"]["pods"] == 1
    lines = ask("status").out.splitlines()
    assert lines[0].startswith(
        f"daemon    serving: version {__version__}, process {daemon.pid}, mode proxy, started "
    )
    assert "bypass    off" in lines
    assert "records   1 pod, 1 container" in lines
    assert any(line.startswith("batch-resource  ") for line in lines)
    (policy,) = [each for each in found["policies"] if each["name"] == "batch-resource"]
    assert int(policy["runs"]) >= 2


def test_pods_and_why_their_values_are_what_they_are(ask: Run) -> None:
    (header, row) = ask("pods").out.splitlines()
    assert header.split()[0] == "NAMESPACE"
    assert row.split()[:3] == ["default", "spark", "BE"]
    assert row.split()[-1] == "batch-resource"
    assert ask("pods", "--policy", "batch-resource").out.splitlines() == [header, row]
    assert ask("pods", "--policy", "cpuset") == (0, "no pods\n", "")
    uid = json.loads(ask("pods", "--output", "json").out)["pods"][0]["uid"]
    for name in ("spark", "default/spark", uid, uid[:8], "default/spark/main", "spark/main"):
        done = ask("explain", name)
        assert (done.code, done.err) == (0, "")
        assert "  cpu.shares  " in done.out
    found = json.loads(ask("explain", "spark/main", "--output", "json").out)
    (target,) = [each for each in found["targets"] if each["level"] == "LEVEL_CONTAINER"]
    (shares,) = [each for each in target["fields"] if each["name"] == "cpu.shares"]
    assert (shares["requested"], shares["resolved"], shares["applied"]) == ("2", "512", "512")
    assert shares["claims"][0]["owner"] == "batch-resource"
    assert f"    batch-resource  512: {shares['claims'][0]['reason']}" in ask("explain", "spark/main").out


def test_a_pod_that_is_not_there(ask: Run) -> None:
    for name in ("nothing", "default/nothing", "default/spark/nothing"):
        done = ask("explain", name)
        assert done.code == 4
        assert "nothing" in done.err


def test_the_audit(ask: Run) -> None:
    entries = [json.loads(line) for line in ask("audit", "--output", "json").out.splitlines()]
    shares = [each for each in entries if each["field"] == "resources.cpu_shares"]
    assert [(each["policy"], each["before"], each["after"]) for each in shares] == [
        ("batch-resource", "2", "512")
    ]
    assert "batch-resource  resources.cpu_shares 2 -> 512: " in ask("audit", "--pod", "default/spark").out
    assert ask("audit", "--policy", "cpuset").out == "no such entries\n"


def test_the_bypass_is_seen(ask: Run, daemon: ProxyProcess) -> None:
    assert ask("bypass", "on").out == f"process {daemon.pid}: bypass is on\n"
    try:
        wait_until(lambda: status(ask)["bypass"]["isOn"], "the bypass to be on")
        shown = ask("status")
        assert shown.code == 1
        assert "bypass    on by signal since " in shown.out
    finally:
        ask("bypass", "off")
    wait_until(lambda: not status(ask)["bypass"]["isOn"], "the bypass to be off")


def test_the_bypass_with_a_reason(ask: Run) -> None:
    try:
        done = ask("bypass", "on", "--reason", "ticket 7")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("bypass is on by command since ")
        assert "ticket 7" in ask("status").out
    finally:
        assert ask("bypass", "off", "--reason", "done").out == "bypass is off\n"


def test_the_doctor_asks_the_daemon(ask: Run) -> None:
    found = json.loads(ask("doctor", "--output", "json").out)
    (answer,) = [each for each in found if each["check"] == "daemon" and each["level"] == "ok"]
    assert answer["text"].startswith(f"version {__version__} serves on ")


def test_what_is_audited_is_followed_until_the_end(daemon: ProxyProcess) -> None:
    words = ("audit", "--follow", "--pod", "default/followed", "--endpoint", str(daemon.socket))
    command = [sys.executable, "-m", "runtimeproxy", *words]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following,
        CriClient(daemon.socket) as client,
    ):
        batch_pod(client, "followed").run().create()
        assert following.stdout is not None
        assert following.stderr is not None
        assert "default/followed" in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        assert (following.wait(30), following.stderr.read()) == (130, "")


def test_the_daemon_does_not_load_what_only_commands_need() -> None:
    code = (
        "import sys\nfrom runtimeproxy.cli import main\nmain(['version'])\n"
        "from runtimeproxy.service import daemon, local_services, parts\n"
        "print({'rich', 'shtab', 'runtimeproxy.doctor', 'runtimeproxy.commands.client'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_terminal_has_colours_and_a_pipe_has_none(daemon: ProxyProcess) -> None:
    command = [sys.executable, "-m", "runtimeproxy", "status", "--endpoint", str(daemon.socket)]
    environ = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environ |= {"TERM": "xterm-256color", "COLUMNS": "60"}
    piped = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert "\x1b" not in piped.stdout
    ours, theirs = pty.openpty()
    try:
        subprocess.run(command, stdout=theirs, check=False, env=environ)
        shown = os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "\x1b[32mserving\x1b[0m" in shown


def test_a_command_for_an_instance_that_is_stopped_gives_up(daemon: ProxyProcess, ask: Run) -> None:
    daemon.signal(signal.SIGSTOP)
    try:
        done = ask("status", "--timeout", "100ms")
    finally:
        daemon.signal(signal.SIGCONT)
    assert done.code == 3
    assert "the daemon did not answer in time" in done.err


def policy_status(ask: Run) -> dict[str, Any]:
    (found,) = [each for each in status(ask)["policies"] if each["name"] == "batch-resource"]
    assert isinstance(found, dict)
    return found


def test_the_mode_of_a_policy(ask: Run, daemon: ProxyProcess) -> None:
    try:
        done = ask("policy", "batch-resource", "dry-run", "--for", "10m", "--reason", "ticket 7")
        assert (done.code, done.err) == (0, "")
        assert "batch-resource  loaded  dry-run by command until " in done.out
        assert policy_status(ask)["mode"] == "MODE_DRY_RUN"
        shown = ask("status").out
        assert "dry-run by command until " in shown
        assert "dry-run: ticket 7" in shown
        with CriClient(daemon.socket) as client:
            assert shares_of(batch_pod(client, "tried").run().create()) == UNTOUCHED
        kinds = {line.split()[1] for line in ask("audit", "--pod", "default/tried").out.splitlines()}
        assert kinds == {"would-change"}
    finally:
        done = ask("policy", "batch-resource", "reset")
    assert "batch-resource  loaded  enforce  20 " in done.out
    assert policy_status(ask)["modeSource"] != "MODE_SOURCE_COMMAND"


def test_the_mode_for_some_pods(ask: Run, daemon: ProxyProcess) -> None:
    try:
        done = ask("policy", "batch-resource", "off", "--selector", "app in (web),!old", "--namespace", "a")
        assert "off for namespace a and app in (web),!old" in done.out
        with CriClient(daemon.socket) as client:
            assert shares_of(batch_pod(client, "other").run().create()) == BATCH_SHARES
    finally:
        ask("policy", "batch-resource", "reset")
    assert policy_status(ask)["overrides"] == []


def test_bad_input_for_a_policy(ask: Run) -> None:
    done = ask("policy", "batch-resorce", "off")
    assert done.code == 4
    assert "batch-resorce" in done.err
    assert ask("policy", "batch-resource", "off", "--for", "40d").code == 2
