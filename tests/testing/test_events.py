"""Life-cycle events on the socket and the broadcast behind them."""

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import FakeRuntime, RuntimeState, preload
from runtimeproxy.testing.builders import pod_sandbox_config
from runtimeproxy.testing.events import EventBroadcast

WAIT_S = 30.0
REQUEST = api_pb2.GetEventsRequest()

Runtime = api_pb2_grpc.RuntimeServiceStub


def test_every_subscriber_gets_every_event_in_order(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    streams = [runtime.GetContainerEvents(REQUEST) for _ in range(2)]
    assert fake_runtime.events.wait_for_subscribers(2, WAIT_S)
    sandbox = fake_runtime.state.run_sandbox(pod_sandbox_config("web"))
    fake_runtime.state.stop_sandbox(sandbox.id)
    for stream in streams:
        events = [next(stream) for _ in range(3)]
        assert {event.container_id for event in events} == {sandbox.id}
        assert [event.container_event_type for event in events] == [
            api_pb2.CONTAINER_CREATED_EVENT,
            api_pb2.CONTAINER_STARTED_EVENT,
            api_pb2.CONTAINER_STOPPED_EVENT,
        ]
        stream.cancel()


def test_an_event_carries_the_status_of_its_pod(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    preload(fake_runtime.state, 1, 2)
    stream = runtime.GetContainerEvents(REQUEST)
    assert fake_runtime.events.wait_for_subscribers(1, WAIT_S)
    (first, second) = fake_runtime.state.containers
    fake_runtime.state.exit_container(second, 3)
    event = next(stream)
    assert event.pod_sandbox_status.metadata.name == "pod-0000"
    assert [status.id for status in event.containers_statuses] == [first, second]
    assert event.containers_statuses[1].exit_code == 3
    stream.cancel()


def test_a_subscriber_that_leaves_is_forgotten(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    stream = runtime.GetContainerEvents(REQUEST)
    assert fake_runtime.events.wait_for_subscribers(1, WAIT_S)
    stream.cancel()
    assert fake_runtime.events.wait_for_subscribers(0, WAIT_S)


def test_a_test_can_emit_events_of_its_own_and_end_the_stream(
    fake_runtime: FakeRuntime, runtime: Runtime
) -> None:
    stream = runtime.GetContainerEvents(REQUEST)
    assert fake_runtime.events.wait_for_subscribers(1, WAIT_S)
    sent = [api_pb2.ContainerEventResponse(container_id=str(number)) for number in range(100)]
    for event in sent:
        fake_runtime.emit_event(event)
    fake_runtime.events.end()
    assert list(stream) == sent
    assert stream.code() is grpc.StatusCode.OK


def test_a_stop_ends_the_streams(fake_runtime: FakeRuntime, runtime: Runtime) -> None:
    stream = runtime.GetContainerEvents(REQUEST)
    assert fake_runtime.events.wait_for_subscribers(1, WAIT_S)
    fake_runtime.stop()
    with pytest.raises(grpc.RpcError):
        next(stream)
    assert fake_runtime.events.wait_for_subscribers(0, WAIT_S)


def test_an_event_of_what_is_gone_has_no_status() -> None:
    state = RuntimeState()
    broadcast = EventBroadcast(state)
    sandbox = state.run_sandbox(pod_sandbox_config())
    with broadcast.subscribed() as subscription:
        state.remove_sandbox(sandbox.id)
        stopped, deleted = subscription.get(), subscription.get()
    assert stopped is not None
    assert stopped.HasField("pod_sandbox_status")
    assert deleted is not None
    assert not deleted.HasField("pod_sandbox_status")


def test_waiting_for_subscribers_that_do_not_come_ends() -> None:
    assert not EventBroadcast(RuntimeState()).wait_for_subscribers(1, 0.01)
