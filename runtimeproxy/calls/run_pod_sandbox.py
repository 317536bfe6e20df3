"""RunPodSandbox: the pod's first call, and the only one that may change its labels and cgroup parent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.calls.cri_call import CallContext, Operation, Question, Questions, slice_of
from runtimeproxy.calls.edit_request import edit_pod
from runtimeproxy.calls.to_views import recorded_pod, requested_pod, sketched_pod
from runtimeproxy.hooks import Clear, Hook, PodChange
from runtimeproxy.pods.records import NO_CHANGES, PodRecord, compact
from runtimeproxy.pods.resources import NO_ENTRIES, read_resources

if TYPE_CHECKING:
    from runtimeproxy.hooks import CgroupChange
    from runtimeproxy.hooks.changes import TextEntries
    from runtimeproxy.hooks.decision import Decision


_Request: TypeAlias = "api_pb2.RunPodSandboxRequest | api_pb2.RestorePodRequest"


class PodDraft:
    """A sandbox that is about to be created: what was asked, what policies made of it, and its record."""

    def __init__(self, config: api_pb2.PodSandboxConfig, runtime_handler: str) -> None:
        self.config = config
        self.runtime_handler = runtime_handler
        self.requested = read_resources(config.linux.resources)
        self._change = PodChange()
        self._owners: Mapping[str, str] = NO_ENTRIES
        self._record: Callable[..., PodRecord] | None = None

    def question(self) -> Question:
        """The question before it is created."""
        sketch = sketched_pod(self.config, None)
        view = partial(requested_pod, self.config, None, self.runtime_handler, sketch)
        parent = self.config.linux.cgroup_parent
        return Question(Hook.PRE_RUN_POD_SANDBOX, sketch, self._edit, parent, pod_view=view)

    def decided(self, decision: Decision | None) -> None:
        """Keeps what policies changed, for the record."""
        if decision is not None:
            self._change = decision.pod_change or self._change
            self._owners = decision.owners

    def record(self, identity: str) -> PodRecord:
        """What is remembered once the runtime has created it."""
        make = self._record or self._made()
        return make(id=identity)

    def prepare(self) -> None:
        """Makes all of the record that is known before; nothing of it changes once the runtime is asked."""
        self._record = self._made()

    def release(self) -> None:
        """Drops all of the configuration that nothing is read of once the record is prepared."""
        self.config = api_pb2.PodSandboxConfig(metadata=self.config.metadata)

    def _made(self) -> Callable[..., PodRecord]:
        config, about = self.config, self.config.metadata
        return partial(
            PodRecord,
            name=about.name,
            namespace=about.namespace,
            uid=about.uid,
            attempt=about.attempt,
            labels=compact(config.labels),
            annotations=compact(config.annotations),
            label_changes=_changes(self._change.labels),
            annotation_changes=_changes(self._change.annotations),
            runtime_handler=self.runtime_handler,
            cgroup_parent=config.linux.cgroup_parent,
            overhead=read_resources(config.linux.overhead),
            requested=self.requested,
            applied=read_resources(config.linux.resources),
            owners=dict(self._owners) or NO_ENTRIES,
        )

    def _edit(self, change: CgroupChange) -> bool:
        return edit_pod(self.config, cast("PodChange", change))


class NewSandbox(Operation):
    """A call that brings a sandbox into being, which has no id until the runtime answers."""

    def __init__(self, context: CallContext, request: _Request) -> None:
        super().__init__(context, request)
        self._draft = PodDraft(request.config, request.runtime_handler)
        self._record: PodRecord | None = None

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
        return (self.turn_key, self._record.id) if self._record is not None else (self.turn_key,)

    @property
    def disturbed_cgroup(self) -> str:
        """The pod's slice: the sandbox's scope was started in it."""
        return slice_of(self._record)

    def preparation(self) -> Callable[[], None] | None:
        """Prepares the pod's record."""
        return self._draft.prepare

    def release(self) -> None:
        """Keeps the pod's name only, and its record."""
        self._draft.release()
        self.request = type(self.request)()

    async def confirm(self) -> bool:
        """The runtime has a sandbox of this attempt, or it has not; more comes with the next list."""
        about = self._draft.config.metadata
        found = await self.context.lookups.pod_named(about.uid, about.attempt)
        if found is not None:
            self._remember(found.id)
        return found is not None

    def _remember(self, identity: str) -> None:
        self._record = self._draft.record(identity)
        self.context.store.pods.put(self._record)


class RunPodSandbox(NewSandbox):
    """The kubelet starts a pod."""

    request_type = api_pb2.RunPodSandboxRequest

    def questions(self) -> Questions:
        """May change labels, annotations, cgroup parent and resources."""
        self._draft.decided((yield self._draft.question()))

    def succeeded(self, response: bytes) -> None:
        """Records the pod."""
        self._remember(api_pb2.RunPodSandboxResponse.FromString(response).pod_sandbox_id)

    def afterwards(self) -> Questions:
        """The sandbox runs."""
        if self._record is not None:
            view = recorded_pod(self._record)
            yield Question(Hook.POST_RUN_POD_SANDBOX, view, cgroup=view.cgroup_parent)


def _changes(entries: TextEntries) -> Mapping[str, str | None]:
    return {key: None if isinstance(value, Clear) else value for key, value in entries.items()} or NO_CHANGES
