"""StartContainer: with its success the container's cgroup exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.core.events import on_container_started
from runtimeproxy.core.questions import NOTHING_DECIDED, Question, decided_values, make_room
from runtimeproxy.frontends.cri_proxy.calls.cri_call import ContainerCall
from runtimeproxy.hooks import Hook
from runtimeproxy.ledger.answers import by_parameter
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.pods.resources import NO_ENTRIES

if TYPE_CHECKING:
    from runtimeproxy.core.services import Work
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.hooks.decision import Decision


class StartContainer(ContainerCall):
    """The kubelet starts a container; cgroup values that waited for it are due after that."""

    request_type = api_pb2.StartContainerRequest

    def __init__(self, services: CallServices, request: api_pb2.StartContainerRequest) -> None:
        super().__init__(services, request, request.container_id)
        self._decided = NOTHING_DECIDED

    def before(self) -> Sequence[Question]:
        """Cgroup values wait for the cgroup."""
        record = self.record
        if record is None:
            return ()
        question = self.question(Hook.PRE_START_CONTAINER, record)
        question.on_decided = partial(self._keep_decision, question.cgroup)
        return (question,)

    def _keep_decision(self, cgroup: str, decision: Decision | None) -> None:
        if decision is not None:
            self._decided = decided_values(decision, cgroup)

    def preparations(self, until_s: float) -> Sequence[Work]:
        # Room for the values of the runtime's specification.
        return make_room(self.core, self.pod, self._booked)

    def _booked(self) -> Mapping[str, int | str]:
        return by_parameter(self.record.booked) if self.record is not None else NO_ENTRIES

    def on_success(self, response: bytes) -> Sequence[Work]:
        record = self.record
        if record is None:
            return ()
        return on_container_started(self.core, record, self._decided, self.origin)

    def after(self) -> Sequence[Question]:
        """The container's cgroup exists now."""
        record = self.record
        return () if record is None else (self.question(Hook.POST_START_CONTAINER, record),)

    async def confirm(self) -> Sequence[Work] | None:
        found = await self.lookups.confirm_container(self.container_id)
        return self.on_success(b"") if found is not None and found.state is Lifecycle.RUNNING else None
