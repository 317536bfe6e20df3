"""After a call: the work that is due, then effects of policies and post hooks of hook servers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from runtimeproxy.core.questions import decide
from runtimeproxy.pods.inventory import RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtimeproxy.core.services import CoreServices, Work
    from runtimeproxy.frontends.cri_proxy.calls.cri_call import CriCall
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.frontends.cri_proxy.calls.methods import Method


def start_post_hooks(services: CallServices, method: Method, call: CriCall, works: Sequence[Work]) -> None:
    # The next calls of the pod wait for them.
    if works or _may_have_policies(services.core, method, call):
        work = partial(_run_post_hooks, services, method, call, works)
        services.core.start_after(method.kind, call.pod_keys, work)


def _may_have_policies(core: CoreServices, method: Method, call: CriCall) -> bool:
    chain = core.chain
    if chain.hooks.isdisjoint(method.after):
        return False
    # Without its records that is not known.
    return not call.find_records() or any(chain.policies_for(each.hook, each.pod) for each in call.after())


def start_works(core: CoreServices, method: Method, call: CriCall, works: Sequence[Work]) -> None:
    """Starts work that is due however a call has ended; the next calls of its pod wait for it."""
    core.start_after(method.kind, call.pod_keys, partial(_run, works))


async def settle(services: CallServices, method: Method, call: CriCall) -> None:
    # After a success the post hooks of the call run.
    await services.core.guarded(method.kind, partial(_settle, services, method, call))


async def _settle(services: CallServices, method: Method, call: CriCall) -> None:
    core = services.core
    try:
        works = await call.confirm()
    except RuntimeUnavailableError as error:
        core.problems.failures.report(method.kind, "unsettled", f"outcome of the call unknown: {error}")
        core.inventory.confirm_all()
    else:
        if works is not None:
            start_post_hooks(services, method, call, works)


async def _run(works: Sequence[Work]) -> None:
    for work in works:
        await work()


async def _run_post_hooks(
    services: CallServices, method: Method, call: CriCall, works: Sequence[Work]
) -> None:
    """Does the work, then runs the policies; a write that fails does not skip them."""
    await _run(works)
    chain = services.core.chain
    if chain.hooks.isdisjoint(method.after):
        return
    if not call.find_records():
        await call.fetch_records()
    for question in call.after():
        await decide(chain, question, services.settings.budget_s, call.origin)
