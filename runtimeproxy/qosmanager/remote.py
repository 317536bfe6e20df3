"""A plugin in a process of its own, behind `runtimeproxy.v1.QoSPlugin` (`plugin.proto`).

To the framework it is a plugin like the others: a failed, slow or nonsensical answer is a failed run, so that
time limit, pauses and the lease of its claims are the same. Used in the plugin's thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from runtimeproxy import __version__
from runtimeproxy.http2.client import RpcError
from runtimeproxy.qosmanager.framework import MOST_CLAIMS, MOST_EVICTIONS, PluginFailedError
from runtimeproxy.qosmanager.plugin import (
    Claim,
    Decision,
    Eviction,
    EvictionResult,
    Mode,
    Need,
    Plugin,
    PluginContext,
)
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, Snapshot, sample_targets
from runtimeproxy.stubs import BlockingClient

if TYPE_CHECKING:
    from cri_api.runtimeproxy.v1 import plugin_pb2
    from cri_api.runtimeproxy.v1.plugin_pb2_grpc import QoSPluginStub

DESCRIBE_S: Final = 1.0
DECIDE_S: Final = 1.5
"""How long the plugin may take to answer; together less than the framework's time limit, which would leave
the thread hanging."""
MOST_ANSWER_BYTES: Final = 4 << 20
"""Some times the claims that a plugin may have."""
MOST_ANSWER_FIELDS: Final = 2 * MOST_CLAIMS
"""Claims, evictions and the like. With more an answer is not read at all: empty ones take 2 bytes in it, and
80 in memory."""
MOST_NEEDS: Final = 16
LONGEST_WINDOW_S: Final = 3_600.0
LONGEST_POD_WINDOW_S: Final = 300.0
"""For pods and containers: there are hundreds, and each sample takes memory of the manager."""
MOST_EXPLAINED: Final = 500
"""Characters of an explanation, or of an error."""


class RemoteState(NamedTuple):
    """The parts of a plugin's last answer that the next request needs."""

    claims: Sequence[Claim] = ()
    """All that it wants: told to it again on a new connection."""
    results: Sequence[EvictionResult] = ()


class RemoteOptions(NamedTuple):
    """The configuration of a plugin; another endpoint is another connection."""

    endpoint: str
    options: Mapping[str, object]
    """`[plugins.NAME.options]`, which it checks itself."""


class RemotePlugin(Plugin[RemoteState]):
    """One plugin in another process. Its options are `RemoteOptions`."""

    default_mode: ClassVar[Mode] = Mode.DRY_RUN

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]  # each has its own
        self._options = RemoteOptions("", {})
        self._gates: Mapping[str, bool] = {}
        self._client: BlockingClient | None = None
        self._stub: QoSPluginStub | None = None
        self._sent: tuple[object, object] = None, None
        """The pods and the node of the last request that was answered."""

    def setup(self, context: PluginContext) -> RemoteState:
        """The claims from before; a connection is made by the first run."""
        self._close()
        self._gates, self._options = context.gates, context.options
        return RemoteState(tuple(context.held))

    def is_enabled(self, snapshot: Snapshot) -> bool:
        # Without need the plugin claims nothing.
        return True

    def on_evictions(
        self, results: Sequence[EvictionResult], snapshot: Snapshot, state: RemoteState
    ) -> RemoteState:
        return state._replace(results=(*state.results, *results))

    def run(self, snapshot: Snapshot, state: RemoteState) -> Decision[RemoteState]:
        """Asks the plugin. Raises PluginFailedError."""
        try:
            is_first = self._stub is None
            stub = self._stub or self._connect()
            request = self._request(snapshot, state, is_first=is_first)
            decision = _decision(stub.Decide(request, timeout=DECIDE_S))
        except RpcError as error:
            self._close()
            reason = one_line(error.text)
            raise PluginFailedError(f"{self._options.endpoint}: {error.code.name}: {reason}") from None
        except BaseException:
            self._close()
            raise
        self._sent = (snapshot.source.pods, snapshot.source.node) if snapshot.source else (None, None)
        return decision

    def _connect(self) -> QoSPluginStub:
        from cri_api.runtimeproxy.v1 import plugin_pb2

        # Another connection may lead to another process, which has to be told everything again.
        self._client = BlockingClient(
            self._options.endpoint, MOST_ANSWER_BYTES, max_fields=MOST_ANSWER_FIELDS, reconnects=False
        )
        stub: QoSPluginStub = self._client.stub(plugin_pb2.DESCRIPTOR.services_by_name["QoSPlugin"])
        request = plugin_pb2.DescribeRequest(
            name=self.name,
            options=json.dumps(self._options.options, default=str),
            feature_gates=self._gates,
            manager_version=__version__,
        )
        answer = stub.Describe(request, timeout=DESCRIBE_S)
        if len(answer.needs) > MOST_NEEDS:
            raise PluginFailedError(f"it needs {len(answer.needs)} kinds of samples, at most {MOST_NEEDS}")
        self.needs = frozenset(map(_need, answer.needs))  # type: ignore[misc]  # each has its own
        if answer.HasField("interval"):
            self.interval_s = max(answer.interval.ToMicroseconds() / 1e6, 0.1)  # type: ignore[misc]
        self._stub = stub
        return stub

    def _request(self, snapshot: Snapshot, state: RemoteState, *, is_first: bool) -> plugin_pb2.DecideRequest:
        from cri_api.runtimeproxy.v1 import plugin_pb2
        from runtimeproxy.qosmanager.from_api import claim_message

        request = plugin_pb2.DecideRequest(
            now_s=snapshot.now_s,
            samples=_samples(snapshot, self.needs),
            held=map(claim_message, state.claims) if is_first else (),
            is_first=is_first,
            results=[
                plugin_pb2.EvictionResult(
                    pod_uid=each.eviction.pod_uid, outcome=each.outcome, reason=each.reason
                )
                for each in state.results
            ],
        )
        request.time.FromMicroseconds(int(snapshot.wall_s * 1e6))
        if (source := snapshot.source) is not None:
            pods, node = (None, None) if is_first else self._sent
            if source.pods is not pods:
                request.pods.pods.extend(source.pods)
            if source.node is not node:
                request.node.CopyFrom(source.node)
        return request

    def _close(self) -> None:
        client, self._client, self._stub = self._client, None, None
        if client is not None:
            client.close()


