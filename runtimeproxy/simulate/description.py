"""From the decisions of policies to what a simulation says of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from runtimeproxy.fields.tables import clamped
from runtimeproxy.hooks.algebra import Claim, Resolved, resolve
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, shown
from runtimeproxy.hooks.carried import CarriedFields
from runtimeproxy.hooks.changes import CLEAR, Clear
from runtimeproxy.hooks.claimants import labels_of
from runtimeproxy.hooks.decision import Decision, Unmet
from runtimeproxy.hooks.fields import (
    CGROUP,
    RESOURCES,
    UNIFIED,
    Field,
    Value,
    is_same,
    rounded_for_systemd,
    written_value,
)
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import PodView
from runtimeproxy.ledger.answers import cgroup_parameter
from runtimeproxy.node.snapshot import Input, InputState, Node
from runtimeproxy.simulate.result import PolicyChange, Remark, SimulatedField, SimulatedTarget
from runtimeproxy.slo.strategies import BY_DEFAULT

INPUT_TEXTS: Final[Mapping[Input, str]] = {
    Input.CPUS: "the node's CPUs",
    Input.MEMORY: "the node's memory",
    Input.CGROUPS: "the node's cgroups",
    Input.BLOCK_DEVICES: "the node's block devices",
    Input.DEVICES: "the node's devices",
    Input.KUBELET: "the kubelet's configuration",
    Input.NODE_OBJECT: "the Node object",
    Input.POOLS: "the node's CPU pools",
    Input.CPU_POOLS: "the pools of Katalyst",
    Input.STRATEGIES: "the strategies",
    Input.NORMALIZATION: "the node's normalization ratio",
    Input.KATALYST: "Katalyst's dynamic configuration",
    Input.POD_REQUESTS: "whether the kubelet saves requests",
}
"""Inputs for people. A priority class that no label names is unknown on the node, too."""
CGROUPS: Final = INPUT_TEXTS[Input.CGROUPS]
CPUS: Final = INPUT_TEXTS[Input.CPUS]
_VARIED: Final = frozenset({Input.KUBELET, Input.POD_REQUESTS, Input.CGROUPS, Input.PRIORITY})
"""Inputs of which both possibilities are simulated, and those that no result depends on."""
_CLAIMED: Final = frozenset({RESOURCES, UNIFIED, CGROUP})
"""The groups in which the values of several policies come together."""
_TROUBLE: Final = frozenset({AuditKind.REFUSED, AuditKind.FAILED, AuditKind.INVALID, AuditKind.LEFT_OUT})


class Asked(NamedTuple):
    """One question to the policies, and their decision; None if none had to run."""

    kind: str
    name: str
    hook: Hook
    pod: PodView
    decision: Decision | None
    unknown: Mapping[str, str]
    cgroup_values: Mapping[str, int] = {}
    """The kubelet's values of its cgroup; those that are not known are missing."""


