"""The audit of a daemon over restarts, crashes and upgrades, and while no daemon runs."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.signals import BYPASS_OFF, BYPASS_ON
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ProxyProcess

AS_NOBODY = """
import contextlib, os, sys
from runtimeproxy.cli import main
# As root first: the other user may not be able to read all modules.
with open(os.devnull, "w") as none, contextlib.redirect_stdout(none), contextlib.redirect_stderr(none):
    main(sys.argv[1:])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


def entries(daemon: ProxyProcess, *words: str) -> list[dict[str, Any]]:
    done = daemon.run("audit", "--output", "json", *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def kinds(daemon: ProxyProcess, *words: str) -> list[str]:
    return [each["kind"] for each in entries(daemon, *words)]


def make_pod(daemon: ProxyProcess, name: str) -> None:
    with CriClient(daemon.socket) as client:
        batch_pod(client, name).run().create()


def wait_until_saved(daemon: ProxyProcess, text: str) -> None:
    wait_until_written(daemon.state_folder / "audit.json", text)


def wait_until_written(path: Path, text: str) -> None:
    wait_until(lambda: path.exists() and text in path.read_text(), f"{text} in {path.name}", 60)


def test_a_restart_keeps_the_entries_and_is_one(daemons: Daemons) -> None:
    daemon = daemons.start()
    make_pod(daemon, "before")
    daemon.restart()
    make_pod(daemon, "after")
    found = entries(daemon)
    pods = list(dict.fromkeys(each["pod"] for each in found if each["pod"]))
    assert pods == ["before", "after"]
    assert [each["kind"] for each in found if each["target"] == "daemon"] == ["start", "stop", "start"]
    start = next(each for each in found if each["kind"] == "start")
    assert (start["hook"], start["policy"]) == ("", "")
    assert start["reason"].startswith("version ")


@pytest.mark.slow
def test_without_a_daemon_the_last_entries_are_read_from_the_state_folder(daemons: Daemons) -> None:
    daemon = daemons.start()
    make_pod(daemon, "gone")
    daemon.terminate()
    done = daemon.run("audit", "--pod", "default/gone")
    assert done.returncode == 0
    assert "default/gone/main  batch-resource  resources.cpu_shares 2 -> 512" in done.stdout
    assert f"read from {daemon.state_folder}/audit.json" in done.stderr
    assert "the daemon does not answer" in done.stderr
    assert "did not end in order" not in done.stderr
    assert kinds(daemon, "--limit", "1") == ["stop"]
    assert kinds(daemon, "--since", "1h", "--until", "now", "--kind", "stop") == ["stop"]
    assert entries(daemon, "--until", "1h") == []
    # Nothing is there to follow.
    assert daemon.run("audit", "--follow").returncode == 3


@pytest.mark.slow
def test_after_a_kill_the_gap_is_named(daemons: Daemons) -> None:
    daemon = daemons.start()
    make_pod(daemon, "saved")
    wait_until_saved(daemon, '"saved"')
    make_pod(daemon, "lost")
    daemon.kill()
    done = daemon.run("audit")
    assert "default/saved" in done.stdout
    assert "it did not end in order, or hangs: entries that came after 20" in done.stderr
    daemon.start()
    (gap,) = entries(daemon, "--kind", "gap")
    # Both in whole seconds.
    assert "" < gap["before"] <= gap["after"]
    assert "was killed" in gap["reason"]
    assert kinds(daemon, "--kind", "start", "--kind", "gap") == ["start", "gap", "start"]
    # A kill at once after the start is one, too.
    wait_until_saved(daemon, "was killed")
    daemon.kill()
    daemon.start()
    assert kinds(daemon, "--kind", "gap") == ["gap", "gap"]


def test_an_upgrade_keeps_the_entries(daemons: Daemons) -> None:
    daemon = daemons.start()
    make_pod(daemon, "before")
    with Family(daemon) as family:
        old = family.serving
        new = family.upgrade()
        wait_until(lambda: "upgrade" in kinds(daemon), "the successor's entry")
        found = entries(daemon)
        assert [each["kind"] for each in found if each["target"] == "daemon"] == ["start", "upgrade"]
        reason = found[-1]["reason"]
        assert f"process {new}" in reason
        assert f"in place of process {old}" in reason
        assert "before" in {each["pod"] for each in found}


def test_a_refused_upgrade_is_an_entry(daemons: Daemons) -> None:
    daemon = daemons.start()
    with Family(daemon) as family:
        daemon.config_file.write_text("[hooks]\nno_such_key = 1\n")
        family.refused()
        wait_until(lambda: "upgrade" in kinds(daemon), "the entry")
        (upgrade,) = entries(daemon, "--kind", "upgrade")
        assert upgrade["reason"].startswith("not upgraded, ")
        assert "no_such_key" in upgrade["reason"]


def test_modes_and_bypass_are_entries(daemons: Daemons) -> None:
    daemon = daemons.start("[policies.cpuset]\nmode = 'dry-run'\n")
    daemon.signal(BYPASS_ON)
    wait_until(lambda: len(kinds(daemon, "--kind", "bypass")) == 1, "the bypass")
    daemon.signal(BYPASS_OFF)
    words = ("policy", "batch-resource", "off", "--namespace", "a", "--reason", "a test")
    assert daemon.run(*words).returncode == 0
    assert daemon.run("policy", "batch-resource", "reset").returncode == 0
    daemon.config_file.write_text("")
    daemon.forget_states()
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_state("READY=1")
    found = [
        (each["kind"], each["policy"], each["before"], each["after"], each["reason"])
        for each in entries(daemon, "--kind", "bypass", "--kind", "mode")
    ]
    assert found == [
        ("bypass", "", "off", "on", "by signal"),
        ("bypass", "", "on", "off", "by signal"),
        ("mode", "batch-resource", "enforce", "off", "by command; for pods of namespace a; a test"),
        ("mode", "batch-resource", "off", "enforce", "by command; for pods of namespace a"),
        ("mode", "cpuset", "dry-run", "enforce", "by the configuration"),
    ]
    # Who asks about a policy sees them, too.
    assert kinds(daemon, "--policy", "cpuset") == ["mode"]


@pytest.mark.slow
def test_a_mode_that_ends_while_the_daemon_is_down_is_an_entry(daemons: Daemons) -> None:
    daemon = daemons.start()
    assert daemon.run("policy", "batch-resource", "off", "--for", "1h").returncode == 0
    assert daemon.run("policy", "cpuset", "off").returncode == 0
    daemon.terminate()
    # As if the daemon had been down for an hour.
    file = daemon.state_folder / "modes.json"
    saved = json.loads(file.read_text())
    saved["overrides"][0]["until_s"] = 1_000_000_000.0
    file.write_text(json.dumps(saved))
    for _ in range(2):
        daemon.start()
        wait_until(lambda: "batch-resource" not in file.read_text(), "the end of the mode")
        (ended,) = entries(daemon, "--policy", "batch-resource", "--kind", "mode")[1:]
        assert (ended["before"], ended["after"]) == ("off", "enforce")
        assert ended["reason"] == "its time is over: it ended at 2001-09-09T01:46:40+00:00"
        # Once, and others stay.
        daemon.terminate()
        assert [each["policy"] for each in json.loads(file.read_text())["overrides"]] == ["cpuset"]


@pytest.mark.slow
def test_modes_that_a_restart_or_an_upgrade_brings_are_entries(daemons: Daemons) -> None:
    daemon = daemons.start("[policies.cpuset]\nmode = 'dry-run'\n")
    assert kinds(daemon, "--kind", "mode") == []
    daemon.terminate()
    daemon.config_file.write_text("[policies.cpu-burst]\nenabled = false\n[owners.mine]\nmode = 'off'\n")
    daemon.start()

    def changes() -> list[tuple[str, str, str]]:
        found = entries(daemon, "--kind", "mode")
        assert {each["reason"] for each in found} <= {"by the configuration"}
        return [(each["policy"], each["before"], each["after"]) for each in found]

    expected = [("cpu-burst", "enforce", "off"), ("cpuset", "dry-run", "enforce")]
    wait_until(lambda: sorted(changes()) == expected, "the entries of the restart")
    with Family(daemon) as family:
        daemon.config_file.write_text("[owners.mine]\nmode = 'dry-run'\n")
        family.upgrade()
        of_upgrade = [("cpu-burst", "off", "enforce"), ("plugin:mine", "off", "dry-run")]
        wait_until(lambda: sorted(changes()[2:]) == of_upgrade, "the entries of the upgrade")


def config_map(percent: int) -> str:
    strategy = json.dumps({"clusterStrategy": {"cpuSuppressThresholdPercent": percent, "enable": True}})
    about = {"name": "slo-controller-config", "namespace": "koordinator-system"}
    data = {"resource-threshold-config": strategy}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data})


