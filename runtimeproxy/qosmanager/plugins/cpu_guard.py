"""The CPU guard: BE pods get what LS pods do not feel.

What LS pods wait for CPUs says how much all BE pods together may have. The arithmetic is in
`runtimeproxy.qosmanager.guard`; here samples become its input, and its results claims. Beyond that BE pods
are made to yield. CPU suppress claims nothing while the guard sees what pods feel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.guard.explanation import (
    STEAL_EVERY_S,
    STEAL_S,
    blind_reason,
    pod_notes,
    steal_text,
    step_text,
    unreadable,
    waits_text,
)
from runtimeproxy.qosmanager.guard.law import (
    LawInputs,
    LawState,
    decide,
    given_back,
    is_held,
    probed,
    raised_to_floor,
)
from runtimeproxy.qosmanager.guard.lever import Position, held_bound, is_by_cpus, moved
from runtimeproxy.qosmanager.guard.metrics import Figures, GuardCollector, PodFigures
from runtimeproxy.qosmanager.guard.reading import (
    ASKED_S,
    be_cgroups,
    be_cores,
    be_waits,
    distinct_pods,
    has_cpu_bounds,
    is_best_effort,
    is_guarded,
    is_throttled,
    loads_of,
    node_floor,
    others_used,
    second_of,
    usage_of,
    workload_of,
)
from runtimeproxy.qosmanager.guard.signal import (
    YOUNGEST_S,
    NoSample,
    RecentWaits,
    WaitKind,
    WaitSample,
    is_blind,
    no_sample,
)
from runtimeproxy.qosmanager.guard.state import NEVER_S, GuardState, PodState
from runtimeproxy.qosmanager.guard.target import (
    PROBE_S,
    QUIET_SHARE,
    QuietHistory,
    WaitTarget,
    annotated,
    configured,
    load_of,
    wants_probe,
)
from runtimeproxy.qosmanager.listening import MetricsListener, place_problems
from runtimeproxy.qosmanager.plugin import (
    BE_CLASS,
    CPUS,
    GUARD,
    QUOTA,
    Claim,
    Decision,
    Mode,
    Need,
    Plugin,
    PluginContext,
    Role,
    Target,
)
from runtimeproxy.qosmanager.plugins.cpu_suppress import CpuSuppress, be_cpus, select_cpus
from runtimeproxy.qosmanager.snapshot import (
    LOOK_BACK_S,
    ContainerState,
    Level,
    Metric,
    Pod,
    Snapshot,
)
from runtimeproxy.state.state_file import StateFile
from runtimeproxy.units import MIN_CPU_SHARES, UNLIMITED, format_cpu_list, parse_cpu_list

IDLE: Final = "cpu.idle"
SHARES: Final = "cpu.shares"
SLICE: Final = "sched_slice_us"
SLICE_US: Final = 1_000
"""Of tasks of guarded pods. The kernel's default is 0.7 ms on one CPU, 1.4 ms on two, 2.8 ms from 8 on.
Source: Linux kernel/sched/fair.c, sysctl_sched_base_slice, get_update_sysctl_factor."""
MOST_SLICED: Final = 64
"""Pods whose tasks have short slices: all tasks of these are read every 10 s, 15 us each."""
FIRST_SAVING_S: Final = 90.0
"""What is learnt is saved so long after the start, when the first targets are known,"""
SAVING_S: Final = 600.0
"""and then this often."""
LEARNT_S: Final = 10.0
"""A target that is learnt is computed anew this often."""
PROBED: Final = 1.1
"""A second of a probe is quiet if BE pods use no more than so many times their floor: a quota is exceeded a
little at times, and in dry-run there is none."""
_FILE: Final = "cpu-guard.json"
_STARTED: Final = "cpu-guard-started.json"
"""The first start in a row of processes of which none lived until `FIRST_SAVING_S`, by CLOCK_MONOTONIC, which
goes on through restarts."""
_TARGET_FIELDS: Final = {
    WaitKind.PRESSURE: "target_pressure_milliseconds",
    WaitKind.RUN_DELAY: "target_run_delay_percent",
}
"""Of `PodCpuGuard`."""
_BATCH_CPU: Final = "kubernetes.io/batch-cpu"
_FEATURE_IDLE: Final = "idle"
_FEATURE_SLICE: Final = "slice"
"""Source: `Feature` of runtimeproxy.node.snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuGuardOptions:
    """`[plugins.cpu-guard.options]`."""

    folder: str = ""
    """Where it is saved what pods wait while BE pods are quiet (`cpu-guard.json`), and when the process began
    (`cpu-guard-started.json`); empty: nowhere, and it is learnt anew by each process."""
    metrics_listen: str = ""
    """Address such as `127.0.0.1:9447` on which metrics are served for Prometheus; empty: none."""


