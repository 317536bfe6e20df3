"""Reads a daemon's metrics as Prometheus does."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

PREFIX = "koord_runtimeproxy_"
TIMEOUT_S = 30.0
"""Of a request."""
WAIT_S = 90.0
"""For a value: some are looked at each 10 s only."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


class Metrics(dict[tuple[str, tuple[tuple[str, str], ...]], float]):
    """Values by name (without the prefix) and sorted labels."""

    def of(self, name: str, **labels: str) -> float:
        """The sum of all series of a name that have these labels; 0 if there are none."""
        return sum(
            value for (each, found), value in self.items() if each == name and labels.items() <= set(found)
        )

    def names(self) -> set[str]:
        """All names, those of samples."""
        return {name for name, _ in self}


def parsed(text: str) -> Metrics:
    """The content of a response."""
    found = Metrics()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels: Mapping[str, str] = sample.labels
            found[sample.name.removeprefix(PREFIX), tuple(sorted(labels.items()))] = sample.value
    return found


def socket_of(daemon: ProxyProcess) -> Path:
    """Where a daemon with `metrics_config` serves its metrics."""
    return daemon.folder / "metrics.sock"


def get(
    path: Path, target: str = "/metrics", headers: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Status, content type and body of a request."""
    connection = UnixConnection(path)
    try:
        connection.request("GET", target, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def scrape(daemon: ProxyProcess) -> Metrics:
    """All values now; waits until the daemon listens."""
    path = socket_of(daemon)
    found: list[str] = []

    def answers() -> bool:
        try:
            status, _, body = get(path)
        except (FileNotFoundError, ConnectionError, http.client.HTTPException):
            return False
        found.append(body)
        return status == 200

    wait_until(answers, "metrics", WAIT_S)
    return parsed(found[-1])


def wait_for(daemon: ProxyProcess, name: str, least: float = 1.0, **labels: str) -> Metrics:
    """Waits until the sum of some series is at least so much; returns all values of then."""
    last = Metrics()

    def is_there() -> bool:
        nonlocal last
        last = scrape(daemon)
        return last.of(name, **labels) >= least

    wait_until(is_there, f"{name}{labels} of at least {least}", WAIT_S)
    return last
