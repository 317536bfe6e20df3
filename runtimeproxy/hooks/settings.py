"""Settings of one policy, and of the chain of all policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from runtimeproxy.hooks.policy import FailurePolicy
from runtimeproxy.labels import LabelSelector
from runtimeproxy.vocabulary import Mode


class ConflictRule(StrEnum):
    """Whose value is used when two policies set one field to different values."""

    LATER = "later"
    EARLIER = "earlier"


class ChainRules(NamedTuple):
    """How the chain of all policies decides."""

    conflicts: ConflictRule = ConflictRule.LATER
    skip_label: tuple[str, str] | None = None
    """Key and value of the label of pods that policies leave alone; None for none."""
    budget_s: float = 10.0
    """The time for all policies of one call."""


USUAL_RULES: Final = ChainRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Settings of one policy, by its name; `koord-runtime-proxy list-policies` shows them all."""

    enabled: bool | None = None
    """Whether the policy is used; unset keeps the policy's own. A disabled one is checked at load but never
    created."""
    mode: Literal[Mode.ENFORCE, Mode.DRY_RUN] = Mode.ENFORCE
    """`enforce` applies the policy's changes; `dry-run` only computes and logs them."""
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    """What happens to a call when the policy fails: `ignore` goes on without it; `fail` refuses the call."""
    timeout_s: float | None = None
    """How long the policy may take in one call, above 0 and at most 600; unset keeps the policy's own."""
    priority: int | None = None
    """0 to 99; of two values for one field that of the higher one counts. Unset keeps the policy's own."""
    namespaces: tuple[str, ...] = ()
    """Only pods of these namespaces; empty for all. The policy's own conditions apply as well."""
    selector: LabelSelector | None = None
    """Only pods whose labels match, as a label selector of Kubernetes with `match_labels` and
    `match_expressions`; unset for all. The policy's own conditions apply as well."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The policy's own keys, checked against its `options_type`."""
