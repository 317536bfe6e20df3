"""Debian's Prometheus scrapes a daemon and loads its alert rules."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.ports import free_port
from tests.lab.programs import debian_program
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.systemd.test_monitoring import RULES, rules

pytestmark = pytest.mark.debian


@pytest.fixture
def daemon(socket_folder: Path) -> Iterator[tuple[ProxyProcess, int]]:
    """A daemon, and the port of its metrics."""
    port = free_port()
    with FakeRuntime(socket_folder / "runtime.sock") as runtime:
        options = ProxyOptions(str(runtime.socket_path), config=f"[metrics]\nlisten = '{port}'\n")
        with ProxyProcess(socket_folder, options) as started:
            yield started, port


@pytest.fixture
def prometheus(tmp_path: Path, daemon: tuple[ProxyProcess, int]) -> Iterator[str]:
    """The address of a Prometheus that scrapes the daemon every second."""
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "koord-runtime-proxy",
                "static_configs": [{"targets": [f"127.0.0.1:{daemon[1]}"]}],
            }
        ],
    }
    file = tmp_path / "prometheus.yml"
    # JSON is YAML, too.
    file.write_text(json.dumps(config))
    command: list[str | Path] = [
        debian_program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def asked(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310
            return json.load(response)["data"]
    except OSError:
        return None


def value(prometheus: str, query: str) -> float:
    found = asked(f"{prometheus}/api/v1/query?query={urllib.parse.quote(query)}")
    return float(found["result"][0]["value"][1]) if found and found["result"] else 0.0


def loaded_rules(prometheus: str) -> list[Any]:
    found = wait_until(lambda: asked(f"{prometheus}/api/v1/rules"), "the rules")
    return [rule for group in found["groups"] for rule in group["rules"]]


def test_prometheus_scrapes_the_daemon_and_knows_its_alerts(
    daemon: tuple[ProxyProcess, int], prometheus: str
) -> None:
    with CriClient(daemon[0].socket) as client:
        for _ in range(5):
            client.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
    query = 'koord_runtimeproxy_calls_total{method="Version"}'
    wait_until(lambda: value(prometheus, query) == 5, "a scrape", 60)
    # A scrape fails that takes more than the second between two of them, as it may on a busy machine.
    wait_until(lambda: value(prometheus, 'up{job="koord-runtime-proxy"}') == 1, "a scrape that is whole", 60)
    # No series of the daemon is refused, as for a label twice or a wrong form.
    wait_until(lambda: value(prometheus, "scrape_samples_scraped") > 100, "all series", 60)
    assert len(loaded_rules(prometheus)) == len(rules())
    wait_until(
        lambda: all(rule["health"] == "ok" for rule in loaded_rules(prometheus)),
        "the evaluation of all rules",
        60,
    )
