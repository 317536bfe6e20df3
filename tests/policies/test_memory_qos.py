"""Memory QoS. Cases Vnnn are those of Koordinator's cgroup_reconcile_test.go (CONTRIBUTING.md).

Koordinator's largest number, which the kernel reads as `max`, is -1 here.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.annotations import EXTENDED_RESOURCE_SPEC
from policies.memory_qos import (
    MemoryAmounts,
    MemoryBound,
    MemoryQoS,
    class_values,
    container_values,
    directory_values,
    high_bytes,
    page_cache_values,
    pod_values,
    protected_bytes,
    sum_of,
    within_bounds,
)
from runtimeproxy.hooks import CgroupChange, ContainerView, PodView, ResolvedPod, Resources
from runtimeproxy.hooks.decision import Unmet, unmet_on
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Feature, Input, InputState, KubeletFacts, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.names import MEMORY_QOS
from runtimeproxy.slo.schema import PRODUCT_DEFAULTS, ClassQoS, QoSStrategy
from runtimeproxy.slo.schema import MemoryQoSStrategy as Strategy
from runtimeproxy.slo.strategies import Strategies

GI = 1 << 30
UNLIMITED = -1
WMARKS = ("memory.wmark_ratio", "memory.wmark_scale_factor", "memory.wmark_min_adj")


def strategy(minimum: int = 0, low: int = 0, throttling: int = 0) -> Strategy:
    return Strategy(
        enable=True, min_limit_percent=minimum, low_limit_percent=low, throttling_percent=throttling
    )


@pytest.mark.parametrize(
    ("amounts", "minimum", "throttling", "expected"),
    [
        pytest.param(MemoryAmounts(0, UNLIMITED), 100, 80, (0, 858_992_640), id="V145-c0"),
        pytest.param(MemoryAmounts(GI, GI), 100, 80, (GI, GI), id="V145-c1"),
        pytest.param(MemoryAmounts(0, UNLIMITED), 50, 40, (0, 429_494_272), id="V146-c0"),
        pytest.param(MemoryAmounts(GI, GI), 50, 40, (GI // 2, GI), id="V146-c1"),
        pytest.param(MemoryAmounts(GI, GI), 0, 0, (0, UNLIMITED), id="V148"),
    ],
)
def test_a_container_is_protected_and_throttled(
    amounts: MemoryAmounts, minimum: int, throttling: int, expected: tuple[int, int]
) -> None:
    values = container_values(amounts, GI, strategy(minimum, throttling=throttling))
    assert (values["memory.min"], values["memory.high"]) == expected
    assert values["memory.low"] == 0


@pytest.mark.parametrize(
    ("minimum", "expected"), [pytest.param(100, GI, id="V145"), pytest.param(50, GI // 2, id="V146")]
)
def test_a_pod_is_protected_and_never_throttled(minimum: int, expected: int) -> None:
    values = pod_values(MemoryAmounts(GI, UNLIMITED), strategy(minimum, throttling=80))
    assert values["memory.min"] == expected
    assert "memory.high" not in values


@pytest.mark.parametrize(
    ("of_class", "expected"),
    [
        pytest.param(PRODUCT_DEFAULTS.ls_class, (95, 20, -25), id="V149"),
        pytest.param(PRODUCT_DEFAULTS.be_class, (95, 20, 50), id="BE"),
        pytest.param(PRODUCT_DEFAULTS.system_class, (0, 50, 0), id="V151"),
        pytest.param(ClassQoS(), (0, 50, 0), id="V152"),
    ],
)
def test_reclaim_in_the_background(of_class: ClassQoS, expected: tuple[int, int, int]) -> None:
    values = class_values(of_class.memory_qos)
    assert tuple(values[name] for name in WMARKS) == expected


@pytest.mark.parametrize(
    "of_class",
    [pytest.param(PRODUCT_DEFAULTS.system_class, id="V151"), pytest.param(ClassQoS(), id="V152")],
)
def test_without_memory_qos_nothing_is_protected_or_throttled(of_class: ClassQoS) -> None:
    values = container_values(MemoryAmounts(GI, GI), GI, of_class.memory_qos)
    assert (values["memory.min"], values["memory.low"], values["memory.high"]) == (0, 0, UNLIMITED)


def test_low_is_not_below_min() -> None:
    """V154."""
    assert protected_bytes(100, strategy(80, 60)) == {"memory.min": 80, "memory.low": 80}
    assert protected_bytes(100, strategy(80, 90)) == {"memory.min": 80, "memory.low": 90}
    assert protected_bytes(100, strategy(80, 0)) == {"memory.min": 80, "memory.low": 0}


def test_high_is_not_below_min() -> None:
    """V155: rounding to pages, or a limit below the request, would lead there."""
    assert high_bytes(4_097, 4_098, None, strategy(100, throttling=1)) == 4_097


@pytest.mark.parametrize(
    ("limit_bytes", "allocatable_bytes", "percent", "expected"),
    [
        pytest.param(GI, None, None, None, id="not-configured"),
        pytest.param(UNLIMITED, None, 80, None, id="nothing-known"),
        pytest.param(4_096, None, 50, UNLIMITED, id="below-a-page"),
    ],
)
def test_high_is_left_out_rather_than_guessed(
    limit_bytes: int, allocatable_bytes: int | None, percent: int | None, expected: int | None
) -> None:
    """A value below a page would be 0, which stops the container."""
    chosen = replace(strategy(), throttling_percent=percent)
    assert high_bytes(0, limit_bytes, allocatable_bytes, chosen) == expected


def _page_cache(
    enable: int | None = None, size: int | None = None, sync: int | None = None
) -> dict[str, int]:
    named = {"enable": enable, "size": size, "sync": sync}
    return {f"memory.pagecache_limit.{name}": value for name, value in named.items() if value is not None}


@pytest.mark.parametrize(
    ("chosen", "limit_bytes", "expected"),
    [
        pytest.param(Strategy(page_cache_limit_size=2 * GI), GI, _page_cache(1, GI, 0), id="V157"),
        pytest.param(Strategy(page_cache_limit_size=0), GI, _page_cache(0, 0), id="V158"),
        pytest.param(Strategy(page_cache_enable=True), GI, _page_cache(1), id="V160"),
        pytest.param(Strategy(page_cache_limit_percent=50), GI, _page_cache(1, GI // 2, 0), id="V161"),
        pytest.param(Strategy(page_cache_limit_percent=50), UNLIMITED, {}, id="percent-of-nothing"),
        pytest.param(
            Strategy(page_cache_limit_size=GI, page_cache_reclaim_sync=True),
            UNLIMITED,
            _page_cache(1, GI, 1),
            id="V163",
        ),
        pytest.param(
            Strategy(page_cache_limit_size=GI, page_cache_enable=False),
            UNLIMITED,
            _page_cache(0, GI, 0),
            id="switched-off",
        ),
        pytest.param(Strategy(), GI, {}, id="not-configured"),
    ],
)
def test_page_cache(chosen: Strategy, limit_bytes: int, expected: dict[str, int]) -> None:
    assert page_cache_values(limit_bytes, chosen) == expected


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        pytest.param(Strategy(page_cache_limit_size=2 * GI), _page_cache(1, 2 * GI, 0), id="size"),
        pytest.param(Strategy(page_cache_limit_percent=50), {}, id="percent"),
    ],
)
def test_page_cache_of_a_pod_of_which_only_some_containers_have_a_limit(
    chosen: Strategy, expected: dict[str, int]
) -> None:
    """V157, V161 with a container without a limit, whose page cache is not bounded by that of others."""
    pod = sum_of((MemoryAmounts(0, UNLIMITED), MemoryAmounts(GI, GI)))
    values = pod_values(pod, chosen)
    assert {name: value for name, value in values.items() if "pagecache" in name} == expected


PERCENT = st.none() | st.integers(0, 100)


@given(
    st.lists(st.integers(0, 1 << 50), max_size=5),
    st.integers(-1, 1 << 50),
    st.builds(strategy, minimum=st.integers(0, 100), low=st.integers(0, 100), throttling=st.integers(0, 100)),
)
def test_protection_never_exceeds_the_request_and_parents_hold_their_children(
    requests: list[int], limit_bytes: int, chosen: Strategy
) -> None:
    containers = [container_values(MemoryAmounts(each, limit_bytes), 1 << 40, chosen) for each in requests]
    pod = pod_values(MemoryAmounts(sum(requests), limit_bytes), chosen)
    directory = directory_values([pod], chosen)
    for request, values in zip(requests, containers, strict=True):
        assert 0 <= values["memory.min"] <= request
        assert values["memory.low"] in (0, max(values["memory.min"], values["memory.low"]))
        assert values["memory.high"] == UNLIMITED or values["memory.high"] >= values["memory.min"]
    for name in ("memory.min", "memory.low"):
        assert sum(values[name] for values in containers) <= pod[name] + 100 * len(containers)
        assert directory[name] == pod[name]


# --- the policy --------------------------------------------------------------------------------------------

FEATURES = frozenset(
    {
        Feature.MEMORY_PROTECTION,
        Feature.MEMORY_WMARK,
        Feature.MEMORY_PRIORITY,
        Feature.MEMORY_OOM_GROUP,
        Feature.MEMORY_PAGECACHE_LIMIT,
    }
)


def node(
    chosen: Strategy | None = None,
    *,
    features: frozenset[str] = FEATURES,
    allocatable_bytes: int = 4 * GI,
    requests: dict[tuple[str, str], dict[str, int]] | None = None,
) -> Node:
    """A node on which all classes have one strategy."""
    of_class = ClassQoS(memory_qos=strategy(100, throttling=80) if chosen is None else chosen)
    qos = QoSStrategy(lsr_class=of_class, ls_class=of_class, be_class=of_class, system_class=of_class)
    return Node(
        strategies=Strategies(qos=qos),
        features=features,
        allocatable={"memory": allocatable_bytes},
        requests=requests or {},
        states={Input.CGROUPS: InputState.KNOWN},
    )


BE_SPEC = {
    EXTENDED_RESOURCE_SPEC: json.dumps(
        {
            "containers": {
                "c0": {},
                "c1": {
                    "requests": {"kubernetes.io/batch-memory": "1Gi"},
                    "limits": {"kubernetes.io/batch-memory": "1Gi"},
                },
            }
        }
    )
}
BE_POD = PodView(uid="u", qos=QoSClass.BE, kube_qos=KubeQoSClass.BEST_EFFORT, annotations=BE_SPEC)


def test_a_best_effort_pod_is_protected_by_its_batch_memory() -> None:
    """V145, through the policy."""
    small = node(allocatable_bytes=GI)
    change = MemoryQoS().pod(BE_POD, small)
    assert change is not None
    assert change.cgroup == {"memory.min": GI}
    expected = {"c0": {"memory.high": 858_992_640}, "c1": {"memory.min": GI, "memory.high": GI}}
    for name, values in expected.items():
        changed = MemoryQoS().container(ContainerView(name=name, pod=BE_POD), small)
        assert changed is not None
        assert changed.cgroup == values
        assert not changed.problems


@pytest.mark.parametrize("amount", ["1Ti", "8Ei", "1e30"])
@pytest.mark.parametrize(
    ("known", "what"),
    [
        ({"allocatable": {"memory": 64 * GI}}, "allocatable memory"),
        ({"memory_bytes": {0: 64 * GI}}, "memory"),
    ],
)
def test_no_author_protects_more_than_the_node_has(amount: str, known: dict[str, object], what: str) -> None:
    memory = {"kubernetes.io/batch-memory": amount}
    spec = json.dumps({"containers": {"main": {"requests": memory, "limits": memory}}})
    annotations = {EXTENDED_RESOURCE_SPEC: spec, MEMORY_QOS: '{"minLimitPercent":100,"lowLimitPercent":100}'}
    pod = replace(BE_POD, annotations=annotations)
    of_64_gi = replace(node(), **{"allocatable": None, **known})  # type: ignore[arg-type]
    protected = {"memory.min": 64 * GI, "memory.low": 64 * GI}
    changes: list[CgroupChange | None] = [
        MemoryQoS().pod(pod, of_64_gi),
        MemoryQoS().container(ContainerView(name="main", pod=pod), of_64_gi),
    ]
    resolved = [ResolvedPod(pod=pod, cgroup=protected)] * 2
    changes += [MemoryQoS().qos_class(each, resolved, of_64_gi) for each in KubeQoSClass]
    assert len(changes) == 5
    for change in changes:
        assert change is not None
        assert {name: change.cgroup[name] for name in protected} == protected
        assert [each.partition(" of ")[0] for each in change.problems] == list(protected)
        assert change.problems[0].endswith(f" is bounded to {64 * GI}, the node's {what}")


def test_no_pod_is_protected_above_its_limit() -> None:
    memory = "kubernetes.io/batch-memory"
    spec = {"containers": {"main": {"requests": {memory: "3Gi"}, "limits": {memory: "1Gi"}}}}
    pod = replace(BE_POD, annotations={EXTENDED_RESOURCE_SPEC: json.dumps(spec)})
    for change in (
        MemoryQoS().pod(pod, node()),
        MemoryQoS().container(ContainerView(name="main", pod=pod), node()),
    ):
        assert change is not None
        assert change.cgroup["memory.min"] == GI
        assert change.problems == (f"memory.min of {3 * GI} is bounded to {GI}, the memory limit",)


@given(st.dictionaries(st.sampled_from(["memory.min", "memory.low", "memory.high"]), st.integers(0, 1 << 62)))
def test_values_within_bounds_stay(values: dict[str, int]) -> None:
    assert within_bounds(values, [MemoryBound(1 << 62, "")]) == (values, ())
    assert within_bounds(values, []) == (values, ())
    bounded, problems = within_bounds(values, [MemoryBound(100, "a"), MemoryBound(50, "b")])
    assert bounded.get("memory.high") == values.get("memory.high")
    above = {name for name, value in values.items() if value > 50 and name != "memory.high"}
    assert {name for name, value in bounded.items() if value != values[name]} == above
    assert len(problems) == len(above)


def test_values_without_effect_are_no_claims() -> None:
    """Koordinator writes them, and so replaces the kubelet's `memory.high` and `memory.oom.group`."""
    view = ContainerView(name="c1", pod=BE_POD)
    assert MemoryQoS().container(view, node(strategy())) is None
    assert MemoryQoS().pod(BE_POD, node(strategy())) is None


