"""The bypass: all new calls pass without policies, by signal and by command."""

import signal
import subprocess
import sys

import pytest

from runtimeproxy.hooks.claimants import Claimant
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, batch_pod, shares_of
from tests.daemon.test_reload import UNTOUCHED, reload
from tests.daemon.test_restarts import MIB, noticed_changes, saved_container
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ProxyProcess


def bypass(daemon: ProxyProcess, state: str) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    words = ["bypass", state, "--koord-runtimeproxy-endpoint", str(daemon.socket)]
    return subprocess.run(
        [sys.executable, "-m", "runtimeproxy", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_signals(daemon: ProxyProcess, client: CriClient) -> None:
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_state("STATUS=bypass is on")
    assert shares_of(batch_pod(client, "one").run().create()) == UNTOUCHED
    daemon.signal(signal.SIGUSR2)
    daemon.wait_for_state("STATUS=7 policies")
    assert shares_of(batch_pod(client, "two").run().create()) == BATCH_SHARES


def test_the_command(daemon: ProxyProcess, client: CriClient) -> None:
    done = bypass(daemon, "on")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"process {daemon.pid}: bypass is on\n"
    daemon.wait_for_state("STATUS=bypass is on")
    assert shares_of(batch_pod(client, "one").run().create()) == UNTOUCHED
    assert bypass(daemon, "off").returncode == 0
    daemon.wait_for_state("STATUS=7 policies")
    assert shares_of(batch_pod(client, "two").run().create()) == BATCH_SHARES


def test_the_command_finds_no_instance_that_is_gone(daemon: ProxyProcess) -> None:
    daemon.kill()
    done = bypass(daemon, "on")
    assert done.returncode == 3
    assert done.stderr == f"koord-runtime-proxy: {daemon.socket}: no instance serves here\n"


def test_a_reload_leaves_the_bypass_alone(daemon: ProxyProcess, client: CriClient) -> None:
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_state("STATUS=bypass is on")
    reload(daemon, "[hooks]\nbudget_s = 1.0\n")
    assert shares_of(batch_pod(client).run().create()) == UNTOUCHED


def test_what_nobody_saw_is_in_the_records_afterwards(daemon: ProxyProcess, client: CriClient) -> None:
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_state("STATUS=bypass is on")
    made = batch_pod(client).run().create()
    daemon.signal(signal.SIGUSR2)
    daemon.wait_for_state("STATUS=7 policies; 1 pods, 1 containers")
    made.remove()
    daemon.wait_for_state("STATUS=7 policies; 0 pods, 0 containers")


def test_an_update_that_nobody_saw_is_in_the_records_afterwards(
    daemon: ProxyProcess, client: CriClient
) -> None:
    made = batch_pod(client).run().create().start()
    made.update(64 * MIB)
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_state("STATUS=bypass is on")
    made.update(256 * MIB)
    daemon.signal(signal.SIGUSR2)
    wait_until(lambda: noticed_changes(daemon), "the update")
    # The end saves at once what an idle node saves after a while.
    assert daemon.terminate() == 0
    assert saved_container(daemon, made).requested.memory_limit_bytes == 256 * MIB
    assert saved_container(daemon, made).owners["resources.cpu_shares"] == (Claimant("batch-resource"),)


def test_it_can_be_off_from_the_start(daemons: Daemons) -> None:
    daemon = daemons.start("[hooks]\nenabled = false\n")
    with CriClient(daemon.socket) as client:
        assert shares_of(batch_pod(client).run().create()) == UNTOUCHED


def test_an_upgrade_keeps_the_bypass(daemon: ProxyProcess) -> None:
    with Family(daemon) as family:
        daemon.signal(signal.SIGUSR1)
        daemon.wait_for_state("STATUS=bypass is on")
        family.upgrade()
        with CriClient(daemon.socket) as client:
            assert shares_of(batch_pod(client, "one").run().create()) == UNTOUCHED
        family.signal(signal.SIGUSR2)
        family.wait_for(lambda: family.logs("bypass is off"), "its end")
        with CriClient(daemon.socket) as client:
            assert shares_of(batch_pod(client, "two").run().create()) == BATCH_SHARES
