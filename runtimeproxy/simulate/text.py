"""What a simulation has found, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runtimeproxy.hooks.policy import Mode
from runtimeproxy.simulate.result import PolicyChange, SimulatedField, SimulatedPod, Simulation, Target

_NONE = "-"


def lines_of(simulation: Simulation) -> Iterator[str]:
    """Yields a section for each pod, with a table for its sandbox and for each container."""
    for index, pod in enumerate(simulation.pods):
        if index:
            yield ""
        yield from _pod(pod)


def _pod(pod: SimulatedPod) -> Iterator[str]:
    qos = pod.qos or "no QoS class"
    yield f"{pod.source}: pod {pod.namespace}/{pod.name} ({qos}, {pod.kube_qos})"
    yield from (f"  added by the webhook: {each}" for each in pod.added)
    yield from (f"  note: {each}" for each in pod.notes)
    for target in pod.targets:
        yield from _target(target)


def _target(target: Target) -> Iterator[str]:
    yield f"  {target.kind} {target.name}:" if target.kind != "pod" else "  pod:"
    if target.refusal:
        yield f"    refused: {target.refusal}"
    yield from _table(target.fields)
    for each in target.remarks:
        what = f"{each.field}: {each.reason}" if each.field else each.reason
        yield f"    {each.policy} {each.kind}: {what}"
    yield from (f"    not simulated: {each}" for each in target.not_simulated)
    if not (target.fields or target.refusal or target.remarks):
        yield "    nothing changes"


def _table(fields: Sequence[SimulatedField]) -> Iterator[str]:
    if not fields:
        return
    rows = [("FIELD", "KUBELET", "RESULT", "CERTAINTY")]
    for each in fields:
        depends = f"depends on {', '.join(each.depends_on)}" if each.depends_on else "exact"
        unknown = "?" if each.name.startswith("cgroup[") else _NONE
        before = unknown if each.before is None else each.before
        rows.append((each.name, before, each.after if each.after is not None else _NONE, depends))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row, found in zip(rows, (None, *fields), strict=True):
        *columns, last = row
        cells = (cell.ljust(width) for cell, width in zip(columns, widths, strict=True))
        yield "    " + "  ".join((*cells, last))
        yield from () if found is None else (f"      {_change(each)}" for each in found.changes)


def _change(change: PolicyChange) -> str:
    does = f"{change.role.replace('_', ' ')}s {change.wanted}"
    if change.role == "at_most":
        does = f"allows at most {change.wanted}"
    elif change.wanted is None:
        does = "clears it"
    if change.mode is Mode.DRY_RUN:
        does = f"in dry-run, would change it to {change.wanted or _NONE}"
    elif not change.counts:
        does += ", which does not count"
    reasons = [each for each in (change.reason, change.note, *change.provenance) if each]
    return f"{change.policy} {does}" + (f": {'; '.join(reasons)}" if reasons else "")
