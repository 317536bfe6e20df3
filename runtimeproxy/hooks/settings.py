"""What an operator may set for one policy, and for the chain of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from runtimeproxy.hooks.policy import FailurePolicy, Mode
from runtimeproxy.hooks.selector import LabelSelector


class ConflictRule(StrEnum):
    """Whose value counts when two policies set one field to different values."""

    LATER = "later"
    EARLIER = "earlier"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Settings of one policy, keyed by its name in the configuration."""

    enabled: bool = True
    """A policy that is not enabled is checked at load but never made."""
    mode: Mode = Mode.ENFORCE
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    timeout_s: float | None = None
    """Above 0; None keeps the policy's own."""
    priority: int | None = None
    """0 to 99, lower runs earlier; None keeps the policy's own."""
    namespaces: tuple[str, ...] = ()
    """Only pods of these; empty for all. The policy's own conditions hold as well."""
    selector: LabelSelector | None = None
    """Only pods whose labels match; None for all. The policy's own conditions hold as well."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The policy's own keys, as the configuration file has them; checked against its `options_type`."""