@dataclass(frozen=True, slots=True)
class Description:
    """Makes the result of what was asked."""

    policies: Mapping[str, LoadedPolicy]
    node: Node
    differing: Mapping[tuple[str, str], Sequence[str]]
    servers: Sequence[LoadedPolicy]
    rule: ConflictRule
    carried: CarriedFields

    def target(self, asked: Asked, *, is_skipped: bool) -> SimulatedTarget:
        decision = asked.decision
        off = {} if is_skipped else dict(self._off(asked))
        servers = () if is_skipped else tuple(self._servers_of(asked))
        remarks = [
            Remark(policy=name, kind=AuditKind.OFF, reason=str(Unmet(unknown)))
            for name, unknown in off.items()
        ]
        fields: tuple[SimulatedField, ...] = ()
        if decision is not None:
            remarks += (*_remarks(decision), *self._never_applied(asked, decision))
            fields = tuple(self._fields(asked, decision, _depending(self.policies, off), servers))
        return SimulatedTarget(
            kind=asked.kind,
            name=asked.name,
            fields=fields,
            remarks=tuple(remarks),
            refusal=decision.refusal.text if decision is not None and decision.refusal is not None else "",
            not_simulated=servers,
        )

    def _off(self, asked: Asked) -> Iterator[tuple[str, tuple[Input, ...]]]:
        # Those that may be about the pod, and do not run while an input is not known.
        for policy in self.policies.values():
            if asked.hook not in policy.methods or not policy.selector.matches(asked.pod):
                continue
            if policy.selector_on(self.node).matches(asked.pod):
                unknown = self.node.unknown_inputs(policy.inputs, asked.pod)
            else:
                states = {each: self.node.state_of(each) for each in policy.selector_without}
                unknown = tuple(each for each, state in states.items() if state is InputState.UNKNOWN)
            if unknown:
                yield policy.name, unknown

    def _servers_of(self, asked: Asked) -> Iterator[str]:
        for server in self.servers:
            if asked.hook in server.remote_hooks and server.selector.matches(asked.pod):
                yield f"hook server {server.name}"

    def _fields(
        self, asked: Asked, decision: Decision, off: Sequence[str], servers: Sequence[str]
    ) -> Iterator[SimulatedField]:
        changed = {(each.policy, each.field): each for each in decision.audit}
        would = [each for each in decision.audit if each.kind is AuditKind.WOULD_CHANGE and each.field]
        placed = {
            each.owner
            for field, merged in decision.merged.fields.items()
            if field.group == RESOURCES and field.key.startswith("cpuset")
            for each in merged.claims
        }
        for field, before_base in decision.merged.fields.items():
            if self._is_never_applied(asked, field):
                continue
            name, merged = str(field), self._with_base(field, before_base, asked)
            changes = [
                *self._changes(asked, field, merged, changed),
                *(self._dry_run(asked, each) for each in would if each.field == name),
            ]
            depends = [
                *self._depends(asked, field, {each.policy for each in changes if each.mode is Mode.ENFORCE}),
                *(off if field.group in _CLAIMED else ()),
                *self._depends_on_node(field, not placed.isdisjoint(each.owner for each in merged.claims)),
                *((asked.unknown[name],) if name in asked.unknown else ()),
                *servers,
            ]
            before, after, is_changed = before_and_after(field, merged, decision)
            yield SimulatedField(
                name=name,
                before=before,
                after=after,
                is_changed=is_changed,
                owner=labels_of(merged.owners),
                depends_on=tuple(dict.fromkeys(depends)),
                changes=tuple(changes),
            )
        names = {str(field) for field in decision.merged.fields}
        for name in dict.fromkeys(each.field for each in would if each.field not in names):
            entries = [each for each in would if each.field == name]
            before_text = entries[0].old or None
            yield SimulatedField(
                name=name,
                before=before_text,
                after=before_text,
                changes=tuple(self._dry_run(asked, each) for each in entries),
            )

    def _is_never_applied(self, asked: Asked, field: Field) -> bool:
        is_container = asked.kind != "pod"
        if cgroup_parameter(field, is_container=is_container):
            return False
        return not self.carried.carries_at_creation(field, is_container=is_container)

    def _never_applied(self, asked: Asked, decision: Decision) -> Iterator[Remark]:
        """What the front end does not carry; of a creation the decision tells it."""
        for field, merged in decision.merged.fields.items():
            if self._is_never_applied(asked, field):
                policy, reason = labels_of(merged.owners), self.carried.reason
                yield Remark(policy=policy, kind=AuditKind.LEFT_OUT, reason=reason, field=str(field))

    def _with_base(self, field: Field, merged: Resolved, asked: Asked) -> Resolved:
        """The value of a file with the kubelet's value as the base, which a call does not know."""
        base = asked.cgroup_values.get(field.key) if field.group == CGROUP else None
        if base is None:
            return merged
        merged = merged._replace(original=base)
        if not merged.steps:
            return merged
        resolved = resolve(field.key, base, merged.claims, rule=self.rule)
        value = resolved.value
        if isinstance(value, int | str):
            value = clamped(field.key, value)
        return resolved._replace(value=value, original=base, claims=merged.claims)

    def _depends(self, asked: Asked, field: Field, names: Iterable[str]) -> Iterator[str]:
        """The unknown inputs of these policies, and the variants in which they answer otherwise."""
        for name in sorted(names):
            policy = self.policies[name]
            inputs = self.node.unknown_inputs((*policy.inputs, *policy.optional_inputs), asked.pod)
            yield from (INPUT_TEXTS[each] for each in inputs if each not in _VARIED)
        yield from self.differing.get((asked.name, str(field)), ())

    def _depends_on_node(self, field: Field, is_with_cpus: bool) -> Iterator[str]:
        """The unknown facts that decide whether the node can take the value.

        Without CPUs or NUMA nodes that its policy sets, too, it may have no effect.
        """
        if field.group == CGROUP or (
            field.group == UNIFIED and self.node.state_of(Input.CGROUPS) is not InputState.KNOWN
        ):
            yield CGROUPS
        if field.group == RESOURCES and is_with_cpus and self.node.facts.online_cpus is None:
            yield CPUS

    def _changes(
        self,
        asked: Asked,
        field: Field,
        merged: Resolved,
        entries: Mapping[tuple[str, str], AuditEntry],
    ) -> Iterator[PolicyChange]:
        notes = {each.claim: each for each in merged.notes}
        for claim in merged.claims:
            note = notes.get(claim)
            yield PolicyChange(
                policy=claim.owner.label,
                role=claim.role,
                wanted=_text(field, claim.value),
                counts=_counts(claim, merged),
                reason=str(claim.reason),
                note=note.reason if note is not None else "",
                provenance=self._provenance(claim.owner.name, str(claim.reason), asked),
            )
        if not merged.claims and merged.owners:
            owner = labels_of(merged.owners)
            entry = entries.get((owner, str(field)))
            reason = entry.reason if entry is not None else ""
            yield PolicyChange(
                policy=owner,
                wanted=_text(field, merged.value),
                reason=reason,
                provenance=self._provenance(owner, reason, asked),
            )

    def _dry_run(self, asked: Asked, entry: AuditEntry) -> PolicyChange:
        return PolicyChange(
            policy=entry.policy,
            mode=entry.mode,
            wanted=entry.new or None,
            counts=False,
            reason=entry.reason,
            note=entry.note,
            provenance=self._provenance(entry.policy, entry.reason, asked),
        )

    def _provenance(self, name: str, reason: str, asked: Asked) -> tuple[str, ...]:
        """The sources of the strategies behind a policy's value, each once, for people.

        Empty if it depends on no strategy, or only on defaults.
        """
        named = asked.decision.sources_of(name, reason) if asked.decision is not None else None
        if named is not None:
            found = (each.provenance for each in named)
            return tuple(dict.fromkeys(str(each) for each in found if each != BY_DEFAULT))
        return tuple(dict.fromkeys(self._provenance_of_parts(name, asked)))

    def _provenance_of_parts(self, name: str, asked: Asked) -> list[str]:
        """Of a policy that does not say what its values follow from: the sources of all that it reads."""
        found: list[str] = []
        for part in sorted(self.policies[name].policy.strategy_parts):
            for provenance in (self.node.strategy_for(asked.pod).provenance, self.node.strategies.provenance):
                texts = [
                    str(each)
                    for path, each in provenance.items()
                    if path == part or path.startswith(f"{part}.")
                ]
                if texts:
                    found += texts
                    break
        return found


