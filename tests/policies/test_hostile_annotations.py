"""Annotations that are hard to read: any pod's author may set 256 KiB of them."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from policies.accelerators import GPU_VENDOR_LABEL, Accelerators
from policies.annotations import (
    DEVICE_ALLOCATED,
    EXTENDED_RESOURCE_SPEC,
    RESOURCE_STATUS,
    AnnotationError,
    parse,
    resource_status,
)
from policies.batch_resource import BatchResource
from policies.block_io import BlockIO
from policies.core_sched import CoreSched
from policies.cpu_burst import CpuBurst
from policies.cpu_idle import CpuIdle
from policies.cpu_normalization import CpuNormalization
from policies.cpuset import Cpuset
from policies.gpu_env import GpuEnv
from policies.group_identity import GroupIdentity
from policies.katalyst_qos import KatalystLevels
from policies.memory_qos import MemoryQoS
from policies.network_qos import NetworkQoS
from policies.oom_score import SCORE, SCORES, OomScore
from policies.rdma_devices import RdmaDevices
from policies.resctrl import ResctrlPolicy
from policies.startup_boost import StartupBoost
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks import ContainerView, PodView
from runtimeproxy.katalyst.levels import (
    ENHANCEMENTS,
    MAIN_CONTAINER_NAME,
    MEMORY_ENHANCEMENT,
    NUMA_BIND_RESULT,
    NUMA_IDS,
    NUMA_NUMBER,
    QOS_LEVEL,
    LevelRules,
)
from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU, QosLevel
from runtimeproxy.katalyst.pool_operations import ContainerFacts, create, initial
from runtimeproxy.katalyst.pools import PoolSettings, PoolState, StateEncoder, from_document
from runtimeproxy.katalyst.pools import problems as pool_problems
from runtimeproxy.katalyst.topology import Topology
from runtimeproxy.ledger.pools import pod_facts
from runtimeproxy.node.block_devices import BlockDevices
from runtimeproxy.node.derived import pod_cpus
from runtimeproxy.node.devices import HostDevices
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.resctrl import BandwidthAllocation, BandwidthUnit, CacheAllocation, Resctrl
from runtimeproxy.node.snapshot import Cpu, Feature, Node
from runtimeproxy.qos import QOS_CLASS_LABEL, QoSClass
from runtimeproxy.slo.names import (
    BLKIO_QOS,
    CPU_BURST,
    CPU_QOS,
    MAX_ANNOTATION_LENGTH,
    MEMORY_QOS,
    NETWORK_QOS,
    RESCTRL,
    STARTUP_BOOST,
)
from runtimeproxy.slo.schema import ClassQoS, CpuPolicy, CpuQoS, QoSPolicies, QoSStrategy, System
from runtimeproxy.slo.schema import MemoryQoSStrategy as MemoryStrategy
from runtimeproxy.slo.strategies import Strategies

SIZE = 256 * 1024
READ_SIZE = MAX_ANNOTATION_LENGTH - 100
"""Of what is within an annotation that is just short enough to be read."""
MOST_CPU_S = 0.1
"""Of one policy's turn, of which the shortest of some counts. It takes up to 4 ms; long integers took 370."""
TRIES = 5


def _quantity(value: str) -> str:
    return '{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":' + value + "}}}}"


