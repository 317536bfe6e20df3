"""Answers the requests of the runtime: one method for each event of NRI.

The runtime makes one request at a time, and all its other work on pods waits for the reply. So what a reply
does not need comes after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError, Message

from cri_api.nri.v1alpha1 import api_pb2
from runtimeproxy.core.events import (
    note_requests,
    on_pod_created,
    on_pod_updated,
    resized,
    without_own_values,
)
from runtimeproxy.core.questions import (
    NOTHING_DECIDED_ON_POD,
    DecidedValues,
    commit_pools,
    container_question,
    decided_pod,
    decided_values,
    pod_question,
    take_cpus,
)
from runtimeproxy.errors import MESSAGE_PREFIX, RefusalError, StatusCode
from runtimeproxy.frontends.mode_begin import mark_known
from runtimeproxy.frontends.nri.containers import Containers
from runtimeproxy.frontends.nri.messages import container_record, pod_record, read_resources
from runtimeproxy.frontends.nri.services import EventServices, RefusedError
from runtimeproxy.frontends.nri.state import OtherPlugin
from runtimeproxy.hooks import FailurePolicy, Hook
from runtimeproxy.hooks.audit import Origin
from runtimeproxy.ledger.answers import by_parameter
from runtimeproxy.pods.inventory import RunningPods, RuntimeUnavailableError
from runtimeproxy.pods.record_views import recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import overlay
from runtimeproxy.pods.updates import merged_owners
from runtimeproxy.slo.names import RESOURCE_STATUS

if TYPE_CHECKING:
    from runtimeproxy.frontends.nri.ttrpc import Request

EVENTS: Final = tuple(
    value
    for value in api_pb2.Event.values()
    if value not in (api_pb2.UNKNOWN, api_pb2.LAST, api_pb2.VALIDATE_CONTAINER_ADJUSTMENT)
)
"""What the runtime tells of; their bits are the numbers less one. `UNKNOWN` and `LAST` are no events."""
EVENTS_WITH_OWNERS: Final = (*EVENTS, api_pb2.VALIDATE_CONTAINER_ADJUSTMENT)
"""With the validation, by which a plugin learns what others set.

A creation fails if a plugin that validates is late, or goes, before its reply; up to NRI 0.12.3 also if its
reply to CreateContainer was late, and if no event came since it has gone. Failure policies do not apply.
Source: NRI, pkg/adaptation/adaptation.go, validateContainerAdjustment and removeClosedPlugins; plugin.go,
ValidateContainerAdjustment.
"""
FIRST_EVENTS: Final = tuple(value for value in EVENTS if value <= api_pb2.REMOVE_CONTAINER)
"""Those that each NRI has. Source: NRI 0.3, pkg/api/event.go."""
_OWNED: Final[Mapping[int, str]] = {
    api_pb2.MemLimit: "resources.memory_limit_bytes",
    api_pb2.MemSwapLimit: "resources.memory_swap_limit_bytes",
    api_pb2.CPUShares: "resources.cpu_shares",
    api_pb2.CPUQuota: "resources.cpu_quota_us",
    api_pb2.CPUPeriod: "resources.cpu_period_us",
    api_pb2.CPUSetCPUs: "resources.cpuset_cpus",
    api_pb2.CPUSetMems: "resources.cpuset_mems",
    api_pb2.PidsLimit: "resources.pids_limit",
    api_pb2.OomScoreAdj: "resources.oom_score_adj",
    api_pb2.RdtClass: "resources.rdt_class",
    api_pb2.BlockioClass: "resources.blockio_class",
    api_pb2.CgroupsUnified: "resources.unified",
    api_pb2.Annotations: "annotations",
    api_pb2.Env: "env",
    api_pb2.Mounts: "mounts",
    api_pb2.Devices: "devices",
    api_pb2.CdiDevices: "cdi_devices",
}
"""The fields here by NRI's."""
MOST_PLUGINS: Final = 100
"""That are told of; a runtime has a few."""
MOST_NAME: Final = 300
"""Characters of the names of plugins and of fields that they set."""
ONLY_CREATION: Final = "only a creation is refused"

