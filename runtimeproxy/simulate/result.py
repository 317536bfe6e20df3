"""The result of a simulation. All values are texts as the audit shows them: variables only as `<set>`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.qos import KubeQoSClass, PriorityClass, QoSClass
from runtimeproxy.simulate.levels import LevelVerdict
from runtimeproxy.vocabulary import Role


class Certainty(StrEnum):
    """How sure the result of a field is."""

    EXACT = "exact"
    """The runtime gets this value."""
    DEPENDS = "depends"
    """It depends on something that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """The claim of one policy on a field."""

    policy: str
    """Its name; of one in dry-run, what it would change."""
    mode: Mode = Mode.ENFORCE
    role: Role = Role.SET
    """`set`, `scale`, `add` or `at_most`."""
    wanted: str | None = None
    """The value, ratio, amount or bound; None: the field is cleared."""
    counts: bool = True
    """Whether it has an effect on the result."""
    reason: str = ""
    note: str = ""
    """Why it has no effect, or another one."""
    provenance: tuple[str, ...] = ()
    """Where the strategies behind it come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedField:
    """A field that policies give a value to."""

    name: str
    """Such as `resources.cpu_shares` or `cgroup[cpu.cfs_burst_us]`."""
    before: str | None
    """By the kubelet; None: no value, or for a cgroup's file that it is not known."""
    after: str | None
    """As the runtime gets it; None: no value."""
    is_changed: bool = False
    """Whether these differ; of variables and long texts they look the same."""
    owner: str = ""
    """The policies that the value comes from, joined by `+`; empty if none has an effect."""
    depends_on: tuple[str, ...] = ()
    """Unknown facts that may lead to another result."""
    changes: tuple[PolicyChange, ...] = ()

    @property
    def certainty(self) -> Certainty:
        return Certainty.DEPENDS if self.depends_on else Certainty.EXACT


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something else that a policy leads to: it is off, fails, or a value of it cannot be used."""

    policy: str
    kind: AuditKind
    reason: str
    field: str = ""
    """Empty for the whole policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTarget:
    """The sandbox of a pod, or one of its containers."""

    kind: str
    """`pod`, `init`, `sidecar` or `container`."""
    name: str
    fields: tuple[SimulatedField, ...] = ()
    remarks: tuple[Remark, ...] = ()
    refusal: str = ""
    """Why the call would be refused; empty if it would not."""
    not_simulated: tuple[str, ...] = ()
    """Possible changes by others, such as `hook server NAME`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSimulation:
    """A pod with its containers, in the order of their calls; those after a refusal are missing."""

    source: str
    namespace: str
    name: str
    qos: QoSClass
    kube_qos: KubeQoSClass
    priority: PriorityClass
    targets: tuple[SimulatedTarget, ...]
    added: tuple[str, ...] = ()
    """Changes by Koordinator's webhook, for people."""
    notes: tuple[str, ...] = ()
    katalyst: LevelVerdict | None = None
    """None: it has no level of Katalyst's."""

    @property
    def is_refused(self) -> bool:
        is_by_katalyst = self.katalyst is not None and self.katalyst.is_refused
        return is_by_katalyst or any(each.refusal for each in self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All pods of a text."""

    pods: tuple[PodSimulation, ...] = ()

    @property
    def is_refused(self) -> bool:
        return any(each.is_refused for each in self.pods)


def simulation_as_json(simulation: Simulation) -> dict[str, Any]:
    # Empty lists and texts are there, too.
    return {"refused": simulation.is_refused, "pods": [_pod_as_json(each) for each in simulation.pods]}


def _pod_as_json(pod: PodSimulation) -> dict[str, Any]:
    document = asdict(pod, dict_factory=_camel_case)
    for target, made in zip(pod.targets, document["targets"], strict=True):
        for field, about in zip(target.fields, made["fields"], strict=True):
            about["certainty"] = field.certainty.value
    return document


_KEYS: Final = {
    "qos": "qosClass",
    "kube_qos": "kubeQOSClass",
    "priority": "priorityClass",
    "is_changed": "changed",
    "is_refused": "refused",
    "depends_on": "dependsOn",
    "not_simulated": "notSimulated",
}


def _camel_case(items: list[tuple[str, Any]]) -> dict[str, Any]:
    # Texts of enumerations are no plain ones for the writer of YAML.
    return {_KEYS.get(key, key): value.value if isinstance(value, StrEnum) else value for key, value in items}


def level_as_json(verdict: LevelVerdict) -> dict[str, Any]:
    return asdict(verdict, dict_factory=_camel_case)
