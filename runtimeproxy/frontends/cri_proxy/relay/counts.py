"""What the relay counts: calls by method, the time they are held, connections, bytes.

A passing call costs one addition; what can be derived is summed when it is read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from types import MappingProxyType

from runtimeproxy.counts import OTHER, Histogram
from runtimeproxy.frontends.cri_proxy.interception import Outcome


class MethodCounts:
    """The calls of one method. Used in the loop's thread.

    Attributes:
        begun: calls whose headers were read, passing ones included.
        ended: intercepted calls that the runtime has got, by outcome.
        cancelled: intercepted calls that ended before the runtime had got them.
        refused: calls that the proxy ended with an error itself, by status code.
        held: how long intercepted calls were held, from the whole message to the decision, in seconds.
    """

    __slots__ = ("begun", "cancelled", "ended", "held", "refused")

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.ended = dict.fromkeys(Outcome, 0)
        self.refused: Counter[int] = Counter()
        self.held = Histogram()


class RelayCounts:
    """All connections of one daemon since its start. Used in the loop's thread.

    Args:
        methods: the names of methods by `:path`; calls of other paths are counted together.

    Attributes:
        by_method: the counts of each name, and of `OTHER`.
        refused: connections, by cause.
        ended: connections that the proxy ended because of the client, the runtime or itself, by cause.
        client_bytes: read from clients whose connections have ended; those of the others have their own.
        runtime_bytes: the same of upstreams.
        waits: how long connections waited for their upstream, in seconds, by its name.
        upstream_failures: connections whose upstream stayed away, by its name.
        without_upstream: calls that were refused because of that.
        too_large: calls that were refused because of the size of their message.
    """

    def __init__(self, methods: Mapping[str, str] = MappingProxyType({})) -> None:
        self.by_method = {name: MethodCounts() for name in (*dict.fromkeys(methods.values()), OTHER)}
        self._by_path = {path: self.by_method[name] for path, name in methods.items()}
        self._others = self.by_method[OTHER]
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.client_bytes = self.runtime_bytes = 0
        self.waits: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.upstream_failures: Counter[str] = Counter()
        self.without_upstream = self.too_large = 0

    def of(self, path: str) -> MethodCounts:
        return self._by_path.get(path, self._others)
