"""SIGHUP: the configuration is read again; a bad one changes nothing."""

import signal
from collections.abc import Iterator

import pytest

from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, batch_pod, shares_of
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

DRY_RUN = '[policies.batch-resource]\nmode = "dry-run"\n'
UNTOUCHED = 2


@pytest.fixture
def daemon(daemons: Daemons) -> ProxyProcess:
    return daemons.start(log_level=None)


@pytest.fixture
def client(daemon: ProxyProcess) -> Iterator[CriClient]:
    with CriClient(daemon.socket) as opened:
        yield opened


def reload(daemon: ProxyProcess, config: str) -> None:
    """Has the daemon read a new configuration and waits until it has."""
    (daemon.folder / "config.toml").write_text(config)
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_state("RELOADING=1")
    daemon.wait_for_state("READY=1")


def messages(daemon: ProxyProcess, start: str) -> list[str]:
    """The messages of the log that begin so, once there are any."""
    return wait_until(
        lambda: [record["message"] for record in daemon.log_records if record["message"].startswith(start)],
        start,
    )


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_policy_changes_its_mode(daemon: ProxyProcess, client: CriClient) -> None:
    assert shares_of(batch_pod(client, "one").run().create()) == BATCH_SHARES
    reload(daemon, DRY_RUN)
    assert shares_of(batch_pod(client, "two").run().create()) == UNTOUCHED
    reload(daemon, "")
    assert shares_of(batch_pod(client, "three").run().create()) == BATCH_SHARES


@pytest.mark.parametrize(
    ("config", "key", "reason"),
    [
        pytest.param(
            '[policies.batch-resource]\nmode = "dry"\n', "policies.batch-resource.mode", "", id="value"
        ),
        pytest.param("[hooks]\nbudget = 1\n", "hooks.budget", "", id="key"),
        pytest.param("[hooks", "", "is no TOML", id="no TOML"),
        pytest.param('[policies.nobody]\nmode = "dry-run"\n', "", "no policy named nobody", id="policy"),
    ],
)
def test_a_bad_configuration_changes_nothing(
    daemon: ProxyProcess, client: CriClient, config: str, key: str, reason: str
) -> None:
    reload(daemon, config)
    (message,) = messages(daemon, "configuration not changed: ")
    assert key in message
    assert reason in message
    if "policy" not in reason:
        assert str(daemon.folder / "config.toml") in message
    assert shares_of(batch_pod(client).run().create()) == BATCH_SHARES


def test_what_waits_for_a_restart_is_said(daemon: ProxyProcess, client: CriClient) -> None:
    reload(daemon, "[proxy]\ndrain_s = 1.0\n[hooks]\nbudget_s = 1.0\nworker_threads = 2\n")
    (message,) = messages(daemon, "counts after a restart only: ")
    assert message.endswith("proxy.drain_s, hooks.worker_threads")


def test_the_log_level_changes(daemon: ProxyProcess) -> None:
    reload(daemon, "[log]\nlevel = 'error'\n")
    assert daemon.terminate() == 0
    assert "stopped" not in [record["message"] for record in daemon.log_records]


def test_all_calls_pass_where_hooks_are_disabled(daemon: ProxyProcess, client: CriClient) -> None:
    reload(daemon, "[hooks]\nenabled = false\n")
    assert shares_of(batch_pod(client, "one").run().create()) == UNTOUCHED
    reload(daemon, "[hooks]\nenabled = true\n")
    assert shares_of(batch_pod(client, "two").run().create()) == BATCH_SHARES


def test_a_reload_during_the_start_waits_for_it(daemons: Daemons) -> None:
    daemon = daemons.prepare()
    daemon.spawn()
    with CriClient(daemon.socket) as client:
        client.wait_until_serving(30)
        daemon.signal(signal.SIGHUP)
        daemon.wait_for_state("RELOADING=1")
        daemon.wait_for_state("READY=1")
        assert shares_of(batch_pod(client).run().create()) == BATCH_SHARES
