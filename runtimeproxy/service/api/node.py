"""GetNode: CPUs and their owners, pools, kernel, kubelet, labels and strategies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path
from runtimeproxy.documents.reading import InputError
from runtimeproxy.ledger.answers import class_cgroups
from runtimeproxy.node.derived import pod_cpus, reservation_of
from runtimeproxy.node.snapshot import Feature, Input, InputState
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.qos import KubeQoSClass, kube_qos_class
from runtimeproxy.service.api.katalyst import (
    advice_messages,
    pod_messages,
    pool_messages,
    settings_message,
)
from runtimeproxy.service.api.status import inputs_of
from runtimeproxy.service.api.strategies import (
    all_fields,
    katalyst_fields,
    strategy_fields,
    target_messages,
)
from runtimeproxy.service.api.values import KOORDINATOR
from runtimeproxy.slo.host_applications import host_application_cgroup
from runtimeproxy.slo.schema import CgroupBase, HostApplication
from runtimeproxy.units import format_cpu_list

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.policies import PolicySet
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.node.snapshot import Node, PodCpus, Pools
    from runtimeproxy.node.sources import NodeSources
    from runtimeproxy.pods.records import PodRecord
    from runtimeproxy.pods.store import PodStore

PREFIXES: Final = (
    "kubernetes.io/",
    "node.kubernetes.io/",
    "topology.kubernetes.io/",
    "node.koordinator.sh/",
)
"""Of labels and annotations that are shown, beside all of Koordinator's."""
PLUGIN_PARTS: Final = ("threshold", "cpu_burst", "colocation", "cpu_normalization", "cpu_guard")
"""The parts of the node's strategies that a QoS manager needs."""


class NodeFeed:
    """The responses of GetNode: a client that knows the present one gets only that.

    Used in the event loop's thread.

    Args:
        store: The records.
        node: What is known of the node.
        policies: They depend on that.
    """

    def __init__(self, store: PodStore, node: NodeSources, policies: PolicySet) -> None:
        self._store = store
        self._node = node
        self._policies = policies
        # Of another process it is another one.
        self._generation = time.time_ns()
        self._made_of: tuple[object, ...] = ()
        self._latest = api_pb2.GetNodeResponse()

    def response(self, known_generation: int, settings: Settings) -> api_pb2.GetNodeResponse:
        node, chain = self._node.latest, self._policies.chain
        cgroups = _class_cgroups(self._store)
        allocations = allocations_of(self._store.pods, node)
        holders = _holders(node, allocations)
        names = {uid: name for uid, name in _pod_names(self._store).items() if uid in holders}
        targets = self._node.katalyst_targets
        made_of = (node, settings, self._node.problems, chain, names, cgroups, allocations, targets)
        # A snapshot has many parts, and is another object when one of them has changed.
        is_same = len(self._made_of) == len(made_of) and all(
            one is other or (index > 1 and one == other)
            for index, (one, other) in enumerate(zip(made_of, self._made_of, strict=True))
        )
        if not is_same:
            response = node_of(self._node, chain.policies, settings, names, cgroups, allocations)
            self._made_of = made_of
            response.generation = self._generation
            if response != self._latest:
                self._generation += 1
                response.generation = self._generation
                self._latest = response
        if known_generation == self._generation:
            return api_pb2.GetNodeResponse(generation=known_generation, is_unchanged=True)
        return self._latest


