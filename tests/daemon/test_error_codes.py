"""Peers that end calls and connections with any error code of HTTP/2 end neither program."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod, pod
from tests.daemon.installed import MODULES_IN
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ManagerProcess
from tests.peers.aio import RawServer, until
from tests.peers.error_codes import Codes

WAIT_S = 60.0
REGISTRATION = {"remote-endpoint": "", "failure-policy": "Ignore", "runtime-hooks": ["PreRunPodSandbox"]}


@pytest.mark.usefixtures("runtime")
async def test_plugins_of_the_qos_manager(daemons: Daemons, socket_folder: Path) -> None:
    codes, path = Codes(), socket_folder / "plugin.sock"
    names = [f"plugin-{number}" for number, _ in enumerate(codes.scripts)]
    plugins = "".join(f'[plugins.{name}]\nendpoint = "{path}"\n' for name in names)
    daemon = daemons.prepare(f"[qosmanager]\ninterval_s = 0.1\n{plugins}")
    manager = ManagerProcess(daemon.folder, daemon.config_file, daemon.socket, daemon.options.environment)
    try:
        async with RawServer(path, *codes.scripts):
            await asyncio.to_thread(daemon.start)
            await asyncio.to_thread(manager.start)
            async with asyncio.timeout(WAIT_S):
                await codes.all_sent.wait()
            # Each failure is a line of its plugin, and nothing else.
            await until(lambda: all(name in "\n".join(manager.log) for name in names))
            assert await asyncio.to_thread(manager.terminate) == 0
    finally:
        await asyncio.to_thread(manager.close)


@pytest.mark.usefixtures("runtime")
async def test_hook_servers_of_the_daemon(daemons: Daemons, socket_folder: Path) -> None:
    codes, path = Codes(), socket_folder / "hooks.sock"
    registration = json.dumps(REGISTRATION | {"remote-endpoint": str(path)})
    servers = {f"{number}.json": registration for number, _ in enumerate(codes.scripts)}
    daemon = daemons.prepare(hook_servers=servers)
    async with RawServer(path, *codes.scripts):
        await asyncio.to_thread(daemon.start)
        with CriClient(daemon.socket) as client:
            while not codes.all_sent.is_set():
                await asyncio.to_thread(batch_pod(client).run)
            api = api_pb2_grpc.RuntimeProxyStub(client.channel)
            status = await asyncio.to_thread(api.GetStatus, api_pb2.GetStatusRequest(), timeout=30)
        assert status.daemon.pid == daemon.pid


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
async def test_a_collector_of_spans(daemons: Daemons, socket_folder: Path) -> None:
    """Only the codes that ended the gRPC library's core, for a lost batch takes seconds; see test_otlp.py."""
    codes, path, modules = Codes((13, 14)), socket_folder / "otlp.sock", socket_folder / "modules"
    daemon = daemons.prepare(f"[tracing]\nendpoint = '{path}'\n")
    async with RawServer(path, *codes.scripts):
        await asyncio.to_thread(daemon.start)
        with CriClient(daemon.socket) as client:
            api = api_pb2_grpc.RuntimeProxyStub(client.channel)

            def lost() -> int:
                number: int = api.GetStatus(api_pb2.GetStatusRequest(), timeout=30).tracing.lost
                return number

            async with asyncio.timeout(WAIT_S):
                while not codes.all_sent.is_set():
                    before = lost()
                    pod(client, annotations={MODULES_IN: str(modules)}).run().create()
                    await until(lambda before=before: lost() > before or codes.all_sent.is_set())  # type: ignore[misc]
                # The last code was sent, and is counted a moment later.
                await until(lambda: lost() > 0)
        assert await asyncio.to_thread(daemon.terminate) == 0
    imported = modules.read_text().split()
    assert "opentelemetry.sdk.trace" in imported
    assert not [name for name in imported if name.partition(".")[0] == "grpc"]
