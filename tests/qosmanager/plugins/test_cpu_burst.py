"""CPU burst by quota. Cases Vnnn are those of Koordinator's cpu_burst_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hooks import algebra
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.qos import PriorityClass, QoSClass
from runtimeproxy.qosmanager.plugin import QUOTA, Claim, Decision, PluginContext, Role, Target
from runtimeproxy.qosmanager.plugins.cpu_burst import (
    HOLD_S,
    WINDOW_S,
    Bucket,
    Burst,
    BurstState,
    CpuBurstPlugin,
    Operation,
    PoolState,
    SharePool,
    ceiling_us,
    limited,
    new_bucket,
    operation,
    planned,
    pool_ratio,
    pool_state,
    share_pool,
    stepped,
)
from runtimeproxy.qosmanager.snapshot import (
    NODE_CGROUP,
    Container,
    ContainerState,
    Level,
    Metric,
    Pod,
    Snapshot,
    Strategies,
    Window,
)
from runtimeproxy.slo.schema import CpuBurstPolicy, PodCpuBurst
from runtimeproxy.slo.schema import CpuBurstStrategy as NodeStrategy
from tests.qosmanager.snapshots import FixedMetrics, container_of, node_of, pod_of

PLUGIN = CpuBurstPlugin()
USAGE, THROTTLED = Metric.CPU_USAGE, Metric.CPU_THROTTLED
AUTO = PodCpuBurst(policy=CpuBurstPolicy.AUTO)
BASE_US = 200_000
CEIL_US = 600_000


@pytest.mark.parametrize(
    ("node", "others", "expected"),
    [
        pytest.param(10.0, (5.0,), PoolState.OVERLOAD, id="V091"),
        pytest.param(10.0, (6.25,), PoolState.COOLING, id="V092"),
        pytest.param(9.0, (5.0,), PoolState.OVERLOAD, id="threshold"),
        pytest.param(8.99, (5.0,), PoolState.COOLING, id="below-the-threshold"),
        pytest.param(8.625, (5.0,), PoolState.COOLING, id="nine-tenths"),
        pytest.param(8.59, (5.0,), PoolState.IDLE, id="below-nine-tenths"),
        pytest.param(4.0, (3.0, 1.0), PoolState.IDLE, id="nothing"),
    ],
)
def test_node_state(node: float, others: tuple[float, ...], expected: PoolState) -> None:
    """8 shared CPUs; threshold 50 %. `others`: usage of pods that do not share them."""
    assert pool_state(pool_ratio(8, node - sum(others)), 50) is expected


@pytest.mark.parametrize(("total", "expected"), [(0, 1.0), (-4, 1.0), (1, 2.0)])
def test_without_shared_cpus_they_are_overloaded(total: int, expected: float) -> None:
    assert pool_ratio(total, 2.0) == expected


def test_an_unknown_ratio_is_no_state() -> None:
    assert pool_state(None, 50) is PoolState.UNKNOWN


@pytest.mark.parametrize(
    ("tokens", "usage", "elapsed_s", "expected"),
    [
        pytest.param(5_000, 150, 10, (4_500, True), id="V112"),
        pytest.param(50, 200, 10, (-950, False), id="V113"),
        pytest.param(500, 40, 10, (1_100, True), id="V115"),
        pytest.param(4_500, 40, 10, (5_000, True), id="V116"),
        pytest.param(500, 60, 10, (500, True), id="60-changes-nothing"),
        pytest.param(500, 59, 10, (910, True), id="59-brings-some"),
        pytest.param(500, 99, 10, (500, True), id="99-changes-nothing"),
        pytest.param(500, 100, 10, (500, True), id="100-uses-nothing"),
        pytest.param(0, 80, 10, (0, False), id="empty"),
        pytest.param(-4_900, 300, 10, (-5_000, False), id="lowest"),
        pytest.param(-500, 40, 9, (40, True), id="filled-again"),
        pytest.param(500, 200, 0, (500, True), id="no-time"),
        pytest.param(500, 200, -5, (500, True), id="clock-goes-back"),
    ],
)
def test_limiter(tokens: int, usage: int, elapsed_s: int, expected: tuple[int, bool]) -> None:
    strategy = replace(AUTO, cfs_quota_burst_period_seconds=100, cfs_quota_burst_percent=150)
    bucket, is_allowed = limited(Bucket(tokens, 5_000, 100.0), strategy, usage, "c", 100.0 + elapsed_s)
    assert bucket is not None
    assert (bucket.at_s, bucket.tokens, is_allowed) == (100.0 + elapsed_s, *expected)


@pytest.mark.parametrize(
    ("period_s", "percent", "expected"),
    [(-1, 300, True), (-1, 90, True), (0, 90, False), (100, 99, False)],
)
def test_a_limiter_without_a_bucket(period_s: int, percent: int, expected: bool) -> None:
    strategy = replace(AUTO, cfs_quota_burst_period_seconds=period_s, cfs_quota_burst_percent=percent)
    assert limited(None, strategy, 100, "c", 0.0) == (None, expected)


def test_an_empty_bucket_of_no_size_never_allows() -> None:
    strategy = replace(AUTO, cfs_quota_burst_period_seconds=0)
    assert limited(None, strategy, 0, "c", 0.0)[1] is False


def test_a_changed_strategy_makes_a_new_bucket() -> None:
    strategy = replace(AUTO, cfs_quota_burst_period_seconds=100, cfs_quota_burst_percent=200)
    bucket, _ = limited(Bucket(5_000, 5_000, 0.0), strategy, 80, "c", 50.0)
    assert bucket == new_bucket(10_000, "c", 50.0)


@settings(max_examples=20)
@given(st.text(max_size=64), st.integers(0, 10**9))
def test_a_new_bucket_is_filled_up_to_a_half(container_id: str, capacity: int) -> None:
    bucket = new_bucket(capacity, container_id, 0.0)
    assert 0 <= bucket.tokens <= capacity / 2
    assert bucket == new_bucket(capacity, container_id, 0.0)


def test_new_buckets_differ() -> None:
    assert len({new_bucket(10_000, f"c{n}", 0.0).tokens for n in range(20)}) > 15


@pytest.mark.parametrize(
    ("policy", "is_allowed", "throttled", "expected"),
    [
        (CpuBurstPolicy.NONE, True, 1.0, Operation.RESET),
        (CpuBurstPolicy.CPU_BURST_ONLY, False, 1.0, Operation.RESET),
        (CpuBurstPolicy.AUTO, False, 1.0, Operation.DOWN),
        (CpuBurstPolicy.AUTO, True, None, Operation.REMAIN),
        (CpuBurstPolicy.AUTO, True, 0.0, Operation.REMAIN),
        (CpuBurstPolicy.CFS_QUOTA_BURST_ONLY, True, 0.01, Operation.UP),
    ],
)
def test_operation(
    policy: CpuBurstPolicy, is_allowed: bool, throttled: float | None, expected: Operation
) -> None:
    assert operation(PodCpuBurst(policy=policy), throttled, is_allowed=is_allowed) is expected


@pytest.mark.parametrize(
    ("percent", "expected"), [(300, 600_000), (100, 200_000), (90, 200_000), (101, 202_000)]
)
def test_ceiling(percent: int, expected: int) -> None:
    assert ceiling_us(BASE_US, replace(AUTO, cfs_quota_burst_percent=percent)) == expected


@pytest.mark.parametrize(
    ("current", "op", "expected"),
    [
        (200_000, Operation.UP, 240_000),
        (550_000, Operation.UP, 600_000),
        (600_000, Operation.UP, 600_000),
        (400_000, Operation.DOWN, 320_000),
        (202_000, Operation.DOWN, 200_000),
        (400_000, Operation.RESET, 200_000),
        (400_000, Operation.REMAIN, 400_000),
        (700_000, Operation.REMAIN, 600_000),
        (100_000, Operation.REMAIN, 200_000),
        (333_333, Operation.UP, 399_999),
    ],
)
def test_step(current: int, op: Operation, expected: int) -> None:
    assert stepped(current, BASE_US, CEIL_US, op) == expected


def limited_container(
    name: str, cores: int, pod: str = "", quota_us: int | None = None, **fields: Any
) -> Container:
    return container_of(
        name,
        f"/kubepods/burstable/pod{pod or name}",
        limits={"cpu": cores * 1_000},
        cpu_quota_us=cores * 100_000 if quota_us is None else quota_us,
        **fields,
    )


def bursting(name: str, *cores: int, strategy: PodCpuBurst = AUTO, **fields: Any) -> Pod:
    """An LS pod with a container per limit."""
    names = [name if len(cores) == 1 else f"{name}{n}" for n in range(len(cores))]
    containers = tuple(limited_container(each, limit, name) for each, limit in zip(names, cores, strict=True))
    return pod_of(name, containers=containers, cpu_burst=strategy, **fields)


USED = {PoolState.IDLE: 1.0, PoolState.COOLING: 7.6, PoolState.OVERLOAD: 9.0}
"""Of 16 CPUs with a threshold of 50 %."""


def decided(
    *pods: Pod,
    state: BurstState | None = None,
    pool: PoolState | float = PoolState.IDLE,
    throttled: float | None = 0.5,
    usage: Mapping[str, float] | None = None,
    now_s: float = 1_000.0,
    **node: Any,
) -> Decision[BurstState]:
    """A decision; all containers are throttled so far. Usage in cores by the container's name."""
    values: dict[tuple[str, Metric], float | Window] = {}
    if pool is not PoolState.UNKNOWN:
        values[NODE_CGROUP, USAGE] = USED[pool] if isinstance(pool, PoolState) else pool
    for pod in pods:
        for container in pod.containers:
            if throttled is not None:
                values[container.cgroup, THROTTLED] = throttled
            if usage is not None and container.name in usage:
                values[container.cgroup, USAGE] = usage[container.name]
    snapshot = Snapshot(
        now_s=now_s,
        pods=pods,
        node=node_of(16, **node),
        strategies=Strategies(cpu_burst=NodeStrategy(policy=CpuBurstPolicy.AUTO)),
        metrics=FixedMetrics(values),
    )
    return PLUGIN.run(snapshot, state or BurstState())


