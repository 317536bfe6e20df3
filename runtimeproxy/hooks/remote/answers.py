"""What a hook server's answer means: the change that it asks for. All functions are pure.

The protocol's scalars have no presence, so `oom_score_adj` 0 and an empty cpuset may mean "set 0", "clear"
or nothing at all. Koordinator's proxy takes them for values always; koordlet relies on that, for it
answers with everything that it was shown and its own values laid over it: an echo. Other servers fill in
only what they want changed. Which of the two an answer is shows in what nobody would leave out of an echo.

A change holds only what differs from what the server was shown, so that a server owns what it changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from runtimeproxy.hooks.changes import CLEAR, CgroupChange, ContainerChange, PodChange, ResourceChange
from runtimeproxy.hooks.fields import RESOURCE_PARAMETERS
from runtimeproxy.hooks.remote.registration import Answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cri_api.koordinator.v1alpha1 import api_pb2
    from runtimeproxy.hooks.changes import TextEntries

    _ContainerPair: TypeAlias = tuple[
        api_pb2.ContainerResourceHookRequest, api_pb2.ContainerResourceHookResponse
    ]

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
