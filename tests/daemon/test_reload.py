"""SIGHUP: the configuration is read again; a bad one changes nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, batch_pod, pod, policy_file, shares_of
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

HUNG_UP_EARLY = """\
import os, runpy, signal, sys

class First:
    def find_spec(self, name, path=None, target=None):
        if name == "runtimeproxy.cli":
            sys.meta_path.remove(self)
            for number in (signal.SIGHUP, signal.SIGUSR1):
                os.kill(os.getpid(), number)

sys.meta_path.insert(0, First())
sys.argv = sys.argv[3:]
runpy.run_module("runtimeproxy", run_name="__main__", alter_sys=False)
"""
"""Gets signals while the first module of the program is imported."""

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


BAD = {
    '[policies.batch-resource]\nmode = "dry"\n': ("policies.batch-resource.mode", ""),
    "[hooks]\nbudget = 1\n": ("hooks.budget", ""),
    "[hook]\na = 1\n[proxi]\n": ("hook: unknown key", "proxi: unknown key"),
    "[hooks": ("", "is not valid TOML"),
    '[hooks]\non_load_error = "stop"\n[policies.nobody]\nmode = "dry-run"\n': ("", "no policy named nobody"),
}
"""Two parts of the message by the text of the file."""


def test_a_bad_configuration_changes_nothing(daemon: ProxyProcess, client: CriClient) -> None:
    for number, (config, (key, reason)) in enumerate(BAD.items()):
        reload(daemon, config)
        wait_until(lambda: len(messages(daemon, "configuration not changed: ")) > number, "the error")  # noqa: B023
        message = messages(daemon, "configuration not changed: ")[-1]
        assert "\n" not in message
        assert key in message
        assert reason in message
        assert "policy" in reason or str(daemon.folder / "config.toml") in message
        assert shares_of(batch_pod(client, f"pod-{number}").run().create()) == BATCH_SHARES


def test_what_waits_for_a_restart_is_said(daemon: ProxyProcess, client: CriClient) -> None:
    reload(daemon, "[proxy]\ndrain_s = 1.0\n[hooks]\nbudget_s = 1.0\nworker_threads = 2\n")
    assert messages(daemon, "proxy.drain_s, hooks.worker_threads changed; restart to apply")


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


def test_settings_of_a_policy_that_is_not_there_are_said_and_the_rest_counts(
    daemon: ProxyProcess, client: CriClient
) -> None:
    reload(daemon, DRY_RUN + "[policies.cpusett]\npriority = 1\n")
    (message,) = messages(daemon, "policy not loaded: ")
    assert message.endswith("settings: no policy named cpusett; did you mean cpuset?")
    assert shares_of(batch_pod(client).run().create()) == UNTOUCHED


def test_files_of_policies_count_as_they_are_then(daemon: ProxyProcess, client: CriClient) -> None:
    def shares(name: str) -> int:
        return shares_of(pod(client, name).run().create())

    before = shares("one")
    path = policy_file(daemon, "sets", shares=77)
    reload(daemon, "")
    assert shares("two") == 77
    policy_file(daemon, "sets", shares=88)
    reload(daemon, "")
    assert shares("three") == 88
    path.write_text("import no_such_thing\n")
    reload(daemon, "")
    (message,) = messages(daemon, "policy not loaded: ")
    assert message.endswith(
        f"{path}:1: ModuleNotFoundError: No module named 'no_such_thing'; it stays as it was loaded before"
    )
    assert shares("four") == 88
    path.unlink()
    reload(daemon, "")
    assert shares("five") == before


def test_a_distribution_that_has_changed_is_said(
    daemon: ProxyProcess, daemons: Daemons, client: CriClient
) -> None:
    reload(daemon, "")
    assert not [record for record in daemon.log_records if record["level"] == "warning"]
    about = Path(daemons.environment["PYTHONPATH"], "test_policies-1.0.dist-info", "METADATA")
    about.write_text(about.read_text().replace("1.0", "1.1"))
    reload(daemon, "")
    assert messages(daemon, "test-policies: ") == [
        "test-policies: 1.0 is now 1.1; `koord-runtime-proxy upgrade` takes the new code into use"
    ]


def test_signals_that_come_before_the_handlers_are_there_count_afterwards(daemons: Daemons) -> None:
    daemon = daemons.prepare(wrapper=(sys.executable, "-c", HUNG_UP_EARLY))
    daemon.start()
    assert messages(daemon, "configuration reloaded")
    daemon.wait_for_state("READY=1")
    with CriClient(daemon.socket) as client:
        assert shares_of(batch_pod(client, "one").run().create()) == UNTOUCHED
    assert daemon.pid


def test_a_command_that_does_not_serve_ends_by_sighup(tmp_path: Path) -> None:
    fifo = tmp_path / "config.toml"
    os.mkfifo(fifo)
    command = (sys.executable, "-m", "runtimeproxy", "check-config", "--config", str(fifo))
    quiet = subprocess.DEVNULL
    # The FIFO opens when the command reads its configuration.
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process, fifo.open("w"):
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == -signal.SIGHUP
