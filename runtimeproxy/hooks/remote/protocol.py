"""What a hook server's answer means: the change that it asks for. All functions are pure.

The protocol's scalars have no presence, so `oom_score_adj` 0 and an empty cpuset may mean "set 0", "clear"
or nothing at all. Koordinator's proxy takes them for values always; koordlet relies on that, for it
answers with everything that it was shown and its own values laid over it: an echo. Other servers fill in
only what they want changed. Which of the two an answer is shows in what nobody would leave out of an echo.

A change holds only what differs from what the server was shown, so that a server owns what it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cri_api.koordinator.v1alpha1 import HOOK_SERVICE, api_pb2
from cri_api.parsing import parse
from runtimeproxy.hooks.changes import CLEAR, CgroupChange, ContainerChange, PodChange, ResourceChange
from runtimeproxy.hooks.fields import RESOURCE_PARAMETERS
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.remote.registrations import Answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.message import Message

    from cri_api.koordinator.v1alpha1 import api_pb2
    from runtimeproxy.hooks.changes import TextEntries
    from runtimeproxy.hooks.views import ContainerView, PodView, Resources

    _ContainerPair: TypeAlias = tuple[
        api_pb2.ContainerResourceHookRequest, api_pb2.ContainerResourceHookResponse
    ]

_PIECE: Final = 1_000
"""Entries of a map that are copied at a time, which takes about a millisecond."""


def pod_request(pod: PodView) -> api_pb2.PodSandboxHookRequest:
    """Return what a hook of the pod is sent; resources that say nothing are absent."""
    maps = {"labels": pod.labels, "annotations": pod.annotations}
    long = _long(maps)
    request = api_pb2.PodSandboxHookRequest(
        pod_meta=_pod_metadata(pod),
        runtime_handler=pod.runtime_handler,
        cgroup_parent=pod.cgroup_parent,
        overhead=_present(pod.overhead),
        resources=_present(pod.resources),
        **maps,
    )
    _fill(request, long)
    return request


def container_request(container: ContainerView) -> api_pb2.ContainerResourceHookRequest:
    """Return what a hook of the container is sent.

    `container_resources` are the accumulated ones with earlier policies' changes, and always present:
    koordlet writes into the message that it was sent.
    """
    pod = container.pod
    maps = {
        "container_annotations": container.annotations,
        "pod_annotations": pod.annotations,
        "pod_labels": pod.labels,
        "container_envs": shown_env(container.env),
    }
    long = _long(maps)
    request = api_pb2.ContainerResourceHookRequest(
        pod_meta=_pod_metadata(pod),
        container_meta=api_pb2.ContainerMetadata(
            name=container.name, attempt=container.attempt, id=container.id
        ),
        container_resources=resources_message(container.current),
        pod_resources=_present(pod.resources),
        pod_cgroup_parent=pod.cgroup_parent,
        **maps,
    )
    _fill(request, long)
    return request


def resources_message(resources: Resources) -> api_pb2.LinuxContainerResources:
    """Return resources as a message: what has no value is 0 or empty there."""
    return api_pb2.LinuxContainerResources(
        cpu_period=resources.cpu_period_us or 0,
        cpu_quota=resources.cpu_quota_us or 0,
        cpu_shares=resources.cpu_shares or 0,
        memory_limit_in_bytes=resources.memory_limit_bytes or 0,
        memory_swap_limit_in_bytes=resources.memory_swap_limit_bytes or 0,
        oom_score_adj=resources.oom_score_adj or 0,
        cpuset_cpus=resources.cpuset_cpus or "",
        cpuset_mems=resources.cpuset_mems or "",
        hugepage_limits=[
            api_pb2.HugepageLimit(page_size=page_size, limit=limit_bytes)
            for page_size, limit_bytes in resources.hugepage_limits_bytes
        ],
        unified=resources.unified,
    )


def shown_env(env: Mapping[str, bytes]) -> dict[str, str]:
    """Return the environment as text; variables that are not UTF-8 cannot be carried and are left out."""
    shown: dict[str, str] = {}
    for name, value in env.items():
        try:
            shown[name] = value.decode()
        except UnicodeDecodeError:
            continue
    return shown


def _long(maps: dict[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Take the long ones out of some maps, and return them."""
    return {name: maps.pop(name) for name in tuple(maps) if len(maps[name]) > _PIECE}


def _fill(request: Message, maps: Mapping[str, Mapping[str, str]]) -> None:
    """Copy long maps into a message in pieces, between which other threads have their turn."""
    for name, values in maps.items():
        entries = getattr(request, name)
        items = iter(values.items())
        while piece := dict(islice(items, _PIECE)):
            entries.update(piece)


def _present(resources: Resources) -> api_pb2.LinuxContainerResources | None:
    message = resources_message(resources)
    return message if message.ByteSize() else None


def _pod_metadata(pod: PodView) -> api_pb2.PodSandboxMetadata:
    return api_pb2.PodSandboxMetadata(
        name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=pod.attempt
    )


