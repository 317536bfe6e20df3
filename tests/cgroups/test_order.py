from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.cgroups.order import Key, Step, loosened, write_steps
from runtimeproxy.fields.formats import Value
from runtimeproxy.units import parse_cpu_list

PATHS = [("kubepods",), ("kubepods", "pod1"), ("kubepods", "pod1", "container1")]


def one(name: str, now: Value | None, wanted: Value) -> list[tuple[Value, bool]]:
    key = Key(PATHS[1], name)
    return [(step.value, step.is_final) for step in write_steps([{key: wanted}], {key: now})]


@pytest.mark.parametrize(
    ("name", "now", "wanted", "expected"),
    [
        pytest.param("cpu.cfs_quota_us", 10_000, -1, -1, id="V179-quota-to-unlimited"),
        pytest.param("cpu.cfs_quota_us", -1, 200_000, -1, id="V182-unlimited-is-kept-in-pass-1"),
        pytest.param("memory.min", 2_097_152, 1_048_576, 2_097_152, id="V184-larger-is-kept-in-pass-1"),
        pytest.param("cpuset.cpus", "0-3", "2-5", "0-5", id="V185-union"),
        pytest.param("cpuset.cpus", "0-3", "0-7", "0-7", id="superset-is-final"),
        pytest.param("cpuset.cpus", "0-3", "1", "0-3", id="subset-keeps"),
        pytest.param("cpu.idle", 1, 0, 0, id="idle-off-is-looser"),
        pytest.param("cpu.idle", 0, 1, 0, id="idle-on-waits"),
        pytest.param("cpu.shares", 1024, 2, 2, id="shares-need-no-order"),
    ],
)
def test_the_looser_value(name: str, now: Value, wanted: Value, expected: Value) -> None:
    assert loosened(name, now, wanted) == expected


@pytest.mark.parametrize(
    ("name", "now", "wanted", "steps"),
    [
        pytest.param("cpu.cfs_quota_us", 10_000, -1, [(-1, True)], id="V179"),
        pytest.param("cpu.cfs_quota_us", -1, 200_000, [(200_000, True)], id="V182"),
        pytest.param("memory.min", 2_097_152, 1_048_576, [(1_048_576, True)], id="V184"),
        pytest.param("cpuset.cpus", "0-3", "2-5", [("0-5", False), ("2-5", True)], id="V185"),
        pytest.param("cpuset.cpus", None, "2-5", [("2-5", True)], id="unknown-is-written-at-once"),
    ],
)
def test_steps_of_one_value(
    name: str, now: Value | None, wanted: Value, steps: list[tuple[Value, bool]]
) -> None:
    assert one(name, now, wanted) == steps


def order(now: Mapping[Key, Value | None], *levels: Mapping[Key, Value]) -> list[tuple[str, Value]]:
    return [(step.key.path[-1], step.value) for step in write_steps(levels, now)]


def test_a_raise_goes_to_parents_first_and_a_reduction_to_children_first() -> None:
    pod, container = (Key(path, "cpu.cfs_quota_us") for path in PATHS[1:])
    raised = order({pod: 1000, container: 1000}, {pod: 2000}, {container: 2000})
    lowered = order({pod: 2000, container: 2000}, {pod: 1000}, {container: 1000})
    assert raised == [("pod1", 2000), ("container1", 2000)]
    assert lowered == [("container1", 1000), ("pod1", 1000)]


def test_burst_follows_a_raised_quota_and_precedes_a_lowered_one() -> None:
    quota, burst = Key(PATHS[1], "cpu.cfs_quota_us"), Key(PATHS[1], "cpu.cfs_burst_us")
    raised = write_steps([{burst: 2000, quota: 2000}], {burst: 1000, quota: 1000})
    lowered = write_steps([{burst: 1000, quota: 1000}], {burst: 2000, quota: 2000})
    assert [step.key for step in raised] == [quota, burst]
    assert [step.key for step in lowered] == [burst, quota]


def test_a_quota_is_unlimited_while_its_period_changes() -> None:
    period, quota, burst = (Key(PATHS[1], f"cpu.cfs_{name}_us") for name in ("period", "quota", "burst"))
    now: dict[Key, Value | None] = {period: 100_000, quota: 100_000, burst: 50_000}
    for wanted_us in (20_000, 200_000):
        steps = write_steps([{period: wanted_us, quota: wanted_us, burst: 10_000}], now)
        written = [(step.key, step.value) for step in steps]
        assert written[0] == (quota, -1)
        assert set(written[1:-1]) == {(period, wanted_us), (burst, 10_000)}
        assert written[-1] == (quota, wanted_us)
    assert order(now, {quota: -1, period: 20_000}) == [("pod1", -1), ("pod1", 20_000)]
    assert order(now, {quota: 2_000}) == [("pod1", 2_000)]


