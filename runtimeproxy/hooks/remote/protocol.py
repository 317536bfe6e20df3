"""The protocol of hook servers: a view becomes a request, and a response becomes the change that it asks for.

All functions are pure. Source: Koordinator apis/runtime/v1alpha1/api.proto.

The protocol's scalars have no presence, so `oom_score_adj` 0 and an empty cpuset may mean "set 0", "clear"
or nothing at all. Koordinator's proxy always takes them for values. Koordlet relies on that, because it
responds with everything that it was sent and its own values laid over it: an echo. Other servers fill in only
the fields that they want changed. A response is taken for an echo if it repeats all fields whose absence
could not mean "clear".

A change holds only the values that differ from the request, so that a server owns these fields only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import Message

from cri_api.koordinator.v1alpha1 import HOOK_SERVICE, api_pb2
from cri_api.parsing import parse
from runtimeproxy.fields.declaration import Kind
from runtimeproxy.fields.tables import CRI_FIELDS, RESOURCE_PARAMETERS
from runtimeproxy.hooks.changes import CLEAR, CgroupChange, ContainerChange, PodChange, ResourceChange
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.remote.registrations import ResponseMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from runtimeproxy.hooks.changes import TextEntries
    from runtimeproxy.hooks.views import ContainerView, PodView, Resources

MAX_PARTS_BYTES: Final = 4 * 1024 * 1024
"""Of a response's annotations, variables and the like: as much as of a call, all of which it may repeat."""

_FIELDS: Final = tuple(
    (field.cri, name, field)
    for name, field in CRI_FIELDS.items()
    if field.cri in api_pb2.LinuxContainerResources.DESCRIPTOR.fields_by_name
)
"""The fields that the protocol has: name there, in `Resources`, declaration."""
_NUMBERS: Final = frozenset(
    cri_name for cri_name, _, field in _FIELDS if field.kind is Kind.NUMBER and field.neutral != 0
)
"""Those where 0 is no value, so that it can only mean "unchanged"."""
_POD_CGROUP_NAMES: Final = frozenset({"cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes"})
"""What Koordinator sets on a pod's own cgroup. Source: pkg/koordlet/runtimehooks/hooks/batchresource."""
_POD_ECHO: Final = ("labels", "annotations", "cgroup_parent", "resources")
_CONTAINER_ECHO: Final = ("container_annotations", "pod_cgroup_parent", "container_resources")
"""Fields that an echo repeats."""
_PIECE: Final = 1_000
"""Entries of a map to copy at a time, which takes about a millisecond."""

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The request and response of one hook; the types of the messages go with the hook's view."""

    method: str
    """The path of the RPC."""
    request: Callable[[Any], Any]
    """Makes the request of a view."""
    response: Callable[[bytes], Any]
    """Parses the response."""
    change: Callable[[Any, Any, ResponseMode], CgroupChange | None] | None = None
    """Reads the response to a request; None: it has no effect."""


def pod_request(pod: PodView) -> api_pb2.PodSandboxHookRequest:
    # Resources without a value are absent.
    return _message(
        api_pb2.PodSandboxHookRequest,
        {"labels": pod.labels, "annotations": pod.annotations},
        pod_meta=_pod_metadata(pod),
        runtime_handler=pod.runtime_handler,
        cgroup_parent=pod.cgroup_parent,
        overhead=_present(pod.overhead),
        resources=_present(pod.resources),
    )


def container_request(container: ContainerView) -> api_pb2.ContainerResourceHookRequest:
    """The request of a hook of the container.

    `container_resources` are the accumulated ones with earlier policies' changes, and always present:
    koordlet writes into the message that it was sent.
    """
    pod = container.pod
    return _message(
        api_pb2.ContainerResourceHookRequest,
        {
            "container_annotations": container.annotations,
            "pod_annotations": pod.annotations,
            "pod_labels": pod.labels,
            "container_envs": shown_env(container.env),
        },
        pod_meta=_pod_metadata(pod),
        container_meta=api_pb2.ContainerMetadata(
            name=container.name, attempt=container.attempt, id=container.id
        ),
        container_resources=resources_message(container.current),
        pod_resources=_present(pod.resources),
        pod_cgroup_parent=pod.cgroup_parent,
    )


