"""CreateContainer: where most policies act; the sandbox's configuration comes along with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.cri_call import CallContext, Operation, Question, Questions
from runtimeproxy.calls.edit_request import edit_cgroup_parent, edit_container
from runtimeproxy.calls.run_pod_sandbox import PodDraft
from runtimeproxy.calls.to_views import (
    LastValues,
    PodSketch,
    recorded_container,
    recorded_pod,
    requested_container,
    requested_pod,
    sketched_pod,
)
from runtimeproxy.hooks import ContainerChange, Hook
from runtimeproxy.hooks.fields import CGROUP_PARENT
from runtimeproxy.pods.records import ContainerRecord, PodRecord, compact
from runtimeproxy.pods.resources import NO_ENTRIES, read_resources

if TYPE_CHECKING:
    from runtimeproxy.hooks import CgroupChange, ContainerView, PodView, Resources
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.selector import PodTraits


class ContainerDraft:
    """A container that is about to be created: what was asked, what policies made of it, and its record."""

    def __init__(self, config: api_pb2.ContainerConfig) -> None:
        self.config = config
        self._requested: Resources | None = None
        self._is_changed = False
        self._env: LastValues | None = None
        self._owners: Mapping[str, str] = NO_ENTRIES
        self._record: Callable[..., ContainerRecord] | None = None

    @property
    def requested(self) -> Resources:
        """What the kubelet asks for; read before anything is changed, but not before it is needed."""
        if self._requested is None:
            self._requested = read_resources(self.config.linux.resources)
        return self._requested

    def question(self, pod: PodTraits, view: Callable[[], PodView]) -> Question:
        """The question before it is created.

        Args:
            pod: Its pod, as far as that decides who is concerned.
            view: Gives what policies are shown of the pod.
        """
        return Question(Hook.PRE_CREATE_CONTAINER, pod, self.edit, details=lambda: (self._view(view()), ""))

    def edit(self, change: CgroupChange) -> bool:
        """Makes a change; returns whether the configuration differs from the kubelet's."""
        asked = cast("ContainerChange", change)
        if self._env is not None and asked.env:
            self._env.read()
        self._is_changed = edit_container(self.config, asked, self.requested)
        return self._is_changed

    def _view(self, pod: PodView) -> ContainerView:
        view = requested_container(self.config, pod, self.requested)
        self._env = view.env if isinstance(view.env, LastValues) else None
        return view

    def decided(self, decision: Decision | None) -> None:
        """Keeps who owns what, for the record."""
        if decision is not None:
            self._owners = decision.owners

    def record(self, identity: str, pod_id: str, pending: Mapping[str, int | str]) -> ContainerRecord:
        """What is remembered once the runtime has created it."""
        make = self._record or self._made()
        return make(id=identity, pod_id=pod_id, pending_cgroup=dict(pending) or NO_ENTRIES)

    def prepare(self) -> None:
        """Makes all of the record that is known before; nothing of it changes once the runtime is asked."""
        self._record = self._made()

    def release(self) -> None:
        """Drops all of the configuration that nothing is read of once the record is prepared."""
        self.config = api_pb2.ContainerConfig(metadata=self.config.metadata)

    def _made(self) -> Callable[..., ContainerRecord]:
        config = self.config
        return partial(
            ContainerRecord,
            name=config.metadata.name,
            attempt=config.metadata.attempt,
            labels=compact(config.labels),
            annotations=compact(config.annotations),
            requested=self.requested,
            applied=read_resources(config.linux.resources) if self._is_changed else self.requested,
            owners=dict(self._owners) or NO_ENTRIES,
        )