def node_of(
    sources: NodeSources,
    policies: Iterable[LoadedPolicy],
    settings: Settings,
    names: Mapping[str, str],
    cgroups: Mapping[KubeQoSClass, str],
    allocations: Mapping[str, PodCpus],
) -> api_pb2.GetNodeResponse:
    """All that is known of the node.

    Args:
        sources: Have it.
        policies: Those in use.
        settings: Those in effect.
        names: Of the pods that have CPUs for themselves, by uid.
        cgroups: Of the QoS classes.
        allocations: The CPUs that pods have for themselves, by uid.
    """
    node, root = sources.latest, settings.cgroups.root
    uname = os.uname()
    features = frozenset(map(str, node.features))
    is_known = node.state_of(Input.CGROUPS) is InputState.KNOWN
    reserved, reserved_cpus = reserved_of(node)
    response = api_pb2.GetNodeResponse(
        name=settings.node.name or uname.nodename.strip().lower(),
        cpus=cpus_of(node, names, allocations),
        pools=pools_of(node.pools),
        allocations=[
            api_pb2.CpuAllocation(
                pod_uid=uid, pod=names.get(uid, ""), qos_class=each.qos, cpus=format_cpu_list(each.cpus)
            )
            for uid, each in sorted(allocations.items())
        ],
        memory_bytes=node.memory_bytes,
        cgroups=api_pb2.CgroupFacts(
            version=node.facts.cgroup_version or 0,
            driver=node.cgroup_driver or "",
            root=root,
            controllers=node.facts.controllers,
        ),
        features=sorted(features),
        missing_features=sorted({str(each) for each in Feature} - features) if is_known else (),
        kubelet=_kubelet(node),
        claimed_cpus=format_cpu_list(claimed_of(node)),
        katalyst_pools=pool_messages(node.cpu_pools.state) if node.cpu_pools is not None else (),
        katalyst_pods=pod_messages(node.cpu_pools) if node.cpu_pools is not None else (),
        katalyst_advice=advice_messages(node.cpu_pools.advice) if node.cpu_pools is not None else (),
        katalyst_pool_settings=settings_message(node.cpu_pools.state) if node.cpu_pools is not None else None,
        labels=shown_texts(node.labels),
        annotations=shown_texts(node.annotations),
        capacity=node.capacity or {},
        allocatable=node.allocatable or {},
        strategies=[
            *strategy_fields(node.strategies, node.strategies.provenance),
            *katalyst_fields(node.katalyst, sources.katalyst_targets),
        ],
        katalyst_targets=target_messages(sources.katalyst_targets),
        inputs=inputs_of(sources, policies, settings),
        problems=sources.problems,
        kernel_version=uname.release,
        reserved=reserved,
        reserved_cpus=format_cpu_list(reserved_cpus),
        qos_class_cgroups=[
            api_pb2.QosClassCgroup(kube_qos_class=qos, cgroup=cgroup)
            for qos, cgroup in sorted(cgroups.items())
        ],
        host_applications=map(partial(_host_application, node), node.strategies.host_applications),
        plugin_strategies=all_fields(node.strategies, PLUGIN_PARTS, node.strategies.provenance),
    )
    if node.normalization_ratio is not None:
        response.normalization_ratio = node.normalization_ratio
    return response


def _pod_names(store: PodStore) -> Mapping[str, str]:
    return {pod.uid: f"{pod.namespace}/{pod.name}" for pod in store.pods}


def allocations_of(pods: Iterable[PodRecord], node: Node) -> Mapping[str, PodCpus]:
    """The CPUs that pods have for themselves, by uid.

    The node's allocations are kept only where shared pools are computed; else annotations have them.
    """
    if node.allocations:
        return node.allocations
    running = (pod for pod in pods if pod.state is not Lifecycle.STOPPED)
    found = ((pod.uid, pod_cpus(pod.labels, pod.annotations, node.facts.last_cpu)) for pod in running)
    return {uid: cpus for uid, cpus in found if uid and cpus is not None}


def _holders(node: Node, allocations: Mapping[str, PodCpus]) -> set[str]:
    static = node.kubelet.static_cpus if node.kubelet is not None else {}
    return {*allocations, *(uid for uid, _ in static)}


def _class_cgroups(store: PodStore) -> dict[KubeQoSClass, str]:
    """The cgroups of the QoS classes, by the pods that are known."""
    parents = {pod.cgroup_parent for pod in store.pods if pod.cgroup_parent}
    found: list[tuple[tuple[str, ...], KubeQoSClass]] = []
    for parent in sorted(parents):
        with suppress(CgroupPathError):
            found.append((cgroup_path(parent), kube_qos_class(parent)))
    return class_cgroups(found, store.kubelet_root)


def _host_application(node: Node, application: HostApplication) -> api_pb2.HostApplication:
    cgroup = ""
    with suppress(ValueError):
        cgroup = host_application_cgroup(application, node.cgroup_driver)
    base = application.cgroup_path.base if application.cgroup_path is not None else CgroupBase.CGROUP_ROOT
    return api_pb2.HostApplication(
        name=application.name,
        qos_class=application.qos,
        priority_class=application.priority,
        cgroup=cgroup,
        cgroup_base=base,
    )


