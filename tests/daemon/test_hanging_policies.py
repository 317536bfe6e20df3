"""A thread cannot be ended: one that a policy does not give back is shown until it ends, reloads or not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.daemon.conftest import Daemons
from tests.daemon.driving import pod, policy_file, shares_of
from tests.daemon.failures.scene import write_policy
from tests.daemon.scraping import scrape, socket_of, wait_for
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

HANGS = "timeout_s = 0.2\ndef container(self, container, node):\n    {statement}"


@pytest.fixture
def fifo(socket_folder: Path) -> Path:
    path = socket_folder / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture
def daemon(daemons: Daemons, fifo: Path) -> ProxyProcess:
    """Its policy `stuck` hangs in a thread until the FIFO has a writer."""
    daemon = daemons.prepare()
    daemons.environment["KOORD_RUNTIMEPROXY_METRICS_LISTEN"] = str(socket_of(daemon))
    write_policy(daemon, "stuck", HANGS.format(statement=f"open({str(fifo)!r}).read()"))
    daemon.start()
    with CriClient(daemon.socket) as client:
        pod(client).run().create()
    wait_for(daemon, "policy_hung_threads", policy="stuck")
    return daemon


def reload(daemon: ProxyProcess) -> None:
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_state("RELOADING=1")
    daemon.wait_for_state("READY=1")


def status_of(daemon: ProxyProcess) -> api_pb2.GetStatusResponse:
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        status: api_pb2.GetStatusResponse = api.GetStatus(api_pb2.GetStatusRequest(), timeout=30)
        return status


def policy_of(status: api_pb2.GetStatusResponse, name: str) -> api_pb2.PolicyStatus | None:
    return next((each for each in status.policies if each.name == name), None)


def problems_about(status: api_pb2.GetStatusResponse, policy: str) -> list[str]:
    return [each for each in status.problems if policy in each and "hang" in each]


def test_a_policy_that_a_reload_removes_is_shown_until_its_thread_ends(
    daemon: ProxyProcess, fifo: Path
) -> None:
    (problem,) = problems_about(status_of(daemon), "stuck")
    assert problem == "Policy stuck hangs and is skipped; `koord-runtime-proxy upgrade` ends its thread."
    (daemon.policies_folder / "stuck.py").unlink()
    reload(daemon)
    status = status_of(daemon)
    found = policy_of(status, "stuck")
    assert found is not None
    assert found.state == api_pb2.PolicyStatus.STATE_REMOVED
    assert (found.hanging_threads, found.replaced_threads) == (1, 1)
    assert found.HasField("replaced_since")
    (problem,) = problems_about(status, "stuck")
    assert problem.startswith("1 thread hangs in policy stuck as it was before a reload, and may go on using")
    assert problem.endswith("; `koord-runtime-proxy upgrade` ends what hangs.")
    assert scrape(daemon).of("policy_hung_threads", policy="stuck") == 1
    fifo.open("wb").close()
    wait_until(lambda: policy_of(status_of(daemon), "stuck") is None, "its end")
    assert scrape(daemon).of("policy_hung_threads") == 0


def test_a_policy_that_a_reload_replaces_runs_beside_its_old_thread(daemon: ProxyProcess, fifo: Path) -> None:
    policy_file(daemon, "stuck", shares=77)
    reload(daemon)
    with CriClient(daemon.socket) as client:
        assert shares_of(pod(client, "after").run().create()) == 77
    status = status_of(daemon)
    found = policy_of(status, "stuck")
    assert found is not None
    assert found.state == api_pb2.PolicyStatus.STATE_LOADED
    assert (found.hanging_threads, found.replaced_threads) == (1, 1)
    assert len(problems_about(status, "stuck")) == 1
    fifo.open("wb").close()
    wait_until(lambda: not problems_about(status_of(daemon), "stuck"), "its end")


@pytest.mark.slow
def test_an_upgrade_ends_a_thread_that_computes(daemons: Daemons) -> None:
    daemon = daemons.prepare()
    write_policy(daemon, "busy", HANGS.format(statement="while True: pass"))
    daemon.start()
    with CriClient(daemon.socket) as client:
        pod(client).run().create()
    wait_until(lambda: problems_about(status_of(daemon), "busy"), "a thread that hangs")
    (daemon.policies_folder / "busy.py").unlink()
    reload(daemon)
    assert problems_about(status_of(daemon), "busy")
    with Family(daemon) as family:
        before = family.serving
        family.upgrade()
        family.wait_until_ended(before)
        assert not problems_about(status_of(daemon), "busy")


@pytest.mark.parametrize("when", ["import", "constructor"])
def test_a_policy_that_hangs_while_it_is_loaded(daemons: Daemons, fifo: Path, when: str) -> None:
    daemon = daemons.prepare()
    daemons.environment["KOORD_RUNTIMEPROXY_HOOKS_LOAD_TIMEOUT_S"] = "0.2"
    daemons.environment["KOORD_RUNTIMEPROXY_METRICS_LISTEN"] = str(socket_of(daemon))
    opens = f"open({str(fifo)!r}).read()"
    if when == "import":
        daemon.policies_folder.mkdir()
        (daemon.policies_folder / "late.py").write_text(opens)
    else:
        write_policy(daemon, "late", f"def pod(self, pod, node): ...\ndef __init__(self):\n    {opens}")
    daemon.start()
    found = policy_of(status_of(daemon), "late")
    assert found is not None
    assert found.state == api_pb2.PolicyStatus.STATE_FAILED
    assert (found.hanging_threads, found.replaced_threads) == (1, 0)
    (problem,) = problems_about(status_of(daemon), "late")
    assert problem == "A thread hangs in policy late; `koord-runtime-proxy upgrade` ends it."
    (daemon.policies_folder / "late.py").unlink()
    reload(daemon)
    found = policy_of(status_of(daemon), "late")
    assert found is not None
    assert found.state == api_pb2.PolicyStatus.STATE_REMOVED
    assert (found.hanging_threads, found.replaced_threads) == (1, 1)
    assert found.HasField("replaced_since")
    (problem,) = problems_about(status_of(daemon), "late")
    assert problem.startswith("1 thread hangs in policy late as it was before a reload")
    assert scrape(daemon).of("policy_hung_threads", policy="late") == 1
    fifo.open("wb").close()
    wait_until(lambda: policy_of(status_of(daemon), "late") is None, "its end")
    assert scrape(daemon).of("policy_hung_threads") == 0
