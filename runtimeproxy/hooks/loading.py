"""Finds policies, built in and third-party, and makes those that are enabled."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks.checks import check_policy_class
from runtimeproxy.hooks.loaded import LoadedPolicy, bind, origin_of
from runtimeproxy.hooks.policy import Policy
from runtimeproxy.hooks.settings import PolicySettings

ENTRY_POINT_GROUP: Final = "runtimeproxy.policies"
"""Distributions add policies under this group: `name = "module:Class"`."""

BUILT_IN_PACKAGE: Final = "policies"
"""Its `BUILT_IN` lists the policies that belong to the proxy, each as `module:Class`."""


def discover(*, third_party: bool = True) -> tuple[type[Policy], ...]:
    """Return all policy classes there are, checked, sorted by priority and name.

    Raises:
        PolicyLoadError: a policy cannot be imported, breaks the contract, or has another one's name.
    """
    references = list(importlib.import_module(BUILT_IN_PACKAGE).BUILT_IN)
    if third_party:
        references += _entry_points()
    return checked(import_class(reference) for reference in references)


def checked(policies: Iterable[object]) -> tuple[type[Policy], ...]:
    """Return the classes, each fulfilling the contract and all names distinct, sorted by priority and name.

    Raises:
        PolicyLoadError: one does not, or two have one name.
    """
    by_name: dict[str, type[Policy]] = {}
    for policy in map(check_policy_class, policies):
        other = by_name.setdefault(policy.name, policy)
        if other is not policy:
            raise PolicyLoadError(f"{origin_of(policy)}: name {policy.name} is taken by {origin_of(other)}")
    return tuple(sorted(by_name.values(), key=lambda policy: (policy.priority, policy.name)))


def import_class(reference: str) -> object:
    """Return what `module:Class` names.

    Raises:
        PolicyLoadError: it cannot be imported.
    """
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs a third party's code, which may raise anything
        raise PolicyLoadError(f"{reference}: cannot be imported: {type(error).__name__}: {error}") from error


def load(
    policies: Iterable[type[Policy]], settings: Mapping[str, PolicySettings] | None = None
) -> tuple[LoadedPolicy, ...]:
    """Make the enabled policies, in the order in which they run: by priority, then by name.

    Args:
        policies: checked classes, from `discover` or `checked`.
        settings: by policy name; a policy without has the defaults.

    Raises:
        PolicyLoadError: settings for a policy that is not there, bad options, or a constructor that raises.
    """
    settings = dict(settings or {})
    policies = tuple(policies)
    unknown = settings.keys() - {policy.name for policy in policies}
    if unknown:
        there = ", ".join(sorted(policy.name for policy in policies)) or "none"
        raise PolicyLoadError(f"no policy named {', '.join(sorted(unknown))}; there are: {there}")
    loaded = [
        bind(_made(policy, chosen), chosen)
        for policy in policies
        if (chosen := settings.get(policy.name, PolicySettings())).enabled
    ]
    return tuple(sorted(loaded, key=lambda policy: (policy.priority, policy.name)))


def _entry_points() -> list[str]:
    from importlib.metadata import entry_points  # costs start-up time only where policies are looked for

    return sorted({entry_point.value for entry_point in entry_points(group=ENTRY_POINT_GROUP)})


def _made(policy: type[Policy], settings: PolicySettings) -> Policy:
    arguments: tuple[object, ...] = ()
    if policy.options_type is not None:
        arguments = (make_options(policy.name, policy.options_type, settings.options),)
    elif settings.options:
        raise PolicyLoadError(f"policy {policy.name} has no options: {', '.join(sorted(settings.options))}")
    try:
        return policy(*arguments)
    except Exception as error:  # a third party's constructor may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise PolicyLoadError(f"{origin_of(policy)}: cannot be made: {reason}") from error


def make_options(name: str, options_type: type[Any], values: Mapping[str, object]) -> object:
    """Return an instance of a policy's options dataclass with these values, the rest being defaults.

    Raises:
        PolicyLoadError: an unknown key, a value of another type, or one that the type itself refuses.
    """
    if not values:
        return options_type()
    known = sorted(field.name for field in dataclasses.fields(options_type))
    unknown = ", ".join(sorted(set(values).difference(known)))
    if unknown:
        raise PolicyLoadError(f"policy {name}: unknown option {unknown}; there are: {', '.join(known)}")
    from pydantic import TypeAdapter, ValidationError  # slow to import, and needed only where options are set

    try:
        return TypeAdapter[object](options_type).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "options"
        raise PolicyLoadError(f"policy {name}: {place}: {first['msg']}") from error
