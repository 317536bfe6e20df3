"""After a call: the work that is due, then effects of policies and post hooks of hook servers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from runtimeproxy.core.questions import decide
from runtimeproxy.pods.inventory import RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from runtimeproxy.frontends.cri_proxy.calls.cri_call import CriCall, Work
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.frontends.cri_proxy.calls.methods import Method


def start_post_hooks(services: CallServices, method: Method, call: CriCall, works: Sequence[Work]) -> None:
    # The next calls of the pod wait for them.
    if works or _may_have_policies(services, method, call):
        work = partial(_run_post_hooks, services, method, call, works)
        services.order.block(call.pod_keys, services.spawn(_guarded(services, method, work)))


def _may_have_policies(services: CallServices, method: Method, call: CriCall) -> bool:
    chain = services.chain
    if chain.hooks.isdisjoint(method.after):
        return False
    # Without its records that is not known.
    return not call.find_records() or any(chain.policies_for(each.hook, each.pod) for each in call.after())


def start_works(services: CallServices, method: Method, call: CriCall, works: Sequence[Work]) -> None:
    """Starts work that is due however a call has ended; the next calls of its pod wait for it."""
    work = partial(_run, services, works)
    services.order.block(call.pod_keys, services.spawn(_guarded(services, method, work)))


async def settle(services: CallServices, method: Method, call: CriCall) -> None:
    # After a success the post hooks of the call run.
    await _guarded(services, method, partial(_settle, services, method, call))


async def _settle(services: CallServices, method: Method, call: CriCall) -> None:
    try:
        works = await call.confirm()
    except RuntimeUnavailableError as error:
        services.reports.failures.report(method.kind, "unsettled", f"outcome of the call unknown: {error}")
        services.inventory.confirm_all()
    else:
        if works is not None:
            start_post_hooks(services, method, call, works)


async def _run(services: CallServices, works: Sequence[Work]) -> None:
    for work in works:
        await work(services)


async def _run_post_hooks(
    services: CallServices, method: Method, call: CriCall, works: Sequence[Work]
) -> None:
    """Does the work, then runs the policies; a write that fails does not skip them."""
    await _run(services, works)
    chain = services.chain
    if chain.hooks.isdisjoint(method.after):
        return
    if not call.find_records():
        await call.fetch_records()
    for question in call.after():
        await decide(chain, question, services.settings.budget_s, call.origin)


async def _guarded(services: CallServices, method: Method, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except Exception as error:  # noqa: BLE001 - a bug costs one call's post hooks, not the daemon
        services.reports.internal_errors += 1
        cause = type(error).__name__
        services.reports.failures.report(method.kind, f"after {cause}", f"{cause} after the call")
