"""Upgrades: a successor takes over, and no call fails."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, batch_pod, flowing_events, pod, shares_of
from tests.daemon.installed import WAIT_FOR
from tests.daemon.load import Load
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ProxyProcess

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
UPGRADES = 5


@pytest.fixture
def family(daemon: ProxyProcess) -> Iterator[Family]:
    with Family(daemon) as followed:
        yield followed


def command(daemon: ProxyProcess) -> subprocess.CompletedProcess[str]:
    """Runs `upgrade`."""
    words = ["upgrade", "--koord-runtimeproxy-endpoint", str(daemon.socket)]
    return subprocess.run(
        [sys.executable, "-m", "runtimeproxy", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@BOTH_LOOPS
def test_no_call_fails_under_load(family: Family) -> None:
    with Load(family.daemon.socket) as load:
        load.wait_for_more()
        for _ in range(UPGRADES):
            before = family.serving
            after = family.upgrade()
            assert after != before
            load.wait_for_more()
            family.wait_until_ended(before)
        load.wait_for_more()
    assert load.failed == []
    assert family.daemon.wait() == 0


@BOTH_LOOPS
def test_long_calls_go_on_where_they_are(
    family: Family, client: CriClient, runtime: FakeRuntime, fifo: Path
) -> None:
    first = family.serving
    events = flowing_events(client)
    made = pod(client).run().create().start()
    runtime.on("ExecSync", hang=True)
    request = api_pb2.ExecSyncRequest(container_id=made.container, cmd=["true"], timeout=240)
    executed = client.runtime.ExecSync.future(request, timeout=240)
    runtime.recorded.wait("ExecSync")
    waiting = pod(client, "waiting", annotations={WAIT_FOR: str(fifo)}).run()
    held = client.runtime.CreateContainer.future(waiting.create_request, timeout=240)
    with fifo.open("wb"):
        family.upgrade()
        with CriClient(family.daemon.socket) as other:
            pod(other, "after").run()
    assert held.result(30) is not None
    assert any(event.pod_sandbox_status.metadata.name == "after" for event in events)
    runtime.release("ExecSync")
    assert executed.result(30).exit_code == 0
    assert not family.has_ended(first)
    events.cancel()
    family.wait_until_ended(first)
    assert family.daemon.wait() == 0
    family.wait_for(lambda: family.logs("the process before this one has ended its calls"), "the last word")


def test_the_successor_knows_all_pods(family: Family, client: CriClient) -> None:
    made = batch_pod(client).run().create()
    family.upgrade()
    with CriClient(family.daemon.socket) as other:
        made.client = other
        made.start().update(64 << 20)
        assert shares_of(made) == BATCH_SHARES


def test_what_takes_too_long_is_cut(daemons: Daemons) -> None:
    daemon = daemons.start("[proxy]\nupgrade_drain_s = 0.5\n")
    with Family(daemon) as family, CriClient(daemon.socket) as client:
        first = family.serving
        events = flowing_events(client)
        family.upgrade()
        with pytest.raises(grpc.RpcError) as caught:
            for _ in events:
                pass
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        family.wait_until_ended(first)
        assert family.logs("connections cut after")


def test_a_second_one_is_refused_while_the_first_drains(family: Family, client: CriClient) -> None:
    first = family.serving
    events = flowing_events(client)
    second = family.upgrade()
    assert family.refused() == "upgrade refused: the process before this one still drains"
    assert family.serving == second
    events.cancel()
    family.wait_until_ended(first)
    family.wait_for(lambda: family.logs("has ended its calls"), "the last word")
    assert family.upgrade() != second


def test_the_command(family: Family, client: CriClient) -> None:
    before = family.serving
    done = command(family.daemon)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"process {family.serving} serves; process {before} ends after its last call\n"
    client.wait_until_serving(30)


def test_the_command_tells_a_failure(family: Family) -> None:
    (family.daemon.folder / "config.toml").write_text("[proxy]\nnonsense = 1\n")
    done = command(family.daemon)
    assert done.returncode == 1
    assert "upgrade failed: it ended with exit code 2 before it was loaded" in done.stderr


def test_the_command_finds_no_instance_that_is_gone(daemon: ProxyProcess) -> None:
    daemon.kill()
    done = command(daemon)
    assert done.returncode == 3
    assert done.stderr == f"koord-runtime-proxy: {daemon.socket}: no instance serves here\n"


@BOTH_LOOPS
def test_sigterm_ends_both(family: Family, client: CriClient) -> None:
    first = family.serving
    _events = flowing_events(client)
    second = family.upgrade()
    family.signal(signal.SIGTERM)
    family.wait_until_ended(second)
    family.wait_until_ended(first)
    assert family.daemon.wait() == 0
    assert not family.daemon.socket.exists()


def test_sigterm_of_the_old_one_leaves_the_new_one(family: Family, client: CriClient) -> None:
    first = family.serving
    _events = flowing_events(client)
    second = family.upgrade()
    family.signal(signal.SIGTERM, first)
    assert family.daemon.wait() == 0
    assert family.serving == second
    assert not family.has_ended(second)
    client.wait_until_serving(30)


def test_a_fresh_start_finds_the_socket_free_after_an_upgrade(daemons: Daemons, family: Family) -> None:
    second = family.upgrade()
    assert family.daemon.wait() == 0
    family.signal(signal.SIGTERM)
    family.wait_until_ended(second)
    third = daemons.successor(family.daemon)
    third.start()
    with CriClient(third.socket) as client:
        client.wait_until_serving(30)