def test_a_smaller_period_is_looser() -> None:
    pod, container = (Key(path, "cpu.cfs_period_us") for path in PATHS[1:])
    smaller = order({pod: 20_000, container: 20_000}, {pod: 10_000}, {container: 10_000})
    larger = order({pod: 10_000, container: 10_000}, {pod: 20_000}, {container: 20_000})
    assert smaller == [("pod1", 10_000), ("container1", 10_000)]
    assert larger == [("container1", 20_000), ("pod1", 20_000)]


def test_a_weight_is_written_while_the_group_is_not_idle() -> None:
    idle, shares = Key(PATHS[1], "cpu.idle"), Key(PATHS[1], "cpu.shares")
    woken = write_steps([{shares: 2, idle: 0}], {shares: 3, idle: 1})
    put_to_sleep = write_steps([{shares: 2, idle: 1}], {shares: 3, idle: 0})
    assert [step.key for step in woken] == [idle, shares]
    assert [step.key for step in put_to_sleep] == [shares, idle]


quotas = st.integers(1_000, 1_000_000) | st.just(-1)
cpus = st.sets(st.integers(0, 7), min_size=1)


def limit(value: Value) -> float:
    return float("inf") if value == -1 else float(value)


def run(steps: list[Step], state: dict[Key, Value]) -> list[dict[Key, Value]]:
    states = [dict(state)]
    for step in steps:
        state[step.key] = step.value
        states.append(dict(state))
    return states


@given(st.lists(quotas, min_size=3, max_size=3), st.lists(quotas, min_size=3, max_size=3))
def test_no_quota_ever_exceeds_its_parents(now: list[int], wanted: list[int]) -> None:
    keys = [Key(path, "cpu.cfs_quota_us") for path in PATHS]
    start: dict[Key, Value] = dict(zip(keys, sorted(now, key=limit, reverse=True), strict=True))
    goal: dict[Key, Value] = dict(zip(keys, sorted(wanted, key=limit, reverse=True), strict=True))
    states = run(write_steps([{key: goal[key]} for key in keys], start), dict(start))
    assert states[-1] == goal
    for state in states:
        assert limit(state[keys[0]]) >= limit(state[keys[1]]) >= limit(state[keys[2]])


def text(members: set[int]) -> str:
    return ",".join(map(str, sorted(members)))


@given(st.lists(cpus, min_size=3, max_size=3), st.lists(cpus, min_size=3, max_size=3))
def test_no_cpuset_ever_leaves_its_parents(now: list[set[int]], wanted: list[set[int]]) -> None:
    def nested(sets: list[set[int]]) -> dict[Key, Value]:
        widened = [sets[0] | sets[1] | sets[2], sets[1] | sets[2], sets[2]]
        keys = (Key(path, "cpuset.cpus") for path in PATHS)
        return {key: text(members) for key, members in zip(keys, widened, strict=True)}

    start, goal = nested(now), nested(wanted)
    keys = list(start)
    for state in (states := run(write_steps([{key: goal[key]} for key in keys], start), dict(start))):
        outer, middle, inner = (parse_cpu_list(str(state[key])) for key in keys)
        assert inner <= middle <= outer
    assert {key: parse_cpu_list(str(value)) for key, value in states[-1].items()} == {
        key: parse_cpu_list(str(value)) for key, value in goal.items()
    }


@given(st.data())
def test_every_wanted_value_has_exactly_one_final_step(data: st.DataObject) -> None:
    names = ["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_burst_us", "memory.limit_in_bytes", "cpu.idle"]
    keys = st.builds(Key, st.sampled_from(PATHS), st.sampled_from(names))
    values = st.integers(0, 1) | st.integers(2, 5)
    wanted: dict[Key, Value] = data.draw(st.dictionaries(keys, values))
    now: dict[Key, Value | None] = data.draw(st.dictionaries(keys, values | st.none()))
    levels = [{key: wanted[key] for key in wanted if key.path == path} for path in PATHS]
    final = [step for step in write_steps(levels, now) if step.is_final]
    assert sorted((step.key, step.value) for step in final) == sorted(wanted.items())
