"""GetNode: CPUs and their owners, pools, kernel, kubelet, labels and strategies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.node.snapshot import Feature, Input, InputState
from runtimeproxy.service.api.status import inputs_of
from runtimeproxy.service.api.strategies import strategy_fields
from runtimeproxy.units import format_cpu_list

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.node.snapshot import Node, Pools
    from runtimeproxy.service.engine import Engine

PREFIXES: Final = (
    "kubernetes.io/",
    "node.kubernetes.io/",
    "topology.kubernetes.io/",
    "node.koordinator.sh/",
)
"""Of labels and annotations that are shown, beside all of Koordinator's."""
KOORDINATOR: Final = "koordinator.sh/"


def node_of(engine: Engine, settings: Settings) -> api_pb2.GetNodeResponse:
    node, root = engine.node.latest, settings.cgroups.root
    uname = os.uname()
    features = frozenset(map(str, node.features))
    is_known = node.state_of(Input.CGROUPS) is InputState.KNOWN
    names = _pod_names(engine)
    response = api_pb2.GetNodeResponse(
        name=settings.node.name or uname.nodename.strip().lower(),
        cpus=cpus_of(node, names),
        pools=pools_of(node.pools),
        allocations=[
            api_pb2.CpuAllocation(
                pod_uid=uid, pod=names.get(uid, ""), qos_class=each.qos, cpus=format_cpu_list(each.cpus)
            )
            for uid, each in sorted(node.allocations.items())
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
        labels=shown_texts(node.labels),
        annotations=shown_texts(node.annotations),
        capacity=node.capacity or {},
        allocatable=node.allocatable or {},
        strategies=strategy_fields(node.strategies, node.strategies.provenance),
        inputs=inputs_of(engine, settings),
        problems=engine.node.problems,
        kernel_version=uname.release,
    )
    if node.normalization_ratio is not None:
        response.normalization_ratio = node.normalization_ratio
    return response


def _pod_names(engine: Engine) -> Mapping[str, str]:
    return {pod.uid: f"{pod.namespace}/{pod.name}" for pod in engine.store.pods}


def shown_texts(texts: Mapping[str, str]) -> Mapping[str, str]:
    """Labels or annotations that count for something here: others may be long, or no one's business."""
    return {key: text for key, text in texts.items() if key.startswith(PREFIXES) or KOORDINATOR in key}


def cpus_of(node: Node, names: Mapping[str, str]) -> Iterator[api_pb2.Cpu]:
    members = _members(node)
    owners = {cpu: uid for uid, each in node.allocations.items() for cpu in each.cpus}
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


def _members(node: Node) -> list[tuple[str, frozenset[int]]]:
    """What CPUs are for, by name."""
    found: dict[str, frozenset[int]] = {}
    for each in node.allocations.values():
        name = each.qos.lower() or "allocated"
        found[name] = found.get(name, frozenset()) | each.cpus
    if node.pools is not None:
        for name, pools in (("ls", node.pools.ls), ("be", node.pools.be)):
            found[name] = frozenset[int]().union(*(pool.cpus for pool in pools))
        found["system"] = node.pools.system_cpus
    if node.kubelet is not None:
        found["reserved"] = node.kubelet.reserved_cpus
        found["static"] = frozenset[int]().union(*node.kubelet.static_cpus.values())
    return list(found.items())


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
        has_memory_qos=kubelet.has_memory_qos,
        static_cpus=[
            api_pb2.StaticCpus(pod_uid=uid, container=name, cpus=format_cpu_list(cpus))
            for (uid, name), cpus in sorted(kubelet.static_cpus.items())
        ],
    )
