"""What the chain of policies decides on one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtimeproxy.errors import StatusCode
from runtimeproxy.hooks.audit import AuditEntry
from runtimeproxy.hooks.changes import CgroupChange, ContainerChange, PodChange
from runtimeproxy.hooks.fields import View
from runtimeproxy.hooks.merge import Fold
from runtimeproxy.hooks.policy import Hook


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused call."""

    code: StatusCode
    text: str
    """Begins with the policy's name; the proxy's own prefix goes in front of it."""
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of all policies for one call."""

    hook: Hook
    fold: Fold
    """What the enforcing policies made of the view."""
    change: CgroupChange | None = None
    """The merged change; None when the call goes on as it came. Always None when refused.

    A PodChange before RunPodSandbox and UpdatePodSandboxResources, a ContainerChange before CreateContainer
    and UpdateContainerResources, else a plain CgroupChange.
    """
    owners: Mapping[str, str] = field(default_factory=dict)
    """The owning policy of each field that one asked for, by names such as `resources.cpu_shares`.

    Also fields whose value was there already: the policy is asked again when the kubelet changes them.
    """
    written_once: frozenset[str] = frozenset()
    """The parameters of `change.cgroup` that are not written again when somebody changes them."""
    refusal: Refusal | None = None
    audit: tuple[AuditEntry, ...] = ()
    """What has gone to the audit sink."""
    unwritten: str = ""
    """Why `finish` has not run to its end; empty when it has, or when there was nothing to run."""

    @property
    def view(self) -> View:
        """As given, with the changes of all enforcing policies."""
        return self.fold.view

    @property
    def pod_change(self) -> PodChange | None:
        """The change as one of a pod's message; None when there is none."""
        return self.change if isinstance(self.change, PodChange) else None

    @property
    def container_change(self) -> ContainerChange | None:
        """The change as one of a container's message; None when there is none."""
        return self.change if isinstance(self.change, ContainerChange) else None
