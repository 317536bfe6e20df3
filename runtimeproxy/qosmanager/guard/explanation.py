"""What the guard says: of its decision, of each pod, and why it sees nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from runtimeproxy.qosmanager.guard.law import LawStep
from runtimeproxy.qosmanager.guard.reading import distinct_pods, is_best_effort, node_floor
from runtimeproxy.qosmanager.guard.signal import BLIND_S, SAMPLES, NoSample, WaitKind
from runtimeproxy.qosmanager.guard.state import NEVER_S, GuardState, PodState
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Metric, Pod, Snapshot

MOST_NAMED: Final = 3
"""Pods that an explanation names."""
STEAL_EVERY_S: Final = 10.0
"""On nodes with many CPUs /proc/stat is long."""
STEAL_S: Final = 30.0
LEAST_STEAL_CORES: Final = 0.01
"""A hypervisor that takes less, in the mean of so long, is not named."""


def step_text(snapshot: Snapshot, step: LawStep, used: float) -> str:
    """The decision with its arithmetic.

    Args:
        snapshot: Of now.
        step: The decision.
        used: What BE pods use, in cores.
    """
    bound = "none" if step.state.bound is None else f"{step.state.bound}m"
    bad = "" if step.state.bad is None else f", B_bad {step.state.bad}m"
    error = "none" if step.error is None else f"{step.error:.2f}"
    driver = f" of {_name(snapshot, step.driver)}" if step.driver else ""
    values = f"E {error}{driver}, B {bound}{bad}, F {node_floor(snapshot)}m, BE pods use {used * 1_000:.0f}m"
    return f"rule {step.rule}: {step.reason}; {values}"


def waits_text(snapshot: Snapshot, state: GuardState, errors: Mapping[str, float]) -> Iterator[str]:
    """Pods for which a lower bound has no effect, and the waits of those with the largest errors (by uid)."""
    felt = sorted((uid for uid, error in errors.items() if error > 0), key=lambda each: (-errors[each], each))
    for word, why, pods in _ineffective(state):
        for uid, until_s in sorted(pods.items())[:MOST_NAMED]:
            yield f"{word}: {_name(snapshot, uid)} for {until_s - snapshot.now_s:.0f} s: {why}"
        if len(pods) > MOST_NAMED:
            yield f"{word}: {len(pods) - MOST_NAMED} more pods"
    for uid in felt[:MOST_NAMED]:
        yield f"{_name(snapshot, uid)}: {_wait_text(state.pods[uid], errors[uid])}"


def steal_text(snapshot: Snapshot) -> str:
    """What the hypervisor takes; empty if that is little, or not known."""
    # A bound can make it more: a CPU that sleeps has to be given back first, a busy one need not.
    steal = snapshot.metrics.mean(NODE_CGROUP, Metric.CPU_STEAL, STEAL_S) or 0.0
    if steal < LEAST_STEAL_CORES:
        return ""
    return f"the hypervisor takes {steal * 1_000:.0f} ms of CPU time a second (steal), which is in no wait"


def pod_notes(
    snapshot: Snapshot, state: GuardState, errors: Mapping[str, float], said: str
) -> dict[str, list[str]]:
    """What is said of each guarded pod, and of BE pods; by text the pods' uids.

    Args:
        snapshot: Of now.
        state: Of now.
        errors: By uid.
        said: Of the decision.
    """
    notes: dict[str, list[str]] = {}
    driver = state.step.driver if state.step is not None else ""
    unread = ""
    for pod in distinct_pods(snapshot.pods):
        if is_best_effort(pod):
            notes.setdefault(f"BE pods together: {said}", []).append(pod.uid)
        if (found := state.pods.get(pod.uid)) is None:
            continue
        parts = [_wait_text(found, errors[pod.uid])] if pod.uid in errors else []
        if found.missing is NoSample.NOTHING_READ:
            # The same for all, and read of a file.
            unread = unread or "; ".join(_absences(snapshot, pod)) or "no reason is known yet"
            parts.append(f"no sample: {found.missing}: {unread}")
        elif found.missing is not None:
            parts.append(f"no sample: {found.missing}")
        elif not parts:
            parts.append(f"{len(found.waits.samples)} of {SAMPLES} samples so far")
        parts += [
            f"{word} for {pods[pod.uid] - snapshot.now_s:.0f} s: {why}"
            for word, why, pods in _ineffective(state)
            if pod.uid in pods
        ]
        parts += ["BE pods are bounded by what it waits"] if pod.uid == driver and state.law.bound else []
        notes.setdefault("; ".join(parts), []).append(pod.uid)
    return notes


def blind_reason(snapshot: Snapshot, state: GuardState, used: float | None) -> str:
    """Why no pod has a sample; `used` is what BE pods use, None: not known."""
    if not state.pods:
        return "there is no LS, LSR or LSE pod"
    if used is None:
        return "what BE pods use is not known"
    counts: dict[str, int] = {}
    for pod in snapshot.pods:
        if pod.uid in state.pods:
            text = str(state.pods[pod.uid].missing or "no sample yet")
            counts[text] = counts.get(text, 0) + 1
    found = ", ".join(f"{text} ({count} pods)" for text, count in sorted(counts.items()))
    unread = next(
        (pod for pod in snapshot.pods if pod.uid in state.pods and _is_unread(state.pods[pod.uid])), None
    )
    if unread is None:
        return found
    return ": ".join((found, *_absences(snapshot, unread)))


def unreadable(snapshot: Snapshot, state: GuardState, used: float | None) -> str:
    """Why nothing can be told of any guarded pod, in neither way, or of BE pods; empty if that is not so.

    As long as it is not known, too.
    """
    if not state.pods:
        return ""
    is_long = snapshot.now_s - max(state.blind_s, state.started_s or NEVER_S) >= BLIND_S
    if used is None and is_long and any(map(is_best_effort, snapshot.pods)):
        return "BE pods are not bounded, as it cannot be read what they use"
    if is_long and all(each.missing is NoSample.LENGTH for each in state.pods.values()):
        return "BE pods are not bounded, as samples are not about a second apart: qosmanager.interval_s"
    if not all(map(_is_unread, state.pods.values())):
        return ""
    reasons = next((_absences(snapshot, pod) for pod in snapshot.pods if pod.uid in state.pods), [])
    if len(reasons) < len(WaitKind):
        return ""
    return f"BE pods are not bounded, as it cannot be read what others wait: {'; '.join(reasons)}"


def _is_unread(pod: PodState) -> bool:
    return pod.missing is NoSample.NOTHING_READ


def _ineffective(state: GuardState) -> tuple[tuple[str, str, Mapping[str, float]], ...]:
    """Pods for which a lower bound has no effect, and until when that is taken to be so."""
    return (
        ("futile", "it waits, but not behind BE pods", state.law.futile),
        ("settled", "a lower bound had no more effect", state.law.settled),
    )


def _wait_text(pod: PodState, error: float) -> str:
    if pod.allowed is None or not pod.waits.samples:
        return f"e {error:.2f}"
    unit = "ms/s" if pod.waits.kind is WaitKind.PRESSURE else "permille run delay"
    waited = pod.waits.samples[-1].waited
    return f"w {waited:.1f}, t {pod.allowed.waited:.1f} {unit} ({pod.allowed.source}), e {error:.2f}"


def _absences(snapshot: Snapshot, pod: Pod) -> list[str]:
    """Why nothing can be read of a pod, by metric; empty if that is not known."""
    metrics = (Metric.CPU_PRESSURE_FULL, Metric.CPU_RUN_DELAY)
    return [why for each in metrics if (why := snapshot.metrics.absence(pod.cgroup, each))]


def _name(snapshot: Snapshot, uid: str) -> str:
    return next((pod.full_name for pod in snapshot.pods if pod.uid == uid), uid)
