"""The runtime service of the fake runtime: all 37 calls over one state."""

from __future__ import annotations

from cri_api.runtime.v1 import api_pb2_grpc
from runtimeproxy.testing.container_calls import ContainerCalls
from runtimeproxy.testing.events import EventBroadcast
from runtimeproxy.testing.node_calls import NodeCalls
from runtimeproxy.testing.sandbox_calls import SandboxCalls
from runtimeproxy.testing.state import RuntimeState


class FakeRuntimeService(SandboxCalls, ContainerCalls, NodeCalls, api_pb2_grpc.RuntimeServiceServicer):
    """A synchronous servicer; what it does is in the classes that it joins.

    Attributes:
        state: Sandboxes and containers.
        events: Where life-cycle events come from.
    """

    def __init__(self, state: RuntimeState, events: EventBroadcast) -> None:
        self.state = state
        self.events = events
