"""Shared pools, published and computed, and the normalization ratio."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.documents.reading import InputError
from runtimeproxy.node.derived import (
    SharedCpus,
    computed_pools,
    empty_pools,
    normalization_ratio,
    pod_cpus,
    published_pools,
    reservation_of,
    topology_of,
    without_claimed,
)
from runtimeproxy.node.machine import Processor
from runtimeproxy.node.objects import TopologyFacts
from runtimeproxy.node.snapshot import Cpu, PodCpus, Pool, Pools
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.names import CPU_NORMALIZATION_RATIO
from runtimeproxy.slo.schema import CpuNormalizationStrategy, ModelRatio
from runtimeproxy.units import parse_cpu_list

CPUS = tuple(Cpu(id=cpu, core=cpu // 2 % 2, socket=cpu // 4, numa_node=cpu // 4, l3=0) for cpu in range(8))
"""Two sockets with four CPUs each."""


def cpus(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


def pool(numa_node: int, *numbers: int) -> Pool:
    return Pool(socket=numa_node, numa_node=numa_node, cpus=cpus(*numbers))


LS, LSR, LSE = PodCpus(QoSClass.LS, cpus(1)), PodCpus(QoSClass.LSR, cpus(2)), PodCpus(QoSClass.LSE, cpus(3))
FIRST, SECOND = pool(0, 0, 1, 2, 3), pool(1, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("static", "pods", "topology", "ls", "be"),
    [
        (
            [],
            [],
            TopologyFacts(),
            [FIRST, SECOND],
            [FIRST, SECOND],
        ),
        (
            [cpus(4, 5)],
            [],
            TopologyFacts(),
            [FIRST, pool(1, 6, 7)],
            [FIRST, pool(1, 6, 7)],
        ),
        (
            [],
            [LS, LSR, LSE],
            TopologyFacts(),
            [pool(0, 0), SECOND],
            [pool(0, 0, 1, 2), SECOND],
        ),
        (
            [],
            [],
            TopologyFacts(reserved_cpus=cpus(0, 1, 2, 3), system_cpus=cpus(7)),
            [pool(1, 4, 5, 6)],
            [pool(1, 4, 5, 6)],
        ),
        (
            [],
            [],
            TopologyFacts(system_cpus=cpus(7), is_system_exclusive=False, kubelet_reserved_cpus=cpus(0)),
            [FIRST, SECOND],
            [FIRST, SECOND],
        ),
        ([cpus(*range(8))], [LSE], TopologyFacts(), [], []),
    ],
)
def test_computed_pools(
    static: list[frozenset[int]], pods: list[PodCpus], topology: TopologyFacts, ls: list[Pool], be: list[Pool]
) -> None:
    found = computed_pools(CPUS, static, pods, topology)
    assert (list(found.ls), list(found.be)) == (ls, be)
    assert found.system_cpus == (topology.system_cpus or frozenset())
    assert found.is_system_exclusive is topology.is_system_exclusive


def test_claimed_cpus_are_in_no_pool() -> None:
    claimed = SharedCpus(CPUS, (), TopologyFacts(system_cpus=cpus(6, 7)), cpus(0, 1, 2, 3, 7)).pools([LSR])
    assert (claimed.ls, claimed.be) == ((pool(1, 4, 5),), (pool(1, 4, 5),))
    assert claimed.system_cpus == cpus(6)
    published = Pools(ls=(FIRST, SECOND), be=(FIRST,), system_cpus=cpus(7), is_system_exclusive=False)
    assert without_claimed(published, frozenset()) is published
    rest = Pools(ls=(pool(0, 0), SECOND), be=(pool(0, 0),), system_cpus=cpus(7), is_system_exclusive=False)
    assert without_claimed(published, cpus(1, 2, 3)) == rest


@pytest.mark.parametrize(
    ("ls", "be", "of_computed", "of_published"),
    [
        ("1", "1", [], []),
        ("", "1", ["LS"], ["LS"]),
        ("1", "", ["BE"], []),
        ("", "", ["LS", "BE"], []),
    ],
)
def test_a_pool_without_a_cpu_is_a_problem(
    ls: str, be: str, of_computed: list[str], of_published: list[str]
) -> None:
    of_ls, of_be = (
        tuple(Pool(socket=0, numa_node=0, cpus=parse_cpu_list(cpus)) for cpus in (text,) if cpus)
        for text in (ls, be)
    )
    for is_computed, expected in ((True, of_computed), (False, of_published)):
        found = empty_pools(Pools(ls=of_ls, be=of_be), is_computed=is_computed)
        assert [each.split()[9] for each in found] == expected
    assert empty_pools(None, is_computed=True) == ()


def test_computed_pools_have_online_cpus_by_socket_and_numa_node() -> None:
    there = [
        Cpu(id=0, core=0, socket=1, numa_node=0, l3=0),
        Cpu(id=1, core=0, socket=0, numa_node=1, l3=0),
        Cpu(id=2, core=0, socket=0, numa_node=0, l3=0, is_online=False),
    ]
    found = computed_pools(there, [], [], TopologyFacts())
    assert [(each.socket, each.numa_node, sorted(each.cpus)) for each in found.ls] == [
        (0, 1, [1]),
        (1, 0, [0]),
    ]


some_cpus = st.frozensets(st.integers(0, 7))
some_pods = st.lists(st.builds(PodCpus, st.sampled_from(QoSClass), some_cpus), max_size=4)


@given(st.lists(some_cpus, max_size=3), some_pods, some_cpus, some_cpus)
def test_no_shared_cpu_is_somebodys_own(
    static: list[frozenset[int]], pods: list[PodCpus], reserved: frozenset[int], system: frozenset[int]
) -> None:
    found = computed_pools(CPUS, static, pods, TopologyFacts(reserved_cpus=reserved, system_cpus=system))
    ls, be = (frozenset[int]().union(*(each.cpus for each in pools)) for pools in (found.ls, found.be))
    assert ls <= be
    assert not be & frozenset[int]().union(*static, reserved, system)
    assert not ls & frozenset[int]().union(*(pod.cpus for pod in pods))
    assert not be & frozenset[int]().union(*(pod.cpus for pod in pods if pod.qos is QoSClass.LSE))


def test_published_pools() -> None:
    empty = Pool(socket=0, numa_node=2, cpus=frozenset())
    facts = TopologyFacts(
        ls_pools=(pool(1, 4), empty, pool(0, 0)), be_pools=(pool(1, 5),), system_cpus=cpus(7)
    )
    assert published_pools(facts) == Pools(ls=(pool(1, 4), pool(0, 0)), be=(pool(1, 5),), system_cpus=cpus(7))
    assert published_pools(TopologyFacts()) is None
    assert published_pools(TopologyFacts(system_cpus=cpus(7))) == Pools(system_cpus=cpus(7))


SYSTEM = "node.koordinator.sh/system-qos-resource"
RESERVATION = "node.koordinator.sh/reservation"


def test_the_nodes_own_annotations_count_before_their_copies() -> None:
    copies = TopologyFacts(source={SYSTEM: '{"cpuset":"1"}', RESERVATION: '{"reservedCPUs":"2"}', "x": "{"})
    found = topology_of(copies, {SYSTEM: '{"cpuset":"7"}'})
    assert (found.system_cpus, found.reserved_cpus) == (cpus(7), cpus(2))
    assert topology_of(None, {}) == TopologyFacts()
    with pytest.raises(InputError, match=f"metadata.annotations.{SYSTEM}.cpuset: not a CPU list"):
        topology_of(copies, {SYSTEM: '{"cpuset":"x"}'})


@pytest.mark.parametrize(
    ("text", "amounts", "reserved"),
    [
        ("", {}, cpus()),
        ('{"resources":{"cpu":"1500m","memory":"1Ki"}}', {"cpu": 1_500, "memory": 1_024}, cpus()),
        ('{"reservedCPUs":"0-2"}', {"cpu": 3_000}, cpus(0, 1, 2)),
        (
            '{"resources":{"cpu":"8","memory":"1Ki"},"reservedCPUs":"0"}',
            {"cpu": 1_000, "memory": 1_024},
            cpus(0),
        ),
        ('{"resources":{"cpu":"8"},"applyPolicy":"ReservedCPUsOnly"}', {"cpu": 8_000}, cpus()),
        ('{"Resources":{"cpu":8},"reservedcpus":""}', {"cpu": 8_000}, cpus()),
    ],
)
def test_what_a_node_reserves(text: str, amounts: dict[str, int], reserved: frozenset[int]) -> None:
    assert reservation_of({RESERVATION: text}) == (amounts, reserved)
    assert reservation_of({}) == ({}, frozenset())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "line 1"),
        ("[]", "is a list, not a mapping"),
        ('{"resources":{"cpu":"1","memory":"much"}}', "resources.memory: is not a quantity"),
        ('{"resources":{"cpu":"1"},"reservedCPUs":"x"}', "reservedCPUs: not a CPU list"),
        ('{"reservedCPUs":5}', "reservedCPUs: is a number, not a text"),
    ],
)
def test_a_reservation_with_an_error_does_not_count_at_all(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"metadata.annotations.{RESERVATION}.*{reason}"):
        reservation_of({RESERVATION: text})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"cpuset":"0-1"}', cpus(0, 1)),
        ('{"CPUSet":"3"}', cpus(3)),
        ('{"cpuset":""}', None),
        ("{}", None),
        ("[]", None),
        ("{", None),
        ('{"cpuset":1}', None),
        ('{"cpuset":"x"}', None),
        (None, None),
        ('{"cpuset": "0-1"}' + " " * 16_384, None),  # as for the policies
    ],
)
def test_cpus_of_a_pod(text: str | None, found: frozenset[int] | None) -> None:
    annotations = {} if text is None else {"scheduling.koordinator.sh/resource-status": text}
    expected = None if found is None else PodCpus(QoSClass.LSR, found)
    assert pod_cpus({"koordinator.sh/qosClass": "LSR"}, annotations) == expected


MODEL = ModelRatio(
    base_ratio=1.1,
    hyper_thread_enabled_ratio=1.25,
    turbo_enabled_ratio=1.333,
    hyper_thread_turbo_enabled_ratio=1.5,
)
STRATEGY = CpuNormalizationStrategy(enable=True, ratio_model={"X": MODEL, "Y": ModelRatio(base_ratio=1.2)})
OF_X = "cpu_normalization.ratio_model.X"


def processor(model: str = "X", **flags: Any) -> Processor:
    return Processor(model=model, **flags)


@pytest.mark.parametrize(
    ("annotation", "strategy", "of", "expected"),
    [
        (None, STRATEGY, processor(), (1.1, OF_X)),
        (None, STRATEGY, processor(has_hyper_threads=True), (1.25, OF_X)),
        (None, STRATEGY, processor(has_turbo=True), (1.33, OF_X)),
        (None, STRATEGY, processor(has_hyper_threads=True, has_turbo=True), (1.5, OF_X)),
        (None, STRATEGY, processor("Y"), (1.2, "cpu_normalization.ratio_model.Y")),
        (
            None,
            replace(STRATEGY, default_ratio=1.4),
            processor("Z"),
            (1.4, "cpu_normalization.default_ratio"),
        ),
        (None, CpuNormalizationStrategy(ratio_model={"X": MODEL}), processor(), None),
        (None, CpuNormalizationStrategy(), processor(), None),
        ("1.20", STRATEGY, processor(), (1.2, "")),
        ("1.00", CpuNormalizationStrategy(), processor(), (1.0, "")),
        ("5", CpuNormalizationStrategy(), processor(), (5.0, "")),
    ],
)
def test_the_normalization_ratio(
    annotation: str | None,
    strategy: CpuNormalizationStrategy,
    of: Processor,
    expected: tuple[float, str] | None,
) -> None:
    annotations = {} if annotation is None else {CPU_NORMALIZATION_RATIO: annotation}
    assert normalization_ratio(annotations, strategy, of) == expected


@pytest.mark.parametrize(
    ("annotation", "strategy", "of", "problem"),
    [
        ("", STRATEGY, processor(), f"{CPU_NORMALIZATION_RATIO}: is not a number: ''"),
        ("fast", STRATEGY, processor(), f"{CPU_NORMALIZATION_RATIO}: is not a number: 'fast'"),
        ("0.99", STRATEGY, processor(), f"{CPU_NORMALIZATION_RATIO}: is 0.99, not in 1 to 5"),
        ("-1", STRATEGY, processor(), f"{CPU_NORMALIZATION_RATIO}: is -1, not in 1 to 5"),
        ("5.01", STRATEGY, processor(), f"{CPU_NORMALIZATION_RATIO}: is 5.01, not in 1 to 5"),
        ("nan", STRATEGY, processor(), f"{CPU_NORMALIZATION_RATIO}: is nan, not in 1 to 5"),
        (
            None,
            STRATEGY,
            processor("Z"),
            "ratioModel: has nothing for the CPU 'Z', and there is no defaultRatio",
        ),
        (
            None,
            STRATEGY,
            processor("Y", has_turbo=True),
            "ratioModel.turboEnabledRatio: of the CPU 'Y' is missing",
        ),
    ],
)
def test_a_bad_ratio(
    annotation: str | None, strategy: CpuNormalizationStrategy, of: Processor, problem: str
) -> None:
    with pytest.raises(InputError) as error:
        normalization_ratio({} if annotation is None else {CPU_NORMALIZATION_RATIO: annotation}, strategy, of)
    assert str(error.value) == problem


def test_annotations_are_texts_of_json() -> None:
    text = json.dumps({"cpuset": "0-1", "numaNodeResources": [{"node": 0, "resources": {"cpu": "2"}}]})
    annotations = {"scheduling.koordinator.sh/resource-status": text}
    for qos in QoSClass:
        expected = PodCpus(qos, cpus(0, 1)) if qos in (QoSClass.LSE, QoSClass.LSR) else None
        assert pod_cpus({"koordinator.sh/qosClass": qos}, annotations) == expected
