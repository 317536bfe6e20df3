"""The admin socket, and what is changed there."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.service.api.admin_socket import AdminSocket
from runtimeproxy.service.api.loading import ADMIN_SERVICE, MOST_CALLS, READ_SERVICE
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, batch_pod, shares_of
from tests.daemon.test_reload import UNTOUCHED
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.conftest import status_of


def socket_of(daemon: ProxyProcess) -> Path:
    return daemon.folder / "admin" / "api.sock"


@pytest.fixture
def channel(daemon: ProxyProcess) -> Iterator[grpc.Channel]:
    """To the admin socket."""
    wait_until(socket_of(daemon).exists, "the admin socket")
    with grpc.insecure_channel(f"unix:{socket_of(daemon)}") as opened:
        yield opened


@pytest.fixture
def admin(channel: grpc.Channel) -> Any:
    return api_pb2_grpc.AdminStub(channel)


def test_only_the_daemons_user_gets_there(daemon: ProxyProcess, own_api: Any) -> None:
    wait_until(socket_of(daemon).exists, "the admin socket")
    assert stat.S_IMODE(socket_of(daemon).stat().st_mode) == 0o600
    assert stat.S_IMODE(socket_of(daemon).parent.stat().st_mode) == 0o700
    wait_until(lambda: not status_of(own_api).daemon.admin_problem, "it serves")
    assert status_of(own_api).daemon.admin_endpoint == str(socket_of(daemon))
    daemon.terminate()
    assert not socket_of(daemon).exists()


def test_reflection_lists_both_services_there(channel: grpc.Channel) -> None:
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {READ_SERVICE, ADMIN_SERVICE} <= set(services)


def test_the_bypass(admin: Any, channel: grpc.Channel, client: CriClient) -> None:
    api: Any = api_pb2_grpc.RuntimeProxyStub(channel)
    asked = api_pb2.SetBypassRequest(is_on=True, reason="ticket 7")
    answer = admin.SetBypass(asked, timeout=30, wait_for_ready=True).bypass
    assert (answer.is_on, answer.cause, answer.reason) == (True, api_pb2.Bypass.CAUSE_COMMAND, "ticket 7")
    assert status_of(api).bypass == answer
    assert shares_of(batch_pod(client, "one").run().create()) == UNTOUCHED
    assert not admin.SetBypass(api_pb2.SetBypassRequest(), timeout=30).bypass.is_on
    assert shares_of(batch_pod(client, "two").run().create()) == BATCH_SHARES


def test_watchers_on_the_kubelets_socket_keep_none_out_here(
    daemon: ProxyProcess, channel: grpc.Channel, own_api: Any
) -> None:
    admin_api: Any = api_pb2_grpc.RuntimeProxyStub(channel)

    def watch(api: Any) -> Any:
        """A call that has begun: its first response is here."""
        call = api.WatchPods(api_pb2.WatchPodsRequest(), timeout=60, wait_for_ready=True)
        assert next(call).HasField("snapshot")
        return call

    with ExitStack() as stack:
        # A client that takes all that it can get, on several connections.
        clients = [stack.enter_context(CriClient(daemon.socket)) for _ in range(4)]
        stubs = [api_pb2_grpc.RuntimeProxyStub(each.channel) for each in clients]
        most = MOST_CALLS["WatchPods"]
        held = [watch(stubs[number % len(stubs)]) for number in range(most)]
        for api in (*stubs, own_api):
            with pytest.raises(grpc.RpcError) as caught:
                watch(api)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert caught.value.details() == f"{most} calls of WatchPods are under way already; call again"
        managers = [watch(admin_api) for _ in range(2)]
        # One that ends makes room, however it ends.
        clients.pop().channel.close()
        wait_until(lambda: status_of(admin_api).clients.watchers == most * 3 // 4 + 2, "room")
        held += [watch(own_api) for _ in range(most // 4)]
        assert status_of(admin_api).clients.watchers == most + 2
        for call in (*held, *managers):
            call.cancel()
        wait_until(lambda: status_of(own_api).clients.watchers == 0, "the end of all")


def test_a_reason_that_is_too_long(admin: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        admin.SetBypass(api_pb2.SetBypassRequest(reason="x" * 257), timeout=30, wait_for_ready=True)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_none_is_made_where_it_is_off(daemons: Daemons) -> None:
    daemon = daemons.start('[api]\nadmin_socket = ""\n')
    with CriClient(daemon.socket) as client:
        status = status_of(api_pb2_grpc.RuntimeProxyStub(client.channel))
    assert status.daemon.admin_endpoint == status.daemon.admin_problem == ""
    assert not socket_of(daemon).parent.exists()


def test_a_path_that_cannot_be_used_costs_the_admin_socket_only(daemons: Daemons) -> None:
    daemon = daemons.start('[api]\nadmin_socket = "/proc/no/api.sock"\n')
    with CriClient(daemon.socket) as client:
        api: Any = api_pb2_grpc.RuntimeProxyStub(client.channel)
        wait_until(lambda: "/proc/no" in status_of(api).daemon.admin_problem, "the problem")
        assert any("admin socket" in each for each in status_of(api).problems)


class TestSocket:
    """The socket alone."""

    async def test_one_of_another_process_stays(self, socket_folder: Path) -> None:
        path = socket_folder / "admin" / "api.sock"
        first, second = AdminSocket(str(path)), AdminSocket(str(path))
        await first.publish()
        await second.publish()
        assert (first.problem, "another process listens" in second.problem) == ("", True)
        await second.publish(replaces=True)
        assert second.problem == ""
        await first.stop()
        assert path.exists()
        await second.stop()
        assert not path.exists()

    async def test_the_socket_of_a_killed_process_is_replaced(self, socket_folder: Path) -> None:
        path = socket_folder / "admin" / "api.sock"
        path.parent.mkdir()
        server = await asyncio.start_unix_server(lambda *_: None, path=path)
        server.close()
        if not path.exists():  # newer interpreters remove it
            path.touch()
            path.unlink()
        socket = AdminSocket(str(path))
        await socket.publish()
        assert socket.problem == ""
        await socket.stop()

    async def test_what_is_no_socket_stays(self, socket_folder: Path) -> None:
        path = socket_folder / "admin" / "api.sock"
        path.parent.mkdir()
        path.write_text("a file")
        socket = AdminSocket(str(path))
        await socket.publish()
        assert "is not a socket" in socket.problem
        assert path.read_text() == "a file"