def resources_message(resources: Resources) -> api_pb2.LinuxContainerResources:
    # Fields without a value are 0 or empty.
    return api_pb2.LinuxContainerResources(
        **{cri_name: value for cri_name, name, _ in _FIELDS if (value := getattr(resources, name))},
        hugepage_limits=[
            api_pb2.HugepageLimit(page_size=page_size, limit=limit_bytes)
            for page_size, limit_bytes in resources.hugepage_limits_bytes
        ],
        unified=resources.unified,
    )


def shown_env(env: Mapping[str, bytes]) -> dict[str, str]:
    """The environment as text, without the variables that are not UTF-8: a `string` cannot hold them."""
    shown: dict[str, str] = {}
    for name, value in env.items():
        try:
            shown[name] = value.decode()
        except UnicodeDecodeError:
            continue
    return shown


def pod_change(
    request: api_pb2.PodSandboxHookRequest, response: api_pb2.PodSandboxHookResponse, mode: ResponseMode
) -> PodChange | None:
    """The change of a pod's message and of its own cgroup that a response asks for; None for none."""
    is_complete = _is_complete(mode, request, response, _POD_ECHO)
    resources = _resource_change(request, response, "resources", is_complete=is_complete)
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
    mode: ResponseMode,
) -> ContainerChange | None:
    """The change of a created or updated container that a response asks for; None for none."""
    is_complete = _is_complete(mode, request, response, _CONTAINER_ECHO)
    change = ContainerChange(
        resources=_resource_change(request, response, "container_resources", is_complete=is_complete),
        annotations=_changed_entries(request.container_annotations, response.container_annotations),
        env=_changed_env(request.container_envs, response.container_envs, is_complete=is_complete),
        cgroup_parent=_changed_parent(request.pod_cgroup_parent, response.pod_cgroup_parent),
    )
    return None if change == ContainerChange() else change


def start_change(
    request: api_pb2.ContainerResourceHookRequest,
    response: api_pb2.ContainerResourceHookResponse,
    mode: ResponseMode,
) -> CgroupChange | None:
    """The change in the cgroup of a container about to start; None for none.

    A StartContainer request has no fields for values, and a cgroup file cannot be cleared.
    """
    is_complete = _is_complete(mode, request, response, _CONTAINER_ECHO)
    resources = _resource_change(request, response, "container_resources", is_complete=is_complete)
    cgroup = dict(_cgroup_values(resources))
    return CgroupChange(cgroup=cgroup) if cgroup else None


_PATH: Final = f"/{HOOK_SERVICE}/"
_POD_HOOK: Final = (
    pod_request,
    partial(parse, api_pb2.PodSandboxHookResponse, max_parts_bytes=MAX_PARTS_BYTES),
)
_CONTAINER_HOOK: Final = (
    container_request,
    partial(parse, api_pb2.ContainerResourceHookResponse, max_parts_bytes=MAX_PARTS_BYTES),
)

NO_SUCH_METHOD: Final = f"{_PATH}Probe"
"""A method that no server has: its UNIMPLEMENTED is a sign of life without an effect."""

EXCHANGES: Final[Mapping[Hook, Exchange]] = {
    Hook.PRE_RUN_POD_SANDBOX: Exchange(f"{_PATH}PreRunPodSandboxHook", *_POD_HOOK, pod_change),
    Hook.POST_STOP_POD_SANDBOX: Exchange(f"{_PATH}PostStopPodSandboxHook", *_POD_HOOK),
    Hook.PRE_CREATE_CONTAINER: Exchange(f"{_PATH}PreCreateContainerHook", *_CONTAINER_HOOK, container_change),
    Hook.PRE_START_CONTAINER: Exchange(f"{_PATH}PreStartContainerHook", *_CONTAINER_HOOK, start_change),
    Hook.POST_START_CONTAINER: Exchange(f"{_PATH}PostStartContainerHook", *_CONTAINER_HOOK),
    Hook.PRE_UPDATE_CONTAINER_RESOURCES: Exchange(
        f"{_PATH}PreUpdateContainerResourcesHook", *_CONTAINER_HOOK, container_change
    ),
    Hook.POST_STOP_CONTAINER: Exchange(f"{_PATH}PostStopContainerHook", *_CONTAINER_HOOK),
}
"""Source: Koordinator apis/runtime/v1alpha1/api.proto."""