def with_added(**added_us: int) -> BurstState:
    return BurstState(added_us={f"c-{name}": value for name, value in added_us.items()})


def quotas(decision: Decision[BurstState], *pods: Pod) -> dict[str, int]:
    """The quota of each container, as the ledger's algebra makes it of its base and the claim."""
    result: dict[str, int] = {}
    for pod in pods:
        for container in pod.containers:
            claims = [
                algebra.Claim(Claimant("cpu-burst"), algebra.Role.ADD, each.value, ceiling=each.ceiling)
                for each in decision.claims
                if (each.target.id, each.field) == (container.id, QUOTA)
            ]
            resolved = algebra.resolve(QUOTA, container.cpu_quota_us, claims)
            assert isinstance(resolved.value, int)
            assert not resolved.notes
            result[container.name] = resolved.value
    return result


@pytest.mark.parametrize(
    ("current", "pool", "throttled", "strategy", "expected"),
    [
        pytest.param(
            400_000,
            PoolState.IDLE,
            0.5,
            PodCpuBurst(policy=CpuBurstPolicy.CPU_BURST_ONLY),
            200_000,
            id="V101",
        ),
        pytest.param(400_000, PoolState.IDLE, 0.5, PodCpuBurst(), 200_000, id="V101-none"),
        pytest.param(202_000, PoolState.OVERLOAD, 0.5, AUTO, 200_000, id="V103"),
        pytest.param(400_000, PoolState.OVERLOAD, 0.5, AUTO, 320_000, id="V104"),
        pytest.param(400_000, PoolState.OVERLOAD, 0.0, AUTO, 320_000, id="V104-not-throttled"),
        pytest.param(
            400_000, PoolState.IDLE, 0.5, replace(AUTO, cfs_quota_burst_percent=90), 200_000, id="V106"
        ),
        pytest.param(580_000, PoolState.IDLE, 0.0, AUTO, 580_000, id="V107"),
        pytest.param(580_000, PoolState.IDLE, None, AUTO, 580_000, id="V107-not-known"),
        pytest.param(580_000, PoolState.IDLE, 0.5, AUTO, 600_000, id="V107-throttled"),
        pytest.param(200_000, PoolState.IDLE, 0.5, AUTO, 240_000, id="V109"),
        pytest.param(200_000, PoolState.COOLING, 0.5, AUTO, 200_000, id="cooling"),
        pytest.param(400_000, PoolState.COOLING, 0.5, AUTO, 400_000, id="cooling-remains"),
        pytest.param(400_000, PoolState.UNKNOWN, 0.5, AUTO, 400_000, id="unknown-remains"),
        pytest.param(
            400_000,
            PoolState.IDLE,
            0.5,
            replace(AUTO, cfs_quota_burst_period_seconds=0),
            320_000,
            id="not-allowed",
        ),
    ],
)
def test_quota(
    current: int, pool: PoolState, throttled: float | None, strategy: PodCpuBurst, expected: int
) -> None:
    pod = bursting("a", 2, strategy=strategy)
    state = with_added(a=current - BASE_US)
    decision = decided(pod, state=state, pool=pool, throttled=throttled)
    assert quotas(decision, pod) == {"a": expected}
    assert decision.state.added_us == ({"c-a": expected - BASE_US} if expected > BASE_US else {})


