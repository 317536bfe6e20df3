"""Pods and containers as messages, and finding a pod by what a person knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.documents.reading import (
    InputError,
    json_value,
    mapping_of,
    member,
    printable,
    quantity_of,
)
from runtimeproxy.errors import RuntimeProxyError, described
from runtimeproxy.fields.tables import QUOTA, RESOURCE_FIELDS, RESOURCE_PARAMETERS
from runtimeproxy.hooks.algebra import resolve
from runtimeproxy.hooks.claimants import labels_of, texts_of
from runtimeproxy.hooks.fields import CGROUP, RESOURCES
from runtimeproxy.katalyst.levels import AGGREGATED_REQUESTS, RSS_OVERUSE_THRESHOLD, pod_problems
from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.logs import FailureLog
from runtimeproxy.node.derived import pod_cpus
from runtimeproxy.pods.record_views import recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.qos import kube_qos_class, priority_class
from runtimeproxy.service.api.strategies import all_fields
from runtimeproxy.service.api.values import KOORDINATOR, shown, timestamp
from runtimeproxy.slo.names import EXTENDED_RESOURCE_SPEC, MAX_ANNOTATION_LENGTH
from runtimeproxy.slo.strategies import PodStrategy
from runtimeproxy.units import (
    CPU_PERIOD_US,
    MAX_INT64,
    MIN_CPU_SHARES,
    SHARES_PER_CPU,
    UNLIMITED,
    format_cpu_list,
    quantity_bytes,
)

if TYPE_CHECKING:
    from runtimeproxy.hooks.views import PodView, Resources
    from runtimeproxy.ledger.ledger import Ledger
    from runtimeproxy.node.sources import NodeSources
    from runtimeproxy.pods.inventory import Inventory
    from runtimeproxy.pods.store import PodStore

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
            f"no pod is called {text!r}: give a name, NAMESPACE/NAME, a uid, or the beginning of an id"
        )
    if len(by_uid) > 1:
        names = [f"{pod.namespace}/{pod.name} ({pod.uid or pod.id})" for pod in by_uid.values()]
        more = f" and {len(names) - MOST_CANDIDATES} more" if len(names) > MOST_CANDIDATES else ""
        raise AmbiguousPodError(
            f"{text!r} may be {', '.join(sorted(names)[:MOST_CANDIDATES])}{more}: give the namespace or a uid"
        )
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
    # Sorts the newest sandbox of a pod last, and one that runs behind all that do not.
    return pod.state is not Lifecycle.STOPPED, pod.attempt


class PodMessages:
    """Makes messages of pods. Used in the event loop's thread.

    Attributes:
        inventory: The records.
        ledger: The values.
        node: The node.
    """

    def __init__(self, inventory: Inventory, ledger: Ledger, node: NodeSources) -> None:
        self.inventory = inventory
        self.ledger = ledger
        self.node = node
        self._failures = FailureLog()

    def of_or_none(self, pod: PodRecord) -> api_pb2.Pod | None:
        """As `of`; None if the message cannot be made, which is logged."""
        try:
            return self.of(pod)
        except Exception as error:  # noqa: BLE001 - whatever a record holds
            name = printable(f"{pod.namespace}/{pod.name}")
            self._failures.report(
                "WatchPods", pod.id, f"watchers are not told of pod {name}: {described(error)}"
            )
            return None

    def of(self, pod: PodRecord) -> api_pb2.Pod:
        """A pod with its containers."""
        ledger, inventory = self.ledger, self.inventory
        node, view = self.node.latest, recorded_pod(pod)
        requests, extended = node.requests_of(view), extended_amounts(pod.annotations)
        has_known_requests = node.knows_requests_of(view)
        policies = set[str]()
        containers = [
            _container(
                ledger,
                box,
                inventory.cgroup_of(pod, box),
                amounts_of(box.requested, requests.get(box.name, {}), extended.get(box.name, NO_AMOUNTS)),
                policies,
            )
            for box in inventory.store.containers.members(pod.id)
        ]
        fields = list(_owned(ledger, pod, pod.cgroup_parent, policies))
        # The node's allocations are kept only where shared pools are computed.
        allocation = node.allocations.get(pod.uid) or pod_cpus(
            pod.labels, pod.annotations, node.facts.last_cpu
        )
        strategy = node.strategy_for(view)
        live = node.live_pods.get(pod.uid)
        return api_pb2.Pod(
            priority=live.priority if live is not None else None,
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            sandbox_id=pod.id,
            attempt=pod.attempt,
            state=_POD_STATES.get(pod.state, api_pb2.Pod.STATE_UNSPECIFIED),
            qos_class=view.qos,
            kube_qos_class=kube_qos_class(pod.cgroup_parent) if pod.cgroup_parent else "",
            priority_class=priority_class(pod.labels),
            runtime_handler=pod.runtime_handler,
            cgroup_parent=pod.cgroup_parent,
            containers=containers,
            fields=fields,
            policies=sorted(policies),
            is_recovered=pod.recovered,
            allocated_cpus=format_cpu_list(allocation.cpus) if allocation is not None else "",
            created_at=timestamp(pod.created_s or None),
            labels=_of_koordinator(pod.labels),
            annotations=_of_koordinator(pod.annotations),
            strategies=_strategy_fields(strategy),
            requested=_resources(pod.requested),
            overhead=_resources(pod.overhead),
            katalyst=_level(view),
            has_known_requests=has_known_requests,
            requests={} if has_known_requests else annotated_requests(pod.annotations),
        )


def _level(pod: PodView) -> api_pb2.KatalystLevel | None:
    qos = pod.katalyst
    if qos is None:
        return None
    rate = qos.suppression_tolerance_rate
    return api_pb2.KatalystLevel(
        level=qos.level,
        pool=qos.pool,
        reason=qos.reason,
        problems=pod_problems(pod.labels, qos),
        is_refused=bool(qos.refusal),
        suppression_tolerance_rate=rate if rate is not None and isfinite(rate) else None,
        rss_overuse_threshold=qos.rss_overuse_threshold,
        rss_overuse_problem=next(
            (each.reason for each in qos.problems if each.place == RSS_OVERUSE_THRESHOLD), ""
        ),
    )


POD_PARTS: Final = ("cpu_burst", "eviction", "cpu_guard")
"""The parts of a pod's strategy that a QoS manager needs."""


