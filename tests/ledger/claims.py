"""Values that policies set, as claims."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runtimeproxy.cgroups.writer import WriteResult
from runtimeproxy.hooks.algebra import Claim, Resolved, Role
from runtimeproxy.hooks.claimants import parse_claimant
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import CGROUP, Field, Merged
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.views import PodView
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.records import Level

Claims = Mapping[str, tuple[Claim, ...]]


def set_values(
    ledger: Ledger, cgroup: str, values: Mapping[str, int | str], once: Collection[str] = ()
) -> tuple[WriteResult, ...]:
    """Sets values of a pod's cgroup, in place of all others; those of `once` are a hook server's."""
    claims = {
        name: (Claim(parse_claimant("server:a.json" if name in once else "batch"), Role.SET, value),)
        for name, value in values.items()
    }
    return ledger.change([Wanted(CgroupTarget(Level.POD, cgroup), claims, once=frozenset(once))])


def decision_of(claims: Claims, silent: frozenset[str] = frozenset()) -> Decision:
    """A decision with these claims on a cgroup."""
    fields = {Field(CGROUP, name): Resolved(None, claims=each) for name, each in claims.items()}
    return Decision(hook=Hook.EVALUATE_POD, merged=Merged(PodView(), fields), without_answer=silent)