def _message(kind: type[MessageT], maps: Mapping[str, Mapping[str, str]], **fields: Any) -> MessageT:  # noqa: ANN401
    """A message; long maps are copied in pieces, between which other threads run."""
    short = {name: entries for name, entries in maps.items() if len(entries) <= _PIECE}
    message = kind(**fields, **short)
    for name in maps.keys() - short:
        entries = getattr(message, name)
        items = iter(maps[name].items())
        while piece := dict(islice(items, _PIECE)):
            entries.update(piece)
    return message


def _present(resources: Resources) -> api_pb2.LinuxContainerResources | None:
    message = resources_message(resources)
    return message if message.ByteSize() else None


def _pod_metadata(pod: PodView) -> api_pb2.PodSandboxMetadata:
    return api_pb2.PodSandboxMetadata(
        name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=pod.attempt
    )


def _is_complete(mode: ResponseMode, request: Message, response: Message, echo: tuple[str, ...]) -> bool:
    """Whether a response is an echo, so that its missing values mean "clear"."""
    if mode is not ResponseMode.AUTO:
        return mode is ResponseMode.COMPLETE
    repeated = list(_evidence(request, response, echo))
    return bool(repeated) and all(repeated)


def _evidence(request: Any, response: Any, fields: tuple[str, ...]) -> Iterator[bool]:  # noqa: ANN401
    """Of each value that an echo repeats, whether the response has it.

    Cpusets and the OOM score do not count: their absence may mean "clear".
    """
    for field in fields:
        shown, answered = getattr(request, field), getattr(response, field)
        if isinstance(shown, api_pb2.LinuxContainerResources):
            yield from _evidence(shown, answered, (*_NUMBERS, "unified"))
            page_sizes = {limit.page_size for limit in answered.hugepage_limits}
            yield from (limit.page_size in page_sizes for limit in shown.hugepage_limits)
        elif shown:
            yield bool(answered) if isinstance(shown, int | str) else all(key in answered for key in shown)


def _resource_change(
    request: Message, response: Message, field: str, *, is_complete: bool
) -> ResourceChange | None:
    """Huge page limits of a response have no effect, as in Koordinator's proxy."""
    if not response.HasField(field):
        return None
    shown, answered = getattr(request, field), getattr(response, field)
    changed: dict[str, Any] = {}
    for cri_name, name, declared in _FIELDS:
        value = getattr(answered, cri_name)
        if value == getattr(shown, cri_name):
            continue
        if not value and (cri_name in _NUMBERS or not is_complete):
            continue
        # Koordinator's proxy ignores "unlimited" for memory in an echo, so koordlet's never had an effect.
        if not (is_complete and declared.unlimited_is_absent and value < 0):
            changed[name] = CLEAR if value == "" else value
    unified = _changed_entries(shown.unified, answered.unified)
    return ResourceChange(**changed, unified=unified) if changed or unified else None


def _changed_entries(shown: Mapping[str, str], answered: Mapping[str, str]) -> dict[str, str]:
    # The protocol cannot express a removal.
    # For messages' maps it is the quickest way.
    return {key: answered[key] for key in answered if shown.get(key) != answered[key]}


def _changed_env(shown: Mapping[str, str], answered: Mapping[str, str], *, is_complete: bool) -> TextEntries:
    """The changes of the variables that the server was sent; an empty response leaves them alone."""
    entries = _changed_entries(shown, answered)
    # A map has another order in each message, and the order of variables counts.
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