def reserved_of(node: Node) -> tuple[dict[str, int], frozenset[int]]:
    """What of the node is not for pods, and the CPUs that are set apart for that. Pure.

    By resource the larger one of what is not allocatable and of the node's annotation.
    Source: Koordinator pkg/koordlet/qosmanager/helpers, GetNodeResourceReserved.
    """
    reserved: dict[str, int] = {}
    if node.capacity is not None and node.allocatable is not None:
        for name in ("cpu", "memory"):
            if name in node.capacity and name in node.allocatable:
                reserved[name] = max(node.capacity[name] - node.allocatable[name], 0)
    elif node.kubelet is not None:
        reserved.update({name: node.kubelet.reserved[name] for name in node.kubelet.reserved})
    cpus = node.kubelet.reserved_cpus if node.kubelet is not None else frozenset[int]()
    # One that is invalid is among the node's problems.
    with suppress(InputError):
        annotated = reservation_of(node.annotations)
        cpus |= annotated.cpus
        for name in ("cpu", "memory"):
            if name in annotated.amounts:
                reserved[name] = max(reserved.get(name, 0), annotated.amounts[name])
    return reserved, cpus


def shown_texts(texts: Mapping[str, str]) -> Mapping[str, str]:
    # Others may be long, or no one's business.
    return {key: text for key, text in texts.items() if key.startswith(PREFIXES) or f"{KOORDINATOR}/" in key}


def cpus_of(
    node: Node, names: Mapping[str, str], allocations: Mapping[str, PodCpus]
) -> Iterator[api_pb2.Cpu]:
    members = _members(node, allocations)
    owners = {cpu: uid for uid, each in allocations.items() for cpu in each.cpus}
    if node.kubelet is not None:
        for (uid, _), cpus in node.kubelet.static_cpus.items():
            owners |= dict.fromkeys(cpus, uid)
    for cpu in node.cpus or ():
        owner = owners.get(cpu.id, "")
        message = api_pb2.Cpu(
            id=cpu.id,
            core=cpu.core,
            socket=cpu.socket,
            numa_node=cpu.numa_node,
            is_online=cpu.is_online,
            pools=[name for name, cpus in members if cpu.id in cpus],
            owner=names.get(owner, owner),
        )
        if cpu.l3 >= 0:
            message.l3 = cpu.l3
        yield message


def _members(node: Node, allocations: Mapping[str, PodCpus]) -> list[tuple[str, frozenset[int]]]:
    """What CPUs are for, by name."""
    found: dict[str, frozenset[int]] = {}
    for each in allocations.values():
        name = each.qos.lower() or "allocated"
        found[name] = found.get(name, frozenset()) | each.cpus
    if node.pools is not None:
        for name, pools in (("ls", node.pools.ls), ("be", node.pools.be)):
            found[name] = frozenset[int]().union(*(pool.cpus for pool in pools))
        found["system"] = node.pools.system_cpus
    if node.kubelet is not None:
        found["reserved"] = node.kubelet.reserved_cpus
        found["static"] = frozenset[int]().union(*node.kubelet.static_cpus.values())
    if node.claimed_cpus:
        found["claimed"] = claimed_of(node)
    return list(found.items())


def claimed_of(node: Node) -> frozenset[int]:
    """The CPUs of DRA claims."""
    return frozenset[int]().union(*node.claimed_cpus.values())


def pools_of(pools: Pools | None) -> Iterator[api_pb2.CpuPool]:
    if pools is None:
        return
    for name, parts in (("ls", pools.ls), ("be", pools.be)):
        for part in parts:
            yield api_pb2.CpuPool(
                name=name, socket=part.socket, numa_node=part.numa_node, cpus=format_cpu_list(part.cpus)
            )
    if pools.system_cpus:
        cpus = format_cpu_list(pools.system_cpus)
        yield api_pb2.CpuPool(name="system", cpus=cpus, is_exclusive=pools.is_system_exclusive)


def _kubelet(node: Node) -> api_pb2.KubeletFacts:
    kubelet = node.kubelet
    if kubelet is None:
        return api_pb2.KubeletFacts()
    return api_pb2.KubeletFacts(
        is_known=True,
        cpu_manager_policy=kubelet.cpu_manager_policy or "",
        reserved_cpus=format_cpu_list(kubelet.reserved_cpus),
        reserved_resources=kubelet.reserved,
        has_memory_qos=bool(kubelet.class_memory),
        static_cpus=[
            api_pb2.StaticCpus(pod_uid=uid, container=name, cpus=format_cpu_list(cpus))
            for (uid, name), cpus in sorted(kubelet.static_cpus.items())
        ],
    )
