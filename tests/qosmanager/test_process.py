"""The manager as a process."""

import asyncio
from pathlib import Path

import pytest

from tests.lab.proxy_process import ManagerProcess
from tests.qosmanager.fake_daemon import FakeDaemon, pod_message


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


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
