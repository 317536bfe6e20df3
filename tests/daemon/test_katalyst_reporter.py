"""The plugin `katalyst-reporter` in the QoS manager's process, beside a daemon with Katalyst's pools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.qosmanager.plugins.katalyst_reporter import FILE
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.units import quantity_millicores
from tests.daemon.conftest import Daemons
from tests.daemon.failures.claims import admin_of
from tests.daemon.pool_site import BOUND, DEDICATED, SHARED, PoolSite, pool_site
from tests.daemon.test_advised_pools import advise
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.programs import go_tool, run
from tests.lab.proxy_process import ManagerProcess
from tests.qosmanager.samples.malachite_server import port_without_a_server

REPORTER = """
[qosmanager]
interval_s = 0.2
metrics_source = "malachite"
malachite_url = "{url}"

[plugins.katalyst-reporter]
mode = "enforce"

[plugins.katalyst-reporter.options]
folder = "{folder}"
node_name = "node-a"
"""

ADVISOR = "katalyst-advisor"
NO_ADVISOR = "no advisor says what the headroom is"


def served(site: PoolSite) -> api_pb2.GetCustomNodeResourceResponse:
    with CriClient(site.daemon.socket) as client:
        api: Any = api_pb2_grpc.RuntimeProxyStub(client.channel)
        request = api_pb2.GetCustomNodeResourceRequest()
        found: api_pb2.GetCustomNodeResourceResponse = api.GetCustomNodeResource(
            request, timeout=CALL_TIMEOUT_S
        )
        return found


def document_of(report: api_pb2.NodeResourceReport) -> Any:
    """The object; None while there is none, as where a busy machine has not let the plugin decide in time."""
    return json.loads(report.json) if report.json else None


def resources(site: PoolSite) -> tuple[int, str]:
    return printed(site, "resources")


def printed(site: PoolSite, name: str) -> tuple[int, str]:
    """Runs a command; returns its exit code and what it prints."""
    command = (sys.executable, "-m", "runtimeproxy.qosmanager", name)
    socket = ("--koord-runtimeproxy-endpoint", str(site.daemon.socket))
    flags = ("--config", str(site.daemon.config_file), *socket)
    ended = subprocess.run((*command, *flags), capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def advised_resources(site: PoolSite, millicores: int) -> tuple[Any, tuple[int, str]]:
    """The object, and what the command says, once they have this headroom by an advisor's lease."""
    said = (
        ("reclaim", "pool.headroom_millicpu", str(millicores)),
        ("reclaim", "pool.headroom_bytes", str(1 << 30)),
    )

    def served_resources() -> Any:
        # However slow the machine is, the lease is renewed.
        assert not advise(admin, *said)
        document = document_of(served(site).report)
        if document is None:
            return None
        allocatable = document["status"]["resources"]["allocatable"].get(RECLAIMED_MILLICPU)
        # Never more than what is idle, which the machine decides.
        is_so = allocatable is not None and 0 < quantity_millicores(allocatable) // 1_000 <= millicores
        return document if is_so else None

    with admin_of(site.daemon) as admin:
        return wait_until(served_resources, f"a headroom of {millicores}", timeout_s=60), resources(site)


def no_headroom(site: PoolSite) -> bool:
    report = served(site).report
    document = document_of(report)
    if document is None or RECLAIMED_MILLICPU in document["status"]["resources"]["allocatable"]:
        return False
    return any(NO_ADVISOR in e for e in report.problems)


@pytest.mark.golang
def test_what_the_process_reports_is_served_and_written(
    daemons: Daemons, cgroup_files: CgroupFiles, runtime: FakeRuntime, socket_folder: Path
) -> None:
    folder = socket_folder / "reporter"
    folder.mkdir()
    options = "enable_reclaim = true"
    with (
        port_without_a_server() as url,
        pool_site(
            *(daemons, cgroup_files, runtime, socket_folder),
            options=options,
            more=REPORTER.format(folder=folder, url=url),
        ) as site,
    ):
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
            # Malachite is away: nothing is missing in the report, and the exit code tells it.
            source_code, source_text = printed(site, "status")
            advised = [advised_resources(site, headroom) for headroom in (1_000, 500)]
            with admin_of(daemon) as admin:
                admin.ReleaseClaims(api_pb2.ReleaseClaimsRequest(owner=ADVISOR), timeout=CALL_TIMEOUT_S)
            wait_until(lambda: no_headroom(site), "no headroom without a lease", timeout_s=60)
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
    assert any(NO_ADVISOR in each for each in found.report.problems)
    sockets = document["status"]["topologyZone"]
    assert [[child["type"] for child in each["children"]] for each in sockets] == [["Numa"], ["Numa"]]
    (allocation,) = (one for each in sockets for one in each["children"][0].get("allocations", []))
    assert allocation["requests"]["cpu"] == "2"
    assert code == 0, text
    assert source_code == 1
    samples = next(line for line in source_text.splitlines() if line.startswith("samples: "))
    assert f"read from the kernel's files: Malachite at {url}: ConnectionRefusedError" in samples
    assert text.splitlines()[1].split()[:4] == ["node", "cpu", "16.00", "2.00"]
    # Capacity stays while allocatable follows the advisor: in Katalyst both are one number that shrinks.
    for advised_document, (advised_code, advised_text) in advised:
        status = advised_document["status"]["resources"]
        assert status["capacity"] == capacity
        # The machine of these tests has 3 MiB, which are in use.
        assert status["allocatable"][RECLAIMED_MEMORY] == "0"
        assert advised_code == 0, advised_text
        assert "-" not in advised_text.splitlines()[1].split(), advised_text
        ended = run((go_tool("katalyst-types"),), stdin=json.dumps(advised_document))
        assert ended.returncode == 0, ended.stderr
