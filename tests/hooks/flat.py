"""Changes as flat fields, and names for what tests of them use most."""

from __future__ import annotations

import dataclasses

from runtimeproxy.hooks import Hook
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.hooks.changes import Change
from runtimeproxy.hooks.fields import Field, Fields, View, apply_fields, fields_of

CREATE = Hook.PRE_CREATE_CONTAINER
RUN = Hook.PRE_RUN_POD_SANDBOX
SHARES = Field("resources", "cpu_shares")
QUOTA = Field("resources", "cpu_quota_us")


def flat(change: Change, hook: Hook = CREATE) -> Fields:
    """The fields of a change that count for a hook."""
    given = {each.name: getattr(change, each.name) for each in dataclasses.fields(change)}
    return fields_of(
        {name: value for name, value in given.items() if value is not None}, BY_CALLS.counting[hook]
    )


def apply(view: View, change: Change, hook: Hook) -> View:
    """The view as later policies see it after a change."""
    return apply_fields(view, flat(change, hook))