def test_two_containers_grow_by_their_limits() -> None:
    """V110. The ledger adds the sum to the pod."""
    pod = bursting("a", 2, 3)
    decision = decided(pod)
    assert quotas(decision, pod) == {"a0": 240_000, "a1": 360_000}
    assert sum(decision.state.added_us.values()) == 100_000


def test_the_base_is_what_normalization_leaves() -> None:
    """A node whose CPUs are twice as fast: steps and ceiling count from half of the limit."""
    container = limited_container("a", 2, quota_us=100_000)
    pod = pod_of("a", containers=(container,), cpu_burst=AUTO)
    decision = decided(pod)
    (claim,) = decision.claims
    assert (claim.role, claim.value, claim.ceiling) == (Role.ADD, 20_000, 300_000)
    scale = algebra.Claim(Claimant("cpu-normalization"), algebra.Role.SCALE, 2.0)
    add = algebra.Claim(Claimant("cpu-burst"), algebra.Role.ADD, claim.value, ceiling=claim.ceiling)
    assert algebra.resolve(QUOTA, BASE_US, [scale, add]).value == 120_000


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(bursting("a", 2, qos=QoSClass.LSE), id="LSE"),
        pytest.param(bursting("a", 2, qos=QoSClass.LSR), id="LSR"),
        pytest.param(bursting("a", 2, qos=QoSClass.BE), id="BE"),
        pytest.param(
            pod_of("a", cpu_burst=AUTO, containers=(limited_container("a", 2, quota_us=-1),)), id="unlimited"
        ),
        pytest.param(pod_of("a", cpu_burst=AUTO), id="quota-not-known"),
        pytest.param(
            pod_of("a", cpu_burst=AUTO, containers=(container_of("a", cpu_quota_us=200_000),)), id="no-limit"
        ),
        pytest.param(
            pod_of(
                "a",
                cpu_burst=AUTO,
                containers=(limited_container("a", 2, state=ContainerState.CREATED),),
            ),
            id="not-started",
        ),
    ],
)
def test_containers_that_do_not_burst(pod: Pod) -> None:
    decision = decided(pod, state=with_added(a=10_000))
    assert not decision.claims
    assert not decision.state.added_us


