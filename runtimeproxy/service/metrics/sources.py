"""Where the numbers come from. Cheap to import: the daemon counts whether or not metrics are served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from runtimeproxy.counts import Histogram

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor
    from runtimeproxy.frontends.cri_proxy.handover.upgrade import Upgrade
    from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
    from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
    from runtimeproxy.http2.server import Budget
    from runtimeproxy.service.audit_file import AuditFile
    from runtimeproxy.service.bypass import Bypass
    from runtimeproxy.service.engine import Engine
    from runtimeproxy.service.tracing.traces import Traces

_LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(slots=True)
class ServiceCounts:
    """What the daemon counts of itself.

    Attributes:
        is_runtime_away: whether the runtime was lost and does not answer yet.
        is_configured: whether the last reading of the configuration succeeded.
        configured_s: when a reading last succeeded, in seconds since the epoch.
        loop_lag: how much later than asked for the event loop woke up, in seconds; measured every second.
    """

    configured_s: float
    is_configured: bool = True
    is_runtime_away: bool = False
    loop_lag: Histogram = field(default_factory=lambda: Histogram(_LAG_S))


@dataclass(frozen=True, slots=True)
class MetricSources:
    """The parts of the daemon that metrics are read from.

    Attributes:
        budget: of requests that are held.
        own_budget: of calls of the daemon's own services.
        dropped_log_lines: how many lines the log has lost.
        traces: None without a collector.
    """

    service: ServiceCounts
    relay: RelayServer
    interceptor: CallInterceptor
    bypass: Bypass
    engine: Engine
    upgrade: Upgrade
    budget: MemoryBudget
    own_budget: Budget
    dropped_log_lines: Callable[[], int]
    audit_file: AuditFile
    traces: Traces | None
