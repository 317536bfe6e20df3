"""RestorePod (since 1.37): RunPodSandbox and CreateContainer in one call, from a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.core.events import book_container, on_started, write_decision, write_due
from runtimeproxy.core.questions import Question, pending_values
from runtimeproxy.frontends.cri_proxy.calls.create_container import ContainerDraft
from runtimeproxy.frontends.cri_proxy.calls.run_pod_sandbox import NewSandbox
from runtimeproxy.hooks import Hook, PodView
from runtimeproxy.pods.record_views import container_in_force, recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle
from runtimeproxy.pods.resources import NO_ENTRIES

if TYPE_CHECKING:
    from runtimeproxy.core.services import Work
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.hooks.decision import Decision


class RestorePod(NewSandbox):
    """A pod comes back from a checkpoint: policies run as if it and its containers were created."""

    request_type = api_pb2.RestorePodRequest

    def __init__(self, services: CallServices, request: api_pb2.RestorePodRequest) -> None:
        super().__init__(services, request)
        self._containers = {
            config.metadata.name: ContainerDraft(config, services.core.evaluator.rounds)
            for config in request.container_configs
        }
        self._container_questions: list[Question] = []
        self._decision: Decision | None = None
        self._restored: list[ContainerRecord] = []

    def before(self) -> Sequence[Question]:
        """First the pod, then each container with the pod as it will be."""
        self.place()
        pod = self._draft.question()
        # A container may be refused yet: the pod's cgroup values are written when all is decided.
        pod.is_deferred = True
        pod.on_decided = self._keep_decision
        self._container_questions = [
            Question(
                Hook.PRE_CREATE_CONTAINER,
                pod.pod,
                partial(draft.view, self._pod_view),
                edit=draft.edit,
                on_decided=draft.keep_decision,
            )
            for draft in self._containers.values()
        ]
        return (pod, *self._container_questions)

    def _keep_decision(self, decision: Decision | None) -> None:
        self._draft.keep_decision(decision)
        self._decision = decision
        if decision is not None:
            for question in self._container_questions:
                question.pod = cast("PodView", decision.view)

    def _pod_view(self) -> PodView:
        return cast("PodView", self._decision.view) if self._decision is not None else self._draft.view()

    def preparations(self, until_s: float) -> Sequence[Work]:
        """The pod's cgroup values, too."""
        works, decision = super().preparations(until_s), self._decision
        if decision is None or not pending_values(decision, "", is_deferred=True):
            return works
        cgroup = self._draft.config.linux.cgroup_parent
        return (*works, partial(write_decision, self.core, decision, cgroup, self.origin))

    def prepare(self) -> None:
        super().prepare()
        for draft in self._containers.values():
            draft.prepare()

    def release(self) -> None:
        """Keeps names and the records."""
        super().release()
        for draft in self._containers.values():
            draft.release()

    def on_success(self, response: bytes) -> Sequence[Work]:
        """Records the pod and its containers, which run already."""
        answer = api_pb2.RestorePodResponse.FromString(response)
        works = list(self._remember(answer.pod_sandbox_id))
        call_soon = asyncio.get_running_loop().call_soon
        for each in answer.restored_containers:
            record = self._container(each.name, each.container_id, answer.pod_sandbox_id)
            due = on_started(self.core, record)
            if due is not None:
                works.append(partial(write_due, self.core, due, self.origin))
            draft = self._containers.get(record.name)
            if draft is not None:
                running = replace(record, pending_cgroup=NO_ENTRIES)
                call_soon(book_container, self.core, self._record, running, draft.decided.fields)
            self._restored.append(record)
        return works

    def after(self) -> Sequence[Question]:
        return [self._started(record) for record in self._restored]

    def _started(self, record: ContainerRecord) -> Question:
        pod = recorded_pod(self._record) if self._record is not None else PodView()
        cgroup = self.core.inventory.cgroup_of(self._record, record)
        return Question(Hook.POST_START_CONTAINER, pod, partial(container_in_force, record, pod), cgroup)

    def _container(self, name: str, identity: str, pod_id: str) -> ContainerRecord:
        draft = self._containers.get(name)
        if draft is None:
            return ContainerRecord(
                id=identity, pod_id=pod_id, name=name, state=Lifecycle.RUNNING, detailed=False
            )
        make = draft.make_record or draft.prepare()
        return make(id=identity, pod_id=pod_id, state=Lifecycle.RUNNING)
