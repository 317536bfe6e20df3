"""Daemons and clients of the API."""

from __future__ import annotations

from typing import Any

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.lab.cri_client import CriClient
from tests.service.conftest import (
    cgroup_files,
    client,
    daemon,
    daemons,
    fifo,
    installed,
    loop,
    module_daemon,
    module_folder,
    module_runtime,
    runtime,
    shared_client,
    shared_runtime,
)

__all__ = [
    "cgroup_files",
    "client",
    "daemon",
    "daemons",
    "fifo",
    "installed",
    "loop",
    "module_daemon",
    "module_folder",
    "module_runtime",
    "runtime",
    "shared_client",
    "shared_runtime",
]


@pytest.fixture
def api(shared_client: CriClient) -> Any:
    """The service RuntimeProxy of the module's daemon."""
    return api_pb2_grpc.RuntimeProxyStub(shared_client.channel)


@pytest.fixture
def own_api(client: CriClient) -> Any:
    """The same of the test's own daemon."""
    return api_pb2_grpc.RuntimeProxyStub(client.channel)


def status_of(api: Any) -> api_pb2.GetStatusResponse:
    status: api_pb2.GetStatusResponse = api.GetStatus(
        api_pb2.GetStatusRequest(), timeout=30, wait_for_ready=True
    )
    return status
