"""Where claims with a lease count: the cgroups of containers, pods, QoS classes and host applications.

Claims on Katalyst's pools are for no cgroup: their target is without one. Used in the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from runtimeproxy.cgroups.paths import cgroup_id, path_or_none
from runtimeproxy.fields.tables import IDLE
from runtimeproxy.ledger.answers import class_cgroups, target_of
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.node.machine import SYSTEMD_IDLE
from runtimeproxy.pods.records import ContainerRecord, Level, Lifecycle, PodRecord
from runtimeproxy.qos import KubeQoSClass, kube_qos_class
from runtimeproxy.vocabulary import ClaimKey, ClaimLevel

if TYPE_CHECKING:
    from runtimeproxy.pods.store import PodStore


class ClaimPlace(NamedTuple):
    """Where a claim counts."""

    target: CgroupTarget
    record: ContainerRecord | None = None
    """Of a container: what the kubelet asked for."""


class ClaimPlaces:
    """Finds the cgroups of claims. Used in the event loop's thread.

    Args:
        cgroup_of: The cgroup of a container; empty if it is not known.
        host_cgroup: The cgroup of a host application by its name; empty if there is none.
        is_class_reset: Whether a weight of an idle QoS class is taken: see `Feature.CLASS_IDLE`.
        pool_problem: Why a pool, by its name, has no value of this field; empty if it has.
    """

    def __init__(
        self,
        store: PodStore,
        cgroup_of: Callable[[PodRecord, ContainerRecord], str],
        host_cgroup: Callable[[str], str],
        pool_problem: Callable[[str, str], str] = lambda pool, field: "there are no pools",
        is_class_reset: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._cgroup_of = cgroup_of
        self._host_cgroup = host_cgroup
        self._pool_problem = pool_problem
        self._is_class_reset = is_class_reset
        self._classes: dict[KubeQoSClass, str] = {}

    def find(self, key: ClaimKey) -> ClaimPlace | str:
        """Where a claim counts, or why that is not known."""
        if key.level is ClaimLevel.CONTAINER:
            return self._container(key.target)
        if key.level is ClaimLevel.POD:
            found = [
                pod for pod in self._store.pods.members(key.target) if pod.state is not Lifecycle.STOPPED
            ]
            if not found or path_or_none(found[-1].cgroup_parent) is None:
                return f"no pod with the uid {key.target[:64]} runs, or its cgroup is not known"
            if key.field == IDLE and kube_qos_class(found[-1].cgroup_parent) is not KubeQoSClass.BEST_EFFORT:
                return f"{IDLE} is for pods that are BestEffort in Kubernetes: others have weights"
            return ClaimPlace(target_of(found[-1]))
        if key.level is ClaimLevel.QOS_CLASS:
            if key.field == IDLE and key.target != KubeQoSClass.BEST_EFFORT:
                return f"{IDLE} is for the class {KubeQoSClass.BEST_EFFORT}: others have weights"
            place = self._class(key.target)
            if key.field == IDLE and isinstance(place, ClaimPlace):
                return self._idle_problem(place.target.cgroup) or place
            return place
        if key.level is ClaimLevel.POOL:
            problem = self._pool_problem(key.target, key.field)
            return problem or ClaimPlace(CgroupTarget(Level.NODE, "", f"pool {key.target}"))
        cgroup = self._host_cgroup(key.target)
        if path_or_none(cgroup) is None:
            return f"there is no host application {key.target[:64]}, or its cgroup is not known"
        return ClaimPlace(CgroupTarget(Level.NODE, cgroup, key.target))

    def _idle_problem(self, cgroup: str) -> str:
        """Why a QoS class cannot be idle; empty if it can.

        The kubelet writes its weight every minute, and at its start, which fails where that is refused.
        """
        if not cgroup.endswith(".slice"):
            return (
                "the kubelet writes the weight of an idle class itself (cgroupfs), which the kernel refuses"
            )
        if not self._is_class_reset():
            return f"an idle class needs cgroup version 2 and systemd {SYSTEMD_IDLE}, whose weights end it"
        return ""

    def keys(self) -> dict[str, tuple[ClaimLevel, str]]:
        """Maps the id of each known cgroup to claim level and target."""
        found: dict[str, tuple[ClaimLevel, str]] = {}
        for pod in self._store.pods:
            if not pod.cgroup_parent or pod.state is Lifecycle.STOPPED:
                continue
            cgroups = {pod.cgroup_parent: (ClaimLevel.POD, pod.uid)}
            for container in self._store.containers.members(pod.id):
                cgroups[self._cgroup_of(pod, container)] = (ClaimLevel.CONTAINER, container.id)
            for cgroup, each in cgroups.items():
                if (path := path_or_none(cgroup)) is not None:
                    found[cgroup_id(path)] = each
        for qos in KubeQoSClass:
            place = self._class(qos)
            if isinstance(place, ClaimPlace):
                found[place.target.cgroup] = (ClaimLevel.QOS_CLASS, qos.value)
        return found

    def records(self) -> dict[str, ContainerRecord]:
        """The containers by the ids of their cgroups' books."""
        found: dict[str, ContainerRecord] = {}
        for container in self._store.containers:
            pod = self._store.pods.get(container.pod_id)
            if pod is None or container.recovered:
                continue
            if (path := path_or_none(self._cgroup_of(pod, container))) is not None:
                found[cgroup_id(path)] = container
        return found

    def _container(self, identity: str) -> ClaimPlace | str:
        container = self._store.containers.get(identity)
        pod = self._store.pods.get(container.pod_id) if container is not None else None
        if (
            container is None
            or pod is None
            or container.id != identity
            or container.state is Lifecycle.STOPPED
        ):
            return f"no container with the id {identity[:64]} is known"
        cgroup = self._cgroup_of(pod, container)
        if not cgroup:
            return f"the cgroup of container {identity[:64]} is not known"
        return ClaimPlace(target_of(pod, container, cgroup), container)

    def _class(self, name: str) -> ClaimPlace | str:
        if name not in set(KubeQoSClass):
            return f"{name[:64]!r} is not a QoS class: {', '.join(KubeQoSClass)}"
        if not self._classes:
            pods = (pod.cgroup_parent for pod in self._store.pods if pod.cgroup_parent)
            self._classes = class_cgroups(_with_classes(pods), self._store.kubelet_root)
        cgroup = self._classes.get(KubeQoSClass(name))
        if cgroup is None:
            return "the cgroups of QoS classes are not known before a pod runs"
        return ClaimPlace(CgroupTarget(Level.QOS_CLASS, cgroup, f"QoS class {name}"))


def _with_classes(parents: Iterable[str]) -> Iterator[tuple[tuple[str, ...], KubeQoSClass]]:
    for parent in parents:
        if (path := path_or_none(parent)) is not None:
            yield path, kube_qos_class(parent)
