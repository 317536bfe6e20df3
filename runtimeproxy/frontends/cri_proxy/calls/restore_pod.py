"""RestorePod (since 1.37): RunPodSandbox and CreateContainer in one call, from a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.create_container import ContainerDraft
from runtimeproxy.frontends.cri_proxy.calls.cri_call import (
    DueWrites,
    Question,
    Questions,
    book_container,
    container_cgroup,
)
from runtimeproxy.frontends.cri_proxy.calls.run_pod_sandbox import NewSandbox
from runtimeproxy.frontends.cri_proxy.calls.start_container import due_writes_of
from runtimeproxy.hooks import Hook, PodView
from runtimeproxy.pods.record_views import container_in_force, recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle
from runtimeproxy.pods.resources import NO_ENTRIES

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices


class RestorePod(NewSandbox):
    """A pod comes back from a checkpoint: policies run as if it and its containers were created."""

    has_one_question = False
    request_type = api_pb2.RestorePodRequest

    def __init__(self, services: CallServices, request: api_pb2.RestorePodRequest) -> None:
        super().__init__(services, request)
        self._containers = {
            config.metadata.name: ContainerDraft(config, services.evaluation)
            for config in request.container_configs
        }
        self._restored: tuple[ContainerRecord, ...] = ()

    def questions(self) -> Questions:
        """First the pod, then each container with the pod as it will be."""
        question = self._draft.question()
        decision = yield question
        self._draft.keep_decision(decision)
        pod = cast("PodView", question.make_view() if decision is None else decision.view)
        for draft in self._containers.values():
            make_view = partial(draft.view, lambda: pod)
            question = Question(Hook.PRE_CREATE_CONTAINER, pod, make_view, edit=draft.edit)
            draft.keep_decision(question, (yield question))

    def prepare(self) -> None:
        """Prepares the records of the pod and its containers."""
        super().prepare()
        for draft in self._containers.values():
            draft.prepare()

    def release(self) -> None:
        """Keeps names and the records."""
        super().release()
        for draft in self._containers.values():
            draft.release()

    def on_success(self, response: bytes) -> None:
        """Records the pod and its containers, which run already."""
        answer = api_pb2.RestorePodResponse.FromString(response)
        self._remember(answer.pod_sandbox_id)
        self._restored = tuple(
            self._container(each.name, each.container_id, answer.pod_sandbox_id)
            for each in answer.restored_containers
        )
        due: list[DueWrites] = [*self.due_writes]
        for record in self._restored:
            running = replace(record, pending_cgroup=NO_ENTRIES)
            self.services.store.containers.put(running)
            draft = self._containers.get(record.name)
            if draft is not None:
                book_container(self.services, self._record, running, draft.fields)
            if record.pending_cgroup:
                due.append(self._due_writes(record))
        self.due_writes = tuple(due)

    def post_questions(self) -> Questions:
        """The containers run."""
        for record in self._restored:
            yield self._question(record)

    def _question(self, record: ContainerRecord) -> Question:
        pod = recorded_pod(self._record) if self._record is not None else PodView()
        cgroup = container_cgroup(self.services, self._record, record)
        return Question(Hook.POST_START_CONTAINER, pod, partial(container_in_force, record, pod), cgroup)

    def _due_writes(self, record: ContainerRecord) -> DueWrites:
        cgroup = container_cgroup(self.services, self._record, record)
        return due_writes_of(cgroup, record.pending_cgroup, record.owners, record, self._record)

    def _container(self, name: str, identity: str, pod_id: str) -> ContainerRecord:
        draft = self._containers.get(name)
        if draft is None:
            return ContainerRecord(
                id=identity, pod_id=pod_id, name=name, state=Lifecycle.RUNNING, detailed=False
            )
        make = draft.make_record or draft.prepare()
        return make(id=identity, pod_id=pod_id, state=Lifecycle.RUNNING)
