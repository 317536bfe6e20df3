"""The API while an upgrade replaces the process: watches end, and the successor has the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.daemon.upgrading import Family
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.conftest import status_of
from tests.service.api.test_admin import socket_of


@pytest.fixture
def family(daemon: ProxyProcess) -> Iterator[Family]:
    with Family(daemon) as followed:
        yield followed


def test_watches_end_and_the_successor_has_all(family: Family, own_api: Any, daemon: ProxyProcess) -> None:
    wait_until(lambda: not status_of(own_api).daemon.admin_problem, "the admin socket")
    target = f"unix:{socket_of(daemon)}"
    with grpc.insecure_channel(target) as channel:
        request = api_pb2.SetPolicyModeRequest(policy="cpuset", mode=api_pb2.MODE_OFF)
        api_pb2_grpc.AdminStub(channel).SetPolicyMode(request, timeout=30)
    stream = own_api.WatchPods(api_pb2.WatchPodsRequest(), timeout=60)
    next(stream)
    before = family.serving
    after = family.upgrade()
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    # Nothing of the API keeps the process before.
    family.wait_until_ended(before)
    wait_until(lambda: not status_of(own_api).daemon.admin_problem, "the successor's admin socket")
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(target, options=options) as channel:
        status = status_of(api_pb2_grpc.RuntimeProxyStub(channel))
    assert status.daemon.pid == after
    assert next(each for each in status.policies if each.name == "cpuset").mode == api_pb2.MODE_OFF