class CpuGuardPlugin(Plugin[GuardState]):
    """Bounds BE pods by what others feel, and makes them yield."""

    name: ClassVar[str] = GUARD
    default_mode: ClassVar[Mode] = Mode.DRY_RUN
    needs: ClassVar[frozenset[Need]] = frozenset(
        {
            Need(Level.NODE, Metric.CPU_USAGE, ASKED_S, is_fresh=True),
            Need(Level.NODE, Metric.CPU_STEAL, STEAL_S, every_s=STEAL_EVERY_S),
            Need(Level.QOS_CLASS, Metric.CPU_USAGE, ASKED_S, is_fresh=True),
            Need(Level.QOS_CLASS, Metric.CPU_PRESSURE, ASKED_S, is_fresh=True),
            Need(Level.POD, Metric.CPU_USAGE, ASKED_S, is_fresh=True),
            Need(Level.POD, Metric.CPU_PRESSURE_FULL, ASKED_S, is_fresh=True),
            Need(Level.POD, Metric.CPU_RUN_DELAY, ASKED_S, is_fresh=True),
            *(
                Need(level, Metric.CPU_THROTTLED, ASKED_S, is_fresh=True)
                for level in (Level.QOS_CLASS, Level.POD, Level.CONTAINER)
            ),
        }
    )
    options_type: ClassVar[type[CpuGuardOptions]] = CpuGuardOptions

    def __init__(self) -> None:
        self._options = CpuGuardOptions()
        self.collector = GuardCollector()
        self.metrics = MetricsListener(self.collector)

    def option_problems(self, options: CpuGuardOptions) -> Sequence[tuple[str, str]]:
        return place_problems(options.folder, options.metrics_listen)

    def setup(self, context: PluginContext) -> GuardState:
        """The bound is what the daemon's claims say: CPU of BE pods must not jump."""
        self._options = context.options or CpuGuardOptions()
        self.metrics.listen(self._options.metrics_listen)
        quota_us, cpus = UNLIMITED, frozenset[int]()
        for claim in context.held:
            if claim.role is Role.AT_MOST and claim.field == QUOTA and isinstance(claim.value, int):
                quota_us = claim.value
            elif claim.role is Role.AT_MOST and claim.field == CPUS:
                cpus = parse_cpu_list(str(claim.value))
        state = GuardState(position=Position(quota_us, len(cpus)), cpus=cpus, claims=tuple(context.held))
        if not self._options.folder:
            return state
        file = _file(self._options.folder)
        history = file.load(QuietHistory.restored)
        return replace(state, history=history or QuietHistory(), problem=file.unusable)

    def is_enabled(self, snapshot: Snapshot) -> bool:
        is_asked_for = snapshot.asks_for(self.name)
        if not is_asked_for:
            # There is no last decision then.
            self.collector.figures = None
        return is_asked_for

    def run(self, snapshot: Snapshot, state: GuardState) -> Decision[GuardState]:
        if not snapshot.node.cpus:
            return Decision(state, state.claims, explanation="the CPUs of the node are not known")
        now_s, strategy = snapshot.now_s, snapshot.strategies.cpu_guard
        if state.started_s is None:
            state = _begun(state, snapshot)
            state = replace(state, blind_s=self._first_start_s(now_s, state.law.bound))
        guarded = [pod for pod in distinct_pods(snapshot.pods) if is_guarded(pod)]
        used, asked = be_cores(snapshot)
        state = self._sampled(snapshot, state, guarded, used)
        errors = {uid: error for uid, pod in state.pods.items() if (error := _error(pod, now_s)) is not None}
        if not strategy.feedback:
            state = replace(state, law=LawState(), step=None, is_seeing=False)
            said = "no feedback: BE pods are not bounded"
        else:
            state, said = self._decided(snapshot, state, errors, used, asked)
        state = _moved(snapshot, state)
        idle, idle_said = _idle_claims(snapshot, bool(guarded))
        sliced, slice_said = _slice_claims(snapshot, state, guarded)
        claims = (*_bounds(snapshot, state, said), *idle, *sliced)
        state = replace(state, claims=claims)
        self.collector.figures = partial(_figures, snapshot, state)
        problem = self._save(snapshot, state)
        if not problem:
            state = replace(state, saved_s=_saved_s(state, now_s))
        waits = waits_text(snapshot, state, errors)
        notes = (said, *waits, steal_text(snapshot), idle_said, slice_said, problem, state.problem)
        return Decision(
            state,
            claims,
            explanation="; ".join(filter(None, notes)),
            threads_of=_threads_of(snapshot, state, guarded) if strategy.feedback else (),
            problem=unreadable(snapshot, state, used) if strategy.feedback and not state.is_seeing else "",
            is_guarding=_is_guarding(state, now_s),
            waiting_pods=frozenset(
                uid for uid, error in errors.items() if error > 1 and uid not in state.law.futile
            ),
            pod_notes=pod_notes(snapshot, state, errors, said),
        )

    def _sampled(
        self, snapshot: Snapshot, state: GuardState, guarded: Sequence[Pod], be_used: float | None
    ) -> GuardState:
        """The state with the samples of the last second."""
        now_s = snapshot.now_s
        is_quiet = _is_probed(snapshot, state) or (
            be_used is not None and be_used < QUIET_SHARE * len(snapshot.node.cpus)
        )
        pods: dict[str, PodState] = {}
        sampled_s, quiet_s = state.sampled_s, state.quiet_s
        throttled = {
            cgroup for cgroup in snapshot.node.qos_cgroups.values() if is_throttled(snapshot, cgroup)
        }
        for pod in guarded:
            before = state.pods.get(pod.uid) or PodState(RecentWaits(WaitKind.PRESSURE), now_s)
            if before.containers != len(pod.containers):
                before = before._replace(workload=workload_of(pod), containers=len(pod.containers))
            kind, second = second_of(snapshot, pod, throttled)
            if second is None:
                pods[pod.uid] = before._replace(missing=NoSample.NOTHING_READ, kind=kind)
                continue
            if second.at_s <= before.read_s:
                pods[pod.uid] = before
                continue
            if now_s - before.seen_s >= YOUNGEST_S:
                # A wall clock that was set back makes it no younger.
                second = second._replace(age_s=None)
            why, used = no_sample(second), second.used_cores or 0.0
            if why is not None or second.waited is None:
                pods[pod.uid] = before._replace(read_s=second.at_s, missing=why, kind=kind)
                continue
            if is_quiet:
                state.history.add(before.workload, kind, used, second.waited, snapshot.wall_s)
                quiet_s = now_s
            allowed, learnt = _allowed(state.history, before, pod, kind, used, now_s)
            pods[pod.uid] = before._replace(
                waits=before.waits.after(kind, WaitSample(second.at_s, second.waited, allowed.waited)),
                read_s=second.at_s,
                used_cores=used,
                missing=None,
                allowed=allowed,
                learnt=learnt,
                kind=kind,
            )
            sampled_s = now_s
        return replace(state, pods=pods, sampled_s=sampled_s, quiet_s=quiet_s)

    def _decided(
        self,
        snapshot: Snapshot,
        state: GuardState,
        errors: Mapping[str, float],
        used: float | None,
        asked: float | None,
    ) -> tuple[GuardState, str]:
        """The state with the next bound, and what is said of it."""
        now_s, cpus, strategy = snapshot.now_s, len(snapshot.node.cpus), snapshot.strategies.cpu_guard
        floor = node_floor(snapshot)
        state = replace(state, law=raised_to_floor(state.law, floor))
        if is_blind(now_s, state.sampled_s) or used is None or asked is None:
            blind_s = now_s if state.is_seeing else state.blind_s
            law, said = given_back(state.law, now_s, blind_s, cpus)
            state = replace(state, law=law, step=None, is_seeing=False, blind_s=blind_s)
            others = _others_text(snapshot, state)
            return state, f"blind: {blind_reason(snapshot, state, used)}; {said}{others}"
        law = state.law
        if not state.is_seeing and snapshot.be_limit_cores is not None:
            # CPU suppress ends its bound now: it goes on from there, or from its own if that bounds more.
            bound = max(int(snapshot.be_limit_cores * 1_000), floor)
            bound = bound if law.bound is None else min(bound, law.bound)
            law = replace(law, bound=bound, decreased_s=now_s)
        state = replace(state, is_seeing=True)
        if now_s - state.probed_s < PROBE_S:
            return replace(state, law=law), "probe: BE pods are at the floor, to learn what is usual"
        waits = dict(_waits(state))
        if strategy.probe and wants_probe(now_s, state.quiet_s, state.probed_s, waits):
            return replace(state, law=law, probed_s=now_s), "probe: BE pods go to the floor"
        step = decide(
            law,
            LawInputs(
                now_s=now_s,
                errors=errors,
                be_used=used * 1_000,
                be_asked=asked * 1_000,
                be_waits=be_waits(snapshot),
                others_used=others_used(snapshot, used),
                cpus=cpus,
                floor=strategy.floor_millicores,
                by_cpus=has_cpu_bounds(snapshot.node),
                moved_s=state.position.changed_s,
                loads=loads_of(snapshot, law, errors),
            ),
        )
        # What it goes back to may be of a smaller floor.
        step = step._replace(state=raised_to_floor(step.state, floor))
        return replace(state, law=step.state, step=step), step_text(snapshot, step, used)

    def _first_start_s(self, now_s: float, bound: int | None) -> float:
        """Since when a bound that was found is held: else processes that soon end would keep it for good."""
        # If there is no such folder, or it cannot be written, `_save` says so.
        if not self._options.folder or not Path(self._options.folder).is_dir():
            return now_s
        file = _started_file(self._options.folder)
        first_s = file.load(_first_start) if bound is not None else None
        if first_s is not None and first_s <= now_s:
            return first_s
        with suppress(OSError):
            file.save({"first_s": now_s})
        return now_s

    def _save(self, snapshot: Snapshot, state: GuardState) -> str:
        """Saves what was learnt if that is due; returns why that is not possible."""
        if not self._options.folder or snapshot.now_s - state.saved_s < SAVING_S:
            return ""
        if not Path(self._options.folder).is_dir():
            return f"{self._options.folder} cannot be written: there is no such folder"
        try:
            _started_file(self._options.folder).path.unlink(missing_ok=True)
            _file(self._options.folder).save(state.history.saved())
        except OSError as error:
            return f"{self._options.folder} cannot be written: {error.strerror}"
        return ""


