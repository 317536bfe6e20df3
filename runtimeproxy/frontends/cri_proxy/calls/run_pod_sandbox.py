"""RunPodSandbox: the pod's first call, and the only one that may change its labels and cgroup parent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.core.events import on_pod_created
from runtimeproxy.core.questions import (
    NO_WORK,
    NOTHING_DECIDED_ON_POD,
    Question,
    commit_pools,
    decided_pod,
    take_cpus,
)
from runtimeproxy.frontends.cri_proxy.calls.cri_call import CriCall
from runtimeproxy.frontends.cri_proxy.calls.messages import edit_pod, requested_pod, requested_summary
from runtimeproxy.hooks import Clear, Hook, PodChange
from runtimeproxy.pods.records import NO_CHANGES, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, compact, kept_annotations, read_resources
from runtimeproxy.slo.names import RESOURCE_STATUS

if TYPE_CHECKING:
    from runtimeproxy.core.services import Work
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.hooks import PodView
    from runtimeproxy.hooks.changes import Change, TextEntries
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.levels import PodLevels


_Request: TypeAlias = "api_pb2.RunPodSandboxRequest | api_pb2.RestorePodRequest"


class PodDraft:
    """A sandbox that is about to be created: its configuration, the changes of policies, and its record.

    Args:
        priority: The pod's `spec.priority`; None if it is not known.
        levels: As `PodStore.levels`.
    """

    def __init__(
        self,
        config: api_pb2.PodSandboxConfig,
        runtime_handler: str,
        priority: int | None = None,
        levels: PodLevels | None = None,
    ) -> None:
        self.config = config
        self.runtime_handler = runtime_handler
        self._priority = priority
        self._levels = levels
        self.requested = read_resources(config.linux.resources)
        self.decided = NOTHING_DECIDED_ON_POD
        self._make_record: Callable[..., PodRecord] | None = None

    def view(self) -> PodView:
        """The pod as the configuration describes it now."""
        summary = requested_summary(self.config, None, self._levels)
        return requested_pod(self.config, None, summary, self.runtime_handler, self._priority)

    def question(self) -> Question:
        summary = requested_summary(self.config, None, self._levels)
        make_view = partial(requested_pod, self.config, None, summary, self.runtime_handler, self._priority)
        parent = self.config.linux.cgroup_parent
        on_decided = self.keep_decision
        return Question(
            Hook.PRE_RUN_POD_SANDBOX, summary, make_view, parent, edit=self._edit, on_decided=on_decided
        )

    def keep_decision(self, decision: Decision | None) -> None:
        if decision is not None:
            self.decided = decided_pod(decision)

    def prepare(self) -> Callable[..., PodRecord]:
        """Makes the part of the record that is known before the response; it does not change any more."""
        config, about = self.config, self.config.metadata
        self._make_record = partial(
            PodRecord,
            name=about.name,
            namespace=about.namespace,
            uid=about.uid,
            attempt=about.attempt,
            labels=compact(config.labels),
            annotations=kept_annotations(config.annotations),
            label_changes=_changes(self.decided.change.labels),
            annotation_changes=_changes(self.decided.change.annotations),
            runtime_handler=self.runtime_handler,
            cgroup_parent=config.linux.cgroup_parent,
            overhead=read_resources(config.linux.overhead),
            requested=self.requested,
            booked=read_resources(config.linux.resources),
            owners=dict(self.decided.owners) or NO_ENTRIES,
            priority=self._priority,
        )
        return self._make_record

    def record(self, identity: str) -> PodRecord:
        """The record, once the runtime has created the sandbox."""
        make = self._make_record or self.prepare()
        return make(id=identity, created_s=time.time())

    def release(self) -> None:
        # The other parts are not needed once the record is prepared.
        self.config = api_pb2.PodSandboxConfig(metadata=self.config.metadata)

    def _edit(self, change: Change) -> bool:
        return edit_pod(self.config, cast("PodChange", change))


class NewSandbox(CriCall):
    """A call that creates a sandbox, which has no id until the runtime answers."""

    def __init__(self, services: CallServices, request: _Request) -> None:
        super().__init__(services, request)
        priority = services.core.priority_of(request.config.metadata.uid)
        levels = services.core.store.levels
        self._draft = PodDraft(request.config, request.runtime_handler, priority, levels)
        self._record: PodRecord | None = None
        self._evaluation = services.core.evaluator.rounds
        # The pod's uid once Katalyst's pools have heard of it, and whether this call has placed it there.
        self._pools_uid = ""
        self._is_placed = False

    def find_records(self) -> bool:
        self.turn_key = self.pod_key = f"uid:{self._draft.config.metadata.uid}"
        return True

    def preparations(self, until_s: float) -> Sequence[Work]:
        """Takes the CPUs of the pod as policies have changed it."""
        core, config, kind = self.core, self._draft.config, type(self).__name__
        works = commit_pools(core, kind, self._pools_uid, until_s)
        if core.allocations is None or RESOURCE_STATUS not in config.annotations:
            return works
        taking = partial(core.allocations.admit, self._draft.view())
        return (*works, take_cpus(core.problems, kind, until_s, taking))

    def on_cancelled(self) -> bool:
        self._displace()
        return False

    def on_end(self) -> Sequence[Work]:
        if self.core.allocations is not None:
            self.core.allocations.settle(self._draft.config.metadata.uid)
        if self._pools_uid and self.core.pools is not None:
            self.core.pools.end(self._pools_uid)
        return NO_WORK

    def on_failure(self) -> Sequence[Work]:
        if self.core.allocations is not None:
            self.core.allocations.release(self._draft.config.metadata.uid)
        self._displace()
        return NO_WORK

    def place(self) -> None:
        """Tells of the pod, before policies are asked: Katalyst's pools, and who lifts bounds meanwhile."""
        config = self._draft.config
        self.core.begin_start(config.metadata.uid, config.linux.cgroup_parent)
        if self.core.pools is not None and self.core.pools.is_on:
            view = self._draft.view()
            self._pools_uid, self._is_placed = view.uid, self.core.pools.admit(view)

    def _displace(self) -> None:
        self.core.end_start(self._draft.config.metadata.uid)
        if self._is_placed and self.core.pools is not None:
            self.core.pools.undo(self._pools_uid)

    @property
    def pod_keys(self) -> tuple[str, ...]:
        # The uid, and the sandbox's id once there is one.
        return (self.turn_key, self._record.id) if self._record is not None else (self.turn_key,)

    def prepare(self) -> None:
        self._draft.prepare()

    def release(self) -> None:
        """Keeps the pod's name and its record."""
        self._draft.release()
        self.request = type(self.request)()

    async def confirm(self) -> Sequence[Work] | None:
        """Whether the runtime has a sandbox of this attempt; more comes with the next list."""
        about = self._draft.config.metadata
        found = await self.lookups.pod_named(about.uid, about.attempt)
        return self._remember(found.id) if found is not None else None

    def _remember(self, identity: str) -> Sequence[Work]:
        self._record = self._draft.record(identity)
        return on_pod_created(self.core, self._record, self._draft.decided, self._evaluation, self.origin)


class RunPodSandbox(NewSandbox):
    """The kubelet starts a pod."""

    request_type = api_pb2.RunPodSandboxRequest

    def before(self) -> Sequence[Question]:
        # May change labels, annotations, cgroup parent and resources.
        self.place()
        return (self._draft.question(),)

    def on_success(self, response: bytes) -> Sequence[Work]:
        return self._remember(api_pb2.RunPodSandboxResponse.FromString(response).pod_sandbox_id)


def _changes(entries: TextEntries) -> Mapping[str, str | None]:
    return {key: None if isinstance(value, Clear) else value for key, value in entries.items()} or NO_CHANGES