GRACE: Final = 1.5
"""A request with its writes may take so many times its budget: a quarter of the runtime's time is left."""

RUN: Final = Origin("RunPodSandbox")
UPDATE_POD: Final = Origin("UpdatePodSandboxResources")


def event_mask(events: tuple[int, ...]) -> int:
    return sum(1 << (each - 1) for each in events)


class Plugin:
    """Answers requests, in their order for each pod. Used in the event loop's thread.

    Args:
        services: Shared with `Containers`.
        own_name: The plugin's name among others, with its index.
        since_s: When this mode began on this node, in seconds since the epoch.
    """

    def __init__(self, services: EventServices, own_name: str, since_s: float) -> None:
        self.services = services
        self.own_name = own_name
        self._core = services.core
        self._containers = Containers(services)
        self._since_s = since_s
        self._core.inventory.on_complete.insert(0, self._mark_known)
        # The status has what was asked for at a creation, and not what plugins have made of it.
        self._core.inventory.confirms_by_status = False
        # The pieces of a Synchronize that is not complete.
        self._listed_pods: dict[str, PodRecord] = {}
        self._listed_containers: dict[str, ContainerRecord] = {}
        self._methods: dict[str, tuple[type[Message], Callable[[Any, float], Awaitable[Message]]]] = {
            "Synchronize": (api_pb2.SynchronizeRequest, self._synchronize),
            "RunPodSandbox": (api_pb2.RunPodSandboxRequest, self._run_pod_sandbox),
            "UpdatePodSandbox": (api_pb2.UpdatePodSandboxRequest, self._update_pod_sandbox),
            "PostUpdatePodSandbox": (api_pb2.PostUpdatePodSandboxRequest, self._post_update_pod_sandbox),
            "StopPodSandbox": (api_pb2.StopPodSandboxRequest, self._stop_pod_sandbox),
            "RemovePodSandbox": (api_pb2.RemovePodSandboxRequest, self._remove_pod_sandbox),
            "CreateContainer": (api_pb2.CreateContainerRequest, self._create_container),
            "PostCreateContainer": (api_pb2.PostCreateContainerRequest, self._post_create_container),
            "StartContainer": (api_pb2.StartContainerRequest, self._start_container),
            "PostStartContainer": (api_pb2.PostStartContainerRequest, self._post_start_container),
            "UpdateContainer": (api_pb2.UpdateContainerRequest, self._update_container),
            "PostUpdateContainer": (api_pb2.PostUpdateContainerRequest, self._post_update_container),
            "StopContainer": (api_pb2.StopContainerRequest, self._stop_container),
            "RemoveContainer": (api_pb2.RemoveContainerRequest, self._remove_container),
            "StateChange": (api_pb2.StateChangeEvent, self._state_change),
            "ValidateContainerAdjustment": (api_pb2.ValidateContainerAdjustmentRequest, self._validate),
        }
        self._state_changes: dict[int, Callable[[Any, float], Awaitable[Message]]] = {
            api_pb2.RUN_POD_SANDBOX: self._run_pod_sandbox,
            api_pb2.STOP_POD_SANDBOX: self._stop_pod_sandbox,
            api_pb2.REMOVE_POD_SANDBOX: self._remove_pod_sandbox,
            api_pb2.POST_UPDATE_POD_SANDBOX: self._post_update_pod_sandbox,
            api_pb2.POST_CREATE_CONTAINER: self._post_create_container,
            api_pb2.START_CONTAINER: self._start_container,
            api_pb2.POST_START_CONTAINER: self._post_start_container,
            api_pb2.POST_UPDATE_CONTAINER: self._post_update_container,
            api_pb2.REMOVE_CONTAINER: self._remove_container,
        }

    @property
    def methods(self) -> Collection[str]:
        return self._methods

    async def answer(self, request: Request, budget_s: float) -> bytes:
        """Answers one request.

        Args:
            request: Of the runtime.
            budget_s: How long the runtime may wait for the policies; the reply goes without them after that,
                and what they decide goes by file.

        Raises:
            RefusedError: The reply is an error, which fails the runtime's work.
        """
        kind, method = self._methods[request.method]
        settings = self.services.settings
        try:
            message = kind.FromString(request.payload)
        except DecodeError as error:
            self._report(request.method, "unreadable", "the request cannot be read")
            if settings.on_unparsable is FailurePolicy.FAIL:
                raise RefusedError(StatusCode.INVALID_ARGUMENT, "the request cannot be read") from error
            return b""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(budget_s, settings.budget_s)
        decided: asyncio.Future[Message] = loop.create_future()
        self._core.spawn(self._decide(decided, message, partial(method, message, until_s), until_s))
        # Writes may hang: the runtime is answered all the same.
        await asyncio.wait({decided}, timeout=budget_s * GRACE)
        if not decided.done():
            self._on_late(request.method, message)
            decided.add_done_callback(partial(self._on_late_end, request.method))
            return b""
        try:
            return decided.result().SerializeToString()
        except RefusedError:
            raise
        except Exception as error:
            self._core.problems.report_bug(request.method, error)
            if settings.on_failure is FailurePolicy.FAIL:
                raise RefusedError(StatusCode.INTERNAL, "an error in the plugin") from error
            return b""

    async def _decide(
        self,
        decided: asyncio.Future[Message],
        message: Message,
        work: Callable[[], Awaitable[Message]],
        until_s: float,
    ) -> None:
        try:
            decided.set_result(await self._in_order(message, work, until_s))
        except Exception as error:  # noqa: BLE001 - whoever waits for it sees it
            decided.set_exception(error)

    async def _in_order(
        self, message: Message, work: Callable[[], Awaitable[Message]], until_s: float
    ) -> Message:
        """Does the work once that of the pod's earlier events is done."""
        pod_id = _pod_id(message)
        if not pod_id:
            return await work()
        order, now_s = self._core.order, asyncio.get_running_loop().time()
        # Work that hangs must leave time for the policies.
        wait_until_s = now_s + (until_s - now_s) / 2
        turn = order.enter(pod_id)
        try:
            if not turn.done():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(wait_until_s):
                        await turn
            await order.wait_for_post_hooks(pod_id, wait_until_s)
            return await work()
        finally:
            order.leave(pod_id, turn)

    def _on_late(self, method: str, message: Any) -> None:  # noqa: ANN401 - any request
        self.services.state.late_replies[method] += 1
        self._report(method, "not_in_time", "the runtime was answered without a decision")
        if method == "CreateContainer":
            self._containers.on_late(message.container.id)

    def _on_late_end(self, method: str, deciding: asyncio.Future[Message]) -> None:
        if not deciding.cancelled() and (error := deciding.exception()) is not None:
            if isinstance(error, RefusedError):
                self._report(method, "refused_late", f"refused, but the runtime was answered: {error}")
            elif isinstance(error, Exception):
                self._core.problems.report_bug(method, error)

    def _report(self, method: str, problem: str, text: str) -> None:
        self._core.problems.counts[method, problem] += 1
        self._core.problems.failures.report(method, problem, text)

    # --- what runs -----------------------------------------------------------------------------------------

    async def _synchronize(self, request: api_pb2.SynchronizeRequest, until_s: float) -> Message:
        """Takes all that runs, which may come in pieces."""
        # What lists have not shown was created since; without lists it may be older than this mode.
        now_s = time.time() if self._core.inventory.recovered.is_set() else 0.0
        priority_of, claimed = self._core.priority_of, self._core.chain.node.latest.claimed_cpus
        for pod in request.pods:
            found = pod_record(pod, now_s, priority_of(pod.uid))
            self._listed_pods[pod.id] = replace(found, recovered=True)
        for container in request.containers:
            record = container_record(container, now_s, claimed)
            self._listed_containers[container.id] = replace(record, recovered=True)
        if request.more:
            return api_pb2.SynchronizeResponse(more=True)
        pods, containers = self._listed_pods, self._listed_containers
        self.forget_pieces()
        # Whatever has become of what was being created: the lists, and later events, tell of it.
        self._containers.end_places()
        inventory, store = self._core.inventory, self._core.store
        self._replace_records_of_others(pods, containers)
        known = [each for each in map(store.containers.get, containers) if each is not None]
        known = [each for each in known if each is not containers[each.id]]
        with store.listing() as since:
            inventory.synchronize(RunningPods(pods, containers, since, since))
        pairs = [(each, containers[each.id]) for each in known]
        for record in known:
            del containers[record.id]
        new = [each for each in containers.values() if each.created_s >= self._since_s]
        self._core.spawn(self._adopt(pairs, new))
        return api_pb2.SynchronizeResponse()

    def _replace_records_of_others(
        self, pods: Mapping[str, PodRecord], containers: Mapping[str, ContainerRecord]
    ) -> None:
        """Records that were saved as those of other pods and containers are not what runs under their ids."""
        store = self._core.store
        for pod in pods.values():
            known_pod = store.pods.get(pod.id)
            if known_pod is not None and known_pod.detailed and _pod_key(known_pod) != _pod_key(pod):
                store.pods.put(pod)
        for container in containers.values():
            known = store.containers.get(container.id)
            names = (container.pod_id, container.name)
            if known is not None and known.detailed and (known.pod_id, known.name) != names:
                store.containers.put(container)

    async def _adopt(
        self, known: Sequence[tuple[ContainerRecord, ContainerRecord]], new: Sequence[ContainerRecord]
    ) -> None:
        """Brings what runs to what it should have; then all is listed once more.

        Source: containerd issue 13698: no event tells of what is created meanwhile.

        Args:
            known: Records, with what the runtime tells of the same containers.
            new: What the runtime tells of containers of this mode's time that have no record.
        """
        inventory = self._core.inventory
        for record, found in known:
            await self._containers.compare(record, found)
        with suppress(RuntimeUnavailableError):
            for found in new:
                await self._containers.find_requested(found)
        await inventory.complete()
        inventory.compare_soon()

    async def _mark_known(self) -> None:
        """What was created while the plugin was away has the kubelet's own values."""
        core = self._core
        found = mark_known(core.store, self._since_s)
        core.evaluator.undecided |= found
        pods: set[str] = set()
        for each in filter(None, map(core.store.containers.get, found)):
            pods.add(each.pod_id)
            if each.state is Lifecycle.CREATED:
                # Only its start is told yet.
                self.services.undecided.add(each.id)
        for pod in filter(None, map(core.store.pods.get, pods)):
            # Scaled values follow from the sums of its containers.
            note_requests(core, pod)
            # Its quota may fall only once those of its containers have.
            core.spawn(self._containers.follow_kubelet(pod))

    def forget_pieces(self) -> None:
        """A connection has ended, or all pieces are there."""
        self._listed_pods, self._listed_containers = {}, {}

    # --- pods ----------------------------------------------------------------------------------------------

    def _pod(self, message: api_pb2.PodSandbox) -> PodRecord:
        """The record of a sandbox, from the message if there is none."""
        store = self._core.store
        known = store.pods.get(message.id)
        if known is not None and known.detailed:
            return known
        record = pod_record(message, time.time(), self._core.priority_of(message.uid))
        store.pods.put(record)
        self._core.evaluator.undecided.add(record.id)
        return record

    async def _run_pod_sandbox(self, request: Any, until_s: float) -> Message:  # noqa: ANN401 - two kinds
        core, services, message = self._core, self.services, request.pod
        evaluation = core.evaluator.rounds
        record = core.store.with_level(pod_record(message, time.time(), core.priority_of(message.uid)))
        question = pod_question(Hook.PRE_RUN_POD_SANDBOX, record)
        pools = core.pools if core.pools is not None and core.pools.is_on else None
        if services.is_standby():
            pools = None
        core.begin_start(record.uid, record.cgroup_parent)
        is_placed = pools is not None and pools.admit(recorded_pod(record))
        try:
            decision = await services.ask(question, until_s, RUN)
            for work in commit_pools(core, RUN.call, record.uid, until_s):
                await work()
        except (RefusedError, RefusalError) as error:
            if pools is not None:
                pools.end(record.uid)
                if is_placed:
                    pools.undo(record.uid)
            core.end_start(record.uid)
            if isinstance(error, RefusalError):
                raise RefusedError(error.code, error.text) from error
            raise
        decided = NOTHING_DECIDED_ON_POD if decision is None else decided_pod(decision)
        if core.allocations is not None and RESOURCE_STATUS in record.annotations:
            admit = partial(core.allocations.admit, recorded_pod(record))
            await take_cpus(core.problems, RUN.call, until_s, admit)()
            core.allocations.settle(record.uid)
        record = replace(record, owners=dict(decided.owners) or record.owners)
        works = on_pod_created(core, record, decided, evaluation, RUN)
        if pools is not None:
            pools.end(record.uid)
        services.start_after(RUN.call, record, works)
        return api_pb2.RunPodSandboxResponse()

    async def _update_pod_sandbox(self, request: api_pb2.UpdatePodSandboxRequest, until_s: float) -> Message:
        """The kubelet has already set the pod's cgroup; those of policies are set there again."""
        core, record = self._core, self._pod(request.pod)
        sent = without_own_values(core, record.cgroup_parent, read_resources(request.linux_resources))
        evaluation = core.evaluator.rounds
        asked = replace(
            record,
            requested=overlay(record.requested, sent),
            overhead=overlay(record.overhead, read_resources(request.overhead_linux_resources)),
        )
        question = pod_question(Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, asked)
        question.is_deferred = True
        decided = DecidedValues(silent=core.chain.unsettled)
        try:
            decision = await self.services.ask(question, until_s, UPDATE_POD)
        except RefusedError as error:
            self._report("UpdatePodSandbox", "refusal_not_carried", f"{ONLY_CREATION}: {error}")
            decision = None
        if decision is not None:
            decided = decided_values(decision, is_deferred=True)
        # What the kubelet has written is there whatever the runtime makes of its call.
        booked = overlay(record.booked, sent)
        owners = merged_owners(record.owners, sent, decided.owners)
        updated = replace(asked, booked=booked, owners=owners)
        works = on_pod_updated(core, updated, decided, evaluation, UPDATE_POD)
        of_cgroup = resized(core, updated.cgroup_parent, by_parameter(sent))
        self.services.start_after(UPDATE_POD.call, updated, (*works, *of_cgroup))
        return api_pb2.UpdatePodSandboxResponse()

    async def _post_update_pod_sandbox(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        pod = self._pod(request.pod)
        self.services.start_after(UPDATE_POD.call, pod, resized(self._core, pod.cgroup_parent))
        return api_pb2.PostUpdatePodSandboxResponse()

    async def _stop_pod_sandbox(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        record = self._core.store.pods.get(request.pod.id)
        self._containers.end_places(request.pod.id)
        if record is not None and record.state is not Lifecycle.STOPPED:
            stopped = replace(record, state=Lifecycle.STOPPED)
            self._core.store.pods.put(stopped)
            question = pod_question(Hook.POST_STOP_POD_SANDBOX, stopped, has_cgroup=False)
            self.services.start_after("StopPodSandbox", stopped, (), question)
        return api_pb2.StopPodSandboxResponse()

    async def _remove_pod_sandbox(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        core, record = self._core, self._core.store.pods.get(request.pod.id)
        self._containers.end_places(request.pod.id)
        if record is not None:
            members = core.store.containers.members(record.id)
            questions = [
                container_question(core.inventory, Hook.POST_REMOVE_CONTAINER, each, record)
                for each in members
            ]
            core.store.remove_pod(record.id)
            for each in members:
                self._containers.forget(each.id)
            if core.allocations is not None:
                core.allocations.release(record.uid)
            self.services.start_after("RemovePodSandbox", record, (), *questions)
        return api_pb2.RemovePodSandboxResponse()

    # --- containers ----------------------------------------------------------------------------------------

    async def _create_container(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        return await self._containers.create(request.container, self._pod(request.pod), until_s)

    async def _post_create_container(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        self._containers.on_created(request.container, self._pod(request.pod))
        return api_pb2.PostCreateContainerResponse()

    async def _start_container(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        try:
            await self._containers.start(request.container, self._pod(request.pod), until_s)
        except RefusedError as error:
            self._report("StartContainer", "refusal_not_carried", f"{ONLY_CREATION}: {error}")
        return api_pb2.StartContainerResponse()

    async def _post_start_container(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        core, pod = self._core, self._pod(request.pod)
        record = core.store.containers.get(request.container.id)
        if record is not None:
            question = container_question(core.inventory, Hook.POST_START_CONTAINER, record, pod)
            self.services.start_after("StartContainer", pod, (), question)
        return api_pb2.PostStartContainerResponse()

    async def _update_container(self, request: api_pb2.UpdateContainerRequest, until_s: float) -> Message:
        pod = self._pod(request.pod)
        try:
            return await self._containers.update(request.container, request.linux_resources, pod, until_s)
        except RefusedError as error:
            self._report("UpdateContainer", "refusal_not_carried", f"{ONLY_CREATION}: {error}")
            return api_pb2.UpdateContainerResponse()

    async def _post_update_container(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        pod = self._pod(request.pod)
        works = self._containers.on_updated(request.container.id, pod)
        self.services.start_after("UpdateContainerResources", pod, works)
        return api_pb2.PostUpdateContainerResponse()

    async def _stop_container(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        core = self._core
        record = core.store.containers.get(request.container.id)
        if record is not None and record.state is not Lifecycle.STOPPED:
            stopped, pod = replace(record, state=Lifecycle.STOPPED), core.store.pods.get(record.pod_id)
            core.store.containers.put(stopped)
            if pod is not None:
                question = container_question(core.inventory, Hook.POST_STOP_CONTAINER, stopped, pod)
                self.services.start_after("StopContainer", pod, (), question)
        return api_pb2.StopContainerResponse()

    async def _remove_container(self, request: Any, until_s: float) -> Message:  # noqa: ANN401
        core, identity = self._core, request.container.id
        record = core.store.containers.get(identity)
        core.store.containers.remove(identity)
        self._containers.forget(identity)
        pod = core.store.pods.get(record.pod_id) if record is not None else None
        if record is not None and pod is not None:
            question = container_question(core.inventory, Hook.POST_REMOVE_CONTAINER, record, pod)
            self.services.start_after("RemoveContainer", pod, (), question)
        return api_pb2.RemoveContainerResponse()

    async def _state_change(self, request: api_pb2.StateChangeEvent, until_s: float) -> Message:
        """Older runtimes tell of most events so."""
        if (method := self._state_changes.get(request.event)) is not None:
            await method(request, until_s)
        return api_pb2.Empty()

    async def _validate(self, request: api_pb2.ValidateContainerAdjustmentRequest, until_s: float) -> Message:
        """Accepts everything; it is how a plugin learns what others set."""
        named = (each for each in request.plugins if len(each.index) == 2 and len(each.name) <= MOST_NAME)
        present = [OtherPlugin(each.index, each.name) for each in islice(named, MOST_PLUGINS)]
        own = OtherPlugin(*self.own_name.split("-", 1))
        if own in present:
            # A second one of this name is another daemon.
            present.remove(own)
        self.services.state.other_plugins = set(present)
        fields = dict[str, str]()
        for found in request.owners.owners.values():
            fields |= {_OWNED.get(number, ""): plugin for number, plugin in found.simple.items()}
            for number, compound in found.compound.items():
                if name := _OWNED.get(number):
                    fields |= {f"{name}[{key}]": plugin for key, plugin in compound.owners.items()}
        plugins = {f"{each.index}-{each.name}" for each in present}
        of_others = {
            name: plugin
            for name, plugin in fields.items()
            if plugin in plugins and plugin != self.own_name and 0 < len(name) <= MOST_NAME
        }
        self._containers.on_validated(request.container.id, of_others, plugins)
        return api_pb2.ValidateContainerAdjustmentResponse()


def _pod_key(pod: PodRecord) -> tuple[str, str, str]:
    return pod.uid, pod.namespace, pod.name


def _pod_id(message: Any) -> str:  # noqa: ANN401 - any request
    """The sandbox whose earlier events come first; empty for none."""
    if isinstance(message, api_pb2.ValidateContainerAdjustmentRequest):
        # Decides on nothing, and a creation fails if its plugin ends before the reply.
        return ""
    pod = getattr(message, "pod", None)
    found: str = pod.id if pod is not None else ""
    return found


def refusal_text(error: RefusedError) -> str:
    return MESSAGE_PREFIX + str(error)[:1000]