def _allowed(
    history: QuietHistory, before: PodState, pod: Pod, kind: WaitKind, used: float, now_s: float
) -> tuple[WaitTarget, tuple[WaitKind, int, float | None, float] | None]:
    """The target of a pod; and if it depends on what is learnt, for what, and until when it stands."""
    own = pod.cpu_guard
    said = configured(kind, own.target_pressure_milliseconds, own.target_run_delay_percent, "strategy")
    is_annotated = _TARGET_FIELDS[kind] in pod.annotated_guard
    if said is not None and not is_annotated:
        return said, None
    load = load_of(used)
    asked = said.waited if said is not None else None
    if before.allowed is not None and before.learnt is not None:
        *found, until_s = before.learnt
        if found == [kind, load, asked] and now_s < until_s:
            return before.allowed, before.learnt
    learnt = kind, load, asked, now_s + LEARNT_S
    if asked is None:
        return history.target(before.workload, kind, used), learnt
    return annotated(kind, asked, history.usual(before.workload, kind, used)), learnt


def _is_probed(snapshot: Snapshot, state: GuardState) -> bool:
    """Whether a probe held BE pods to their floor in the last second."""
    if not 1 < snapshot.now_s - state.probed_s < PROBE_S + 1:
        return False
    used = [snapshot.metrics.last(each, Metric.CPU_USAGE, LOOK_BACK_S) for each in be_cgroups(snapshot)]
    return None not in used and sum(filter(None, used)) * 1_000 <= PROBED * node_floor(snapshot)


