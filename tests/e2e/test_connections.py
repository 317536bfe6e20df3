"""Connections of clients to the proxy, and of the proxy to two runtimes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from tests.lab import procfs
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyOptions, ProxyProcess


def test_short_connections_leave_no_open_file(proxy: ProxyProcess) -> None:
    visit(proxy.socket)
    # What the daemon opens for itself after its start is a handful of files.
    bound = procfs.open_files(proxy.pid) + 20
    for _ in range(100):
        visit(proxy.socket)

    wait_until(lambda: procfs.open_files(proxy.pid) < bound, "the files are closed")


def visit(socket: Path) -> None:
    with CriClient(socket) as client:
        client.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)


def test_images_of_another_runtime(folder: Path) -> None:
    own = Path(tempfile.mkdtemp(dir=folder))
    with Containerd("1.6") as runtime, Containerd("1.6") as images:
        options = ProxyOptions(f"unix://{runtime.socket}", f"unix://{images.socket}")
        with ProxyProcess(own, options) as proxy, CriClient(proxy.socket) as client:
            seen = [(info(client), image_folder(client)) for _ in range(3)]

    # One connection of the client carries both services in turn.
    assert seen == [(str(runtime.socket.parent), str(images.socket.parent))] * 3


def info(client: CriClient) -> str:
    """The folder of the runtime that answers."""
    request = api_pb2.StatusRequest(verbose=True)
    config = client.runtime.Status(request, timeout=CALL_TIMEOUT_S).info["config"]
    return config.partition('"rootDir":"')[2].partition("/root/")[0]


def image_folder(client: CriClient) -> str:
    """The folder of the image service that answers."""
    answer = client.images.ImageFsInfo(api_pb2.ImageFsInfoRequest(), timeout=CALL_TIMEOUT_S)
    return answer.image_filesystems[0].fs_id.mountpoint.partition("/root/")[0]
