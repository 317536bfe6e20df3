"""Hook servers that hang, crash, come late or talk nonsense, behind the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod, batch_pod, pod, shares_of
from tests.daemon.hook_servers import Servers, messages, use
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import time_s, wait_until
from tests.lab.proxy_process import ProxyProcess


@pytest.fixture
def servers(socket_folder: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(socket_folder, stack)


def refusal(made: Pod) -> tuple[grpc.StatusCode, str]:
    """Code and text with which its sandbox is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        made.run()
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_server_that_hangs_is_skipped_and_comes_back(
    daemon: ProxyProcess, client: CriClient, servers: Servers
) -> None:
    server = servers.start(kind="hang", hooks=("PreCreateContainerHook",), overlay={"cpu_shares": 99})
    server.register(daemon.hook_folder, "hanging.json", "PreCreateContainer", timeout_s=0.5)
    use(daemon, "hanging.json")
    for number in range(3):
        assert time_s(pod(client, f"pod{number}").run().create) >= 0.5
    wait_until(lambda: any("is skipped" in each for each in messages(daemon)), "the breaker's line")
    made = pod(client, "skipped").run()
    made.create()
    assert not [each for each in server.asked() if each.container.pod_meta.name == "skipped"]
    assert shares_of(made) != 99
    failures = [each for each in messages(daemon) if each.startswith("hanging.json: policy timed out")]
    assert len(failures) == 1, "one line per cause"
    server.behave("koordlet", overlay={"cpu_shares": 99})
    wait_until(lambda: any("answers again after" in each for each in messages(daemon)), "its return")
    # Half a second is little on a busy machine.
    wait_until(lambda: shares_of(pod(client, "back").run().create()) == 99, "its values")


def test_a_server_that_crashes_and_comes_back(
    daemon: ProxyProcess, client: CriClient, servers: Servers
) -> None:
    server = servers.start(kind="crash")
    server.register(daemon.hook_folder, "crashing.json", "PreCreateContainer")
    use(daemon, "crashing.json")
    for number in range(4):
        pod(client, f"pod{number}").run().create()
    assert server.wait() == 3
    with HookServerProcess(server.socket, Behaviour(overlay={"cpu_shares": 98})):
        wait_until(lambda: any("answers again after" in each for each in messages(daemon)), "its return")
        assert shares_of(pod(client, "back").run().create()) == 98


def test_what_cannot_be_used_is_left_out(daemon: ProxyProcess, client: CriClient, servers: Servers) -> None:
    said = {"nonsense": "left-out", "undecodable": "undecodable.json: ", "error": "error.json: "}
    for kind in said:
        server = servers.start(kind, kind=kind)
        server.register(daemon.hook_folder, f"{kind}.json", "PreCreateContainer")
    use(daemon, *(f"{kind}.json" for kind in said))
    assert shares_of(batch_pod(client).run().create()) == 512
    for start in said.values():
        wait_until(lambda start=start: any(start in each for each in messages(daemon)), "a line")  # type: ignore[misc]


def test_a_late_server_still_counts(daemon: ProxyProcess, client: CriClient, servers: Servers) -> None:
    server = servers.start(kind="late", seconds=0.5, overlay={"cpu_shares": 97})
    server.register(daemon.hook_folder, "late.json", "PreCreateContainer", timeout_s=10)
    use(daemon, "late.json")
    assert shares_of(pod(client).run().create()) == 97


def test_a_refusal_has_the_servers_code_and_text(
    daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime, servers: Servers
) -> None:
    server = servers.start(kind="error", code="RESOURCE_EXHAUSTED", text="no CPU left")
    server.register(daemon.hook_folder, "strict.json", "PreRunPodSandbox", failure_policy="Fail")
    use(daemon, "strict.json")
    text = "koord-runtime-proxy: strict.json: hook server err: no CPU left"
    assert refusal(pod(client)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    server.behave("error", code="NOT_FOUND", text="no such pod")
    assert refusal(pod(client))[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert not runtime.recorded.of("RunPodSandbox")


def test_a_strict_server_that_is_away_refuses(
    daemon: ProxyProcess, client: CriClient, servers: Servers
) -> None:
    server = servers.start()
    server.register(daemon.hook_folder, "strict.json", "PreRunPodSandbox", failure_policy="Fail")
    use(daemon, "strict.json")
    server.kill()
    told = [refusal(pod(client)) for _ in range(4)]
    assert {code for code, _ in told} == {grpc.StatusCode.UNAVAILABLE}
    assert "strict.json: hook server err: not called since" in told[-1][1]
    server.start()
    wait_until(lambda: any("answers again after" in each for each in messages(daemon)), "its return")
    pod(client).run()


def test_a_server_that_hangs_does_not_keep_the_daemon(daemons: Daemons, servers: Servers) -> None:
    daemon = daemons.start("[proxy]\ndrain_s = 0.2\n")
    server = servers.start(kind="hang")
    server.register(daemon.hook_folder, "hanging.json", "PreCreateContainer", timeout_s=60)
    use(daemon, "hanging.json")
    with CriClient(daemon.socket) as client:
        made = pod(client).run()
        # grpcio cancels a call without references.
        call = client.runtime.CreateContainer.future(made.create_request, timeout=CALL_TIMEOUT_S)
        wait_until(lambda: server.asked("PreCreateContainerHook"), "the call is under way")
        assert daemon.terminate() == 0
        assert call.code() is grpc.StatusCode.UNAVAILABLE, "the drain is shorter than the server's time"


def test_many_pods_at_once_while_a_server_hangs(
    daemon: ProxyProcess, client: CriClient, servers: Servers
) -> None:
    server = servers.start(kind="hang")
    server.register(daemon.hook_folder, "hanging.json", "PreCreateContainer", timeout_s=0.5)
    use(daemon, "hanging.json")
    pods = [batch_pod(client, f"pod{number}").run() for number in range(40)]
    calls = [
        client.runtime.CreateContainer.future(each.create_request, timeout=CALL_TIMEOUT_S) for each in pods
    ]
    for each, call in zip(pods, calls, strict=True):
        each.container = call.result().container_id
    assert {shares_of(each) for each in pods} == {512}, "of batch-resource"
