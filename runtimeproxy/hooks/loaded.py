"""Policies as the chain runs them: an instance with methods and effective settings, or a hook server."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks.policy import METHOD_HOOKS, FailurePolicy, Hook, Mode, Policy
from runtimeproxy.hooks.selector import EVERY_POD, PodSelector, PodTraits
from runtimeproxy.hooks.settings import PolicySettings

if TYPE_CHECKING:
    from runtimeproxy.node.snapshot import Input, Node

PolicyMethod: TypeAlias = Callable[[Any, "Node"], object]
"""A bound method: gets a view and the node, and should return a change or None, but may return or raise
anything."""

FILE_MODULE_PREFIX: Final = "koord-runtime-proxy-policy-"
"""Prefix of the module names of policy files."""
ReadResponse: TypeAlias = Callable[[Any], object]
"""Reads the response of a hook server to a view: returns the change, or raises the error."""
OnResponse: TypeAlias = Callable[[ReadResponse, bool], None]
"""Gets the response of a hook server.

The second argument says whether that call takes long, and so belongs into a worker thread."""

BUILT_IN_PACKAGE: Final = "policies"
"""The proxy's own policies, all of which are quick."""
MIN_PRIORITY: Final = 0
MAX_PRIORITY: Final = 99


class Cancellable(Protocol):
    """Work in progress, such as a request that a hook server has not answered."""

    def cancel(self) -> None:
        """Discard its result."""


class RemoteRequest(Protocol):
    """A request to a hook server, ready to be sent."""

    def send(self, timeout_s: float, on_response: OnResponse, /) -> Cancellable:
        """Send the request; in the loop's thread.

        Args:
            timeout_s: the longest time until there is a response; above 0.
            on_response: called once, in the loop's thread, after this has returned.
        """


RemoteHook: TypeAlias = Callable[[Any], RemoteRequest]
"""A hook of a hook server: makes the request from a view, in any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """One policy of the chain."""

    name: str
    origin: str
    """`module:Class` or `path:Class`."""
    policy: Policy
    priority: int
    timeout_s: float
    mode: Mode = Mode.ENFORCE
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    methods: Mapping[Hook, PolicyMethod] = field(default_factory=dict)
    """The methods to run in this process."""
    remote_hooks: Mapping[Hook, RemoteHook] = field(default_factory=dict)
    """The hooks that a hook server implements: a policy has either these or `methods`."""
    selector: PodSelector = EVERY_POD
    """The pods that it runs for: the policy's own selector, narrowed by the settings."""
    inputs: tuple[Input, ...] = ()
    """While one of them is unknown for a pod, the policy is off for it."""
    optional_inputs: tuple[Input, ...] = ()
    """While one of them is unknown for a pod, its answer need not be complete."""
    selector_without: Mapping[Input, PodSelector] = field(default_factory=dict)
    """Used in place of `selector` while an input is not known."""
    features: frozenset[str] = frozenset()
    """The policy is off on a node that is known to lack one."""
    optional_features: frozenset[str] = frozenset()
    """The policy uses them where the node has them."""
    needless_features: frozenset[str] = frozenset()
    """The policy is off on a node that has one."""
    is_quick: bool = False
    """Whether it is known to compute for some tens of microseconds and to wait for nothing: the loop's thread
    may run it."""

    def selector_on(self, node: Node) -> PodSelector:
        for each, selector in self.selector_without.items():
            if node.state_of(each) != "known":
                return selector
        return self.selector

    def why_not_for(self, pod: PodTraits, node: Node) -> str:
        """Return why its selector does not match a pod; empty if it does."""
        selector = self.selector_on(node)
        if selector.matches(pod):
            return ""
        qos_classes, annotations = selector.qos_classes, selector.annotations
        if qos_classes is not None and pod.qos not in qos_classes:
            return f"selects QoS class {' or '.join(each or 'none' for each in sorted(qos_classes))} only"
        if annotations and pod.annotations.keys().isdisjoint(annotations):
            return f"no annotation {' or '.join(annotations)}"
        if selector is not self.selector and self.selector.matches(pod):
            missing = next(each for each in self.selector_without if node.state_of(each) != "known")
            return f"this node has no {missing}"
        return "does not select its namespace and labels"

    def is_settled_on(self, node: Node) -> bool:
        """Whether all is known of the node that its answers depend on, apart from any pod."""
        inputs = (*self.inputs, *self.optional_inputs, *self.selector_without)
        return all(node.state_of(each) != "unknown" for each in inputs)

    @property
    def refuses_on_failure(self) -> bool:
        return self.mode is Mode.ENFORCE and self.failure_policy is FailurePolicy.FAIL


def overridden_methods(policy: type[Policy]) -> tuple[str, ...]:
    return tuple(name for name in METHOD_HOOKS if getattr(policy, name) is not getattr(Policy, name))


def origin_of(policy: type[object]) -> str:
    """Return `module:Class` of a class, for messages; `path:Class` if its module is a policy file."""
    place = policy.__module__
    if place.startswith(FILE_MODULE_PREFIX):
        place = getattr(sys.modules.get(place), "__file__", None) or place
    return f"{place}:{policy.__qualname__}"


def bind(policy: Policy, settings: PolicySettings | None = None) -> LoadedPolicy:
    """Return a policy instance with its methods and effective settings.

    Raises:
        PolicyLoadError: a priority outside 0 to 99 or a timeout that is not above 0.
    """
    settings = settings or PolicySettings()
    origin = origin_of(type(policy))
    priority = policy.priority if settings.priority is None else settings.priority
    timeout_s = policy.timeout_s if settings.timeout_s is None else settings.timeout_s
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise PolicyLoadError(f"{origin}: priority {priority} is not in {MIN_PRIORITY} to {MAX_PRIORITY}")
    if not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise PolicyLoadError(f"{origin}: timeout_s {timeout_s} is not a time above 0")

    def narrowed(selector: PodSelector) -> PodSelector:
        if settings.namespaces or settings.selector is not None:
            return selector.narrowed(settings.namespaces, settings.selector)
        return selector

    policy.dry_run = settings.mode is Mode.DRY_RUN
    return LoadedPolicy(
        name=policy.name,
        origin=origin,
        policy=policy,
        priority=priority,
        timeout_s=timeout_s,
        mode=settings.mode,
        failure_policy=settings.failure_policy,
        selector=narrowed(policy.selector),
        selector_without={each: narrowed(found) for each, found in policy.selector_without.items()},
        methods=MappingProxyType(_methods(policy)),
        inputs=tuple(sorted(policy.inputs)),
        optional_inputs=tuple(sorted(policy.optional_inputs)),
        features=policy.features,
        optional_features=policy.optional_features,
        needless_features=policy.needless_features,
        is_quick=type(policy).__module__.startswith(f"{BUILT_IN_PACKAGE}."),
    )


def _methods(policy: Policy) -> dict[Hook, PolicyMethod]:
    methods: dict[Hook, PolicyMethod] = {}
    for name in overridden_methods(type(policy)):
        for hook in METHOD_HOOKS[name]:
            methods[hook] = getattr(policy, name)
    if Hook.EVALUATE_QOS_CLASS in methods:
        methods[Hook.EVALUATE_QOS_CLASS] = lambda view, node: policy.qos_class(view.qos, view.pods, node)
    if Hook.EVALUATE_NODE in methods:
        methods[Hook.EVALUATE_NODE] = lambda _, node: policy.node(node)
    return methods
