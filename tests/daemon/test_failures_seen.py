"""Each row of `systemd/FAILURES.md` is made to happen, and seen in its metrics and in the status."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.service.metrics.table import METRICS
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.failures import advisors, claims, clients, kubernetes, node, nri, policies, process, values
from tests.daemon.failures.scene import OF_PROMETHEUS, Row, Scene
from tests.daemon.scraping import get, socket_of
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

DOCUMENT: Final = Path(__file__).parents[2] / "systemd" / "FAILURES.md"
ROWS: Final[dict[str, Row]] = {
    **policies.ROWS,
    **values.ROWS,
    **claims.ROWS,
    **advisors.ROWS,
    **node.ROWS,
    **kubernetes.ROWS,
    **clients.ROWS,
    **process.ROWS,
    **nri.ROWS,
}
"""By the beginning of the row's first cell, with a `;` at its end."""


def rows() -> dict[str, set[str]]:
    """The metrics of each row, by the text of its first cell."""
    found = {}
    for line in DOCUMENT.read_text().splitlines():
        cells = line.strip("|").split(" | ")
        if line.startswith("| ") and cells[0].strip() not in ("failure", "event", "---"):
            assert len(cells) == 3, line
            found[cells[0].strip() + ";"] = set(re.findall(r"`(\w+)`", cells[2]))
    return found


def test_every_row_names_metrics_that_exist() -> None:
    found = rows()
    assert len(found) > 50
    for row, names in found.items():
        assert names, row
        assert names <= METRICS.keys() | OF_PROMETHEUS, row


def test_every_row_is_made_to_happen_once() -> None:
    for row in rows():
        assert sum(row.startswith(start) for start in ROWS) == 1, row
    for start in ROWS:
        assert sum(row.startswith(start) for row in rows()) == 1, start


@pytest.fixture
def scene(
    daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles, socket_folder: Path
) -> Iterator[Scene]:
    made = Scene(daemons, runtime, cgroup_files, socket_folder)
    with made.stack:
        yield made


def is_up(daemon: ProxyProcess) -> bool:
    """What Prometheus' `up` says."""
    try:
        status, _, _ = get(socket_of(daemon))
    except (OSError, http.client.HTTPException):
        return False
    return status == 200


def status_of(daemon: ProxyProcess) -> api_pb2.GetStatusResponse | None:
    """None if nothing answers."""
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        try:
            return api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError:
            return None


@pytest.mark.slow
@pytest.mark.parametrize("start", ROWS)
def test_a_failure_is_seen(scene: Scene, start: str) -> None:
    row = ROWS[start]
    daemon = row.make(scene)
    (metrics,) = (names for text, names in rows().items() if text.startswith(start))
    assert metrics - OF_PROMETHEUS <= scene.looked
    is_seen = row.is_seen
    if is_seen is None:
        assert not is_up(daemon)
        assert status_of(daemon) is None
        return
    assert is_up(daemon)

    def status_shows_it() -> bool:
        status = status_of(daemon)
        return status is not None and is_seen(status)

    # Programs that a busy machine lets wait too long are run again after a minute.
    wait_until(status_shows_it, "the status", 120)
