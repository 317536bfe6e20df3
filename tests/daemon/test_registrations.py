"""Registration files beside a running daemon."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.daemon.conftest import Daemons
from tests.daemon.driving import pod, shares_of
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

HOOK = "PreCreateContainer"
SHARES = 77


def messages(daemon: ProxyProcess, start: str) -> list[str]:
    return [record["message"] for record in daemon.log_records if record["message"].startswith(start)]


def shares(client: CriClient, name: str) -> int:
    return shares_of(pod(client, name).run().create())


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_server_comes_and_goes(daemon: ProxyProcess, client: CriClient, socket_folder: Path) -> None:
    behaviour = Behaviour(overlay={"cpu_shares": SHARES})
    with HookServerProcess(socket_folder / "hook.sock", behaviour) as server:
        file = server.register(daemon.hook_folder, "koordlet.json", HOOK)
        daemon.wait_for_state("STATUS=7 policies, 1 hook server; ")
        assert shares(client, "one") == SHARES
        daemon.forget_states()
        daemon.signal(signal.SIGHUP)
        daemon.wait_for_state("READY=1")
        assert shares(client, "two") == SHARES
        file.unlink()
        daemon.wait_for_state("STATUS=7 policies; ")
        assert shares(client, "three") != SHARES
    wait_until(lambda: messages(daemon, "hook server koordlet.json is no longer used"), "the line of its end")
    assert len(messages(daemon, f"hook server koordlet.json is used: {server.socket} for ")) == 1


def test_the_first_pod_does_not_slip_by_a_registered_server(daemons: Daemons, socket_folder: Path) -> None:
    behaviour = Behaviour(overlay={"cpu_shares": SHARES})
    with HookServerProcess(socket_folder / "hook.sock", behaviour) as server:
        daemon = daemons.prepare()
        daemon.hook_folder.mkdir(exist_ok=True)
        server.register(daemon.hook_folder, "koordlet.json", HOOK)
        daemon.spawn()
        with CriClient(daemon.socket) as client:
            client.wait_until_serving(30)
            assert shares(client, "first") == SHARES


def test_a_bad_file_is_said_once_and_crashes_nothing(daemon: ProxyProcess, client: CriClient) -> None:
    file = daemon.hook_folder / "koordlet.json"
    file.touch()
    (line,) = wait_until(lambda: messages(daemon, "hook server registration: "), "a line")
    assert line == f"hook server registration: {file}: the file is empty"
    pod(client).run().create()