@pytest.mark.parametrize("qos", [QoSClass.LS, QoSClass.SYSTEM, QoSClass.NONE])
def test_classes_that_burst(qos: QoSClass) -> None:
    assert decided(bursting("a", 2, qos=qos)).state.added_us == {"c-a": 40_000}


def test_shared_cpus_are_those_of_no_other_pod() -> None:
    """V091 and V092, out of a snapshot."""
    lsr = pod_of("lsr", QoSClass.LSR, containers=(container_of("lsr", requests={"cpu": 8_000}),))
    pods = (lsr, pod_of("ls"), pod_of("be", QoSClass.BE))
    metrics = FixedMetrics(
        {
            (NODE_CGROUP, USAGE): 11.0,
            (lsr.cgroup, USAGE): 5.0,
            (pods[1].cgroup, USAGE): 3.0,
            (pods[2].cgroup, USAGE): 1.0,
        }
    )
    snapshot = Snapshot(now_s=0.0, pods=pods, node=node_of(16), metrics=metrics)
    assert share_pool(snapshot) == SharePool(PoolState.OVERLOAD, 8.0, 5.0, 5.0, 50)
    metrics.values[lsr.cgroup, USAGE] = 6.25
    assert share_pool(snapshot).state is PoolState.COOLING
    assert share_pool(replace(snapshot, metrics=FixedMetrics())).state is PoolState.UNKNOWN
    assert share_pool(replace(snapshot, node=node_of(0))).state is PoolState.UNKNOWN


