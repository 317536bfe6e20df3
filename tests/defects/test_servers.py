"""Hook servers that hang, fail, are away or are several."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from tests.daemon.driving import pod, shares_of
from tests.defects.node import Node, Registrations, asked_about
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import quickest_s, time_s, wait_until

DEADLINE_S = 8.0
"""Of a caller; it has 3 s in the report of the defect."""
OUTAGE_S = 5.3
"""So long that a growing back-off makes itself felt: attempts after 1, 2.6, 5.2 and 9.3 s."""
SERVER_BACK_S = 3.0
RUNTIME_BACK_S = 2.0
"""A second is promised; a busy machine gets two, and three tries."""


@pytest.mark.defect(4)
def test_a_hung_server_costs_its_own_time_only(own_node: Node, server: HookServerProcess) -> None:
    """With the default settings; the hook would wait for ever."""
    server.behave("hang", hooks=("PreCreateContainerHook",))
    Registrations(own_node).register(server, "PreRunPodSandbox", "PreCreateContainer")
    with CriClient(own_node.proxy.socket) as client:
        made = pod(client).run()
        client.runtime.CreateContainer(made.create_request, timeout=DEADLINE_S)
        own_node.sent("CreateContainer")
        assert asked_about(server, made, "PreCreateContainerHook")
        took_s = quickest_s(lambda: time_s(made.create), CALL_TIMEOUT_S / 4)
        assert took_s < CALL_TIMEOUT_S / 4, "2 s by default, whatever the caller has"


@pytest.mark.defect(4)
def test_a_slow_post_hook_delays_nobody(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    server.behave("hang", hooks=("PostStartContainerHook",))
    registrations.register(server, "PostStartContainer")
    made = pod(client).run().create()
    request = api_pb2.StartContainerRequest(container_id=made.container)
    client.runtime.StartContainer(request, timeout=DEADLINE_S)
    wait_until(lambda: asked_about(server, made, "PostStartContainerHook"), "the post hook")


@pytest.mark.defect(12)
def test_all_servers_are_asked_in_the_order_of_their_names(
    client: CriClient, registrations: Registrations, server: HookServerProcess, new_path: Callable[[], Path]
) -> None:
    server.behave("koordlet", overlay={"cpu_shares": 200})
    with HookServerProcess(new_path(), Behaviour(overlay={"cpu_shares": 100})) as first:
        registrations.register(server, "PreCreateContainer", before="b")
        registrations.register(first, "PreCreateContainer", before="a")
        for _ in range(10):
            made = pod(client).run().create()
            assert [len(asked_about(each, made)) for each in (first, server)] == [1, 1]
            assert asked_about(server, made)[0].container.container_resources.cpu_shares == 100
            assert shares_of(made) == 200
        first.behave("error")
        assert shares_of(pod(client).run().create()) == 200


@pytest.mark.slow
@pytest.mark.defect(18)
def test_a_server_is_soon_back_in_use(
    client: CriClient, registrations: Registrations, new_path: Callable[[], Path]
) -> None:
    """Pods come all the while it is away; without it, as the failure policy says."""
    with HookServerProcess(new_path(), Behaviour(overlay={"cpu_shares": 99})) as server:
        registrations.register(server, "PreCreateContainer")

        def back_s() -> float:
            server.kill()
            end_s = time.monotonic() + OUTAGE_S
            while time.monotonic() < end_s:
                assert shares_of(pod(client).run().create()) != 99
            server.start()
            return time_s(
                lambda: wait_until(lambda: shares_of(pod(client).run().create()) == 99, "its values")
            )

        assert quickest_s(back_s, SERVER_BACK_S) < SERVER_BACK_S


@pytest.mark.defect(18)
def test_a_runtime_is_soon_back_in_use(own_node: Node) -> None:
    def back_s() -> float:
        own_node.runtime.kill()
        with CriClient(own_node.proxy.socket) as client:
            waiting = client.runtime.Version.future(
                api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S, wait_for_ready=True
            )
            with pytest.raises(grpc.FutureTimeoutError):
                waiting.result(OUTAGE_S)
            own_node.runtime.start()
            return time_s(lambda: waiting.result(CALL_TIMEOUT_S))

    assert quickest_s(back_s, RUNTIME_BACK_S) < RUNTIME_BACK_S


@pytest.mark.defect(20)
def test_an_error_of_a_post_hook_is_told(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    server.behave("error", hooks=("PostStartContainerHook",), text="no traces left")
    path = registrations.register(server, "PostStartContainer")
    pod(client).run().create().start()
    wait_until(
        lambda: any(path.name in line and "no traces left" in line for line in node.proxy.log), "its text"
    )


@pytest.mark.defect(20)
def test_an_old_kubelet_has_its_hooks(
    client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """`runtime.v1alpha2` passed without any, and without a word."""
    registrations.register(server, "PreRunPodSandbox", "PreCreateContainer")
    made = pod(client)
    request = api_pb2.RunPodSandboxRequest(config=made.config).SerializeToString()
    answer = client.raw("/runtime.v1alpha2.RuntimeService/RunPodSandbox", request)
    made.id = api_pb2.RunPodSandboxResponse.FromString(answer).pod_sandbox_id
    client.raw("/runtime.v1alpha2.RuntimeService/CreateContainer", made.create_request.SerializeToString())
    asked = [each.hook for each in asked_about(server, made)]
    assert asked == ["PreRunPodSandboxHook", "PreCreateContainerHook"]


@pytest.mark.defect(20)
def test_a_skip_label_among_the_annotations_is_told(
    node: Node, client: CriClient, registrations: Registrations, server: HookServerProcess
) -> None:
    """The help of Koordinator's proxy speaks of annotations, where it has no effect."""
    registrations.register(server, "PreRunPodSandbox")
    skip = {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}
    annotated, labelled = pod(client, "annotated", skip), pod(client, "labelled")
    labelled.config.labels.update(skip)
    assert len(asked_about(server, annotated.run())) == 1
    assert not asked_about(server, labelled.run())
    wait_until(lambda: any("skip-hookserver" in line for line in node.proxy.log), "a word on it")
