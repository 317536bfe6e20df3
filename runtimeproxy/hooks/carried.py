"""Which fields a front end carries in messages, and at which hook: one table for each front end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from runtimeproxy.fields.tables import CRI_FIELDS, RESOURCE_FIELDS, RESOURCE_PARAMETERS
from runtimeproxy.hooks.fields import (
    ANNOTATIONS,
    CDI_DEVICES,
    CGROUP,
    CGROUP_PARENT,
    DEVICES,
    ENV,
    GROUPS,
    LABELS,
    MOUNTS,
    RESOURCES,
    UNIFIED,
    Field,
)
from runtimeproxy.hooks.policy import HOOKS_BEFORE, METHOD_HOOKS, Hook

NOT_CARRIED: Final = "not-in-mode"
"""The cause of all that a front end does not carry: in the status, and as the note of audit entries."""
_CREATIONS: Final = (Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_CREATE_CONTAINER)
_EVALUATIONS: Final = (Hook.EVALUATE_POD, Hook.EVALUATE_CONTAINER)
_UPDATES: Final = (Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, Hook.PRE_UPDATE_CONTAINER_RESOURCES)
_OF_CALLS: Final = tuple(hook for hook in Hook if not hook.startswith("evaluate_"))
_OF_CONTAINERS: Final = frozenset(METHOD_HOOKS["container"])
"""Where resources are values of the cgroup that the view is about; those of a sandbox are not its pod's."""
_ALL_RESOURCES: Final = tuple(Field(RESOURCES, name) for name in RESOURCE_FIELDS)


class CarriedFields:
    """The fields that a front end carries. Immutable.

    What it does not carry at a hook, and a file holds, is written there. Of all else it carries a new value
    with the next container or sandbox if it carries the field at a creation; what it never carries is left
    out, with `reason`.

    Args:
        mode: The front end's, as in `daemon.mode`.
        by_hook: Groups of fields, or single ones such as `resources.oom_score_adj`, in the message of each
            hook at which this front end asks policies; none if that carries nothing.
        files_before_start: Whether it writes the files of a container before its program runs.

    Attributes:
        mode: The front end's.
        reason: Why a field is never carried, for people.
        counting: By hook, the groups of a change that count there.
        lacking: By hook before a call, groups and single resources among these that its message lacks.
    """

    def __init__(
        self, mode: str, by_hook: Mapping[Hook, Collection[str]], *, files_before_start: bool = False
    ) -> None:
        self.mode = mode
        self._files_before_start = files_before_start
        self.reason = f"it counts at the creation only, where mode {mode} does not carry it"
        self._by_hook = {hook: frozenset(names) for hook, names in by_hook.items()}
        self.counting = dict(GROUPS)
        self.lacking: dict[Hook, frozenset[str | Field]] = {}
        for hook in HOOKS_BEFORE:
            carried = self._by_hook.get(hook, frozenset()) | {CGROUP}
            missing = GROUPS[hook] - carried
            if hook not in _CREATIONS:
                # An answer has all fields at each hook: what only creations carry is not missed in an update.
                missing &= {RESOURCES, UNIFIED} if hook in _UPDATES else frozenset()
            self.counting[hook] = GROUPS[hook] & (carried | missing)
            resources = {each for each in _ALL_RESOURCES if RESOURCES in missing and str(each) not in carried}
            self.lacking[hook] = frozenset((*(missing - {RESOURCES}), *resources))

    def asks_by(self, method: str) -> bool:
        """Whether this method of policies is ever called."""
        return any(hook in self._by_hook or hook not in _OF_CALLS for hook in METHOD_HOOKS[method])

    def asks_at(self, hook: Hook) -> bool:
        """Whether this front end asks hook servers, and policies, at a hook of calls."""
        return hook in self._by_hook

    def asks_about_creation(self, *, is_container: bool) -> bool:
        """Whether policies are asked before one is created, so that it begins with their values."""
        return _CREATIONS[is_container] in self._by_hook

    def first_hook(self, *, is_container: bool) -> Hook:
        """Where policies are asked first about something new."""
        is_before = self.asks_about_creation(is_container=is_container)
        return (_CREATIONS if is_before else _EVALUATIONS)[is_container]

    def carries(self, hook: Hook, field: Field) -> bool:
        """Whether a message carries a field; values of cgroups are no field of a message."""
        names = self._by_hook.get(hook, frozenset())
        return field.group in names or str(field) in names

    def carries_at_creation(self, field: Field, *, is_container: bool) -> bool:
        return self.carries(_CREATIONS[is_container], field)

    def writes_before_start(self, *, is_container: bool) -> bool:
        """Whether files of something new have their values before its program runs."""
        if is_container:
            return self._files_before_start
        return self.asks_about_creation(is_container=False)

    def file_instead(self, hook: Hook, field: Field) -> str:
        """The parameter of the container's cgroup that has a field which the message does not carry."""
        if field.group != RESOURCES or hook not in _OF_CONTAINERS or self.carries(hook, field):
            return ""
        return RESOURCE_PARAMETERS.get(field.key, "")


_CRI_RESOURCES: Final = {UNIFIED, *(f"{RESOURCES}.{name}" for name in CRI_FIELDS)}
BY_CALLS: Final = CarriedFields(
    "proxy",
    {
        **dict.fromkeys(_OF_CALLS, ()),
        Hook.PRE_RUN_POD_SANDBOX: {*_CRI_RESOURCES, LABELS, ANNOTATIONS, CGROUP_PARENT},
        Hook.PRE_CREATE_CONTAINER: {
            *_CRI_RESOURCES,
            ANNOTATIONS,
            ENV,
            MOUNTS,
            DEVICES,
            CDI_DEVICES,
            CGROUP_PARENT,
        },
        Hook.PRE_UPDATE_CONTAINER_RESOURCES: {*_CRI_RESOURCES, ANNOTATIONS},
        Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES: _CRI_RESOURCES,
    },
)
"""Of the proxy, and of recorded calls: what the CRI's calls carry, after which the hooks are named."""
