"""The contract with plugins: from a snapshot and the plugin's state to claims and evictions.

A plugin says what it wants now, all of it, each time: a claim that it no longer returns is released. It keeps
nothing in itself; what it has to remember is its state, which the framework hands back in the next round. So
a decision is a pure function, and a test needs neither the daemon nor a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.qosmanager.snapshot import Level, Metric, Snapshot
from runtimeproxy.units import CPU_PERIOD_US, parse_cpu_list
from runtimeproxy.vocabulary import Mode as Mode
from runtimeproxy.vocabulary import Role as Role

StateT = TypeVar("StateT")
MOST_GRACE_S: Final = 3_600.0
"""The daemon gives no pod more time to end."""


class Target(NamedTuple):
    """The cgroup that a claim is for."""

    level: Level
    id: str = ""
    """A container's id, a pod's uid, or the name of a QoS class or host application."""


class Claim(NamedTuple):
    """A plugin's wish for one value. Two claims of one plugin differ in target, field or role."""

    target: Target
    field: str
    """The cgroup parameter by its version 1 name, such as `cpu.cfs_quota_us`."""
    role: Role
    """No plugin scales."""
    value: int | str
    """The value, the amount that is added, or the bound; a text is a list of CPUs such as `0-3,8`."""
    ceiling: int | None = None
    """Of an add: the largest sum of the value and it."""
    reason: str = ""
    """For people; with the numbers that lead to it. A claim that differs in its reason only is not sent."""

    @property
    def key(self) -> tuple[Target, str, Role]:
        return self.target, self.field, self.role


QUOTA: Final = "cpu.cfs_quota_us"
CPUS: Final = "cpuset.cpus"
GUARD: Final = "cpu-guard"
"""The plugin whose bound is no limit to those that evict for a lack of CPU."""
BE_CLASS: Final = Target(Level.QOS_CLASS, KubeQoSClass.BEST_EFFORT.value)


def be_limit_cores(claims: Iterable[Claim]) -> float | None:
    """Return what claims leave to all BE pods together; None: they bound nothing."""
    limits: list[float] = []
    for claim in claims:
        if claim.role is Role.AT_MOST and claim.field == QUOTA and claim.target == BE_CLASS:
            limits.append(int(claim.value) / CPU_PERIOD_US)
        elif claim.role is Role.AT_MOST and claim.field == CPUS:
            # Under the kubelet's static CPU manager the containers have fewer than their class.
            limits.append(len(parse_cpu_list(str(claim.value))))
    return min(limits, default=None)


class Eviction(NamedTuple):
    """A plugin's proposal to evict a pod. The daemon carries it out, or refuses."""

    pod_uid: str
    reason: str
    """For people and the audit; with the arithmetic."""
    grace_s: float = 0.0
    """How long its containers may take to end, up to `MOST_GRACE_S`; where the API server evicts, the pod's
    own grace period applies."""


class EvictionOutcome(StrEnum):
    """The outcome of a proposal."""

    EVICTED = "evicted"
    DRY_RUN = "dry-run"
    """It would have been carried out."""
    REFUSED = "refused"
    """The pod's class, a bound, a cool-down or a disruption budget forbids it."""
    FAILED = "failed"
    NOTHING = "nothing"
    """The pod is gone, or has no container that runs."""


class EvictionResult(NamedTuple):
    """A proposal, and what became of it."""

    eviction: Eviction
    outcome: EvictionOutcome
    reason: str = ""
    """Why not; empty if it was evicted."""


class NodeReport(NamedTuple):
    """What a plugin reports of the node, for the daemon to serve: one plugin of a manager does so."""

    document: str
    """A CustomNodeResource of Katalyst's as JSON; empty: there is none."""
    problems: tuple[str, ...] = ()