def _begun(state: GuardState, snapshot: Snapshot) -> GuardState:
    """The state of the first run: the bound of the claims that were held."""
    now_s = snapshot.now_s
    allowed = frozenset(cpu.id for cpu in be_cpus(snapshot.node, snapshot.pods))
    if state.cpus and allowed <= state.cpus:
        # They keep BE pods off CPUs of others, and bound nothing.
        state = replace(state, cpus=frozenset(), position=state.position._replace(cpus=0))
    bound = held_bound(state.position.quota_us, state.position.cpus)
    return replace(
        state,
        started_s=now_s,
        blind_s=now_s,
        quiet_s=now_s,
        saved_s=now_s - SAVING_S + FIRST_SAVING_S,
        # Nothing is known of its effect, which may be seen within a minute.
        law=LawState(bound=bound, decreased_s=now_s if bound is not None else NEVER_S),
    )


def _error(pod: PodState, now_s: float) -> float | None:
    return pod.waits.error(now_s) if pod.read_s > now_s - LOOK_BACK_S else None


def _waits(state: GuardState) -> Iterator[tuple[str, tuple[float, float]]]:
    for uid, pod in state.pods.items():
        if pod.waits.samples and pod.allowed is not None:
            yield uid, (pod.waits.samples[-1].waited, pod.allowed.waited)