_MOST_STRATEGIES: Final = 64
_FIELDS: Final[dict[int, tuple[PodStrategy, tuple[api_pb2.StrategyField, ...]]]] = {}
"""The fields of strategies by their id: pods that differ in nothing share one, and to make its messages takes
longer than all else of a pod."""


def _strategy_fields(strategy: PodStrategy) -> tuple[api_pb2.StrategyField, ...]:
    found = _FIELDS.get(id(strategy))
    if found is None or found[0] is not strategy:
        if len(_FIELDS) >= _MOST_STRATEGIES:
            _FIELDS.clear()
        found = strategy, tuple(all_fields(strategy, POD_PARTS, strategy.provenance))
        _FIELDS[id(strategy)] = found
    return found[1]


def _of_koordinator(texts: Mapping[str, str]) -> dict[str, str]:
    return {
        key: text for key, text in texts.items() if f".{key.partition('/')[0]}".endswith(f".{KOORDINATOR}")
    }


def _resources(resources: Resources) -> api_pb2.Resources:
    return api_pb2.Resources(**{name: getattr(resources, name) for name in _SHOWN_RESOURCES})


_SHOWN_RESOURCES: Final = tuple(
    name for name in RESOURCE_FIELDS if name in api_pb2.Resources.DESCRIPTOR.fields_by_name
)


class PodAmounts(NamedTuple):
    """Requests and limits of a container by resource, in the units of `Container.requests` of the proto."""

    requests: Mapping[str, int]
    limits: Mapping[str, int]


NO_AMOUNTS: Final = PodAmounts({}, {})


