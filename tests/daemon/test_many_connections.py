"""A process that opens one connection after the other and closes none, like conformance suites of the CRI."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.failures.scene import Scene
from tests.daemon.load import Load
from tests.daemon.scraping import scrape
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ProxyProcess

SUITE: Final = """
import grpc, sys
from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
target, count = sys.argv[1], int(sys.argv[2])
channels = []
for _ in range(count):
    channel = grpc.insecure_channel(f"unix://{target}", options=[("grpc.use_local_subchannel_pool", 1)])
    api_pb2_grpc.RuntimeServiceStub(channel).Version(api_pb2.VersionRequest(), timeout=60)
    channels.append(channel)
print(len(channels), flush=True)
sys.stdin.readline()
for channel in channels:
    stub = api_pb2_grpc.RuntimeServiceStub(channel)
    stub.Version(api_pb2.VersionRequest(), timeout=60, wait_for_ready=True)
print("again", flush=True)
sys.stdin.readline()
"""
"""Opens so many, each used once, and uses all of them again when it is told to."""

ROOM: Final = 60
LITTLE_ROOM: Final = f"""
import runtimeproxy.frontends.cri_proxy.front_end as daemon
from functools import partial
daemon.RelayServer = partial(daemon.RelayServer, most_connections={ROOM})
"""


@contextmanager
def suite(daemon: ProxyProcess, count: int) -> Iterator[subprocess.Popen[str]]:
    """Runs it until all its connections have been used once."""
    command = [sys.executable, "-c", SUITE, str(daemon.socket), str(count)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{count}\n"
        yield process
        process.communicate("\n")


def use_again(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "again\n"


@pytest.fixture
def scene(daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles, socket_folder: Path) -> Scene:
    return Scene(daemons, runtime, cgroup_files, socket_folder)


@pytest.mark.slow
def test_400_connections_of_one_process_that_closes_none(scene: Scene) -> None:
    daemon = scene.start()
    with Load(daemon.socket) as load, suite(daemon, 400) as process:
        found = scrape(daemon)
        assert found.of("connections") > 400
        use_again(process)
        load.wait_for_more()
    assert load.failed == []
    found = scrape(daemon)
    assert found.of("connections_refused_total") == found.of("connections_ended_total") == 0


@pytest.mark.slow
def test_idle_connections_end_when_room_is_short_and_no_call_fails(scene: Scene) -> None:
    daemon = scene.start(statements=LITTLE_ROOM)
    with Load(daemon.socket) as load, suite(daemon, 100) as process:
        found = scrape(daemon)
        assert found.of("connections") <= ROOM
        assert found.of("connections_ended_total", cause="no_room") >= 100 - ROOM
        use_again(process)
        load.wait_for_more()
    assert load.failed == []
    assert scrape(daemon).of("connections_refused_total") == 0