def _moved(snapshot: Snapshot, state: GuardState) -> GuardState:
    """The state with the next position of CPUs and quota."""
    node, now_s = snapshot.node, snapshot.now_s
    bound = state.law.bound
    if state.is_seeing and now_s - state.probed_s < PROBE_S:
        bound = probed(state.law, node_floor(snapshot))
    by_cpus = bound is not None and is_by_cpus(bound, len(node.cpus), node.cpu_manager_policy)
    position = moved(state.position, bound, by_cpus=by_cpus, now_s=now_s)
    allowed = be_cpus(node, snapshot.pods)
    ids, count = frozenset(cpu.id for cpu in allowed), min(position.cpus, len(allowed))
    cpus = state.cpus & ids
    if len(cpus) != count:
        lsr = frozenset[int]().union(*(pod.cpus for pod in snapshot.pods if pod.qos is QoSClass.LSR))
        cpus = select_cpus(allowed, count, lsr)
    return replace(state, position=position, cpus=cpus)


def _is_guarding(state: GuardState, now_s: float) -> bool:
    """Whether it bounds BE pods instead of CPU suppress: it sees, or holds a bound."""
    return state.is_seeing or is_held(state.law, now_s, state.blind_s)


def _bounds(snapshot: Snapshot, state: GuardState, reason: str) -> Iterator[Claim]:
    """The claims on the class of BE pods."""
    if state.position.quota_us != UNLIMITED:
        yield Claim(BE_CLASS, QUOTA, Role.AT_MOST, state.position.quota_us, reason=reason)
    cpus = state.cpus
    if not cpus and _is_guarding(state, snapshot.now_s) and snapshot.strategies.threshold.enable:
        # CPU suppress keeps BE pods off CPUs of LSE pods, and claims nothing now.
        cpus = frozenset(cpu.id for cpu in be_cpus(snapshot.node, snapshot.pods))
        if len(cpus) == len(snapshot.node.cpus) or snapshot.node.cpu_manager_policy == "static":
            cpus = frozenset()
    if cpus:
        yield Claim(BE_CLASS, CPUS, Role.AT_MOST, format_cpu_list(cpus), reason=reason)


