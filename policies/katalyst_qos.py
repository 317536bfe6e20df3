"""Katalyst's levels: pods with its annotations are treated as pods of a class of Koordinator.

While this policy is enforced, each pod with a level has the class that stands for it: `system_cores` SYSTEM,
`dedicated_cores` LSE or, without `numa_exclusive`, LSR, `shared_cores` LS, `reclaimed_cores` BE. All other
policies, and the QoS manager, work on that class. `[katalyst]` of the configuration says how pods get levels,
and what happens to a pod that Katalyst would refuse. What this policy itself sets is the OOM score, if an
option says so, and the burst that an annotation asks for, which needs no strategy and no class.
Source: katalyst-core pkg/config/generic/qos.go, pkg/util/qos.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from policies.cpu_burst import BURST, burst_us
from policies.oom_score import OomScoreOptions as ScoreBounds
from policies.oom_score import lowest_score
from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    PodChange,
    PodView,
    Policy,
    Reason,
    ResourceChange,
    Resources,
)
from runtimeproxy.hooks.levels import LEVELS_POLICY
from runtimeproxy.katalyst.burst import burst_of_level, wanted_burst
from runtimeproxy.katalyst.levels import (
    BurstPolicy,
    KatalystQos,
    OnError,
    katalyst_qos,
    oom_score_adj,
    pod_problems,
)
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.slo.schema import CpuBurstStrategy
from runtimeproxy.units import CPU_PERIOD_US

_SCORE: Final = "oom_score_adj"
_REASON: Final = "Katalyst's level of the pod"
_BOUNDS: Final = ScoreBounds()
_NO_STRATEGY: Final = CpuBurstStrategy()


@dataclass(frozen=True, slots=True, kw_only=True)
class KatalystOptions:
    """Settings of the policy."""

    oom_score: bool = False
    """True gives new containers the OOM score of their pod's OOM priority: -100 is 1000, 300 is -997, and
    straight between them. Katalyst has a program in the kernel for it. The annotations of the policy
    `oom-score` come first."""


class KatalystLevels(Policy):
    """Gives pods with Katalyst's annotations the class of Koordinator that stands for their level."""

    name: ClassVar[str] = LEVELS_POLICY
    is_default: ClassVar[bool] = False
    optional_inputs: ClassVar[frozenset[Input]] = frozenset({Input.CGROUPS, Input.KATALYST})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({BURST}),
        "container": frozenset({_SCORE, BURST}),
    }
    # Before the policies that set the same fields for all pods: their values are used.
    priority: ClassVar[int] = 20
    options_type: ClassVar[type[KatalystOptions] | None] = KatalystOptions

    def __init__(self, options: KatalystOptions | None = None) -> None:
        self._options = options or KatalystOptions()

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the burst of the pod's own cgroup, and what is wrong with the pod's annotations.

        Raises:
            RefusalError: Katalyst would refuse the pod, and so does the configuration.
        """
        qos = _qos_of(pod, node)
        if qos is None:
            return None
        if qos.refusal and node.levels is not None and node.levels.on_error is OnError.REJECT:
            raise RefusalError(f"Katalyst's QoS: {qos.refusal}", StatusCode.INVALID_ARGUMENT)
        problems = pod_problems(pod.labels, qos)
        values, reasons = _burst(qos, pod.resources, node)
        if not values and not problems:
            return None
        return PodChange(cgroup=values, problems=problems, reason=_REASON, reasons=reasons)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the OOM score of the container, and its burst."""
        pod = container.pod
        qos = _qos_of(pod, node)
        if qos is None:
            return None
        values, reasons = _burst(qos, container.requested, node)
        resources = ResourceChange()
        if self._options.oom_score:
            wanted = oom_score_adj(qos.oom_priority)
            lowest = lowest_score(pod.qos, pod.kube_qos, container.requested.oom_score_adj, _BOUNDS)
            score = max(wanted, lowest)
            reason = Reason("OOM priority ", qos.oom_priority, " = ", wanted)
            reasons[_SCORE] = reason if score == wanted else reason.then(", at least ", lowest)
            resources = ResourceChange(oom_score_adj=score)
        elif not values:
            return None
        return ContainerChange(resources=resources, cgroup=values, reason=_REASON, reasons=reasons)


def _qos_of(pod: PodView, node: Node) -> KatalystQos | None:
    """Return the pod's level; in dry-run the one that it would have."""
    if pod.katalyst is not None or node.levels is None:
        return pod.katalyst
    return katalyst_qos(pod.annotations, node.levels)


def _burst(
    qos: KatalystQos, requested: Resources, node: Node
) -> tuple[dict[str, int | str], dict[str, str | Reason]]:
    """Return the burst of a container or pod by `cpu_burst_policy` `static`, and its reason.

    The strategy of the policy `cpu-burst` is the same then, where that has one for the pod.
    """
    policy, _ = wanted_burst(qos, node.katalyst)
    if policy is not BurstPolicy.STATIC:
        return {}, {}
    strategy = burst_of_level(_NO_STRATEGY, qos, node.katalyst)
    burst = burst_us(requested.cpu_quota_us, requested.cpu_period_us, strategy)
    is_lacking = Feature.BURST not in node.features and node.state_of(Input.CGROUPS) is InputState.KNOWN
    if not burst or is_lacking:
        return {}, {}
    percent = strategy.cpu_burst_percent
    what = "cpu_burst_policy" if qos.burst_policy is policy else node.katalyst.target
    reason = Reason(f"{what} static, CPU quota ", requested.cpu_quota_us or 0)
    if requested.cpu_period_us not in (None, 0, CPU_PERIOD_US):
        reason = reason.then(" per ", requested.cpu_period_us or 0, " us x ", CPU_PERIOD_US)
    reason = reason.then(" x ", percent, " % = ", burst)
    return {BURST: burst}, {BURST: reason}
