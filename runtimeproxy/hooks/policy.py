"""The policy contract: a name, and the hooks that the policy implements."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from runtimeproxy.hooks.changes import CgroupChange, ContainerChange, PodChange
from runtimeproxy.hooks.selector import EVERY_POD, PodSelector
from runtimeproxy.hooks.views import ContainerView, PodView


class Hook(StrEnum):
    """The hook points: `pre_` before the runtime sees the call, `post_` after it succeeded."""

    PRE_RUN_POD_SANDBOX = "pre_run_pod_sandbox"
    POST_RUN_POD_SANDBOX = "post_run_pod_sandbox"
    PRE_CREATE_CONTAINER = "pre_create_container"
    POST_CREATE_CONTAINER = "post_create_container"
    PRE_START_CONTAINER = "pre_start_container"
    POST_START_CONTAINER = "post_start_container"
    PRE_UPDATE_CONTAINER_RESOURCES = "pre_update_container_resources"
    POST_UPDATE_CONTAINER_RESOURCES = "post_update_container_resources"
    PRE_UPDATE_POD_SANDBOX_RESOURCES = "pre_update_pod_sandbox_resources"
    POST_UPDATE_POD_SANDBOX_RESOURCES = "post_update_pod_sandbox_resources"
    PRE_STOP_CONTAINER = "pre_stop_container"
    POST_STOP_CONTAINER = "post_stop_container"
    PRE_STOP_POD_SANDBOX = "pre_stop_pod_sandbox"
    POST_STOP_POD_SANDBOX = "post_stop_pod_sandbox"
    PRE_REMOVE_CONTAINER = "pre_remove_container"
    POST_REMOVE_CONTAINER = "post_remove_container"
    PRE_REMOVE_POD_SANDBOX = "pre_remove_pod_sandbox"
    POST_REMOVE_POD_SANDBOX = "post_remove_pod_sandbox"


class FailurePolicy(StrEnum):
    """The effect of a policy's failure on the call: continue without the policy, or refuse the call."""

    IGNORE = "ignore"
    FAIL = "fail"


class Mode(StrEnum):
    """Whether a policy's changes are applied (enforce) or only computed and audited (dry-run)."""

    ENFORCE = "enforce"
    DRY_RUN = "dry-run"


class Policy:
    """Base class of all policies: override the hooks you need; the proxy ignores the others.

    Hooks are plain functions, run in a worker thread, and must be quick: they get a frozen view and
    return a change, or None for no change. To refuse the call, raise `runtimeproxy.errors.RefusalError`.
    Pre hooks may change the message; post hooks may only write cgroup values. Several threads may call one
    policy at the same time, for calls of different pods.
    """

    name: ClassVar[str]
    """Unique, in kebab-case: the name in configuration, audit lines and metrics."""
    priority: ClassVar[int] = 50
    """0 to 99: lower runs earlier; ties are broken by name."""
    timeout_s: ClassVar[float] = 1.0
    """How long one call of a hook may take; after that the policy counts as hung."""
    concern: ClassVar[PodSelector] = EVERY_POD
    """The pods that the policy runs for; a call that no selector matches needs no worker thread."""
    options_type: ClassVar[type[object] | None] = None
    """A frozen dataclass with the policy's own settings, all with defaults; None if it has none.

    Its fields are the keys of the policy's table in the configuration, checked against their types; a
    ValueError of its `__post_init__` rejects the table. The policy's constructor then gets one instance of
    it as its only argument, otherwise no argument.
    """
    dry_run: bool = False
    """Set on the instance at load; for policies with side effects, which they must not have in dry-run."""

    def pre_run_pod_sandbox(self, pod: PodView) -> PodChange | None:
        """Change a pod sandbox before it is created."""

    def post_run_pod_sandbox(self, pod: PodView) -> CgroupChange | None:
        """The sandbox runs."""

    def pre_create_container(self, container: ContainerView) -> ContainerChange | None:
        """Change a container before it is created."""

    def post_create_container(self, container: ContainerView) -> CgroupChange | None:
        """The container is created, not started."""

    def pre_start_container(self, container: ContainerView) -> CgroupChange | None:
        """The container is about to start."""

    def post_start_container(self, container: ContainerView) -> CgroupChange | None:
        """The container runs: its cgroup exists now."""

    def pre_update_container_resources(self, container: ContainerView) -> ContainerChange | None:
        """Change an update of a container's resources (resize, CPU manager)."""

    def post_update_container_resources(self, container: ContainerView) -> CgroupChange | None:
        """The update is done."""

    def pre_update_pod_sandbox_resources(self, pod: PodView) -> PodChange | None:
        """Change an update of a sandbox's resources; the kubelet has already set the pod's cgroup."""

    def post_update_pod_sandbox_resources(self, pod: PodView) -> CgroupChange | None:
        """The sandbox's resources are updated: set the pod-level cgroup again."""

    def pre_stop_container(self, container: ContainerView) -> CgroupChange | None:
        """The container is about to be stopped."""

    def post_stop_container(self, container: ContainerView) -> None:
        """The container is stopped; once per real stop."""

    def pre_stop_pod_sandbox(self, pod: PodView) -> CgroupChange | None:
        """The sandbox is about to be stopped."""

    def post_stop_pod_sandbox(self, pod: PodView) -> None:
        """The sandbox is stopped; once per real stop."""

    def pre_remove_container(self, container: ContainerView) -> None:
        """The container is about to be removed."""

    def post_remove_container(self, container: ContainerView) -> None:
        """The container is removed and its record forgotten."""

    def pre_remove_pod_sandbox(self, pod: PodView) -> None:
        """The sandbox is about to be removed."""

    def post_remove_pod_sandbox(self, pod: PodView) -> None:
        """The sandbox is removed and its record forgotten."""