def test_the_request_of_a_guaranteed_pod_is_its_limit() -> None:
    pod = PodView(uid="u", qos=QoSClass.LS, resources=Resources(memory_limit_bytes=2 * GI))
    change = MemoryQoS().pod(pod, node())
    assert change is not None
    assert change.cgroup == {"memory.min": 2 * GI}
    view = ContainerView(name="main", pod=pod, requested=Resources(memory_limit_bytes=GI))
    changed = MemoryQoS().container(view, node())
    assert changed is not None
    assert changed.cgroup == {"memory.min": GI, "memory.high": GI}


def test_a_kubelet_that_writes_no_requests_is_no_request_of_zero() -> None:
    pod = PodView(uid="u", qos=QoSClass.LS, resources=Resources(memory_limit_bytes=GI))
    withdrawn = {Input.CGROUPS: InputState.KNOWN, Input.POD_REQUESTS: InputState.WITHDRAWN}
    change = MemoryQoS().pod(pod, replace(node(), states=withdrawn))
    assert change is not None
    assert change.cgroup == {"memory.min": GI}


def test_the_request_of_a_burstable_pod_comes_from_the_kubelets_state() -> None:
    pod = PodView(uid="u", qos=QoSClass.LS, kube_qos=KubeQoSClass.BURSTABLE)
    view = ContainerView(name="main", pod=pod, requested=Resources(memory_limit_bytes=GI))
    known = node(requests={("u", "main"): {"memory": GI // 2}, ("u", "sidecar"): {"memory": GI // 4}})
    change = MemoryQoS().pod(pod, known)
    assert change is not None
    assert change.cgroup == {"memory.min": GI // 2 + GI // 4}
    changed = MemoryQoS().container(view, known)
    assert changed is not None
    assert changed.cgroup == {
        "memory.min": GI // 2,
        "memory.high": (GI // 2 + GI // 2 * 80 // 100) // 4096 * 4096,
    }


def test_a_request_that_is_not_known_switches_off_what_depends_on_it() -> None:
    pod = PodView(uid="u", qos=QoSClass.LS, kube_qos=KubeQoSClass.BURSTABLE)
    view = ContainerView(name="main", pod=pod, requested=Resources(memory_limit_bytes=GI))
    chosen = replace(strategy(100, throttling=80), wmark_ratio=95)
    for change in (MemoryQoS().pod(pod, node(chosen)), MemoryQoS().container(view, node(chosen))):
        assert change is not None
        assert change.cgroup == {"memory.wmark_ratio": 95}
        assert "request is not known" in change.problems[0]
    # Nothing depends on it: no problem.
    for change in (
        MemoryQoS().pod(pod, node(replace(strategy(), wmark_ratio=95))),
        MemoryQoS().container(view, node(replace(strategy(), wmark_ratio=95))),
    ):
        assert change is not None
        assert not change.problems


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        pytest.param('{"policy": "none"}', None, id="V152"),
        pytest.param('{"policy": "auto"}', {"memory.wmark_ratio": 95}, id="V149"),
        pytest.param('{"minLimitPercent": 50}', {"memory.min": GI // 2}, id="on-top-of-the-class"),
    ],
)
def test_a_pods_own_annotation(annotation: str, expected: dict[str, int] | None) -> None:
    pod = PodView(
        uid="u",
        qos=QoSClass.LS,
        annotations={MEMORY_QOS: annotation},
        resources=Resources(memory_limit_bytes=GI),
    )
    change = MemoryQoS().pod(pod, node())
    if expected is None:
        assert change is None
    else:
        assert change is not None
        assert expected.items() <= change.cgroup.items()


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_what_the_kernel_lacks_is_left_out_without_a_problem(feature: str) -> None:
    everything = Strategy(
        enable=True,
        min_limit_percent=50,
        wmark_ratio=95,
        priority=1,
        oom_kill_group=1,
        page_cache_enable=True,
    )
    pod = PodView(uid="u", qos=QoSClass.LS, resources=Resources(memory_limit_bytes=GI))
    all_files = MemoryQoS().pod(pod, node(everything))
    fewer = MemoryQoS().pod(pod, node(everything, features=FEATURES - {feature}))
    assert all_files is not None
    assert fewer is not None
    assert len(all_files.cgroup) == 5
    assert len(fewer.cgroup) == 4
    assert not fewer.problems
    policy = bind(MemoryQoS())
    assert unmet_on(policy, node(everything)) is None
    without = node(everything, features=FEATURES - {feature})
    assert unmet_on(policy, without) == Unmet(features=(feature,), is_off=False)


def pods(*protected: int) -> list[ResolvedPod]:
    return [ResolvedPod(pod=PodView(), cgroup={"memory.min": each}) for each in protected]


def test_directories_have_the_sums_of_their_pods() -> None:
    """`kubepods` holds all classes, and is given all pods."""
    for directory in KubeQoSClass:
        change = MemoryQoS().qos_class(directory, pods(GI, 2 * GI), node())
        assert change is not None
        assert change.cgroup == {"memory.min": 3 * GI}
        assert MemoryQoS().qos_class(directory, pods(), node()) is None


def test_what_the_kubelet_writes_to_a_directory_is_left_to_it() -> None:
    """TieredReservation of Kubernetes 1.37."""
    written = {
        KubeQoSClass.GUARANTEED: frozenset({"memory.min", "memory.low"}),
        KubeQoSClass.BURSTABLE: frozenset({"memory.low"}),
    }
    on = replace(node(), kubelet=KubeletFacts(class_memory=written, version="v1.37.2"))
    both = [ResolvedPod(pod=PodView(), cgroup={"memory.min": 1, "memory.low": 2})]
    found = {qos: MemoryQoS().qos_class(qos, both, on) for qos in KubeQoSClass}
    assert found[KubeQoSClass.GUARANTEED] is None
    assert {qos: change.cgroup for qos, change in found.items() if change is not None} == {
        KubeQoSClass.BURSTABLE: {"memory.min": 1},
        KubeQoSClass.BEST_EFFORT: {"memory.min": 1, "memory.low": 2},
    }
    on_v1 = replace(on, facts=NodeFacts(cgroup_version=1))
    for qos in KubeQoSClass:
        change = MemoryQoS().qos_class(qos, both, on_v1)
        assert change is not None
        assert change.cgroup == {"memory.min": 1, "memory.low": 2}


def test_a_pod_says_what_is_left_to_a_kubelet_of_unknown_version() -> None:
    written = {KubeQoSClass.GUARANTEED: frozenset({"memory.min"})}
    pod = PodView(kube_qos=KubeQoSClass.GUARANTEED, resources=Resources(memory_limit_bytes=GI))
    unknown = KubeletFacts(class_memory=written)
    for facts, count in ((unknown, 1), (unknown._replace(version="v1.34.2"), 0), (KubeletFacts(), 0)):
        on = replace(node(strategy(minimum=50, low=50)), kubelet=facts)
        change = MemoryQoS().pod(pod, on)
        assert change is not None
        assert change.cgroup == {"memory.min": GI // 2, "memory.low": GI // 2}
        assert len(change.problems) == count
        assert all(text.startswith("memory.min of QoS classes may not cover it") for text in change.problems)


def test_directories_have_the_priority_of_their_class_and_never_die_as_one() -> None:
    """Koordinator writes `memory.oom.group` there, too: then one that dies takes all pods with it."""
    chosen = Strategy(enable=True, priority=2, priority_enable=1, oom_kill_group=1)
    for directory in (KubeQoSClass.BURSTABLE, KubeQoSClass.BEST_EFFORT):
        change = MemoryQoS().qos_class(directory, (), node(chosen))
        assert change is not None
        assert change.cgroup == {"memory.priority": 2, "memory.use_priority_oom": 1}
    assert MemoryQoS().qos_class(KubeQoSClass.GUARANTEED, (), node(chosen)) is None


def test_without_strategies_it_is_for_annotated_pods_only() -> None:
    selector = MemoryQoS.selector_without[Input.STRATEGIES]
    assert not selector.matches(PodView())
    assert selector.matches(PodView(annotations={MEMORY_QOS: "{}"}))


def test_it_is_off_by_default() -> None:
    """Koordinator's gate CgroupReconcile is off."""
    assert not MemoryQoS.is_default
