"""RestorePod (since 1.37): RunPodSandbox and CreateContainer in one call, from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.create_container import ContainerDraft
from runtimeproxy.calls.operation import (
    CallContext,
    Operation,
    Question,
    Questions,
    container_cgroup,
    slice_of,
)
from runtimeproxy.calls.run_pod_sandbox import PodDraft
from runtimeproxy.calls.views import recorded_container, recorded_pod
from runtimeproxy.hooks import ContainerView, Hook, PodView
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord


class RestorePod(Operation):
    """A pod comes back from a checkpoint: policies are asked as if it and its containers were created."""

    asks_once = False

    def __init__(self, context: CallContext, body: bytes) -> None:
        super().__init__(context)
        request = api_pb2.RestorePodRequest.FromString(body)
        self.request = request
        self._draft = PodDraft(request.config, request.runtime_handler)
        self._containers = {
            config.metadata.name: ContainerDraft(config) for config in request.container_configs
        }
        self._pod: PodRecord | None = None
        self._restored: tuple[ContainerRecord, ...] = ()

    @property
    def turn_key(self) -> str:
        """The pod's uid: there is no id yet."""
        return f"uid:{self._draft.config.metadata.uid}"

    @property
    def pod_key(self) -> str:
        """The pod's uid: there is no id yet."""
        return self.turn_key

    @property
    def pod_keys(self) -> tuple[str, ...]:
        """The uid, and the sandbox's id once there is one."""
        return (self.turn_key, self._pod.id) if self._pod is not None else (self.turn_key,)

    def questions(self) -> Questions:
        """First the pod, then each container with the pod as it will be."""
        question = self._draft.question()
        decision = yield question
        self._draft.decided(decision)
        pod = question.pod if decision is None else cast("PodView", decision.view)
        for draft in self._containers.values():
            draft.decided((yield draft.question(pod)))

    def succeeded(self, response: bytes) -> None:
        """Records the pod and its containers, which run already."""
        answer = api_pb2.RestorePodResponse.FromString(response)
        ids = {restored.name: restored.container_id for restored in answer.restored_containers}
        self._remember(answer.pod_sandbox_id, ids)

    def afterwards(self) -> Questions:
        """The sandbox runs, and so do its containers."""
        if self._pod is None:
            return
        pod = recorded_pod(self._pod)
        yield Question(Hook.POST_RUN_POD_SANDBOX, pod, cgroup=pod.cgroup_parent)
        for record in self._restored:
            details = partial(self._details, record, pod)
            yield Question(Hook.POST_CREATE_CONTAINER, pod, details=details)
            yield Question(Hook.POST_START_CONTAINER, pod, details=details)

    @property
    def disturbed_cgroup(self) -> str:
        """The pod's slice: the sandbox's scope was started in it."""
        return slice_of(self._pod)

    async def confirm(self) -> bool:
        """The runtime has a sandbox of this attempt or not; its containers come with the next list."""
        about = self._draft.config.metadata
        found = await self.context.lookups.pod_named(about.uid, about.attempt)
        if found is not None:
            self._remember(found.id, {})
        return found is not None

    def _remember(self, pod_id: str, ids: Mapping[str, str]) -> None:
        store = self.context.store
        self._pod = self._draft.record(pod_id)
        store.pods.put(self._pod)
        self._restored = tuple(self._container(name, identity, pod_id) for name, identity in ids.items())
        for record in self._restored:
            store.containers.put(record)

    def _details(self, record: ContainerRecord, pod: PodView) -> tuple[ContainerView, str]:
        return recorded_container(record, pod), container_cgroup(self.context, self._pod, record)

    def _container(self, name: str, identity: str, pod_id: str) -> ContainerRecord:
        draft = self._containers.get(name)
        if draft is None:
            return ContainerRecord(
                id=identity, pod_id=pod_id, name=name, state=Lifecycle.RUNNING, detailed=False
            )
        return replace(draft.record(identity, pod_id, {}), state=Lifecycle.RUNNING)
