"""Checks of a policy class at load: mistakes that would silently have no effect are errors."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks.loaded import MAX_PRIORITY, MIN_PRIORITY, origin_of, overridden_hooks
from runtimeproxy.hooks.policy import Hook, Policy
from runtimeproxy.hooks.selector import (
    PodSelector,
    selector_problems,
)
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector
from runtimeproxy.qos import QoSClass

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MAX_NAME_LENGTH: Final = 63
_HOOK_NAMES: Final = frozenset(hook.value for hook in Hook)
_VIEW_NAMES: Final = frozenset({"PodView", "ContainerView"})


def check_policy_class(policy: object) -> type[Policy]:
    """Return the class if it fulfils the policy contract.

    Public methods that are not hooks are refused: they are misspelled hooks, or helpers without a leading
    underscore. Plain attributes, properties and nested classes are allowed.

    Raises:
        PolicyLoadError: it breaks the contract; the text names module, class and hook.
    """
    if not (isinstance(policy, type) and issubclass(policy, Policy)) or policy is Policy:
        raise PolicyLoadError(f"{policy!r} is not a class derived from {origin_of(Policy)}")
    _check_attributes(policy)
    for name, value in _public_callables(policy):
        _check_method(policy, name, value)
    if not overridden_hooks(policy):
        raise _error(policy, "implements no hook")
    _check_options_type(policy)
    _check_constructor(policy)
    return policy


def _error(policy: type[Policy], reason: str) -> PolicyLoadError:
    return PolicyLoadError(f"{origin_of(policy)}: {reason}")


def _check_attributes(policy: type[Policy]) -> None:
    name: object = getattr(policy, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MAX_NAME_LENGTH:
        raise _error(policy, f"name {name!r} is not in kebab-case, such as batch-resource")
    priority: object = policy.priority
    if type(priority) is not int or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise _error(policy, f"priority {priority!r} is not a number in {MIN_PRIORITY} to {MAX_PRIORITY}")
    _check_concern(policy)
    timeout_s: object = policy.timeout_s
    if type(timeout_s) not in (int, float) or not policy.timeout_s > 0:
        raise _error(policy, f"timeout_s {timeout_s!r} is not a time above 0")


def _check_concern(policy: type[Policy]) -> None:
    """Check the selector: the event loop runs it on the request's own maps, so it must be harmless."""
    concern: object = policy.concern
    if type(concern) is not PodSelector:
        raise _error(policy, f"concern {concern!r} is not a PodSelector")
    keys: object = concern.annotations
    if not isinstance(keys, tuple) or not all(map(_is_key, keys)):
        raise _error(policy, f"concern: annotations {keys!r} is not a tuple of annotations' keys")
    classes: object = concern.qos_classes
    if classes is not None and not (
        isinstance(classes, frozenset) and all(isinstance(each, QoSClass) for each in classes)
    ):
        raise _error(policy, f"concern: qos_classes {classes!r} is not a frozenset of QoS classes")
    namespaces: object = concern.namespaces
    if namespaces is not None and not isinstance(namespaces, frozenset):
        raise _error(policy, f"concern: namespaces {namespaces!r} is not a frozenset of names")
    labels: object = concern.labels
    if type(labels) is not LabelSelector or not _is_well_typed(labels):
        raise _error(policy, f"concern: labels {labels!r} is not a LabelSelector of LabelRequirements")
    for place, reason in selector_problems(namespaces or (), concern.labels):
        raise _error(policy, f"concern: {'.'.join(place)}: {reason}")


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


def _is_key(key: object) -> bool:
    return isinstance(key, str) and key != "" and key.isascii()


def _public_callables(policy: type[Policy]) -> Iterator[tuple[str, object]]:
    """Yield the public methods of the class and its bases below Policy, and hooks in any form."""
    for base in policy.__mro__:
        if base in (Policy, object):
            continue
        for name, value in vars(base).items():
            is_method = callable(value) or isinstance(value, classmethod | staticmethod)
            is_class = isinstance(value, type) and name not in _HOOK_NAMES
            if name in _HOOK_NAMES or (is_method and not is_class and not name.startswith("_")):
                yield name, value


def _check_method(policy: type[Policy], name: str, value: object) -> None:
    if name not in _HOOK_NAMES:
        guess = difflib.get_close_matches(name, _HOOK_NAMES, n=1)
        hint = f"; did you mean {guess[0]}?" if guess else ""
        raise _error(policy, f"{name}: no such hook{hint} (helpers start with an underscore)")
    if not inspect.isfunction(value):
        raise _error(policy, f"{name}: a hook is a plain method")
    if (
        inspect.iscoroutinefunction(value)
        or inspect.isgeneratorfunction(value)
        or inspect.isasyncgenfunction(value)
    ):
        raise _error(policy, f"{name}: a hook is neither async nor a generator; it runs in a worker thread")
    _check_signature(policy, name, value)


def _check_signature(policy: type[Policy], name: str, method: Callable[..., object]) -> None:
    _, expected = inspect.signature(getattr(Policy, name)).parameters.values()
    signature = inspect.signature(method)
    try:
        bound = signature.bind(None, None)
    except TypeError:
        raise _error(policy, f"{name}{signature}: must be {name}(self, {expected})") from None
    annotations = [signature.parameters[key].annotation for key in bound.arguments][1:]
    for annotation in annotations:
        shown = getattr(annotation, "__name__", str(annotation)).rpartition(".")[2]
        if shown in _VIEW_NAMES and shown != expected.annotation:
            raise _error(policy, f"{name}{signature}: the hook is given a {expected.annotation}")


def _check_options_type(policy: type[Policy]) -> None:
    options_type: object = policy.options_type
    if options_type is None:
        return
    if not isinstance(options_type, type) or not dataclasses.is_dataclass(options_type):
        raise _error(policy, f"options_type {options_type!r} is not a dataclass")
    if not getattr(options_type, "__dataclass_params__").frozen:  # noqa: B009 - typeshed does not know it
        raise _error(policy, f"options_type {options_type.__name__} is not frozen")
    for field in dataclasses.fields(options_type):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise _error(policy, f"options_type {options_type.__name__}: {field.name} has no default")


def _check_constructor(policy: type[Policy]) -> None:
    arguments = ["self"] if policy.options_type is None else ["self", "options"]
    constructor = getattr(policy, "__init__")  # noqa: B009 - of the class, whichever it is
    try:
        inspect.signature(constructor).bind(*arguments)
    except TypeError:
        is_callable = False
    else:
        # The signature of `object` accepts any arguments, but a call with some raises.
        is_callable = constructor is not object.__init__ or policy.options_type is None
    if not is_callable:
        raise _error(policy, f"__init__ cannot be called as __init__({', '.join(arguments)})")