def test_the_last_sample_counts_if_it_is_higher_than_the_average() -> None:
    metrics = FixedMetrics({(NODE_CGROUP, USAGE): Window(6.0, 2.0, 2.0, 2.0, 2.0, 6.0, 5)})
    pool = share_pool(Snapshot(now_s=0.0, node=node_of(16), metrics=metrics))
    assert (pool.state, pool.used_cores, pool.average_cores) == (PoolState.IDLE, 6.0, 2.0)


class TestPriority:
    """On overload as much is taken as is too much, from the lowest priority first."""

    PODS = (
        bursting("high", 2, priority=9_000),
        bursting("low", 2, priority=100),
        bursting("middle", 2, priority=5_000),
    )
    FULL = with_added(high=200_000, low=200_000, middle=200_000)

    def test_the_lowest_priority_gives_first(self) -> None:
        """8.0 of 16 CPUs are used: 0.4 too much for 95 % of the threshold, and a step frees 0.8."""
        decision = decided(*self.PODS, state=self.FULL, pool=8.0)
        assert quotas(decision, *self.PODS) == {"high": 400_000, "low": 320_000, "middle": 400_000}
        (grant,) = decision.state.grants
        assert grant.at_s == 1_000.0
        assert grant.cores == pytest.approx(-0.8)
        assert decision.state.held_until_s == 1_000.0 + HOLD_S

    def test_more_give_if_one_does_not_suffice(self) -> None:
        decision = decided(*self.PODS, state=self.FULL, pool=9.0)
        assert quotas(decision, *self.PODS) == {"high": 400_000, "low": 320_000, "middle": 320_000}

    def test_what_a_container_does_not_use_frees_nothing(self) -> None:
        usage = {"low": 1.0, "middle": 3.9, "high": 4.0}
        decision = decided(*self.PODS, state=self.FULL, pool=8.0, usage=usage)
        assert quotas(decision, *self.PODS) == {"high": 400_000, "low": 320_000, "middle": 320_000}

    def test_what_was_taken_counts_before_the_average_shows_it(self) -> None:
        first = decided(*self.PODS, state=self.FULL, pool=8.0)
        second = decided(*self.PODS, state=first.state, pool=8.0, now_s=1_001.0)
        assert second.state.added_us == first.state.added_us
        third = decided(*self.PODS, state=second.state, pool=8.0, now_s=1_000.0 + WINDOW_S)
        assert third.state.added_us["c-low"] < second.state.added_us["c-low"]

    def test_the_highest_priority_grows_first(self) -> None:
        """0.5 cores are left up to nine tenths of the threshold."""
        decision = decided(*self.PODS, pool=6.7)
        assert quotas(decision, *self.PODS) == {"high": 240_000, "low": 200_000, "middle": 210_000}
        assert sum(each.cores for each in decision.state.grants) == pytest.approx(0.5)

    def test_what_was_given_counts_before_the_average_shows_it(self) -> None:
        first = decided(*self.PODS, pool=6.7)
        second = decided(*self.PODS, state=first.state, pool=6.7, now_s=1_001.0)
        assert second.state.added_us == first.state.added_us

    def test_the_one_with_least_grows_first_in_one_priority(self) -> None:
        pods = bursting("a", 2), bursting("b", 2)
        decision = decided(*pods, state=with_added(a=100_000), pool=6.85)
        assert quotas(decision, *pods) == {"a": 300_000, "b": 235_000}

    def test_tiny_growth_is_left_out(self) -> None:
        pod = bursting("a", 2)
        assert not decided(pod, pool=7.17).state.added_us
        assert decided(pod, pool=7.15).state.added_us

    @pytest.mark.parametrize(
        ("fields", "other", "expected"),
        [
            pytest.param({"priority": 9_999}, {"priority": 9_998}, "first", id="known"),
            pytest.param({"priority_class": PriorityClass.MID}, {"priority": 7_400}, "first", id="class"),
            pytest.param({"qos": QoSClass.LS}, {"priority": 9_400}, "first", id="qos-is-prod"),
            pytest.param({"qos": QoSClass.NONE}, {"priority": 9_400}, "first", id="no-label-is-prod"),
            pytest.param({"priority": 0}, {"priority": 9_400}, "first", id="priority-0-is-prod"),
        ],
    )
    def test_unknown_priorities(
        self, fields: Mapping[str, Any], other: Mapping[str, Any], expected: str
    ) -> None:
        pods = bursting("first", 2, **fields), bursting("second", 2, **other)
        assert [
            name for name, value in quotas(decided(*pods, pool=6.85), *pods).items() if value > 230_000
        ] == [expected]