def _depending(policies: Mapping[str, LoadedPolicy], off: Mapping[str, Iterable[Input]]) -> list[str]:
    """The unknown inputs of enforcing policies that are off, and might want other values."""
    inputs = (
        each for name, unknown in off.items() if policies[name].mode is Mode.ENFORCE for each in unknown
    )
    return list(dict.fromkeys(INPUT_TEXTS[each] for each in inputs if each is not Input.PRIORITY))


def _remarks(decision: Decision) -> Iterator[Remark]:
    for entry in decision.audit:
        if entry.kind in _TROUBLE and not (
            decision.refusal is not None and entry.kind is AuditKind.REFUSED and entry.mode is Mode.ENFORCE
        ):
            yield Remark(policy=entry.policy, kind=entry.kind, reason=entry.reason, field=entry.field)
    for field, merged in decision.merged.fields.items():
        if merged.problem:
            yield Remark(
                policy=labels_of(merged.owners),
                kind=AuditKind.VOID,
                reason=merged.problem,
                field=str(field),
            )


def before_and_after(
    field: Field, merged: Resolved, decision: Decision
) -> tuple[str | None, str | None, bool]:
    """The value before and after the policies, and whether these differ."""
    before, value = _text(field, merged.original), result_of(field, merged, decision)
    if not merged.owners or is_same(field, merged.original, value):
        return before, before, False
    if field.group == RESOURCES and isinstance(value, int | str | Clear):
        value = written_value(field.key, value, update=False)
        # 0 and an empty text have no bytes on the wire.
        after = _text(field, value) if value else None
        return before, after, before != after
    return before, _text(field, value), True


def _counts(claim: Claim, merged: Resolved) -> bool:
    return claim in merged.used if merged.steps else claim.owner in merged.owners


def _text(field: Field, value: Value | float) -> str | None:
    if value is None or value is CLEAR:
        return None
    return str(value) if isinstance(value, float) else shown(field, value)


def result_of(field: Field, merged: Resolved, decision: Decision) -> Value:
    if not merged.owners:
        return merged.original
    return rounded_for_systemd(decision.merged.start, field, merged.value)
