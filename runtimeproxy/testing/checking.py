"""The chain's checks of a change, without a chain: for the unit tests of policies."""

from __future__ import annotations

from typing import Final

from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.changes import Change
from runtimeproxy.hooks.decision import evaluate, evaluation_of
from runtimeproxy.hooks.fields import View
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.policy import Hook, Policy
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.node.snapshot import Node

_NO_PROBLEMS: Final = (AuditKind.CHANGED, AuditKind.WOULD_CHANGE, AuditKind.CONFLICT, AuditKind.VOID)


def check_change(view: View, change: Change | None, node: Node | None = None) -> tuple[str, ...]:
    """Problems that the chain finds in a policy's change, each with its field; none if all of it is used.

    Args:
        view: The policy's input: a pod or container, checked as at its creation, or another one.
        change: The policy's answer.
        node: The node that the change has to suit; None for one of which nothing is known.
    """
    hook = evaluation_of(view)
    if isinstance(view, PodView):
        hook = Hook.PRE_RUN_POD_SANDBOX
    elif isinstance(view, ContainerView):
        hook = Hook.PRE_CREATE_CONTAINER
    policy = LoadedPolicy(
        name="checked",
        origin="check_change",
        policy=Policy(),
        priority=Policy.priority,
        timeout_s=Policy.timeout_s,
        methods={hook: lambda _view, _node: change},
    )
    decision = evaluate([policy], view, node or Node(), hook=hook)
    return tuple(
        f"{entry.field}: {entry.reason}" if entry.field else entry.reason
        for entry in decision.audit
        if entry.kind not in _NO_PROBLEMS
    )
