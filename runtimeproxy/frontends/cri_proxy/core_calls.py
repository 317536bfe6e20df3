"""What intercepted calls need of the core. Imports protobuf: load it where it is needed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from runtimeproxy.frontends.cri_proxy.calls.intercepted_call import InterceptedCall
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices, CallSettings, OpenCall
from runtimeproxy.frontends.cri_proxy.calls.long_work import LongWork
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.process import give_back_memory

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.services import CoreServices
    from runtimeproxy.frontends.cri_proxy.calls.call_trace import TraceSink
    from runtimeproxy.pods.inventory import RuntimeClient

LONG_REQUEST_THREADS: Final = 2
"""One thread computes at a time; the second is for the connection after a slow one."""


def call_services(
    core: CoreServices, client: RuntimeClient, settings: Settings, threads: ThreadPools
) -> CallServices:
    """Joins intercepted calls to the core; `threads` makes those for long requests."""
    return CallServices(
        settings=CallSettings.of(settings),
        core=core,
        lookups=Lookups(core.store, client),
        long_work=LongWork(threads.make("long-requests", LONG_REQUEST_THREADS), give_back_memory),
    )


def open_call(services: CallServices, traces: TraceSink | None) -> OpenCall:
    """Makes the handlers of intercepted calls, traced ones if there is a collector."""
    if traces is None:
        return partial(InterceptedCall, services)
    from runtimeproxy.frontends.cri_proxy.calls.traced_call import open_traced

    return partial(open_traced, traces, services)
