"""A successor that does not come up leaves the process before it serving, as if nothing had happened."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.config.settings import ProxySettings
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.signals import UPGRADE
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, batch_pod, flowing_events, pod, shares_of
from tests.daemon.load import Load
from tests.daemon.site import IMPORT_FIFO, site_folder
from tests.daemon.test_restarts import MIB, saved_container
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ProxyProcess

PROXY_KEYS = [each.name for each in dataclasses.fields(ProxySettings)]

SUCCESSOR_WITH_ANOTHER_FLAG = """\
import os, runpy, sys
sys.argv = sys.argv[3:]
if "KOORD_RUNTIME_PROXY_HANDOVER" in os.environ:
    sys.argv.append("--gone")
runpy.run_module("runtimeproxy", run_name="__main__", alter_sys=False)
"""

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


@pytest.fixture
def family(daemon: ProxyProcess) -> Iterator[Family]:
    with Family(daemon) as followed:
        yield followed


@pytest.fixture
def hanging(daemons: Daemons, fifo: Path) -> Iterator[Family]:
    """A daemon whose successors hang while they load a policy: the FIFO is open, so reading it waits."""
    daemons.environment.update(site_folder(fifo.parent / "slow", slow="slow_to_import:Slow"))
    daemons.environment[IMPORT_FIFO] = str(fifo)
    daemon = daemons.prepare("[proxy]\nupgrade_start_s = 60.0\n")
    daemon.spawn()
    fifo.write_bytes(b"")
    daemon.wait_for_state("READY=1")
    with Family(daemon) as followed:
        yield followed


def config(family: Family, text: str) -> None:
    (family.daemon.folder / "config.toml").write_text(text)


def is_as_before(family: Family) -> None:
    """The first process serves, holds calls and can be upgraded."""
    assert family.serving == family.daemon.pid
    with CriClient(family.daemon.socket) as client:
        assert shares_of(batch_pod(client, "as-before").run().create()) == BATCH_SHARES


@BOTH_LOOPS
def test_a_broken_configuration(family: Family, client: CriClient) -> None:
    with Load(family.daemon.socket) as load:
        load.wait_for_more()
        config(family, "[proxy]\nnonsense = 1\n")
        path = family.daemon.folder / "config.toml"
        assert family.refused() == (
            "upgrade failed: it ended with exit code 2 before it was loaded: configuration error: "
            f"{path}: proxy.nonsense: unknown key; known keys: {', '.join(PROXY_KEYS)}"
        )
        load.wait_for_more()
    assert load.failed == []
    # The note in the lock file may be there before the line.
    family.wait_for(lambda: family.logs("nonsense"), "the line of the log")
    config(family, "")
    is_as_before(family)
    assert family.upgrade() != family.daemon.pid
    client.wait_until_serving(30)


def test_the_command_prints_what_the_successor_says(family: Family) -> None:
    config(family, "[proxy]\nnonsense = 1\n[log]\nlevel = 'loud'\n")
    command = [sys.executable, "-m", "runtimeproxy", "upgrade"]
    # The command itself reads no file here.
    done = subprocess.run(
        [*command, "--koord-runtimeproxy-endpoint", str(family.daemon.socket)],
        env={name: value for name, value in os.environ.items() if not name.startswith("KOORD_RUNTIMEPROXY_")},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "proxy.nonsense: unknown key" in done.stderr
    assert "configuration errors: /" in done.stderr
    assert "log.level: must be 'debug'" in done.stderr
    assert f"process {family.daemon.pid} serves" in done.stderr
    is_as_before(family)


def test_a_flag_that_the_new_version_does_not_have(daemons: Daemons) -> None:
    daemon = daemons.start(wrapper=(sys.executable, "-c", SUCCESSOR_WITH_ANOTHER_FLAG))
    with Family(daemon) as family:
        assert "exit code 2 before it was loaded: unknown flag --gone" in family.refused()
        is_as_before(family)


@pytest.mark.slow
def test_a_configuration_that_policies_refuse(family: Family) -> None:
    absent = '[proxy]\nruntime_endpoint = "/nowhere"\n[policies.unheard-of]\n'
    wrong_option = "[policies.batch-resource.options]\nnonsense = 1\n"
    for text in (absent, wrong_option):
        config(family, f"[hooks]\non_load_error = 'stop'\n{text}")
        assert "exit code 2" in family.refused()
        is_as_before(family)


def test_one_that_is_killed_while_it_loads(hanging: Family) -> None:
    family = hanging
    with CriClient(family.daemon.socket) as client:
        family.signal(UPGRADE)
        successor = family.starting()
        client.wait_until_serving(30)
        family.signal(signal.SIGKILL, successor)
        family.wait_for(lambda: family.logs("it was ended by SIGKILL before it was loaded"), "the error")
    is_as_before(family)


def test_one_that_hangs_has_its_time(daemons: Daemons, fifo: Path) -> None:
    daemons.environment.update(site_folder(fifo.parent / "slow", slow="slow_to_import:Slow"))
    daemons.environment[IMPORT_FIFO] = str(fifo)
    daemon = daemons.prepare("[proxy]\nupgrade_start_s = 0.5\n")
    daemon.spawn()
    fifo.write_bytes(b"")
    daemon.wait_for_state("READY=1")
    with Family(daemon) as family:
        assert family.refused() == "upgrade failed: it was not loaded within 0.5 s"
        is_as_before(family)


def test_sigterm_while_the_successor_loads(hanging: Family) -> None:
    hanging.signal(UPGRADE)
    successor = hanging.starting()
    hanging.signal(signal.SIGTERM)
    assert hanging.daemon.wait() == 0
    hanging.wait_until_ended(successor)
    assert not hanging.daemon.socket.exists()


def test_sigterm_of_the_successor_while_it_loads(hanging: Family) -> None:
    hanging.signal(UPGRADE)
    successor = hanging.starting()
    hanging.signal(signal.SIGTERM, successor)
    hanging.wait_until_ended(successor)
    hanging.wait_for(lambda: hanging.logs("upgrade failed"), "the error")
    is_as_before(hanging)


def test_a_second_one_is_refused_while_the_first_is_in_progress(hanging: Family) -> None:
    hanging.signal(UPGRADE)
    hanging.starting()
    assert hanging.refused() == "upgrade refused: one is in progress"


def test_the_old_one_killed_while_the_successor_loads(hanging: Family, fifo: Path) -> None:
    hanging.signal(UPGRADE)
    successor = hanging.starting()
    hanging.daemon.kill()
    fifo.write_bytes(b"")
    hanging.wait_for(lambda: hanging.serving == successor, "the successor")
    with CriClient(hanging.daemon.socket) as client:
        client.wait_until_serving(30)


@BOTH_LOOPS
def test_a_successor_killed_after_it_took_over(family: Family, client: CriClient) -> None:
    first = family.serving
    events = flowing_events(client)
    second = family.upgrade()
    family.signal(signal.SIGKILL, second)
    family.wait_for(lambda: family.serving == first, "the first process")
    is_as_before(family)
    pod(client, "later").run()
    assert any(event.pod_sandbox_status.metadata.name == "later" for event in events)
    assert family.upgrade() not in (first, second)


@BOTH_LOOPS
def test_what_a_successor_did_before_it_was_killed_is_known(family: Family, client: CriClient) -> None:
    first = family.serving
    _events = flowing_events(client)
    second = family.upgrade()
    made = batch_pod(client, "later").run().create().start()
    assert saved_container(family.daemon, made).owners["resources.cpu_shares"] == (
        Claimant("batch-resource"),
    )
    family.signal(signal.SIGKILL, second)
    family.wait_for(lambda: family.serving == first, "the first process")
    # The other client may write into the killed one's connection before it notices its end.
    with CriClient(family.daemon.socket) as fresh:
        made.update(64 * MIB, fresh)
    family.wait_for(
        lambda: saved_container(family.daemon, made).requested.memory_limit_bytes == 64 * MIB, "the update"
    )
    assert saved_container(family.daemon, made).owners["resources.cpu_shares"] == (
        Claimant("batch-resource"),
    )