class CreateContainer(Operation):
    """The kubelet creates a container in a sandbox, which the proxy may never have seen.

    A cgroup parent that a policy changed when the sandbox was run is carried on: the kubelet still sends its
    own, some runtimes take the container's place from it, and it has to lie in its sandbox's cgroup.
    """

    request_type = api_pb2.CreateContainerRequest

    def __init__(self, context: CallContext, request: api_pb2.CreateContainerRequest) -> None:
        super().__init__(context, request)
        self._request = request
        self._draft = ContainerDraft(request.config)
        self._record: ContainerRecord | None = None
        self._unseen: PodRecord | None = None
        self._known_pod: PodRecord | None = None

    @property
    def turn_key(self) -> str:
        """The sandbox and the container's name: there is no id yet."""
        about = self._request.config.metadata
        return f"{self.pod_key}/{about.name}/{about.attempt}"

    @property
    def pod_key(self) -> str:
        """The sandbox's id."""
        pod = self._pod
        return pod.id if pod is not None else self._request.pod_sandbox_id

    @property
    def must_carry(self) -> bool:
        """Whether the sandbox lies elsewhere than the request says."""
        return bool(self._carried_parent())

    @property
    def is_complete(self) -> bool:
        """Whether the sandbox is known."""
        pod = self._pod
        return pod is not None and pod.detailed

    async def complete(self) -> None:
        """Looks the sandbox up, for what the request does not say of it."""
        if not self.is_complete and self._request.pod_sandbox_id:
            await self.context.lookups.pod(self._request.pod_sandbox_id)

    def questions(self) -> Questions:
        """May change everything but the container's name and image."""
        pod, sketch = self._pod, self._pod_sketch()
        view = partial(self._pod_view, pod, sketch)
        question = self._draft.question(sketch or view(), view)
        question.edit = self._edit
        self._draft.decided((yield question))

    def carry(self) -> bool:
        """Names the cgroup parent in which the sandbox really lies."""
        return edit_cgroup_parent(self._request.sandbox_config, self._carried_parent())

    def preparation(self) -> Callable[[], None] | None:
        """Prepares the container's record, and its sandbox's if that is unknown."""
        return self._draft.prepare if self._pod is not None else self._prepare_both

    def release(self) -> None:
        """Keeps names, and what the records are made of."""
        request, sandbox = self._request, self._request.sandbox_config
        self._draft.release()
        self.request = self._request = api_pb2.CreateContainerRequest(
            pod_sandbox_id=request.pod_sandbox_id, config=self._draft.config
        )
        if request.HasField("sandbox_config"):
            self._request.sandbox_config.metadata.CopyFrom(sandbox.metadata)
            self._request.sandbox_config.linux.cgroup_parent = sandbox.linux.cgroup_parent

    def _prepare_both(self) -> None:
        self._draft.prepare()
        self._unseen = self._unseen_pod()

    def succeeded(self, response: bytes) -> None:
        """Records the container, and its sandbox if that was unknown."""
        self._remember(api_pb2.CreateContainerResponse.FromString(response).container_id)

    def afterwards(self) -> Questions:
        """The container is created; its cgroup comes with its start."""
        record = self._record
        if record is None:
            return
        pod = self._pod_view(self._pod)
        yield Question(Hook.POST_CREATE_CONTAINER, pod, details=lambda: (recorded_container(record, pod), ""))
        known = self.context.store.containers.get(record.id)
        if known is record and self.pending:
            owners = {**record.owners, **self.pending_owners}
            waiting = replace(record, pending_cgroup=dict(self.pending), owners=owners)
            self.context.store.containers.put(waiting)

    async def confirm(self) -> bool:
        """The runtime has a container of this name and attempt in the sandbox, or it has not."""
        about = self._request.config.metadata
        found = await self.context.lookups.container_named(self.pod_key, about.name, about.attempt)
        if found is not None:
            self._remember(found.id)
        return found is not None

    @property
    def _pod(self) -> PodRecord | None:
        """The sandbox's record; once it is known in detail, nothing that this call needs changes in it."""
        if self._known_pod is None or not self._known_pod.detailed:
            self._known_pod = self.context.store.pods.get(self._request.pod_sandbox_id)
        return self._known_pod

    def _pod_sketch(self) -> PodSketch | None:
        """None if the request says nothing of the pod."""
        if not self._request.HasField("sandbox_config"):
            return None
        return sketched_pod(self._request.sandbox_config, self._pod)

    def _pod_view(self, pod: PodRecord | None, sketch: PodSketch | None = None) -> PodView:
        if pod is not None and not self._request.HasField("sandbox_config"):
            return recorded_pod(pod)
        return requested_pod(self._request.sandbox_config, pod, sketch=sketch)

    def _carried_parent(self) -> str | None:
        """Where the sandbox lies, if the request says otherwise and a policy may be the reason."""
        pod, named = self._pod, self._request.sandbox_config.linux.cgroup_parent
        if pod is None or not named or not pod.cgroup_parent or pod.cgroup_parent == named:
            return None
        return pod.cgroup_parent if CGROUP_PARENT in pod.owners or pod.recovered else None

    def _edit(self, change: CgroupChange) -> bool:
        changed = self._draft.edit(change)
        parent = cast("ContainerChange", change).cgroup_parent
        return edit_cgroup_parent(self._request.sandbox_config, parent) or changed

    def _remember(self, identity: str) -> None:
        store = self.context.store
        if self._pod is None and self._request.pod_sandbox_id:
            store.pods.put(self._unseen or self._unseen_pod())
        self._record = self._draft.record(identity, self.pod_key, self.pending)
        store.containers.put(self._record)

    def _unseen_pod(self) -> PodRecord:
        seen = PodDraft(self._request.sandbox_config, "").record(self._request.pod_sandbox_id)
        return replace(seen, detailed=False)
