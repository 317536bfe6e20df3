"""Asks chains and reads their decisions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

from runtimeproxy.cgroups.writer import WriteResult
from runtimeproxy.hooks import ContainerChange, ContainerView, Hook, PodView
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import View, pod_of

VIEW = ContainerView(name="main", pod=PodView(namespace="ns", name="pod", uid="u1"))


async def decide(
    chain: Chain,
    hook: Hook = Hook.PRE_CREATE_CONTAINER,
    *,
    budget_s: float = 10.0,
    apply: Callable[[Decision], Mapping[str, WriteResult] | None] | None = None,
    has_writes: Callable[[Decision], bool] | None = None,
    view: View = VIEW,
    is_short: bool = True,
) -> Decision:
    policies = chain.policies_for(hook, pod_of(view) or PodView())
    return await chain.decide(
        hook, view, policies, budget_s=budget_s, apply=apply, has_writes=has_writes, is_short=is_short
    )


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until a condition holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.to_thread(threading.Event().wait, 0.001)


def container_change(decision: Decision) -> ContainerChange | None:
    return decision.change if isinstance(decision.change, ContainerChange) else None


def shares_of(decision: Decision) -> int | None:
    change = container_change(decision)
    if change is None or change.resources is None:
        return None
    value = change.resources.cpu_shares
    return value if isinstance(value, int) else None


def kinds(decision: Decision) -> list[tuple[str, AuditKind]]:
    return [(entry.policy, entry.kind) for entry in decision.audit]