@pytest.mark.slow
def test_changes_of_strategies_are_entries(daemons: Daemons) -> None:
    daemon = daemons.prepare()
    daemon.objects_folder.mkdir(exist_ok=True)
    objects = daemon.objects_folder / "config.json"
    objects.write_text(config_map(60))
    daemon.start()
    assert kinds(daemon, "--kind", "strategy") == []
    new = objects.with_suffix(".new")
    new.write_text(config_map(70))
    new.replace(objects)
    wait_until(lambda: bool(kinds(daemon, "--kind", "strategy")), "the entry")
    (found,) = entries(daemon, "--kind", "strategy")
    assert (found["field"], found["before"], found["after"], found["target"]) == (
        "threshold.cpu_suppress_threshold_percent",
        "60",
        "70",
        "node",
    )
    assert "resource-threshold-config" in found["reason"]


@pytest.fixture
def audit_file(socket_folder: Path) -> Path:
    return socket_folder / "audit" / "audit.jsonl"


@pytest.mark.slow
def test_files_and_rotations_are_read_with_and_without_the_daemon(daemons: Daemons, audit_file: Path) -> None:
    daemon = daemons.start(f"[audit]\nfile = '{audit_file}'\nmax_bytes = 65536\n")
    for number in (1, 2):
        make_pod(daemon, f"pod-{number}")
        wait_until_written(audit_file, f"pod-{number}")
        audit_file.rename(f"{audit_file}.{3 - number}")
        daemon.forget_states()
        daemon.signal(signal.SIGHUP)
        daemon.wait_for_state("READY=1")
    make_pod(daemon, "pod-3")
    wait_until_written(audit_file, "pod-3")
    # Lines of other pods are written before those of this one: nothing is added to the old files any more.
    oldest = Path(f"{audit_file}.2")
    with oldest.open("rb") as plain, gzip.open(f"{oldest}.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    oldest.unlink()
    while_up = entries(daemon, "--since", "1h")
    daemon.terminate()
    done = daemon.run("audit")
    assert f"read from {audit_file} and audit.jsonl.2.gz, audit.jsonl.1\n" in done.stderr
    while_down = entries(daemon)
    assert while_down[: len(while_up)] == while_up
    # The runtime makes no cgroups: the values that wait for their files are told with the next comparison.
    *more, last = [each["kind"] for each in while_down[len(while_up) :]]
    assert set(more) <= {"not-applied"}
    assert last == "stop"
    pods = list(dict.fromkeys(each["pod"] for each in while_down if each["pod"]))
    assert pods == ["pod-1", "pod-2", "pod-3"]
    assert entries(daemon, "--pod", "default/pod-2", "--limit", "1")[0]["pod"] == "pod-2"
    times = [each["time"] for each in while_down]
    assert times == sorted(times, key=datetime.fromisoformat)


def test_since_with_follow_has_each_entry_once(daemons: Daemons, audit_file: Path) -> None:
    daemon = daemons.start(f"[audit]\nfile = '{audit_file}'\n")
    make_pod(daemon, "one")
    wait_until_written(audit_file, '"one"')
    program, option, module, *flags = daemon.command()
    words = [program, option, module, "audit", "--follow", "--since", "1h", "--output", "json", *flags]
    found: list[dict[str, Any]] = []
    with subprocess.Popen(
        words, cwd=REPOSITORY, env=daemon.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as following:
        assert following.stdout is not None
        expected = len(entries(daemon, "--since", "1h"))
        while len(found) < expected:
            found.append(json.loads(following.stdout.readline()))
        assert {each["pod"] for each in found} == {"", "one"}
        make_pod(daemon, "two")
        while found[-1]["pod"] != "two":
            found.append(json.loads(following.stdout.readline()))
        following.send_signal(signal.SIGINT)
        found += map(json.loads, following.stdout)
        assert following.wait(30) == 130
    # The file has times to the millisecond.
    rows = [json.dumps({**each, "time": ""}) for each in found]
    assert len(rows) == len(set(rows))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_without_the_daemon_only_the_right_to_read_is_needed(daemons: Daemons, audit_file: Path) -> None:
    daemon = daemons.start(f"[audit]\nfile = '{audit_file}'\n")
    make_pod(daemon, "one")
    wait_until_written(audit_file, '"one"')
    daemon.terminate()
    program, _, _, *flags = daemon.command()

    def as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, "-c", AS_NOBODY, "audit", *words, *flags],
            cwd=REPOSITORY,
            env=daemon.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    for folder in (audit_file.parent, *audit_file.parents[1:-2], daemon.folder):
        folder.chmod(0o755)
    daemon.config_file.chmod(0o644)
    refused = as_nobody()
    assert (refused.returncode, refused.stdout) == (3, "")
    assert f"audit.file cannot be read: {audit_file}: cannot be read: Permission denied" in refused.stderr
    audit_file.chmod(0o644)
    done = as_nobody("--pod", "default/one")
    assert (done.returncode, "default/one" in done.stdout) == (0, True)
    assert f"read from {audit_file}\n" in done.stderr