def _idle_claims(snapshot: Snapshot, has_guarded: bool) -> tuple[list[Claim], str]:
    """The claims that make BE pods yield, and why there are none."""
    if not snapshot.strategies.cpu_guard.idle_pods or not has_guarded:
        return [], ""
    if _FEATURE_IDLE not in snapshot.node.features:
        return [], "the kernel has no cpu.idle (5.15): BE pods keep their weights"
    claims: list[Claim] = []
    if snapshot.strategies.cpu_guard.class_idle:
        claims.append(Claim(BE_CLASS, IDLE, Role.SET, 1, reason="the class yields to LS pods: classIdle"))
    for pod in distinct_pods(snapshot.pods):
        if not is_best_effort(pod) or not _is_running(pod):
            continue
        target, reason = Target(Level.POD, pod.uid), "BE pods yield to LS pods"
        # Batch resources give weights, and the kernel refuses those of an idle cgroup.
        if any(_BATCH_CPU in each.requests for each in pod.containers):
            if not snapshot.strategies.cpu_guard.equal_weights:
                continue
            reason += ", all alike: equalWeights"
            claims.append(Claim(target, SHARES, Role.SET, MIN_CPU_SHARES, reason=reason))
        claims.append(Claim(target, IDLE, Role.SET, 1, reason=reason))
    return claims, ""


def _is_running(pod: Pod) -> bool:
    return any(each.state is ContainerState.RUNNING for each in pod.containers)


def _slice_claims(snapshot: Snapshot, state: GuardState, guarded: Sequence[Pod]) -> tuple[list[Claim], str]:
    """The claims on slices of guarded pods, and why some have none."""
    if not snapshot.strategies.cpu_guard.slice or not guarded:
        return [], ""
    if _FEATURE_SLICE not in snapshot.node.features:
        return (
            [],
            "tasks have no slices (Linux 6.12), or the daemon may not set them: LS pods keep the default",
        )
    if len(snapshot.node.cpus) == 1:
        return [], "on one CPU the kernel's slices are shorter than 1 ms: LS pods keep them"
    # Those that have them keep them, then the busiest ones.
    had = {each.target.id for each in state.claims if each.field == SLICE}
    pods = sorted(
        filter(_is_running, guarded),
        key=lambda pod: (pod.uid not in had, -usage_of(snapshot, pod), pod.uid),
    )
    claims = [
        Claim(Target(Level.POD, pod.uid), SLICE, Role.SET, SLICE_US, reason="LS pods get a CPU sooner")
        for pod in pods[:MOST_SLICED]
    ]
    left = len(pods) - len(claims)
    return claims, f"short slices of {MOST_SLICED} pods at most: {left} have none" if left else ""


def _threads_of(snapshot: Snapshot, state: GuardState, guarded: Sequence[Pod]) -> tuple[str, ...]:
    """The pods without pressure, the busiest ones first."""
    found = [
        (-usage_of(snapshot, pod), pod.cgroup)
        for pod in guarded
        if pod.uid not in state.pods or state.pods[pod.uid].kind is not WaitKind.PRESSURE
    ]
    return tuple(cgroup for _, cgroup in sorted(found))


def _figures(snapshot: Snapshot, state: GuardState) -> Figures:
    names = {pod.uid: pod for pod in snapshot.pods}
    step, law = state.step, state.law
    return Figures(
        is_blind=not state.is_seeing,
        rule=step.rule if step is not None else 0,
        error=step.error if step is not None else None,
        bound=law.bound,
        bad=law.bad,
        floor=node_floor(snapshot),
        pods=[
            PodFigures(
                names[uid].namespace,
                names[uid].name,
                pod.waits.kind,
                pod.waits.samples[-1].waited,
                pod.allowed.waited,
                uid in law.futile,
                uid in law.settled,
            )
            for uid, pod in state.pods.items()
            if uid in names and pod.waits.samples and pod.allowed is not None
        ],
    )


def _others_text(snapshot: Snapshot, state: GuardState) -> str:
    """Whether CPU suppress bounds BE pods while the guard is blind."""
    if not snapshot.asks_for(CpuSuppress.name):
        return ""
    if _is_guarding(state, snapshot.now_s):
        return ", and CPU suppress claims nothing until then"
    return "; CPU suppress bounds BE pods" + (" beside it" if state.law.bound is not None else "")


def _saved_s(state: GuardState, now_s: float) -> float:
    return now_s if now_s - state.saved_s >= SAVING_S else state.saved_s


def _file(folder: str) -> StateFile:
    return StateFile(Path(folder) / _FILE, "targets are learnt anew")


def _started_file(folder: str) -> StateFile:
    return StateFile(Path(folder) / _STARTED, "the hold of the bound begins anew", is_synced=False)


def _first_start(saved: Mapping[str, Any]) -> float:
    return float(saved["first_s"])
