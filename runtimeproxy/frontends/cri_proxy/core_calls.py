"""What intercepted calls need of the core. Imports protobuf: load it where it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from runtimeproxy.core.events import take_due_writes, write_due
from runtimeproxy.core.policies import PolicyEvent
from runtimeproxy.frontends.cri_proxy.calls.intercepted_call import InterceptedCall
from runtimeproxy.frontends.cri_proxy.calls.interceptor import (
    CallReports,
    CallServices,
    CallSettings,
    OpenCall,
)
from runtimeproxy.frontends.cri_proxy.calls.long_work import LongWork
from runtimeproxy.ledger.upkeep import WORK_S
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.process import give_back_memory

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.core import Core
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.frontends.cri_proxy.calls.call_trace import TraceSink
    from runtimeproxy.pods.inventory import RuntimeClient

LONG_REQUEST_THREADS: Final = 2
"""One thread computes at a time; the second is for the connection after a slow one."""


def call_services(
    core: Core,
    client: RuntimeClient,
    settings: Settings,
    threads: ThreadPools,
    spawn: Spawn,
    reports: CallReports,
    is_standby: Callable[[], bool],
) -> CallServices:
    """Joins intercepted calls to the core.

    `threads`: for edits and cgroup files; makes those for long requests. `is_standby`: whether another
    process decides, or the bypass is on.
    """
    policies, inventory = core.policies, core.inventory
    services = CallServices(
        settings=CallSettings.of(settings),
        chain=policies.chain,
        inventory=inventory,
        lookups=Lookups(inventory.store, client),
        ledger=core.ledger,
        executor=threads.background,
        long_work=LongWork(threads.make("long-requests", LONG_REQUEST_THREADS), give_back_memory),
        spawn=spawn,
        reports=reports,
        evaluator=core.upkeep.evaluator,
        allocations=core.state.allocations,
    )

    def follow(event: PolicyEvent) -> None:
        if event is PolicyEvent.CHAIN:
            services.chain = policies.chain

    async def write_all_due() -> None:
        if not is_standby():
            for due in take_due_writes(services):
                # If a file hangs, the others are written after the next list of what runs.
                async with asyncio.timeout(WORK_S):
                    await write_due(services, due)

    policies.on_event.append(follow)
    inventory.on_complete.append(write_all_due)
    return services


def open_call(services: CallServices, traces: TraceSink | None) -> OpenCall:
    """Makes the handlers of intercepted calls, traced ones if there is a collector."""
    if traces is None:
        return partial(InterceptedCall, services)
    from runtimeproxy.frontends.cri_proxy.calls.traced_call import open_traced

    return partial(open_traced, traces, services)
