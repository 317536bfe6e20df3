"""A daemon that is killed, ends, cannot write, or is upgraded."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

from runtimeproxy.signals import UPGRADE
from tests.daemon.driving import batch_pod, flowing_events, pod
from tests.daemon.failures.scene import Row, Scene
from tests.daemon.kubelet import kubelet
from tests.daemon.scraping import scrape
from tests.daemon.test_from_0_1 import checkpoint, left_node
from tests.daemon.test_systemd_socket import PASSES
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess


def killed(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    before = scrape(daemon).of("process_start_time_seconds")
    daemon.kill()
    daemon.start()
    scene.wait_for(daemon, "records_recovered")
    assert scrape(daemon).of("process_start_time_seconds") > before
    return daemon


def checkpoint_is_damaged(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    daemon.state_folder.mkdir()
    (daemon.state_folder / "records.db").write_text("no database " * 1000)
    daemon.start()
    scene.wait_for(daemon, "checkpoint_set_aside_total")
    return daemon


def checkpoint_is_harmed(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    path = daemon.state_folder / "records.db"
    with CriClient(daemon.socket) as client:
        pod(client).run()
    # A file that is still being made is not counted as harmed.
    wait_until(lambda: _has_records(path), "a record in the file")
    os.truncate(path, 0)
    scene.wait_for(daemon, "checkpoint_set_aside_total", 1)
    wait_until(lambda: _has_records(path), "the record in a new file")
    path.unlink()
    scene.wait_for(daemon, "checkpoint_set_aside_total", 2)
    return daemon


def _has_records(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as opened:
            (count,) = opened.execute("SELECT count(*) FROM records").fetchone()
    except sqlite3.Error:
        return False
    return bool(count)


def rows_are_unreadable(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    assert daemon.terminate() == 0
    with closing(sqlite3.connect(daemon.state_folder / "records.db")) as opened, opened:
        opened.execute("INSERT INTO records(kind, id, rank, body) VALUES (1, 'bad', 2, '[')")
    (daemon.state_folder / "modes.json").write_text("[")
    daemon.start()
    scene.wait_for(daemon, "state_unusable", 2)
    return daemon


def state_cannot_be_saved(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    (daemon.state_folder / "records.db").unlink()
    daemon.state_folder.rename(daemon.folder / "moved")
    # Neither a folder nor a name for one.
    daemon.state_folder.write_text("")
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        scene.files.make(made.config.linux.cgroup_parent)
        made.run().create().start()
        scene.wait_for(daemon, "checkpoint_unsaved")
        scene.wait_for(daemon, "journal_unwritten")
    return daemon


def audit_file_is_a_folder(scene: Scene) -> ProxyProcess:
    daemon = scene.start(f"[audit]\nfile = '{scene.folder}'\n")
    with CriClient(daemon.socket) as client:
        batch_pod(client).run().create()
        scene.wait_for(daemon, "audit_lines_total", outcome="lost")
    return daemon


def collector_is_away(scene: Scene) -> ProxyProcess:
    daemon = scene.start(f"[tracing]\nendpoint = '{scene.folder}/nothing.sock'\n")
    with CriClient(daemon.socket) as client:
        pod(client).run()
        scene.wait_for(daemon, "spans_total", outcome="lost")
    return daemon


def interpreter_crashes(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    before = scrape(daemon).of("process_start_time_seconds")
    daemon.signal(signal.SIGSEGV)
    assert daemon.wait() == -signal.SIGSEGV
    daemon.start()
    assert scrape(daemon).of("process_start_time_seconds") > before
    return daemon


def configuration_is_wrong(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    (daemon.folder / "config.toml").write_text("[hooks]\nbudget = 1\n")
    daemon.signal(signal.SIGHUP)
    scene.wait_for_zero(daemon, "config_reload_successful")
    return daemon


def successor_does_not_come_up(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    (daemon.folder / "config.toml").write_text("[hooks]\nbudget = 1\n")
    os.kill(daemon.pid, UPGRADE)
    scene.wait_for(daemon, "upgrades_failed_total")
    return daemon


def killed_while_it_writes(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with closing(sqlite3.connect(daemon.state_folder / "records.db", isolation_level=None)) as database:
        # The checkpoint cannot be written, so only the journal has the originals.
        database.execute("BEGIN IMMEDIATE")
        with CriClient(daemon.socket) as client:
            scene.run_batch_pod(client)
            daemon.kill()
    daemon.start()
    scene.wait_for(daemon, "ledger_recovered_cgroups_total")
    return daemon


def ended(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    assert scrape(daemon)
    assert daemon.terminate() == 0
    return daemon


def ended_with_a_socket_unit(scene: Scene) -> ProxyProcess:
    listening = scene.stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    path = scene.folder / "unit.sock"
    listening.bind(str(path))
    listening.listen(64)
    descriptor = listening.fileno()
    daemon = scene.prepare(wrapper=(sys.executable, "-c", PASSES, str(descriptor)), inherited=(descriptor,))
    daemon.start()
    assert scrape(daemon)
    assert daemon.terminate() == 0
    assert path.is_socket()
    return daemon


def second_instance(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    other = scene.daemons.successor(daemon)
    other.spawn()
    assert other.wait() == 1
    # The first one is still up.
    assert scrape(daemon)
    return daemon


def ended_for_good(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with kubelet(scene.folder, "--container-runtime-endpoint", f"unix://{daemon.socket}"):
        assert daemon.terminate() == 0
    assert any("a kubelet still uses the proxy's socket" in line for line in daemon.log)
    return daemon


def restored(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        _, weight = scene.run_batch_pod(client)
    assert daemon.terminate() == 0
    assert daemon.run("restore").returncode == 0
    assert weight.read_text() == "100\n"
    return daemon


def upgraded(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    before = scrape(daemon).of("process_start_time_seconds")
    client = scene.stack.enter_context(CriClient(daemon.socket))
    # Its stream keeps the first process.
    scene.stack.callback(flowing_events(client).cancel)
    scene.stack.enter_context(Family(daemon)).upgrade()
    wait_until(lambda: scrape(daemon).of("process_start_time_seconds") > before, "the successor's metrics")
    return daemon


def upgraded_from_0_1(scene: Scene) -> ProxyProcess:
    left_node(scene.runtime, scene.files)
    daemon = scene.prepare()
    checkpoint(daemon.state_folder)
    daemon.start()
    scene.wait_for(daemon, "ledger_cgroups", level="pod")
    return daemon


def successor_is_killed(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    client = scene.stack.enter_context(CriClient(daemon.socket))
    scene.stack.callback(flowing_events(client).cancel)
    family = scene.stack.enter_context(Family(daemon))
    second = family.upgrade()
    family.signal(signal.SIGKILL, second)
    family.wait_for(lambda: family.serving == daemon.pid, "the first process")
    scene.wait_for(daemon, "upgrades_failed_total")
    return daemon


def another_mode_runs(scene: Scene) -> ProxyProcess:
    lock = scene.folder / "front-end.lock"
    scene.start(f'[daemon]\nmode = "standalone"\nlock = "{lock}"\n')
    daemon = scene.prepare(f'[daemon]\nlock = "{lock}"\n')
    daemon.spawn()
    assert daemon.wait() == 1
    return daemon


def kubelet_has_the_socket(scene: Scene) -> ProxyProcess:
    lock = scene.folder / "front-end.lock"
    daemon = scene.prepare(f'[daemon]\nmode = "nri"\nlock = "{lock}"\n')
    with kubelet(scene.folder, "--container-runtime-endpoint", f"unix://{daemon.socket}"):
        checked = daemon.run("check-config")
        daemon.spawn()
        assert daemon.wait() == checked.returncode == 2
    for text in (checked.stderr, "\n".join(daemon.log)):
        assert "daemon.mode" in text
        assert "a kubelet still uses the proxy's socket" in text
    return daemon


ROWS: Final = {
    "another mode of the daemon runs on this host (`daemon.lock`)": Row(another_mode_runs, None),
    '`daemon.mode` is `"nri"` or `"standalone"`': Row(kubelet_has_the_socket, None),
    "it is killed while it writes": Row(killed_while_it_writes, lambda s: s.ledger.counts.recovered > 0),
    "it is killed;": Row(killed, lambda s: s.records.is_recovered),
    "the checkpoint is damaged": Row(checkpoint_is_damaged, lambda s: bool(s.records.checkpoint_set_aside)),
    "another program overwrites": Row(
        checkpoint_is_harmed,
        lambda s: bool(s.records.checkpoint_set_aside and s.records.checkpoint_lost),
    ),
    "rows of the checkpoint, lines of a journal": Row(
        rows_are_unreadable,
        lambda s: (
            s.records.unreadable_rows == 1 and "modes.json is not usable" in str(s.records.unusable_files)
        ),
    ),
    "the disk is full": Row(
        state_cannot_be_saved, lambda s: bool(s.records.checkpoint_problem and s.ledger.journal_problem)
    ),
    "the audit's file": Row(
        audit_file_is_a_folder, lambda s: s.audit_file.lost > 0 and bool(s.audit_file.problem)
    ),
    "the collector of traces": Row(
        collector_is_away, lambda s: s.tracing.lost > 0 and "nothing.sock" in s.tracing.problem
    ),
    "the interpreter crashes": Row(interpreter_crashes, lambda s: s.records.is_recovered),
    "SIGTERM;": Row(ended, None),
    "SIGTERM with": Row(ended_with_a_socket_unit, None),
    "a second instance": Row(second_instance, lambda s: s.runtime.answers),
    "a wrong configuration": Row(configuration_is_wrong, lambda s: s.last_reload.has_failed),
    "it ends for good": Row(ended_for_good, None),
    "`koord-runtime-proxy upgrade`": Row(upgraded, lambda s: s.upgrade.has_predecessor),
    "from version 0.1": Row(upgraded_from_0_1, lambda s: s.ledger.cgroups > 0),
    "back to version 0.1": Row(restored, None),
    "the successor does not": Row(successor_does_not_come_up, lambda s: bool(s.upgrade.error)),
    "the successor is killed": Row(successor_is_killed, lambda s: bool(s.upgrade.error)),
}
