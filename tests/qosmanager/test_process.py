"""The manager as a process."""

import asyncio
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from tests.lab.proxy_process import ManagerProcess
from tests.qosmanager.fake_daemon import FakeDaemon, pod_message
from tests.qosmanager.samples.malachite_server import port_without_a_server


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.slow
async def test_malachite_is_away(daemon: FakeDaemon, socket_folder: Path) -> None:
    """It is no hard dependency: samples come from the kernel's files, and the status says why.

    Complaint of Katalyst's users, issues 566 and 602: its agent ends again and again.
    """
    daemon.add_pod(pod_message("web"))
    daemon.node.plugin_strategies.append(api_pb2.StrategyField(path="threshold.enable", value="true"))
    config = socket_folder / "config.toml"
    with port_without_a_server() as url:
        config.write_text(
            f"[api]\nadmin_socket = '{daemon.path}'\n"
            f"[qosmanager]\nmetrics_source = 'malachite'\nmalachite_url = '{url}'\n"
        )
        manager = ManagerProcess(socket_folder, config, socket_folder / "proxy.sock")
        try:
            await asyncio.to_thread(manager.start)
            reason = f"read from the kernel's files: Malachite at {url}: ConnectionRefusedError"
            await daemon.wait_for(
                lambda: any(
                    each.metrics_source == "kernel" and reason in each.metrics_problem
                    for each in daemon.reports
                )
            )
            assert "libssl" not in mapped_files(manager.pid)
            assert await asyncio.to_thread(manager.terminate) == 0
        finally:
            manager.close()
    # A line a minute, not one for each request.
    assert sum("ConnectionRefusedError" in line for line in manager.log) <= 2


@pytest.mark.slow
async def test_no_openssl_and_no_line_of_grpc(daemon: FakeDaemon, socket_folder: Path) -> None:
    daemon.add_pod(pod_message("web"))
    config = socket_folder / "config.toml"
    config.write_text(f"[api]\nadmin_socket = '{daemon.path}'\n")
    manager = ManagerProcess(socket_folder, config, socket_folder / "proxy.sock")
    try:
        await asyncio.to_thread(manager.start)
        await asyncio.to_thread(manager.wait_for_state, "STATUS=cpu-suppress: ")
        assert "libssl" not in mapped_files(manager.pid)
        await daemon.stop()
        await asyncio.to_thread(manager.wait_for_state, "STATUS=no daemon: ")
        assert await asyncio.to_thread(manager.terminate) == 0
    finally:
        manager.close()
    assert any("nothing is computed meanwhile" in line for line in manager.log)
    assert [line for line in manager.log if not line.startswith("{")] == []
