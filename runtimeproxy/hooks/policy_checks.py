"""Checks of a policy class at load: mistakes that would silently have no effect are errors."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks.loaded import MAX_PRIORITY, MIN_PRIORITY, origin_of, overridden_methods
from runtimeproxy.hooks.policy import METHOD_HOOKS, Policy
from runtimeproxy.hooks.selector import PodSelector, selector_problems
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector
from runtimeproxy.qos import QoSClass
from runtimeproxy.spelling import did_you_mean, nearest

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MAX_NAME_LENGTH: Final = 63
_METHODS: Final = frozenset(METHOD_HOOKS)
_VIEW_NAMES: Final = frozenset({"PodView", "ContainerView", "Node", "KubeQoSClass"})
_HOOKS_OF_0_1: Final[Mapping[str, str]] = {
    "run_pod_sandbox": "pod",
    "update_pod_sandbox_resources": "pod",
    "create_container": "container",
    "start_container": "container, or on_started for effects of its own",
    "update_container_resources": "container",
    "stop_container": "on_stopped",
    "stop_pod_sandbox": "on_stopped",
    "remove_container": "on_removed",
    "remove_pod_sandbox": "on_removed",
}
"""Successors of the hooks of version 0.1, which were `pre_` and `post_` of these."""


def check_policy_class(policy: object) -> type[Policy]:
    """Return the class if it fulfils the policy contract.

    Public methods that the contract does not have are refused: they are misspelled, or helpers without a
    leading underscore; so are the hooks of version 0.1, which would never run. Plain attributes, properties
    and nested classes are allowed.

    Raises:
        PolicyLoadError: it breaks the contract; the text names module, class and method.
    """
    if not (isinstance(policy, type) and issubclass(policy, Policy)) or policy is Policy:
        raise PolicyLoadError(f"{policy!r} is not a class derived from {origin_of(Policy)}")
    _check_version(policy)
    _check_attributes(policy)
    for name, value in _public_callables(policy):
        _check_method(policy, name, value)
    if not overridden_methods(policy):
        raise _error(policy, f"implements none of {', '.join(METHOD_HOOKS)}")
    _check_options_type(policy)
    _check_constructor(policy)
    return policy


def _error(policy: type[Policy], reason: str) -> PolicyLoadError:
    return PolicyLoadError(reason, origin_of(policy))


def _check_version(policy: type[Policy]) -> None:
    """Refuse what version 0.1 had, and name what has taken its place."""
    if hasattr(policy, "concern"):
        raise _error(policy, "concern: is called selector now")
    for name in sorted(name for name, _ in _public_callables(policy)):
        prefix, _, call = name.partition("_")
        if prefix in ("pre", "post"):
            import difflib  # only where a name is wrong

            guess = difflib.get_close_matches(call, _HOOKS_OF_0_1, n=1)
            successor = _HOOKS_OF_0_1[guess[0]] if guess else ", ".join(METHOD_HOOKS)
            raise _error(policy, f"{name}: policies have no hooks any more; its successor is {successor}")


def _check_attributes(policy: type[Policy]) -> None:
    name: object = getattr(policy, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MAX_NAME_LENGTH:
        raise _error(policy, f"name {name!r} is not in kebab-case, such as batch-resource")
    priority: object = policy.priority
    if type(priority) is not int or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise _error(policy, f"priority {priority!r} is not a number in {MIN_PRIORITY} to {MAX_PRIORITY}")
    _check_selector(policy, policy.selector)
    _check_inputs(policy)
    _check_fields(policy)
    timeout_s: object = policy.timeout_s
    if type(timeout_s) not in (int, float) or not policy.timeout_s > 0:
        raise _error(policy, f"timeout_s {timeout_s!r} is not a time above 0")


def _check_selector(policy: type[Policy], selector: object) -> None:
    """Check a selector: the event loop runs it on the request's own maps, so it must be harmless."""
    if type(selector) is not PodSelector:
        raise _error(policy, f"selector {selector!r} is not a PodSelector")
    keys: object = selector.annotations
    if not isinstance(keys, tuple) or not all(isinstance(it, str) and it and it.isascii() for it in keys):
        raise _error(
            policy, f"selector: annotations {keys!r} is not a tuple of keys, such as ('example.com/tier',)"
        )
    classes: object = selector.qos_classes
    if classes is not None and not (
        isinstance(classes, frozenset) and all(isinstance(each, QoSClass) for each in classes)
    ):
        example = "such as frozenset({QoSClass.BE})"
        raise _error(policy, f"selector: qos_classes {classes!r} is not a frozenset of QoSClass, {example}")
    namespaces: object = selector.namespaces
    if namespaces is not None and not isinstance(namespaces, frozenset):
        example = "such as frozenset({'batch'})"
        raise _error(policy, f"selector: namespaces {namespaces!r} is not a frozenset of names, {example}")
    labels: object = selector.labels
    if type(labels) is not LabelSelector or not _is_well_typed(labels):
        example = "such as LabelSelector(match_labels={'tier': 'batch'})"
        raise _error(
            policy, f"selector: labels {labels!r} is not a LabelSelector of LabelRequirements, {example}"
        )
    for place, reason in selector_problems(namespaces or (), selector.labels):
        raise _error(policy, f"selector: {'.'.join(place)}: {reason}")


