"""RestorePod (since 1.37): RunPodSandbox and CreateContainer in one call, from a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.create_container import ContainerDraft
from runtimeproxy.calls.cri_call import Question, Questions, container_cgroup, pod_question
from runtimeproxy.calls.run_pod_sandbox import NewSandbox
from runtimeproxy.calls.to_views import recorded_container, recorded_pod
from runtimeproxy.hooks import Hook, PodView
from runtimeproxy.pods.records import ContainerRecord, Lifecycle

if TYPE_CHECKING:
    from runtimeproxy.calls.interceptor import CallServices


class RestorePod(NewSandbox):
    """A pod comes back from a checkpoint: policies run as if it and its containers were created."""

    has_one_question = False
    request_type = api_pb2.RestorePodRequest

    def __init__(self, services: CallServices, request: api_pb2.RestorePodRequest) -> None:
        super().__init__(services, request)
        self._containers = {
            config.metadata.name: ContainerDraft(config) for config in request.container_configs
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
            decision = yield Question(Hook.PRE_CREATE_CONTAINER, pod, make_view, edit=draft.edit)
            if decision is not None:
                draft.owners = decision.owners

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
        for record in self._restored:
            self.services.store.containers.put(record)

    def post_questions(self) -> Questions:
        """The sandbox runs, and so do its containers."""
        if self._record is None:
            return
        pod = recorded_pod(self._record)
        yield pod_question(Hook.POST_RUN_POD_SANDBOX, self._record)
        for record in self._restored:
            cgroup = container_cgroup(self.services, self._record, record)
            make_view = partial(recorded_container, record, pod)
            yield Question(Hook.POST_CREATE_CONTAINER, pod, make_view, cgroup)
            yield Question(Hook.POST_START_CONTAINER, pod, make_view, cgroup)

    def _container(self, name: str, identity: str, pod_id: str) -> ContainerRecord:
        draft = self._containers.get(name)
        if draft is None:
            return ContainerRecord(
                id=identity, pod_id=pod_id, name=name, state=Lifecycle.RUNNING, detailed=False
            )
        make = draft.make_record or draft.prepare()
        return make(id=identity, pod_id=pod_id, state=Lifecycle.RUNNING)