class Decision(NamedTuple, Generic[StateT]):
    """All claims and evictions of a plugin, and its next state."""

    state: StateT
    claims: Sequence[Claim] = ()
    """All of them; those of before that are not here are released."""
    evictions: Sequence[Eviction] = ()
    """In their order. One that was refused or failed comes again only if the plugin proposes it again."""
    explanation: str = ""
    """The decision as a whole in a sentence or some, for status and log."""
    node_report: NodeReport | None = None
    left_out: Mapping[str, Sequence[str]] = MappingProxyType({})
    """By reason: uids of the pods that it is off for."""
    pod_notes: Mapping[str, Sequence[str]] = MappingProxyType({})
    """By text: uids of the pods that it says this of, for `explain`; long texts are cut."""
    is_dry_run: bool = False
    """Whether the configuration of the cluster says that evictions are computed only."""
    threads_of: Sequence[str] = ()
    """Cgroups of which the run delay of threads is to be sampled (`Metric.CPU_RUN_DELAY`) from the next pass
    on; the first ones if all have too many."""
    problem: str = ""
    """Why it cannot do what it is for, for status and its exit code; empty if it can."""
    is_guarding: bool = False
    """Whether it bounds BE pods by what others feel or felt until just now: CPU suppress claims nothing
    meanwhile."""
    waiting_pods: frozenset[str] = frozenset()
    """Uids of pods that wait for CPUs longer than they may: start-up boosts of other pods end."""


class Need(NamedTuple):
    """Samples that a plugin decides by."""

    level: Level
    metric: Metric
    longest_s: float
    """The longest of its windows."""
    is_fresh: bool = False
    """Each sample has to be of its own pass: none is taken from Malachite."""
    every_s: float = 0.0
    """How far its samples may lie apart; they are at least a second apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """Gates, options and previous claims that a plugin is made with."""

    gates: Mapping[str, bool]
    options: Any = None
    """Of the plugin's `options_type`; None if it has none."""
    held: Sequence[Claim] = ()
    """The plugin's effective claims of before this process: its values must not jump."""


class Change(StrEnum):
    """Kinds of changes since the plugin's last run."""

    PODS = "pods"
    NODE = "node"
    STRATEGIES = "strategies"


class Plugin(Generic[StateT]):
    """Base class of all plugins.

    A plugin that raises or takes longer than the framework's limit is left out for a time; the lease of its
    claims runs on meanwhile. Methods run in the plugin's own thread, one at a time.
    """

    name: ClassVar[str]
    """Such as `cpu-suppress`: the name of its table `[plugins.NAME]`, and the owner of its claims."""
    gates: ClassVar[tuple[str, ...]] = ()
    """Koordinator's feature gates; the plugin runs if one of them is on. Without any it always does."""
    default_mode: ClassVar[Mode] = Mode.ENFORCE
    has_claims: ClassVar[bool] = True
    """Whether it claims values. If not, claims are left out, and the daemon needs no owner of its name."""
    needs: ClassVar[frozenset[Need]] = frozenset()
    interval_s: ClassVar[float] = 1.0
    """The least time between two runs."""
    options_type: ClassVar[type[Any] | None] = None
    """A frozen dataclass whose fields are the keys of `[plugins.NAME.options]`, each with a default; None:
    there are none."""

    def option_problems(self, options: Any) -> Sequence[tuple[str, str]]:  # noqa: ANN401 - of `options_type`
        """Key and reason of options that are of the right types and cannot be used; they end the start.

        The key of a value in a table has both names: `table.name`.
        """
        return ()

    def setup(self, context: PluginContext) -> StateT:
        """The state of the first run."""
        raise NotImplementedError

    def is_enabled(self, snapshot: Snapshot) -> bool:
        """Whether the strategies want it. If not, its claims are released, and `run` is not called."""
        raise NotImplementedError

    def run(self, snapshot: Snapshot, state: StateT) -> Decision[StateT]:
        """Decides; pure."""
        raise NotImplementedError

    def on_changed(self, changes: frozenset[Change], snapshot: Snapshot, state: StateT) -> StateT:
        """The state after a change, before the next run; by default as it was. Pure."""
        return state

    def on_evictions(self, results: Sequence[EvictionResult], snapshot: Snapshot, state: StateT) -> StateT:
        """The state after its proposals were carried out or not, before the next run. Pure."""
        return state


AnyPlugin = Plugin[Any]