def _check_inputs(policy: type[Policy]) -> None:
    from runtimeproxy.node.snapshot import Feature, Input

    for name in ("inputs", "optional_inputs"):
        inputs: object = getattr(policy, name)
        if not (isinstance(inputs, frozenset) and all(isinstance(each, Input) for each in inputs)):
            example = "such as frozenset({Input.STRATEGIES})"
            raise _error(policy, f"{name} {inputs!r} is not a frozenset of Inputs, {example}")
    instead: object = policy.selector_without
    if not (isinstance(instead, Mapping) and all(isinstance(each, Input) for each in instead)):
        raise _error(policy, f"selector_without {instead!r} is not a mapping of Inputs to PodSelectors")
    for selector in instead.values():
        _check_selector(policy, selector)
    for name in ("features", "optional_features", "needless_features"):
        features: object = getattr(policy, name)
        if not (isinstance(features, frozenset) and features <= set(Feature)):
            example = "such as frozenset({Feature.BURST})"
            raise _error(policy, f"{name} {features!r} is not a frozenset of Features, {example}")


def _check_fields(policy: type[Policy]) -> None:
    from runtimeproxy.hooks.ways import SETTABLE

    fields: object = policy.sets_fields
    if not isinstance(fields, Mapping) or not all(isinstance(each, frozenset) for each in fields.values()):
        example = "such as {'container': frozenset({'cpu.shares', 'env'})}"
        raise _error(policy, f"sets_fields {fields!r} is not a mapping of methods to frozensets, {example}")
    for method, names in fields.items():
        known = SETTABLE.get(method, frozenset())
        if unknown := sorted(map(str, names - known)):
            hint = (
                did_you_mean(nearest(unknown[0], sorted(known)))
                or f": {', '.join(sorted(SETTABLE))} set some"
            )
            raise _error(policy, f"sets_fields: {method} cannot set {unknown[0]}{hint}")


def _is_well_typed(labels: LabelSelector) -> bool:
    pairs: object = labels.match_labels
    requirements: object = labels.match_expressions
    if not isinstance(pairs, Mapping) or not isinstance(requirements, tuple):
        return False
    for each in requirements:
        if type(each) is not LabelRequirement:
            return False
        operator: object = each.operator
        values: object = each.values
        if not (isinstance(operator, LabelOperator) and isinstance(values, tuple)):
            return False
    return True


def _public_callables(policy: type[Policy]) -> Iterator[tuple[str, object]]:
    # Of the class and its bases below Policy; those of the contract in any form.
    for base in policy.__mro__:
        if base in (Policy, object):
            continue
        for name, value in vars(base).items():
            is_method = callable(value) or isinstance(value, classmethod | staticmethod)
            is_class = isinstance(value, type) and name not in _METHODS
            if name in _METHODS or (is_method and not is_class and not name.startswith("_")):
                yield name, value


def _check_method(policy: type[Policy], name: str, value: object) -> None:
    if name not in _METHODS:
        hint = did_you_mean(nearest(name, _METHODS))
        raise _error(policy, f"{name}: no such method{hint} (helpers start with an underscore)")
    if not inspect.isfunction(value):
        raise _error(policy, f"{name}: must be a plain method")
    if (
        inspect.iscoroutinefunction(value)
        or inspect.isgeneratorfunction(value)
        or inspect.isasyncgenfunction(value)
    ):
        raise _error(policy, f"{name}: must be neither async nor a generator; it runs in a worker thread")
    _check_signature(policy, name, value)


def _check_signature(policy: type[Policy], name: str, method: Callable[..., object]) -> None:
    _, *expected = inspect.signature(getattr(Policy, name)).parameters.values()
    signature = inspect.signature(method)
    wanted_form = f"{name}{signature}: must be {name}(self, {', '.join(map(str, expected))})"
    try:
        bound = signature.bind(None, *expected)
    except TypeError:
        raise _error(policy, wanted_form) from None
    parameters = [signature.parameters[key] for key in bound.arguments][1:]
    for parameter, wanted in zip(parameters, expected, strict=False):
        shown = getattr(parameter.annotation, "__name__", str(parameter.annotation)).rpartition(".")[2]
        if shown in _VIEW_NAMES and shown != wanted.annotation:
            raise _error(policy, f"{name}{signature}: {wanted.name} is a {wanted.annotation}")
    names, wanted_names = [each.name for each in parameters], [each.name for each in expected]
    if names != wanted_names and sorted(names) == sorted(wanted_names):
        raise _error(policy, wanted_form)


def _check_options_type(policy: type[Policy]) -> None:
    options_type: object = policy.options_type
    if options_type is None:
        return
    if not isinstance(options_type, type) or not dataclasses.is_dataclass(options_type):
        raise _error(policy, f"options_type {options_type!r} is not a dataclass")
    if not getattr(options_type, "__dataclass_params__").frozen:  # noqa: B009 - typeshed does not know it
        raise _error(policy, f"options_type {options_type.__name__} is not frozen: @dataclass(frozen=True)")
    for field in dataclasses.fields(options_type):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _error(policy, f"options_type {options_type.__name__}: {field.name} has no default")


def _check_constructor(policy: type[Policy]) -> None:
    arguments = ["self"] if policy.options_type is None else ["self", "options"]
    constructor = getattr(policy, "__init__")  # noqa: B009 - of the class, whichever it is
    # The signature of `object` accepts any arguments, but a call with some raises.
    is_callable = constructor is not object.__init__ or policy.options_type is None
    if constructor is not object.__init__:
        try:
            inspect.signature(constructor).bind(*arguments)
        except TypeError:
            is_callable = False
    if not is_callable:
        raise _error(policy, f"__init__ cannot be called as __init__({', '.join(arguments)})")
