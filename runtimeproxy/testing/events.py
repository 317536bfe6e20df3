"""Life-cycle events: every subscriber gets all events from its subscription on, in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.messages import container_status, sandbox_status
from runtimeproxy.testing.state import EventType, RuntimeState

Subscription = queue.SimpleQueue[api_pb2.ContainerEventResponse | None]
"""Events that wait for one subscriber; ``None`` ends the stream."""


class EventBroadcast:
    """Hands the events of a state to all subscribers."""

    def __init__(self, state: RuntimeState) -> None:
        self._state = state
        self._changed = threading.Condition()
        self._subscriptions: list[Subscription] = []
        state.listeners.append(self._on_change)

    @contextmanager
    def subscribed(self) -> Iterator[Subscription]:
        """Subscribes for the time of the block."""
        subscription: Subscription = queue.SimpleQueue()
        with self._changed:
            self._subscriptions.append(subscription)
            self._changed.notify_all()
        try:
            yield subscription
        finally:
            with self._changed:
                self._subscriptions.remove(subscription)
                self._changed.notify_all()

    def wait_for_subscribers(self, count: int, timeout_s: float) -> bool:
        """Waits until exactly ``count`` subscribers listen; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._subscriptions) == count, timeout_s)

    def publish(self, event: api_pb2.ContainerEventResponse) -> None:
        """Hands an event to all subscribers."""
        with self._changed:
            for subscription in self._subscriptions:
                subscription.put(event)

    def end(self) -> None:
        """Ends the streams of all present subscribers with OK, as CRI-O does without events."""
        with self._changed:
            for subscription in self._subscriptions:
                subscription.put(None)

    def _on_change(self, owner_id: str, kind: EventType) -> None:
        with self._changed:
            if not self._subscriptions:
                return
        event = api_pb2.ContainerEventResponse(
            container_id=owner_id,
            container_event_type=kind,
            created_at=self._state.clock_ns(),
        )
        container = self._state.containers.get(owner_id)
        sandbox = self._state.sandboxes.get(owner_id if container is None else container.sandbox_id)
        if sandbox is not None:
            event.pod_sandbox_status.CopyFrom(sandbox_status(sandbox))
            containers = self._state.containers_of(sandbox.id)
            event.containers_statuses.extend(container_status(entry) for entry in containers)
        self.publish(event)
