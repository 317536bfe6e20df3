"""Whatever tests ask policies, the answers have no field that the policy does not declare."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from runtimeproxy.fields.tables import RESOURCE_PARAMETERS
from runtimeproxy.hooks.fields import CGROUP, GROUPS, NODE_CGROUP, RESOURCES, Field, fields_of
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.hooks.policy import METHOD_HOOKS, Policy
from runtimeproxy.hooks.ways import SETTABLE


def name_of(field: Field) -> str:
    """As in `Policy.sets_fields`."""
    if field.group in (CGROUP, NODE_CGROUP):
        return field.key.rpartition("/")[2]
    return RESOURCE_PARAMETERS.get(field.key, field.key) if field.group == RESOURCES else field.group


def checking(policy: type[Policy], method: str) -> Callable[..., Any]:
    answer, declared = getattr(policy, method), policy.sets_fields.get(method, frozenset())

    @wraps(answer)
    def checked(*arguments: Any) -> Any:
        change = answer(*arguments)
        if change is not None:
            given = {name: getattr(change, name) for name in change.__dataclass_fields__}
            attributes = {name: value for name, value in given.items() if value is not None}
            found = {name_of(field) for field in fields_of(attributes, GROUPS[METHOD_HOOKS[method][0]])}
            assert found <= declared, f"{policy.name} declares {sorted(declared)} of {method}"
        return change

    return checked


@pytest.fixture(autouse=True)
def declared_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    for policy in built_in():
        for method in SETTABLE:
            if method in vars(policy):
                monkeypatch.setattr(policy, method, checking(policy, method))