def amounts_of(
    requested: Resources, known: Mapping[str, int], extended: PodAmounts = NO_AMOUNTS
) -> PodAmounts:
    """What a container's specification asks for, as far as that is known. Pure.

    Args:
        requested: What the kubelet asked the runtime for.
        known: Requests of the kubelet's own state.
        extended: Those of Koordinator's annotation.
    """
    requests, limits = dict(known), dict[str, int]()
    shares, quota_us = requested.cpu_shares, requested.cpu_quota_us
    period_us = requested.cpu_period_us or CPU_PERIOD_US
    if "cpu" not in requests and shares is not None and shares > MIN_CPU_SHARES:
        # Shares are rounded down, so this is at most the request, and up to 1 below it.
        requests["cpu"] = -(-shares * 1000 // SHARES_PER_CPU)
    if quota_us is not None and quota_us > 0 and period_us > 0:
        limits["cpu"] = min(quota_us * 1000 // period_us, MAX_INT64)
    if requested.memory_limit_bytes is not None and requested.memory_limit_bytes > 0:
        limits["memory"] = requested.memory_limit_bytes
    return PodAmounts({**requests, **extended.requests}, {**limits, **extended.limits})


_EXTENDED: Final = ("kubernetes.io/batch-", "kubernetes.io/mid-")


def extended_amounts(annotations: Mapping[str, str]) -> Mapping[str, PodAmounts]:
    """Batch and mid resources by container; what cannot be read is left out."""
    text = annotations.get(EXTENDED_RESOURCE_SPEC, "")
    if not text or len(text) > MAX_ANNOTATION_LENGTH:
        return {}
    try:
        specification = json_value(text)
    except InputError:
        return {}
    return {
        name: PodAmounts(*(dict(_amounts(_member(entry, part))) for part in ("requests", "limits")))
        for name, entry in _member(specification, "containers").items()
    }


def annotated_requests(annotations: Mapping[str, str]) -> dict[str, int]:
    """What annotations say of a pod's requests as a whole; what cannot be read is left out.

    Those of Katalyst's scheduler, `pod.kubernetes.io/pod-aggregated-requests`, and before them one named like
    the resource, for each reclaimed resource.
    """
    found: dict[str, object] = {}
    text = annotations.get(AGGREGATED_REQUESTS, "")
    if text and len(text) <= MAX_ANNOTATION_LENGTH:
        with suppress(InputError):
            found |= mapping_of(json_value(text))
    found |= {name: annotations[name] for name in _RECLAIMED if name in annotations}
    amounts: dict[str, int] = {}
    for name in ("cpu", "memory", *_RECLAIMED):
        if name in found:
            with suppress(InputError):
                amounts[name] = quantity_of(name, found[name])
    return amounts


_RECLAIMED: Final = (RECLAIMED_MILLICPU, RECLAIMED_MEMORY)


def _amounts(resources: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in resources.items():
        if (
            name.startswith(_EXTENDED)
            and isinstance(value, str | int | float)
            and not isinstance(value, bool)
        ):
            with suppress(ValueError):
                amount = quantity_bytes(str(value).strip(" "))
                # A negative one would lower the sum over all pods, by which pods are evicted.
                if amount >= 0:
                    yield name, amount


def _member(value: object, name: str) -> Mapping[str, Any]:
    """An object in an object; empty if either is none."""
    found = member(value, name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _container(
    ledger: Ledger, box: ContainerRecord, cgroup: str, amounts: PodAmounts, policies: set[str]
) -> api_pb2.Container:
    return api_pb2.Container(
        id=box.id,
        name=box.name,
        attempt=box.attempt,
        state=_CONTAINER_STATES[box.state],
        fields=_owned(ledger, box, cgroup, policies),
        is_recovered=box.recovered,
        cgroup=cgroup,
        created_at=timestamp(box.created_s or None),
        requested=_resources(box.requested),
        requests=amounts.requests,
        limits=amounts.limits,
        scaled_cpu_quota_us=_scaled_quota_us(ledger, box, cgroup),
    )


def _scaled_quota_us(ledger: Ledger, box: ContainerRecord, cgroup: str) -> int | None:
    """The quota before adds and bounds; None if it is not known."""
    book = ledger.books.record(cgroup) if cgroup else None
    entry = book.entries.get(QUOTA) if book is not None else None
    if entry is None or not entry.claims:
        requested = box.requested.cpu_quota_us
        return None if box.recovered and requested is None else requested or UNLIMITED
    steps = resolve(QUOTA, entry.requested, entry.claims).steps
    return steps[1] if steps and isinstance(steps[1], int) else None


def _owned(
    ledger: Ledger, record: PodRecord | ContainerRecord, cgroup: str, policies: set[str]
) -> Iterator[api_pb2.OwnedField]:
    """The fields with an owner: those of the cgroup as in the ledger, the others as in the last call.

    `policies`: gets the owners.
    """
    book = ledger.books.record(cgroup) if cgroup else None
    entries = book.entries if book is not None else {}
    for name, entry in sorted(entries.items()):
        if entry.claims:
            value = shown(entry.resolved)
            policies.update(map(str, entry.owners))
            yield api_pb2.OwnedField(name=f"{CGROUP}[{name}]", owner=texts_of(entry.owners), value=value)
    for name, owners in sorted(record.owners.items()):
        if parameter_of(name) not in entries:
            policies.update(each.label for each in owners)
            yield api_pb2.OwnedField(name=name, owner=labels_of(owners))


def parameter_of(field: str) -> str:
    """The cgroup parameter behind a field such as `resources.cpu_shares`; empty for none."""
    if field.startswith(f"{CGROUP}["):
        return field.removeprefix(f"{CGROUP}[").removesuffix("]")
    return RESOURCE_PARAMETERS.get(field.removeprefix(f"{RESOURCES}."), "")
