"""RestorePod (since 1.37): RunPodSandbox and CreateContainer in one call, from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.create_container import ContainerDraft
from runtimeproxy.calls.cri_call import CallContext, Question, Questions, container_cgroup
from runtimeproxy.calls.run_pod_sandbox import NewSandbox
from runtimeproxy.calls.to_views import recorded_container, recorded_pod
from runtimeproxy.hooks import ContainerView, Hook, PodView
from runtimeproxy.pods.records import ContainerRecord, Lifecycle


class RestorePod(NewSandbox):
    """A pod comes back from a checkpoint: policies are asked as if it and its containers were created."""

    asks_once = False

    request_type = api_pb2.RestorePodRequest

    def __init__(self, context: CallContext, request: api_pb2.RestorePodRequest) -> None:
        super().__init__(context, request)
        self._containers = {
            config.metadata.name: ContainerDraft(config) for config in request.container_configs
        }
        self._restored: tuple[ContainerRecord, ...] = ()

    def questions(self) -> Questions:
        """First the pod, then each container with the pod as it will be."""
        question = self._draft.question()
        decision = yield question
        self._draft.decided(decision)
        pod = cast("PodView", question.view() if decision is None else decision.view)
        for draft in self._containers.values():
            draft.decided((yield draft.question(pod, lambda: pod)))

    def preparation(self) -> Callable[[], None] | None:
        """Prepares the records of the pod and its containers."""
        return self._prepare

    def release(self) -> None:
        """Keeps names only, and the records."""
        super().release()
        for draft in self._containers.values():
            draft.release()

    def _prepare(self) -> None:
        self._draft.prepare()
        for draft in self._containers.values():
            draft.prepare()

    def succeeded(self, response: bytes) -> None:
        """Records the pod and its containers, which run already."""
        answer = api_pb2.RestorePodResponse.FromString(response)
        self._remember(answer.pod_sandbox_id)
        self._restored = tuple(
            self._container(each.name, each.container_id, answer.pod_sandbox_id)
            for each in answer.restored_containers
        )
        for record in self._restored:
            self.context.store.containers.put(record)

    def afterwards(self) -> Questions:
        """The sandbox runs, and so do its containers."""
        if self._record is None:
            return
        pod = recorded_pod(self._record)
        yield Question(Hook.POST_RUN_POD_SANDBOX, pod, cgroup=pod.cgroup_parent)
        for record in self._restored:
            details = partial(self._details, record, pod)
            yield Question(Hook.POST_CREATE_CONTAINER, pod, details=details)
            yield Question(Hook.POST_START_CONTAINER, pod, details=details)

    def _details(self, record: ContainerRecord, pod: PodView) -> tuple[ContainerView, str]:
        return recorded_container(record, pod), container_cgroup(self.context, self._record, record)

    def _container(self, name: str, identity: str, pod_id: str) -> ContainerRecord:
        draft = self._containers.get(name)
        if draft is None:
            return ContainerRecord(
                id=identity, pod_id=pod_id, name=name, state=Lifecycle.RUNNING, detailed=False
            )
        return replace(draft.record(identity, pod_id, {}), state=Lifecycle.RUNNING)