NUMBERS: Final[Mapping[str, str]] = {
    "cpu_period": "cpu_period_us",
    "cpu_quota": "cpu_quota_us",
    "cpu_shares": "cpu_shares",
    "memory_limit_in_bytes": "memory_limit_bytes",
    "memory_swap_limit_in_bytes": "memory_swap_limit_bytes",
}
"""Fields of LinuxContainerResources where 0 keeps what there is, and their names in `ResourceChange`."""

_CPUSETS: Final = ("cpuset_cpus", "cpuset_mems")
_POD_CGROUP_NAMES: Final = frozenset({"cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes"})
"""What Koordinator sets on a pod's own cgroup (policies spec, batch resources)."""


def pod_change(
    request: api_pb2.PodSandboxHookRequest, response: api_pb2.PodSandboxHookResponse, answers: Answers
) -> PodChange | None:
    """Return what an answer changes of a pod: its message and its own cgroup; None for nothing."""
    resources = None
    if response.HasField("resources"):
        is_complete = _is_complete(answers, _pod_evidence(request, response))
        resources = _resource_change(request.resources, response.resources, is_complete=is_complete)
    cgroup = {name: value for name, value in _cgroup_values(resources) if name in _POD_CGROUP_NAMES}
    change = PodChange(
        labels=_changed_entries(request.labels, response.labels),
        annotations=_changed_entries(request.annotations, response.annotations),
        cgroup_parent=_changed_parent(request.cgroup_parent, response.cgroup_parent),
        resources=resources,
        cgroup=cgroup,
    )
    return None if change == PodChange() else change


def container_change(
    request: api_pb2.ContainerResourceHookRequest,
    response: api_pb2.ContainerResourceHookResponse,
    answers: Answers,
) -> ContainerChange | None:
    """Return what an answer changes of a container that is created or updated; None for nothing."""
    is_complete = _is_complete(answers, _container_evidence(request, response))
    change = ContainerChange(
        resources=_container_resources(request, response, is_complete=is_complete),
        annotations=_changed_entries(request.container_annotations, response.container_annotations),
        env=_changed_env(request.container_envs, response.container_envs, is_complete=is_complete),
        cgroup_parent=_changed_parent(request.pod_cgroup_parent, response.pod_cgroup_parent),
    )
    return None if change == ContainerChange() else change


def start_change(
    request: api_pb2.ContainerResourceHookRequest,
    response: api_pb2.ContainerResourceHookResponse,
    answers: Answers,
) -> CgroupChange | None:
    """Return what an answer changes in the cgroup of a container about to start; None for nothing.

    The message that starts a container carries no values, and a cgroup file cannot be cleared.
    """
    is_complete = _is_complete(answers, _container_evidence(request, response))
    cgroup = dict(_cgroup_values(_container_resources(request, response, is_complete=is_complete)))
    return CgroupChange(cgroup=cgroup) if cgroup else None


def _is_complete(answers: Answers, evidence: Iterator[bool]) -> bool:
    """Return whether an answer holds everything that the server was shown.

    Args:
        answers: what is known of the server.
        evidence: of each thing shown that an echo repeats, whether the answer has it.
    """
    if answers is not Answers.AUTO:
        return answers is Answers.COMPLETE
    repeated = list(evidence)
    return bool(repeated) and all(repeated)


def _pod_evidence(
    request: api_pb2.PodSandboxHookRequest, response: api_pb2.PodSandboxHookResponse
) -> Iterator[bool]:
    yield from _entry_evidence(request.labels, response.labels)
    yield from _entry_evidence(request.annotations, response.annotations)
    yield from _parent_evidence(request.cgroup_parent, response.cgroup_parent)
    yield from _resource_evidence(request.resources, response.resources)


def _container_evidence(
    request: api_pb2.ContainerResourceHookRequest, response: api_pb2.ContainerResourceHookResponse
) -> Iterator[bool]:
    yield from _entry_evidence(request.container_annotations, response.container_annotations)
    yield from _parent_evidence(request.pod_cgroup_parent, response.pod_cgroup_parent)
    yield from _resource_evidence(request.container_resources, response.container_resources)


def _resource_evidence(
    shown: api_pb2.LinuxContainerResources, answered: api_pb2.LinuxContainerResources
) -> Iterator[bool]:
    """What may mean "clear" is no evidence: cpusets and the OOM score."""
    for field in NUMBERS:
        if getattr(shown, field):
            yield bool(getattr(answered, field))
    page_sizes = {limit.page_size for limit in answered.hugepage_limits}
    yield from (limit.page_size in page_sizes for limit in shown.hugepage_limits)
    yield from _entry_evidence(shown.unified, answered.unified)


def _entry_evidence(shown: Mapping[str, str], answered: Mapping[str, str]) -> Iterator[bool]:
    if shown:
        yield all(key in answered for key in shown)


def _parent_evidence(shown: str, answered: str) -> Iterator[bool]:
    if shown:
        yield bool(answered)


