"""The policy contract: a name, and pure functions from a view and the node to the wanted values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from runtimeproxy.hooks.changes import CgroupChange, ContainerChange, NodeChange, PodChange
from runtimeproxy.hooks.selector import EVERY_POD, PodSelector
from runtimeproxy.hooks.views import ContainerView, PodView, ResolvedPod
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.vocabulary import Mode as Mode

if TYPE_CHECKING:
    from runtimeproxy.node.snapshot import Input, Node


class Hook(StrEnum):
    """Where policies and hook servers run: `pre_` before the runtime sees a call, `post_` after its success.

    The first seven are Koordinator's, which hook servers have.
    """

    PRE_RUN_POD_SANDBOX = "pre_run_pod_sandbox"
    PRE_CREATE_CONTAINER = "pre_create_container"
    PRE_START_CONTAINER = "pre_start_container"
    POST_START_CONTAINER = "post_start_container"
    PRE_UPDATE_CONTAINER_RESOURCES = "pre_update_container_resources"
    POST_STOP_CONTAINER = "post_stop_container"
    POST_STOP_POD_SANDBOX = "post_stop_pod_sandbox"
    PRE_UPDATE_POD_SANDBOX_RESOURCES = "pre_update_pod_sandbox_resources"
    POST_REMOVE_CONTAINER = "post_remove_container"
    # Outside of calls.
    EVALUATE_POD = "evaluate_pod"
    EVALUATE_CONTAINER = "evaluate_container"
    EVALUATE_QOS_CLASS = "evaluate_qos_class"
    EVALUATE_NODE = "evaluate_node"


HOOKS_BEFORE: Final = frozenset(hook for hook in Hook if hook.startswith("pre_"))
"""Where the runtime has not seen the call yet."""

METHOD_HOOKS: Final[Mapping[str, tuple[Hook, ...]]] = {
    "pod": (Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, Hook.EVALUATE_POD),
    "container": (
        Hook.PRE_CREATE_CONTAINER,
        Hook.PRE_UPDATE_CONTAINER_RESOURCES,
        Hook.EVALUATE_CONTAINER,
    ),
    "qos_class": (Hook.EVALUATE_QOS_CLASS,),
    "node": (Hook.EVALUATE_NODE,),
    "on_started": (Hook.POST_START_CONTAINER,),
    "on_stopped": (Hook.POST_STOP_CONTAINER,),
    "on_removed": (Hook.POST_REMOVE_CONTAINER,),
}
"""The methods of a policy, and where each runs."""


class FailurePolicy(StrEnum):
    """The effect of a policy's failure on the call: continue without the policy, or refuse the call."""

    IGNORE = "ignore"
    FAIL = "fail"


class Policy:
    """Base class of all policies: override the methods you need; the proxy ignores the others.

    A policy says what should be. Its answer depends on its arguments and options only: the same one is used
    when the kubelet makes a call, and when the node or a strategy changes while the container runs. It
    computes from requested values, and does not see what other policies want. None means that it wants
    nothing; a field that an answer no longer has is withdrawn.

    Methods are plain functions, run in a worker thread, and must be quick. Several threads may call one
    policy at the same time. A policy that raises has no answer: what it wanted before stays.
    """

    name: ClassVar[str]
    """Unique, in kebab-case: the name in configuration, audit lines and metrics."""
    is_default: ClassVar[bool] = True
    """Whether the policy is used if the configuration does not set `enabled`."""
    priority: ClassVar[int] = 50
    """0 to 99: if two policies set one field, the higher one's value is used; ties are broken by name."""
    timeout_s: ClassVar[float] = 1.0
    """How long one call of a method may take; after that the policy is taken as hung."""
    selector: ClassVar[PodSelector] = EVERY_POD
    """The pods that the policy is for; a call that no selector matches needs no worker thread."""
    inputs: ClassVar[frozenset[Input]] = frozenset()
    """Parts of the node that the answers depend on. While one is unknown for a pod, the policy is off for it,
    and what it wanted before stays. A change of one leads to new answers for running pods."""
    optional_inputs: ClassVar[frozenset[Input]] = frozenset()
    """As `inputs`, but the policy runs while one is unknown: fields that its answer then lacks keep the
    values that it wanted before."""
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {}
    """Used in place of `selector` while the input is not known, or withdrawn, so that fewer calls need a
    worker thread. Of several such inputs the first counts."""
    strategy_parts: ClassVar[frozenset[str]] = frozenset()
    """The parts of the strategies that the answers come from, to show their provenance: fields of
    `PodStrategy` of `runtimeproxy.slo.strategies`, such as `cpu_burst`, or of its `Strategies`, such as
    `threshold`."""
    features: ClassVar[frozenset[str]] = frozenset()
    """Required of the kernel, see `runtimeproxy.node.snapshot.Feature`; the policy is off on a node that
    is known to lack one, and the status names it."""
    optional_features: ClassVar[frozenset[str]] = frozenset()
    """Kernel features that the policy uses where they are there; the status names those that a node lacks."""
    needless_features: ClassVar[frozenset[str]] = frozenset()
    """Kernel features in whose place the policy stands: on a node that has one of them it is off, and the
    status names it."""
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {}
    """What answers may set, by method: cgroup parameters by their names of version 1, names of `Resources`
    without a file, `env`, `mounts`, `labels` and such. So it is known before an answer what a mode of the
    daemon (`daemon.mode`) leaves undone; of a policy that does not say, it is known afterwards."""
    options_type: ClassVar[type[object] | None] = None
    """A frozen dataclass with the policy's own settings, all with defaults; None if it has none.

    Its fields are the keys of the policy's table in the configuration, checked against their types; a
    ValueError of its `__post_init__` rejects the table. The policy's constructor then gets one instance of
    it as its only argument, otherwise no argument.
    """
    dry_run: bool = False
    """Set on the instance at load; for policies with side effects, which they must not have in dry-run."""

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the wanted values of a pod: of its sandbox, and of its own cgroup.

        Labels, annotations and cgroup parent apply only when the sandbox is created; the view has those that
        policies of lower priority have changed. `runtimeproxy.errors.RefusalError` refuses the pod then, and
        is only reported later.
        """

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the wanted values of a container.

        Environment, mounts, devices, cgroup parent, OOM score and classes apply only at its creation,
        annotations only in calls.
        `RefusalError` refuses the container when it is created, and is only reported later.
        """

    def qos_class(self, qos: KubeQoSClass, pods: Sequence[ResolvedPod], node: Node) -> CgroupChange | None:
        """Return the wanted values of the directory above the pods of a Kubernetes QoS class.

        GUARANTEED is the directory of all pods; then `pods` has all, else those of the class. It is called
        outside of CRI calls only.
        """

    def node(self, node: Node) -> NodeChange | None:
        """Return the wanted sysctls, and values of cgroups that are no pod's; outside of CRI calls only."""

    def on_started(self, container: ContainerView, node: Node) -> None:
        """Called after StartContainer has succeeded, for effects of the policy's own; not in dry-run."""

    def on_stopped(self, container: ContainerView, node: Node) -> None:
        """Called once after StopContainer has succeeded; not for a container that ends by itself."""

    def on_removed(self, container: ContainerView, node: Node) -> None:
        """Called after the container is removed, alone or with its pod."""
