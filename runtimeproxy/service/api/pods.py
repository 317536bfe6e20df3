"""Pods and containers as messages, and finding a pod by what a person knows of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.calls.cri_call import container_cgroup
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks.fields import CGROUP, RESOURCE_PARAMETERS, RESOURCES
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.qos import kube_qos_class, priority_class, qos_class
from runtimeproxy.service.api.values import shown
from runtimeproxy.units import format_cpu_list

if TYPE_CHECKING:
    from runtimeproxy.pods.store import PodStore
    from runtimeproxy.service.engine import Engine

MOST_CANDIDATES: Final = 10
"""Pods that an error names."""

_POD_STATES: Final = {
    Lifecycle.RUNNING: api_pb2.Pod.STATE_READY,
    Lifecycle.STOPPED: api_pb2.Pod.STATE_STOPPED,
}
_CONTAINER_STATES: Final = {
    Lifecycle.CREATED: api_pb2.Container.STATE_CREATED,
    Lifecycle.RUNNING: api_pb2.Container.STATE_RUNNING,
    Lifecycle.STOPPED: api_pb2.Container.STATE_STOPPED,
}


class UnknownPodError(RuntimeProxyError):
    """No pod or container is like that."""


class AmbiguousPodError(RuntimeProxyError):
    """Several pods are like that."""


def find_pod(store: PodStore, text: str) -> PodRecord:
    """The pod that a text names: see `ExplainRequest.pod`. Of several sandboxes of it the newest.

    Raises:
        UnknownPodError: There is none.
        AmbiguousPodError: There are several; the error names them.
    """
    exact = [pod for pod in store.pods if text in _names(pod)]
    found = exact or [
        pod for box in store.containers if box.id == text and (pod := store.pods.get(box.pod_id)) is not None
    ]
    found = found or _by_prefix(store, text)
    by_uid = {pod.uid or pod.id: pod for pod in sorted(found, key=_age)}
    if not by_uid:
        raise UnknownPodError(
            f"no pod is {text}: give a uid, NAMESPACE/NAME, a name, or the beginning of an id"
        )
    if len(by_uid) > 1:
        names = [f"{pod.namespace}/{pod.name} ({pod.uid or pod.id})" for pod in by_uid.values()]
        more = f" and {len(names) - MOST_CANDIDATES} more" if len(names) > MOST_CANDIDATES else ""
        raise AmbiguousPodError(f"{text} may be {', '.join(sorted(names)[:MOST_CANDIDATES])}{more}")
    return next(iter(by_uid.values()))


def find_containers(store: PodStore, pod: PodRecord, text: str) -> list[ContainerRecord]:
    """The containers of a pod that a text names, by name or id; all for an empty one.

    Raises:
        UnknownPodError: There is none.
    """
    containers = store.containers.members(pod.id)
    found = [box for box in containers if text in ("", box.name, box.id)]
    found = found or [box for box in containers if box.id.startswith(text)]
    if text and not found:
        names = ", ".join(dict.fromkeys(box.name for box in containers)) or "none"
        raise UnknownPodError(f"{pod.namespace}/{pod.name} has no container {text}; it has {names}")
    return found


def _names(pod: PodRecord) -> tuple[str, ...]:
    return pod.uid, pod.id, f"{pod.namespace}/{pod.name}", pod.name


def _by_prefix(store: PodStore, text: str) -> list[PodRecord]:
    found = [pod for pod in store.pods if pod.uid.startswith(text) or pod.id.startswith(text)]
    owners = (store.pods.get(box.pod_id) for box in store.containers if box.id.startswith(text))
    return found + [pod for pod in owners if pod is not None]


def _age(pod: PodRecord) -> tuple[bool, int]:
    """Sorts the newest sandbox of a pod last, and one that runs behind all that do not."""
    return pod.state is not Lifecycle.STOPPED, pod.attempt


def pod_message(engine: Engine, pod: PodRecord) -> api_pb2.Pod:
    """A pod with its containers."""
    cgroup_of = partial(container_cgroup, engine.services, pod)
    containers = [_container(engine, box, cgroup_of(box)) for box in engine.store.containers.members(pod.id)]
    fields = list(_owned(engine, pod, pod.cgroup_parent))
    owners = (field.owner for part in (fields, *(each.fields for each in containers)) for field in part)
    allocation = engine.node.latest.allocations.get(pod.uid)
    return api_pb2.Pod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        sandbox_id=pod.id,
        attempt=pod.attempt,
        state=_POD_STATES.get(pod.state, api_pb2.Pod.STATE_UNSPECIFIED),
        qos_class=qos_class(pod.labels),
        kube_qos_class=kube_qos_class(pod.cgroup_parent) if pod.cgroup_parent else "",
        priority_class=priority_class(pod.labels),
        runtime_handler=pod.runtime_handler,
        cgroup_parent=pod.cgroup_parent,
        containers=containers,
        fields=fields,
        policies=sorted({name for owner in owners for name in owner.split("+")}),
        is_recovered=pod.recovered,
        allocated_cpus=format_cpu_list(allocation.cpus) if allocation is not None else "",
    )


def _container(engine: Engine, box: ContainerRecord, cgroup: str) -> api_pb2.Container:
    return api_pb2.Container(
        id=box.id,
        name=box.name,
        attempt=box.attempt,
        state=_CONTAINER_STATES[box.state],
        fields=_owned(engine, box, cgroup),
        is_recovered=box.recovered,
        cgroup=cgroup,
    )


def _owned(engine: Engine, record: PodRecord | ContainerRecord, cgroup: str) -> Iterator[api_pb2.OwnedField]:
    """The fields with an owner: those of the cgroup as in the ledger, the others as in the last call."""
    book = engine.ledger.record(cgroup) if cgroup else None
    entries = book.entries if book is not None else {}
    for name, entry in sorted(entries.items()):
        if entry.claims:
            value = shown(entry.resolved)
            yield api_pb2.OwnedField(name=f"{CGROUP}[{name}]", owner=entry.owner, value=value)
    for name, owner in sorted(record.owners.items()):
        if parameter_of(name) not in entries:
            yield api_pb2.OwnedField(name=name, owner=owner)


def parameter_of(field: str) -> str:
    """The cgroup parameter behind a field such as `resources.cpu_shares`; empty for none."""
    if field.startswith(f"{CGROUP}["):
        return field.removeprefix(f"{CGROUP}[").removesuffix("]")
    return RESOURCE_PARAMETERS.get(field.removeprefix(f"{RESOURCES}."), "")


def snapshot(engine: Engine, namespace: str) -> Iterator[api_pb2.Pod]:
    """All pods, of one namespace if it is given; by namespace and name."""
    pods: Iterable[PodRecord] = engine.store.pods
    for pod in sorted(pods, key=lambda each: (each.namespace, each.name, each.attempt, each.id)):
        if namespace in ("", pod.namespace):
            yield pod_message(engine, pod)
