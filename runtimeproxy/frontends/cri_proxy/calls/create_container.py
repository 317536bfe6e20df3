"""CreateContainer: where most policies act; the sandbox's configuration comes along with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.core.events import book_container
from runtimeproxy.core.questions import (
    NO_WORK,
    NOTHING_DECIDED,
    Question,
    commit_pools,
    decided_values,
    make_room,
    owners_with_fitted,
    take_cpus,
    values_within_bounds,
)
from runtimeproxy.frontends.cri_proxy.calls.cri_call import CriCall
from runtimeproxy.frontends.cri_proxy.calls.messages import (
    LastValues,
    edit_cgroup_parent,
    edit_container,
    edit_resources,
    requested_container,
    requested_pod,
    requested_summary,
)
from runtimeproxy.frontends.cri_proxy.calls.run_pod_sandbox import PodDraft
from runtimeproxy.hooks import ContainerView, Hook
from runtimeproxy.hooks.fields import CGROUP_PARENT
from runtimeproxy.ledger.answers import by_parameter
from runtimeproxy.node.cpu_claims import claims_among
from runtimeproxy.pods.record_views import PodSummary, recorded_pod
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, compact, kept_annotations, read_resources
from runtimeproxy.pods.updates import fitted_change
from runtimeproxy.slo.names import RESOURCE_STATUS

if TYPE_CHECKING:
    from runtimeproxy.core.services import CoreServices, Work
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.hooks import ContainerChange, PodView, Resources
    from runtimeproxy.hooks.changes import Change
    from runtimeproxy.hooks.decision import Decision


class ContainerDraft:
    """A container that is about to be created: its configuration, the changes of policies, and its record.

    Attributes:
        config: The request's; edited in place.
        decided: What policies decided on it.
        fitted: The values that it has because of bounds above, by cgroup parameter.
        make_record: Makes the record from id, sandbox id and state; None until `prepare`.
    """

    def __init__(self, config: api_pb2.ContainerConfig, evaluation: int) -> None:
        self.config = config
        self._evaluation = evaluation
        self.decided = NOTHING_DECIDED
        self.fitted: Mapping[str, int | str] = NO_ENTRIES
        self.make_record: Callable[..., ContainerRecord] | None = None
        # Read before anything is changed, but not before it is needed: most containers have no policy.
        self._requested: Resources | None = None
        self._env: LastValues | None = None
        self._is_changed = False

    def view(self, make_pod: Callable[[], PodView]) -> ContainerView:
        self._requested = read_resources(self.config.linux.resources)
        view = requested_container(self.config, make_pod(), self._requested)
        self._env = cast("LastValues", view.env)
        return view

    def edit(self, change: Change) -> bool:
        """Makes a change; returns whether the configuration differs from the kubelet's."""
        asked = cast("ContainerChange", change)
        if self._env is not None and asked.env:
            self._env.read()
        requested = self._requested or read_resources(self.config.linux.resources)
        is_changed = edit_container(self.config, asked, requested)
        self._is_changed |= is_changed
        return is_changed

    def fit_to_bounds(self, core: CoreServices, pod_cgroup: str) -> bool:
        """Changes what bounds of the pod's cgroup and above do not allow; returns whether anything was."""
        values = partial(read_resources, self.config.linux.resources)
        fitted = values_within_bounds(core.ledger, pod_cgroup, values)
        if not fitted:
            return False
        given = values()
        self._requested = self._requested or given
        self.fitted = {**self.fitted, **fitted}
        self._is_changed |= edit_resources(self.config.linux.resources, fitted_change(fitted), given)
        return True

    def keep_decision(self, decision: Decision | None) -> None:
        if decision is not None:
            self.decided = decided_values(decision)

    def prepare(self) -> Callable[..., ContainerRecord]:
        """Makes the part of the record that is known before the response; it does not change any more."""
        config, devices = self.config, self.config.CDI_devices
        requested = self._requested or read_resources(config.linux.resources)
        self.make_record = partial(
            ContainerRecord,
            name=config.metadata.name,
            attempt=config.metadata.attempt,
            labels=compact(config.labels),
            annotations=kept_annotations(config.annotations),
            cpu_claims=claims_among(each.name for each in devices) if devices else (),
            requested=requested,
            booked=read_resources(config.linux.resources) if self._is_changed else requested,
            owners=owners_with_fitted(self.decided.owners, self.fitted) or NO_ENTRIES,
            pending_cgroup=dict(self.decided.pending) or NO_ENTRIES,
            evaluation=self._evaluation,
        )
        return self.make_record

    def release(self) -> None:
        """Drops the parts of the configuration that are not needed once the record is prepared."""
        self.config = api_pb2.ContainerConfig(metadata=self.config.metadata)
        self._env = None