def _need(message: plugin_pb2.SampleNeed) -> Need:
    from cri_api.runtimeproxy.v1 import plugin_pb2

    name = plugin_pb2.SampleLevel.Name(message.level).removeprefix("SAMPLE_LEVEL_").lower().replace("_", "-")
    try:
        level, metric = Level(name), Metric(message.metric)
    except ValueError as error:
        raise PluginFailedError(f"it needs samples that there are not: {error}") from None
    longest_s = LONGEST_POD_WINDOW_S if level in (Level.POD, Level.CONTAINER) else LONGEST_WINDOW_S
    return Need(level, metric, min(message.window.ToMicroseconds() / 1e6, longest_s))


def _samples(snapshot: Snapshot, needs: frozenset[Need]) -> Iterator[plugin_pb2.SampleWindow]:
    from cri_api.runtimeproxy.v1 import plugin_pb2

    by_level: dict[Level, list[str]] = {Level.NODE: [NODE_CGROUP]}
    for cgroup, level in sample_targets(snapshot.pods, snapshot.node, snapshot.strategies).items():
        by_level.setdefault(level, []).append(cgroup)
    for need in sorted(needs):
        for cgroup in by_level.get(need.level, ()):
            window = snapshot.metrics.window(cgroup, need.metric, need.longest_s)
            if window is not None:
                message = plugin_pb2.SampleWindow(
                    cgroup=cgroup,
                    metric=need.metric,
                    last=window.last,
                    average=window.avg,
                    p50=window.p50,
                    p90=window.p90,
                    p95=window.p95,
                    p99=window.p99,
                    count=window.count,
                )
                message.window.FromMicroseconds(int(need.longest_s * 1e6))
                yield message


def _decision(answer: plugin_pb2.DecideResponse) -> Decision[RemoteState]:
    from runtimeproxy.qosmanager.from_api import claims_of

    for name, entries, most in (
        ("claims", answer.claims, MOST_CLAIMS),
        ("evictions", answer.evictions, MOST_EVICTIONS),
    ):
        if len(entries) > most:
            raise PluginFailedError(f"it answers with {len(entries)} {name}, at most {most} are possible")
    try:
        claims = tuple(each._replace(reason=one_line(each.reason)) for each in claims_of(answer.claims))
    except ValueError as error:
        raise PluginFailedError(f"the value of a claim cannot be used: {one_line(str(error))}") from None
    if len(claims) != len(answer.claims):
        raise PluginFailedError("a claim has no target, no value, or a role that plugins do not have")
    evictions = tuple(Eviction(each.pod_uid, one_line(each.reason)) for each in answer.evictions)
    return Decision(RemoteState(claims), claims, evictions, one_line(answer.explanation))


def one_line(text: str) -> str:
    """A text of another process for logs and status: on one line, without control characters, not long."""
    printable = "".join(each if each.isprintable() else " " for each in text[: 2 * MOST_EXPLAINED])
    return " ".join(printable.split())[:MOST_EXPLAINED]