def test_nothing_grows_for_a_while_after_an_overload() -> None:
    pod = bursting("a", 2)
    overload = decided(pod, pool=PoolState.OVERLOAD)
    held = decided(pod, state=overload.state, now_s=1_000.0 + HOLD_S - 1)
    assert not held.state.added_us
    later = decided(pod, state=held.state, now_s=1_000.0 + HOLD_S)
    assert later.state.added_us
    assert later.state.held_until_s is None


def test_the_bucket_goes_with_the_container() -> None:
    strategy = replace(AUTO, cfs_quota_burst_period_seconds=100)
    pod = bursting("a", 2, strategy=strategy)
    first = decided(pod, usage={"a": 2.4})
    assert first.state.buckets["c-a"] == new_bucket(20_000, "c-a", 1_000.0)
    second = decided(pod, state=first.state, usage={"a": 2.4}, now_s=1_010.0)
    assert second.state.buckets["c-a"].tokens == first.state.buckets["c-a"].tokens - 200
    assert not decided(bursting("b", 2), state=second.state).state.buckets


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CpuBurstPolicy.NONE, False),
        (CpuBurstPolicy.CPU_BURST_ONLY, False),
        (CpuBurstPolicy.CFS_QUOTA_BURST_ONLY, True),
        (CpuBurstPolicy.AUTO, True),
    ],
)
def test_the_strategy_of_some_pod_switches_it(policy: CpuBurstPolicy, expected: bool) -> None:
    pods = bursting("a", 2, strategy=PodCpuBurst()), bursting("b", 2, strategy=PodCpuBurst(policy=policy))
    assert PLUGIN.is_enabled(Snapshot(now_s=0.0, pods=pods)) is expected


def test_a_restart_goes_on_from_the_claims_that_count() -> None:
    pod = bursting("a", 2)
    first = decided(pod)
    resumed = PLUGIN.setup(PluginContext(gates={}, held=first.claims))
    assert resumed.added_us == first.state.added_us
    foreign = [
        Claim(Target(Level.CONTAINER, "c"), QUOTA, Role.AT_MOST, 5),
        Claim(Target(Level.POD, "p"), "cpu.cfs_burst_us", Role.SET, 5),
    ]
    assert PLUGIN.setup(PluginContext(gates={}, held=foreign)) == BurstState()


bursts = st.builds(
    lambda index, priority, base, times, ceil, used, op: Burst(
        f"c{index}", "", priority, base, int(base * max(times, ceil)), int(base * times), used, op
    ),
    st.integers(0, 10_000),
    st.integers(0, 3),
    st.integers(1_000, 1_000_000),
    st.floats(1, 4),
    st.floats(1, 4),
    st.none() | st.floats(0, 40),
    st.sampled_from(Operation),
)


@settings(max_examples=40)
@given(
    bursts=st.lists(bursts, max_size=8, unique_by=lambda each: each.id),
    state=st.sampled_from(PoolState),
    total=st.floats(0, 64),
    used=st.floats(0, 64),
    is_held=st.booleans(),
)
def test_quotas_stay_within_their_bounds(
    bursts: list[Burst], state: PoolState, total: float, used: float, is_held: bool
) -> None:
    pool = SharePool(state, total, used, used, 50)
    result = planned(bursts, pool, is_held=is_held)
    assert result.keys() == {each.id for each in bursts}
    given_us = 0
    for each in bursts:
        quota = result[each.id]
        assert each.base_us <= quota <= each.ceil_us
        assert quota <= max(each.current_us * 12 // 10, each.base_us)
        if each.op is Operation.RESET:
            assert quota == each.base_us
        given_us += max(quota - each.current_us, 0)
        if quota > each.current_us:
            assert (state, each.op, is_held) == (PoolState.IDLE, Operation.UP, False)
    assert given_us / 100_000 <= max(pool.room_cores(()), 0) + 1e-5
