"""The metrics of a daemon: off by default, on a Unix socket or TCP, through reloads and upgrades."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod
from tests.daemon.scraping import get, parsed, scrape, socket_of, wait_for
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.ports import free_port
from tests.lab.procfs import thread_names
from tests.lab.proxy_process import ProxyProcess


def measured(daemons: Daemons) -> ProxyProcess:
    """A daemon that serves its metrics."""
    daemon = daemons.prepare()
    daemon.options.environment["KOORD_RUNTIMEPROXY_METRICS_LISTEN"] = str(socket_of(daemon))  # type: ignore[index]
    daemon.start()
    return daemon


def test_calls_policies_and_values_are_counted(daemons: Daemons) -> None:
    daemon = measured(daemons)
    with CriClient(daemon.socket) as client:
        for number in range(3):
            batch_pod(client, f"p{number}").run().create()
            client.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
        found = wait_for(daemon, "policy_changes_total", 9, policy="batch-resource", mode="enforce")
        assert found.of("connections") == 1
    assert found.of("calls_total", method="Version") == 3
    assert found.of("intercepted_calls_total", method="CreateContainer", outcome="succeeded") == 3
    assert found.of("intercepted_calls_total", method="Version") == 0
    assert found.of("held_seconds_count", method="CreateContainer") == 3
    assert 0 < found.of("held_seconds_sum", method="CreateContainer") < 30
    hook = {"policy": "batch-resource", "hook": "pre_create_container"}
    assert found.of("policy_duration_seconds_count", **hook) == 3
    assert found.of("records", kind="container") == 3
    assert found.of("ledger_claims", owner="batch-resource") > 0
    assert found.of("received_bytes_total", peer="client") > 1_000
    assert found.of("received_bytes_total", peer="upstream") > 100
    assert found.of("process_resident_memory_bytes") > 1_000_000
    # No label names a pod.
    assert not {value for _, labels in found for _, value in labels if "p1" in value}


def test_nothing_is_loaded_or_served_by_default(daemon: ProxyProcess) -> None:
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "metrics" not in maps + " ".join(thread_names(daemon.pid))
    assert not any("metrics" in line for line in daemon.log)


def test_tcp_and_openmetrics(daemons: Daemons) -> None:
    port = free_port()
    daemon = daemons.start(f"[metrics]\nlisten = '{port}'\n")
    wait_until(lambda: any("metrics are served on" in line for line in daemon.log), "metrics")
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(
            b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n"
        )
        text = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    assert "Content-Type: application/openmetrics-text; version=1.0.0" in text
    assert text.endswith("# EOF\n")


def test_a_failed_reload_is_seen_and_the_next_good_one(daemons: Daemons) -> None:
    daemon = measured(daemons)
    config = daemon.folder / "config.toml"
    assert scrape(daemon).of("config_reload_successful") == 1
    before_s = scrape(daemon).of("config_last_success_timestamp_seconds")
    config.write_text("[hooks]\nbudget = 1\n")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: scrape(daemon).of("config_reload_successful") == 0, "a failed reload")
    config.write_text("")
    daemon.signal(signal.SIGHUP)
    found = wait_for(daemon, "config_reload_successful")
    assert found.of("config_last_success_timestamp_seconds") > before_s


def test_a_successor_serves_them_after_an_upgrade(daemons: Daemons, runtime: FakeRuntime) -> None:
    daemon = measured(daemons)
    before = scrape(daemon).of("process_start_time_seconds")
    with Family(daemon) as family:
        family.upgrade()
        wait_until(
            lambda: scrape(daemon).of("process_start_time_seconds") > before, "the successor's metrics"
        )
        _, _, body = get(socket_of(daemon))
        assert parsed(body).of("upgrades_failed_total") == 0
