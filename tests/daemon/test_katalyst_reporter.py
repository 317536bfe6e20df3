"""The plugin `katalyst-reporter` in the QoS manager's process, beside a daemon with Katalyst's pools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU
from runtimeproxy.qosmanager.plugins.katalyst_reporter import FILE
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.pool_site import BOUND, DEDICATED, SHARED, PoolSite, pool_site
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ManagerProcess

REPORTER = """
[qosmanager]
interval_s = 0.2

[plugins.katalyst-reporter]
mode = "enforce"

[plugins.katalyst-reporter.options]
folder = "{folder}"
node_name = "node-a"
"""


def served(site: PoolSite) -> api_pb2.GetCustomNodeResourceResponse:
    with CriClient(site.daemon.socket) as client:
        api: Any = api_pb2_grpc.RuntimeProxyStub(client.channel)
        request = api_pb2.GetCustomNodeResourceRequest()
        found: api_pb2.GetCustomNodeResourceResponse = api.GetCustomNodeResource(
            request, timeout=CALL_TIMEOUT_S
        )
        return found


def resources(site: PoolSite, *words: str) -> tuple[int, str]:
    """Runs the command; returns its exit code and what it prints."""
    command = (sys.executable, "-m", "runtimeproxy.qosmanager", "resources", *words)
    socket = ("--koord-runtimeproxy-endpoint", str(site.daemon.socket))
    flags = ("--config", str(site.daemon.config_file), *socket)
    ended = subprocess.run((*command, *flags), capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.slow
def test_what_the_process_reports_is_served_and_written(
    daemons: Daemons, cgroup_files: CgroupFiles, runtime: FakeRuntime, socket_folder: Path
) -> None:
    folder = socket_folder / "reporter"
    folder.mkdir()
    options, more = "enable_reclaim = true", REPORTER.format(folder=folder)
    with pool_site(daemons, cgroup_files, runtime, socket_folder, options=options, more=more) as site:
        assert served(site).reason == "koord-qos-manager does not run"
        assert resources(site)[0] == 1
        site.start("web", SHARED, 2)
        daemon = site.daemon
        manager = ManagerProcess(daemon.folder, daemon.config_file, daemon.socket, daemon.options.environment)
        try:
            manager.start()

            def of_pod(name: str) -> api_pb2.GetCustomNodeResourceResponse | None:
                """What is served, once this pod has something of a zone."""
                found = served(site)
                return found if f"/{name}/uid-{name}" in found.report.json else None

            wait_until(lambda: served(site).is_current, f"a report; {manager.log[-10:]}", timeout_s=60)
            site.start("database", {**DEDICATED, **BOUND}, 2)
            found = wait_until(lambda: of_pod("database"), f"the pod; {manager.log[-10:]}", timeout_s=60)
            code, text = resources(site)
            written = json.loads((folder / FILE).read_text())
            assert manager.terminate() == 0
        finally:
            manager.close()
    document = json.loads(found.report.json)
    assert document["metadata"]["name"] == written["metadata"]["name"] == "node-a"
    capacity, allocatable = (document["status"]["resources"][each] for each in ("capacity", "allocatable"))
    # Two CPUs of 16 are reserved, and two the database's. There is no advisor here, and the reason is told.
    assert (capacity["cpu"], capacity[RECLAIMED_MILLICPU]) == ("16", "12k")
    assert (allocatable["cpu"], RECLAIMED_MILLICPU in allocatable) == ("14", False)
    assert any("no advisor says what the headroom is" in each for each in found.report.problems)
    sockets = document["status"]["topologyZone"]
    assert [[child["type"] for child in each["children"]] for each in sockets] == [["Numa"], ["Numa"]]
    (allocation,) = (one for each in sockets for one in each["children"][0].get("allocations", []))
    assert allocation["requests"]["cpu"] == "2"
    assert code == 0, text
    assert text.splitlines()[1].split()[:4] == ["node", "cpu", "16.00", "2.00"]