HOSTILE: dict[str, str] = {
    "lists in lists": "[" * SIZE,
    "objects in objects": '{"a":' * (SIZE // 5),
    "digits": "9" * SIZE,
    "a long exponent": "1e" + "9" * SIZE,
    "one key again and again": "{" + ",".join('"cpuset":"0"' for _ in range(SIZE // 13)) + "}",
    "one key in all cases": "{" + ",".join(f'"{number:x}":1' for number in range(SIZE // 10)) + "}",
    "escapes": '"' + "\\u0041" * (SIZE // 6) + '"',
    "ranges of CPUs": '{"cpuset":"' + ",".join("0-4095" for _ in range(SIZE // 7)) + '"}',
    "CPUs": '{"cpuset":"' + ",".join(str(number % 4096) for number in range(SIZE // 5)) + '"}',
    "commas": '{"cpuset":"' + "," * SIZE + '"}',
    "spaces": '{"cpuset":"0' + " " * SIZE + 'x"}',
    "a range beyond all": '{"cpuset":"0-99999999999999999999"}',
    "containers": '{"containers":{' + ",".join(f'"{number}":{{}}' for number in range(SIZE // 10)) + "}}",
    "resources": '{"containers":{"main":{"limits":{'
    + ",".join(f'"{number}":"1"' for number in range(SIZE // 11))
    + "}}}}",
    "a quantity": '{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":"' + "1" * SIZE + '"}}}}',
    "an exponent": '{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":"1e99999999"}}}}',
    "devices": '{"gpu":[' + ",".join('{"minor":1,"id":"a"}' for _ in range(SIZE // 21)) + "]}",
    "nodes": '{"numaNodeResources":['
    + ",".join('{"node":1,"resources":{"cpu":"1"}}' for _ in range(SIZE // 36))
    + "]}",
    "kinds of devices": "{" + ",".join(f'"{number}":[]' for number in range(SIZE // 10)) + "}",
    "digits, not too long to be read": "9" * READ_SIZE,
    "a number of CPUs": '{"cpuset":' + "9" * READ_SIZE + "}",
    "a NUMA node": '{"numaNodeResources":[{"node":' + "9" * READ_SIZE + ',"resources":{"cpu":"1"}}]}',
    "numbers of NUMA nodes": '{"numaNodeResources":['
    + ",".join('{"node":' + "9" * 4_000 + "}" for _ in range(READ_SIZE // 4_020))
    + "]}",
    "a quantity, not too long to be read": _quantity('"' + "9" * READ_SIZE + '"'),
    "a quantity that is a number": _quantity("9" * READ_SIZE),
    "a quantity with an exponent": _quantity('"' + "9" * READ_SIZE + 'e999"'),
    "a minor number": '{"gpu":[{"minor":' + "9" * READ_SIZE + "}]}",
    "a percentage": '{"policy":"auto","cpuBurstPercent":' + "9" * READ_SIZE + "}",
    "blocks": '{"blocks":[' + ",".join('{"name":"a","type":"device"}' for _ in range(SIZE // 28)) + "]}",
    "blocks, not too many to be read": '{"blocks":['
    + ",".join('{"name":"../../x","type":"device","ioCfg":{"readBPS":1}}' for _ in range(100))
    + "]}",
    "ranges of caches": '{"llc":{"schemataPerCache":['
    + ",".join(f'{{"cacheID":{each},"range":[0,30]}}' for each in range(SIZE // 32))
    + "]}}",
    "ranges of caches, not too many to be read": '{"llc":{"schemataPerCache":['
    + ",".join(f'{{"cacheID":{each},"range":[0,30]}}' for each in range(900))
    + "]}}",
    "a bandwidth": '{"egressLimit":"' + "9" * READ_SIZE + '"}',
    "a limit percentage": '{"policy":"auto","minLimitPercent":' + "9" * READ_SIZE + "}",
}

_CLASS = ClassQoS(cpu_qos=CpuQoS(enable=True), memory_qos=MemoryStrategy(enable=True, min_limit_percent=50))
NODE = Node(
    facts=NodeFacts(controllers={"blkio": 1}),
    features=frozenset({Feature.IO_LIMITS}),
    block_devices=BlockDevices({"a": "8:0"}),
    resctrl=Resctrl(
        caches={"L3": CacheAllocation(mask=0x7FF, ids=(0, 1))},
        bandwidth=BandwidthAllocation(ids=(0, 1), unit=BandwidthUnit.PERCENT, least=10, step=10),
    ),
    strategies=Strategies(qos=QoSStrategy(lsr_class=_CLASS, ls_class=_CLASS, be_class=_CLASS)),
    normalization_ratio=1.2,
)
_POLICIES = QoSPolicies(cpu_policy=CpuPolicy.CORE_SCHED)
CORE_SCHED_NODE = Node(strategies=Strategies(qos=replace(NODE.strategies.qos, policies=_POLICIES)))

NETWORK_NODE = Node(strategies=Strategies(system=System(total_network_bandwidth=10**9)))

KEPT_BYTES = 100_000
"""What a policy may keep of the annotations of pods that it was asked about."""

WITH_DEVICES = Node(
    labels={GPU_VENDOR_LABEL: "huawei"},
    facts=NodeFacts(devices=HostDevices(accelerators=frozenset({"/dev/davinci0", "/dev/davinci_manager"}))),
)

LEVELS_NODE = Node(levels=LevelRules())
CPUS = tuple(Cpu(cpu, cpu % 8 // 2, cpu % 8 // 4, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16))
NO_PODS = initial(Topology.of(CPUS), PoolSettings(reserved_count=2))


def dedicated(view: ContainerView) -> PodView:
    """The pod with a level, without which nothing else of Katalyst's is read."""
    return replace(view.pod, uid="u", annotations={**view.pod.annotations, QOS_LEVEL: "dedicated_cores"})


def in_pools(pod: PodView) -> PoolState:
    """Pools with one container of the pod, wherever it is placed."""
    facts = ContainerFacts(pod_facts(pod, LevelRules(), {"main": {"cpu": 2_000}}), "main", 2_000)
    state = create(NO_PODS, facts, 0.0, is_forced=True)
    assert isinstance(state, PoolState)
    assert pool_problems(state) == ()
    return state


TURNS: dict[str, Callable[[ContainerView], object]] = {
    "batch-resource, pod": lambda view: BatchResource().pod(view.pod, Node()),
    "batch-resource": lambda view: BatchResource().container(view, Node()),
    "cpuset, pod": lambda view: Cpuset().pod(view.pod, Node()),
    "cpuset": lambda view: Cpuset().container(view, Node()),
    "gpu-env": lambda view: GpuEnv().container(view, Node()),
    "rdma-devices": lambda view: RdmaDevices().container(view, WITH_DEVICES),
    "accelerators": lambda view: Accelerators().container(view, WITH_DEVICES),
    "cpu-normalization, pod": lambda view: CpuNormalization().pod(view.pod, NODE),
    "cpu-burst, pod": lambda view: CpuBurst().pod(view.pod, NODE),
    "startup-boost": lambda view: StartupBoost().container(view, NODE),
    "group-identity, pod": lambda view: GroupIdentity().pod(view.pod, NODE),
    "core-sched": lambda view: CoreSched().container(view, CORE_SCHED_NODE),
    "cpu-idle, pod": lambda view: CpuIdle().pod(view.pod, NODE),
    "memory-qos, pod": lambda view: MemoryQoS().pod(view.pod, NODE),
    "block-io, pod": lambda view: BlockIO().pod(view.pod, NODE),
    "block-io": lambda view: BlockIO().container(view, NODE),
    "resctrl, pod": lambda view: ResctrlPolicy().pod(view.pod, NODE),
    "oom-score": lambda view: OomScore().container(view, Node()),
    "katalyst-qos, pod": lambda view: KatalystLevels().pod(view.pod, Node(levels=LevelRules())),
    "network-qos, pod": lambda view: NetworkQoS().pod(view.pod, NETWORK_NODE),
    "katalyst-qos, enhancements": lambda view: KatalystLevels().pod(dedicated(view), LEVELS_NODE),
    "katalyst-pools": lambda view: in_pools(dedicated(view)),
}
KEYS = (
    RESOURCE_STATUS,
    EXTENDED_RESOURCE_SPEC,
    DEVICE_ALLOCATED,
    CPU_BURST,
    STARTUP_BOOST,
    CPU_QOS,
    MEMORY_QOS,
    BLKIO_QOS,
    NETWORK_QOS,
    RESCTRL,
    SCORE,
    SCORES,
    QOS_LEVEL,
    *ENHANCEMENTS,
    NUMA_IDS,
    NUMA_NUMBER,
    NUMA_BIND_RESULT,
    MAIN_CONTAINER_NAME,
    RECLAIMED_MILLICPU,
)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS.keys())
def test_a_turn_takes_as_long_as_the_text_is(turn: Callable[[ContainerView], object], text: str) -> None:
    """Whatever the policy makes of it: a change, nothing, or an error of its own."""
    annotations = dict.fromkeys(KEYS, text)
    for qos in (QoSClass.LSR, QoSClass.LS, QoSClass.BE):
        pod = PodView(qos=qos, annotations=annotations, cgroup_parent="/kubepods/pod1")
        view = ContainerView(name="main", pod=pod)
        took_s: list[float] = []
        while not took_s or (min(took_s) >= MOST_CPU_S and len(took_s) < TRIES):
            before_s = time.thread_time()
            with suppress(RuntimeProxyError):
                turn(view)
            took_s.append(time.thread_time() - before_s)
        assert min(took_s) < MOST_CPU_S


ENHANCEMENT_KEYS = (
    *("numa_binding", "numa_exclusive", "numa_share", "oom_priority", "rss_overuse_threshold", "cpuset_pool"),
    *("suppression_tolerance_rate", "cpu_burst_policy", "cpu_burst_percent", NUMA_NUMBER, NUMA_IDS),
)
ENHANCED = {
    "digits": "9" * 4_000,
    "a sign and digits": "-" + "9" * 4_000,
    "an exponent": "1e999999",
    "a long fraction": "0." + "0" * 4_000 + "1",
    "NUMA nodes": "0-8191",
    "groups of NUMA nodes": ",".join(f"{first}-8191:2/4" for first in range(0, 8_000, 8)),
    "a range beyond all": "0-99999999999999999999",
    "a range backwards": "8-0",
    "no NUMA node": ",",
    "a pool as long as can be": "a" * 8_000,
    "the part of a pool": "share-NUMA0",
    "a path": "../../../etc/passwd",
    "a line": "share\n0-15",
    "half a pair": "\ud800",
    "another alphabet": "\u0661",
    "empty": "",
}
"""Values of keys; all of them are texts, as they have to be."""


@pytest.mark.parametrize("level", list(QosLevel))
@pytest.mark.parametrize("value", ENHANCED.values(), ids=ENHANCED.keys())
def test_a_key_of_an_enhancement(level: QosLevel, value: str) -> None:
    """A bound pod with each key is placed, as it asks for or in `share`, and what is saved can be read."""
    for key in ENHANCEMENT_KEYS:
        enhancement = json.dumps({"numa_binding": "true", key: value})
        annotations = {QOS_LEVEL: level.value, MEMORY_ENHANCEMENT: enhancement, NUMA_BIND_RESULT: value}
        pod = PodView(uid="u", annotations=annotations, cgroup_parent="/kubepods/pod1")
        before_s = time.thread_time()
        state = in_pools(pod)
        KatalystLevels().pod(pod, LEVELS_NODE)
        assert time.thread_time() - before_s < MOST_CPU_S * TRIES
        assert state.pods["u"].cpus
        assert from_document(json.loads(StateEncoder().text(state)), state.topology) == state


def longest(begin: str, item: str, end: str) -> str:
    """As many items as an annotation may hold."""
    number = (MAX_ANNOTATION_LENGTH - len(begin) - len(end) - 8) // (len(item) + 4)
    return begin + ",".join(item.replace("?", f"{each:04}") for each in range(number)) + end


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        pytest.param("batch-resource", longest('{"containers":{', '"?":{}', "}}"), id="batch-resource"),
        pytest.param("rdma-devices", longest('{"rdma":[', '{"id":"?:1f:00.0"}', "]}"), id="rdma-devices"),
        pytest.param("accelerators", longest('{"gpu":[', '{"minor":1?}', "]}"), id="accelerators"),
        pytest.param("gpu-env", longest('{"gpu":[', '{"minor":1?}', "]}"), id="gpu-env"),
        pytest.param("oom-score", longest("{", '"?":1', "}"), id="oom-score"),
    ],
)
def test_nothing_is_kept_of_long_annotations(turn: str, text: str) -> None:
    """What is made of them takes up to 25 times their memory, and pods come and go."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(4):
            annotations = dict.fromkeys(KEYS, text + " " * number)
            pod = PodView(qos=QoSClass.BE, annotations=annotations, cgroup_parent="/kubepods/pod1")
            TURNS[turn](ContainerView(name="0001", pod=pod))
            del annotations, pod
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < KEPT_BYTES


@pytest.mark.parametrize("key", [RESOURCE_STATUS, EXTENDED_RESOURCE_SPEC, DEVICE_ALLOCATED])
def test_an_annotation_has_a_longest_text(key: str) -> None:
    assert parse(key, "{}" + " " * (MAX_ANNOTATION_LENGTH - 2)).entries() == {}
    with pytest.raises(AnnotationError, match=f"{key} is longer than 16,384 characters"):
        parse(key, "{}" + " " * (MAX_ANNOTATION_LENGTH - 1))


EVERY_SECOND = ",".join(map(str, range(0, 8_192, 2)))


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        pytest.param({"cpuset": EVERY_SECOND[:10_000]}, "longer than any list", id="many-cpus"),
        pytest.param({"cpuset": "0," * 5_000}, "longer than any list", id="one-cpu-often"),
        pytest.param({"numaNodeResources": [{}] * 9}, "more NUMA nodes", id="nodes"),
    ],
)
def test_what_this_node_cannot_have_is_not_read(status: dict[str, Any], reason: str) -> None:
    text = json.dumps(status)
    with pytest.raises(AnnotationError, match=reason):
        resource_status({RESOURCE_STATUS: text}, 7)
    assert pod_cpus({QOS_CLASS_LABEL: "LSR"}, {RESOURCE_STATUS: text}, 7) is None
    node = Node(facts=NodeFacts(last_cpu=7))
    pod = PodView(qos=QoSClass.LSR, annotations={RESOURCE_STATUS: text})
    for change in (Cpuset().pod(pod, node), Cpuset().container(ContainerView(name="main", pod=pod), node)):
        assert change is not None
        assert len(change.problems) == 1


def test_hostile_annotations_cost_as_much_as_others() -> None:
    """A long list took 20 ms for each question of each policy."""
    node = Node(facts=NodeFacts(last_cpu=7))
    text = json.dumps({"cpuset": "0," * 8_000})
    views = [
        PodView(qos=QoSClass.LSR, annotations={RESOURCE_STATUS: text + " " * each}) for each in range(100)
    ]
    begun_s = time.process_time()
    for pod in views:
        Cpuset().pod(pod, node)
        pod_cpus({QOS_CLASS_LABEL: "LSR"}, pod.annotations, 7)
    assert time.process_time() - begun_s < 0.5