def _container_resources(
    request: api_pb2.ContainerResourceHookRequest,
    response: api_pb2.ContainerResourceHookResponse,
    *,
    is_complete: bool,
) -> ResourceChange | None:
    if not response.HasField("container_resources"):
        return None
    return _resource_change(
        request.container_resources, response.container_resources, is_complete=is_complete
    )


def _resource_change(
    shown: api_pb2.LinuxContainerResources,
    answered: api_pb2.LinuxContainerResources,
    *,
    is_complete: bool,
) -> ResourceChange | None:
    """Huge page limits of an answer count nowhere, as in Koordinator's proxy."""
    fields: dict[str, Any] = {}
    for field, name in NUMBERS.items():
        value = getattr(answered, field)
        # Of an echo Koordinator's proxy takes no "unlimited" for memory, so koordlet's never had an effect.
        is_moot = value < 0 and is_complete and field.startswith("memory")
        if value and value != getattr(shown, field) and not is_moot:
            fields[name] = value
    if answered.oom_score_adj != shown.oom_score_adj and (answered.oom_score_adj or is_complete):
        fields["oom_score_adj"] = answered.oom_score_adj
    for name in _CPUSETS:
        cpuset = getattr(answered, name)
        if cpuset != getattr(shown, name) and (cpuset or is_complete):
            fields[name] = cpuset or CLEAR
    unified = _changed_entries(shown.unified, answered.unified)
    return ResourceChange(**fields, unified=unified) if fields or unified else None


def _changed_entries(shown: Mapping[str, str], answered: Mapping[str, str]) -> dict[str, str]:
    """Nothing is ever taken away: that cannot be said in the protocol."""
    # For messages' maps it is the quickest way.
    return {key: answered[key] for key in answered if shown.get(key) != answered[key]}


def _changed_env(shown: Mapping[str, str], answered: Mapping[str, str], *, is_complete: bool) -> TextEntries:
    """Return what becomes of the variables that the server could see; an empty answer leaves them alone."""
    entries = _changed_entries(shown, answered)
    # The order of a map on the wire is another one in each answer, and that of variables counts.
    changed: dict[str, Any] = {name: entries[name] for name in sorted(entries)}
    if answered and is_complete:
        changed.update((name, CLEAR) for name in shown if name not in answered)
    return changed


def _changed_parent(shown: str, answered: str) -> str | None:
    return answered if answered and answered != shown else None


def _cgroup_values(resources: ResourceChange | None) -> Iterator[tuple[str, int | str]]:
    if resources is None:
        return
    for field, name in RESOURCE_PARAMETERS.items():
        value = getattr(resources, field)
        if value is not None and value is not CLEAR:
            yield name, value


@dataclass(frozen=True, slots=True)
class Exchange:
    """One hook's question and answer; the types of the messages go with the hook's view."""

    method: str
    """The path of the RPC."""
    request: Callable[[Any], Any]
    """Makes the request of a view."""
    response: Callable[[bytes], Any]
    """Parses the answer."""
    change: Callable[[Any, Any, Answers], CgroupChange | None] | None = None
    """Reads the answer to a request; None: it has no effect."""


MAX_PARTS_BYTES: Final = 4 * 1024 * 1024
"""Of an answer's annotations, variables and the like: as much as of a call, all of which it may repeat."""

_POD_RESPONSE: Final = partial(parse, api_pb2.PodSandboxHookResponse, max_parts_bytes=MAX_PARTS_BYTES)
_CONTAINER_RESPONSE: Final = partial(
    parse, api_pb2.ContainerResourceHookResponse, max_parts_bytes=MAX_PARTS_BYTES
)

NO_SUCH_METHOD: Final = f"/{HOOK_SERVICE}/Probe"
"""The path of an RPC that no server has: whoever answers it lives."""


def _pod(method: str, change: Callable[[Any, Any, Answers], CgroupChange | None] | None = None) -> Exchange:
    return Exchange(f"/{HOOK_SERVICE}/{method}", pod_request, _POD_RESPONSE, change)


def _container(
    method: str, change: Callable[[Any, Any, Answers], CgroupChange | None] | None = None
) -> Exchange:
    return Exchange(f"/{HOOK_SERVICE}/{method}", container_request, _CONTAINER_RESPONSE, change)


EXCHANGES: Final[Mapping[Hook, Exchange]] = {
    Hook.PRE_RUN_POD_SANDBOX: _pod("PreRunPodSandboxHook", pod_change),
    Hook.POST_STOP_POD_SANDBOX: _pod("PostStopPodSandboxHook"),
    Hook.PRE_CREATE_CONTAINER: _container("PreCreateContainerHook", container_change),
    Hook.PRE_START_CONTAINER: _container("PreStartContainerHook", start_change),
    Hook.POST_START_CONTAINER: _container("PostStartContainerHook"),
    Hook.PRE_UPDATE_CONTAINER_RESOURCES: _container("PreUpdateContainerResourcesHook", container_change),
    Hook.POST_STOP_CONTAINER: _container("PostStopContainerHook"),
}
"""Source: Koordinator apis/runtime/v1alpha1/api.proto (koord-runtime-proxy spec 3.4)."""
