"""Snapshots and samples for tests of plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runtimeproxy.qos import QOS_CLASS_LABEL, KubeQoSClass, QoSClass, priority_class_with_default
from runtimeproxy.qosmanager.plugin import Claim, Role
from runtimeproxy.qosmanager.snapshot import Container, Cpu, Level, Metric, Metrics, Node, Pod, Window

BURSTABLE = "/kubepods/burstable"
BEST_EFFORT = "/kubepods/besteffort"


class FixedMetrics(Metrics):
    """Samples that do not change: the same number in every window.

    Attributes:
        values: By cgroup and metric: the number, or a whole window.
    """

    def __init__(self, values: Mapping[tuple[str, Metric], float | Window] | None = None) -> None:
        self.values = dict(values or {})

    def window(self, cgroup: str, metric: Metric, length_s: float) -> Window | None:
        value = self.values.get((cgroup, metric))
        if value is None or isinstance(value, Window):
            return value
        return Window(value, value, value, value, value, value, max(int(length_s), 1))


def cpus_of(count: int, per_socket: int = 0, threads: int = 2) -> tuple[Cpu, ...]:
    """CPUs with neighbours as threads of one core; one NUMA node per socket."""
    size = per_socket or count
    return tuple(Cpu(id=n, core=n // threads, socket=n // size, numa_node=n // size) for n in range(count))


def node_of(cpus: int | Iterable[Cpu], **fields: Any) -> Node:
    there = cpus_of(cpus) if isinstance(cpus, int) else tuple(cpus)
    return Node(**{"cpus": there, "capacity": {"cpu": len(there) * 1_000}, **fields})


def pod_of(name: str, qos: QoSClass = QoSClass.LS, **fields: Any) -> Pod:
    """A pod with one container, whose cgroups follow from its name."""
    kube_qos = fields.pop(
        "kube_qos", KubeQoSClass.BEST_EFFORT if qos is QoSClass.BE else KubeQoSClass.BURSTABLE
    )
    qos_label = {QOS_CLASS_LABEL: qos}
    fields.setdefault(
        "priority_class", priority_class_with_default(qos_label, fields.get("priority"), kube_qos)
    )
    parent = BEST_EFFORT if kube_qos is KubeQoSClass.BEST_EFFORT else BURSTABLE
    cgroup = f"{parent}/pod{name}"
    containers = fields.pop("containers", (container_of(name, cgroup),))
    return Pod(
        sandbox_id=f"sandbox-{name}",
        uid=name,
        namespace="default",
        name=name,
        qos=qos,
        kube_qos=kube_qos,
        cgroup=cgroup,
        containers=containers,
        **fields,
    )


def container_of(name: str, pod_cgroup: str = "", **fields: Any) -> Container:
    return Container(id=f"c-{name}", name=name, cgroup=f"{pod_cgroup}/c-{name}", **fields)


def values_of(claims: Iterable[Claim], field: str, role: Role) -> dict[tuple[Level, str], int | str]:
    """The values of the claims on one field, by target."""
    return {tuple(each.target): each.value for each in claims if (each.field, each.role) == (field, role)}  # type: ignore[misc]