class CreateContainer(CriCall):
    """The kubelet creates a container in a sandbox, which the proxy may never have seen.

    A cgroup parent that a policy changed when the sandbox was run is put into this request, too: the kubelet
    still sends its own, some runtimes take the container's place from it, and it has to lie in its sandbox's
    cgroup.
    """

    request_type = api_pb2.CreateContainerRequest

    def __init__(self, services: CallServices, request: api_pb2.CreateContainerRequest) -> None:
        super().__init__(services, request)
        self._request = request
        self._draft = ContainerDraft(request.config, services.core.evaluator.rounds)
        self._pod: PodRecord | None = None
        self._summary: PodSummary | None = None
        self._unseen: PodRecord | None = None
        self._new_parent = ""
        # Its pod's uid, if this call has placed the container in Katalyst's pools.
        self._placed_uid = ""
        self._pools_uid = ""

    def find_records(self) -> bool:
        request, pod = self._request, self._pod
        if pod is None or not pod.detailed:
            # What this call needs of a detailed record never changes.
            pod = self._pod = self.core.store.pods.get(request.pod_sandbox_id)
        self.pod_key = pod.id if pod is not None else request.pod_sandbox_id
        # The container has no id yet.
        self.turn_key = f"{self.pod_key}/{request.config.metadata.name}/{request.config.metadata.attempt}"
        return pod is not None and pod.detailed

    async def fetch_records(self) -> None:
        if self._request.pod_sandbox_id:
            await self.lookups.pod(self._request.pod_sandbox_id)

    def correct(self) -> bool:
        """Names the cgroup parent in which the sandbox really lies, if a policy may have changed it."""
        pod, named = self._pod, self._request.sandbox_config.linux.cgroup_parent
        if pod is None or not named or not (CGROUP_PARENT in pod.owners or pod.recovered):
            return False
        return edit_cgroup_parent(self._request.sandbox_config, pod.cgroup_parent)

    def before(self) -> Sequence[Question]:
        """May change everything but the container's name and image."""
        if self._request.HasField("sandbox_config"):
            levels = self.core.store.levels
            self._summary = requested_summary(self._request.sandbox_config, self._pod, levels)
        pod = self._summary or self._pod_view()
        self._place()
        make_view = partial(self._draft.view, self._pod_view)
        on_decided = self._draft.keep_decision
        return (Question(Hook.PRE_CREATE_CONTAINER, pod, make_view, edit=self._edit, on_decided=on_decided),)

    def adjust(self) -> bool:
        # Policies do not know the bounds above.
        return self._draft.fit_to_bounds(self.core, self._parent)

    def preparations(self, until_s: float) -> Sequence[Work]:
        """Room for the values of the edited request, and the CPUs that the pod has by its record."""
        core, pod = self.core, self._pod
        works: list[Work] = [*commit_pools(core, "CreateContainer", self._pools_uid, until_s)]
        if core.allocations is not None:
            annotations = self._request.sandbox_config.annotations if pod is None else pod.annotations
            if RESOURCE_STATUS in annotations:
                # The pod began with those of its record.
                view = ContainerView(pod=self._pod_view() if pod is None else recorded_pod(pod))
                taking = partial(core.allocations.create, view)
                works.append(take_cpus(core.problems, "CreateContainer", until_s, taking))
        return (*works, *make_room(core, pod, self._values))

    def _place(self) -> None:
        """Places the container in Katalyst's pools, before policies are asked."""
        pools = self.core.pools
        if pools is None or not pools.is_on:
            return
        requested = read_resources(self._request.config.linux.resources)
        name = self._request.config.metadata.name
        view = ContainerView(name=name, pod=self._pod_view(), requested=requested)
        self._pools_uid = view.pod.uid
        if pools.create(view):
            self._placed_uid = view.pod.uid

    def _displace(self) -> None:
        if self._placed_uid and self.core.pools is not None:
            self.core.pools.undo(self._placed_uid, self._request.config.metadata.name)

    def on_cancelled(self) -> bool:
        self._displace()
        return False

    def on_end(self) -> Sequence[Work]:
        if self._pools_uid and self.core.pools is not None:
            self.core.pools.end(self._pools_uid)
        return NO_WORK

    def on_failure(self) -> Sequence[Work]:
        self._displace()
        return NO_WORK

    def _values(self) -> Mapping[str, int | str]:
        return by_parameter(read_resources(self._request.config.linux.resources))

    def prepare(self) -> None:
        """Prepares the container's record, and its sandbox's if that is unknown."""
        self._draft.prepare()
        if self._pod is None:
            self._unseen = self._unseen_pod()

    def release(self) -> None:
        """Keeps names, and the inputs of the records."""
        request, sandbox = self._request, self._request.sandbox_config
        self._draft.release()
        self._summary = None
        self.request = self._request = api_pb2.CreateContainerRequest(
            pod_sandbox_id=request.pod_sandbox_id, config=self._draft.config
        )
        if request.HasField("sandbox_config"):
            self._request.sandbox_config.metadata.CopyFrom(sandbox.metadata)
            self._request.sandbox_config.linux.cgroup_parent = sandbox.linux.cgroup_parent

    def on_success(self, response: bytes) -> Sequence[Work]:
        """Records the container, and its sandbox if that was unknown."""
        self._remember(api_pb2.CreateContainerResponse.FromString(response).container_id)
        return NO_WORK

    async def confirm(self) -> Sequence[Work] | None:
        """Whether the runtime has a container of this name and attempt in the sandbox."""
        about = self._request.config.metadata
        found = await self.lookups.container_named(self.pod_key, about.name, about.attempt)
        if found is None:
            return None
        self._remember(found.id)
        return NO_WORK

    def _pod_view(self) -> PodView:
        config, pod = self._request.sandbox_config, self._pod
        if pod is not None and not self._request.HasField("sandbox_config"):
            return recorded_pod(pod)
        levels = self.core.store.levels
        return requested_pod(config, pod, self._summary or requested_summary(config, pod, levels))

    def _edit(self, change: Change) -> bool:
        changed = self._draft.edit(change)
        parent = cast("ContainerChange", change).cgroup_parent
        if parent is None:
            return changed
        self._new_parent = parent
        return edit_cgroup_parent(self._request.sandbox_config, parent) or changed

    @property
    def _parent(self) -> str:
        """The cgroup in which the container's will be; empty if it is not known."""
        if self._new_parent:
            return self._new_parent
        if self._pod is not None and self._pod.cgroup_parent:
            return self._pod.cgroup_parent
        return self._request.sandbox_config.linux.cgroup_parent

    def _remember(self, identity: str) -> None:
        store = self.core.store
        self.find_records()
        if self._pod is None and self._request.pod_sandbox_id:
            store.pods.put(self._unseen or self._unseen_pod())
        make = self._draft.make_record or self._draft.prepare()
        record = make(id=identity, pod_id=self.pod_key, created_s=time.time())
        store.containers.put(record)
        if self._pools_uid and self.core.pools is not None:
            self.core.pools.created(self._pools_uid, record.name, record.id)
        draft, pod = self._draft, store.pods.get(self.pod_key)
        if draft.decided.fields or draft.fitted:
            # In the loop's next turn: the answer goes first.
            call_soon = asyncio.get_running_loop().call_soon
            call_soon(book_container, self.core, pod, record, draft.decided.fields, draft.fitted)

    def _unseen_pod(self) -> PodRecord:
        seen = PodDraft(self._request.sandbox_config, "").record(self._request.pod_sandbox_id)
        return replace(seen, detailed=False)
