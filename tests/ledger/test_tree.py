from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.cgroups.order import Key
from runtimeproxy.fields.formats import Value
from runtimeproxy.fields.tables import PERIOD, QUOTA, clamped
from runtimeproxy.ledger.tree import BURST, FitNote, TreeRules, TreeValue, fit
from runtimeproxy.units import CPU_PERIOD_US, MAX_CPU_QUOTA_US, UNLIMITED, parse_cpu_list

CLASS = ("kubepods", "besteffort")
POD = (*CLASS, "pod1")
ONE = (*POD, "one")
TWO = (*POD, "two")

V1 = TreeRules(cgroup_version=1)
V2 = TreeRules(cgroup_version=2)
SYSTEMD = TreeRules(rounds_quotas=True)


def bound(value: Value) -> TreeValue:
    return TreeValue(value, is_bound=True)


def context(value: Value) -> TreeValue:
    return TreeValue(value, is_claimed=False)


def back(value: Value) -> TreeValue:
    return TreeValue(value, is_claimed=False, is_given_back=True)


def new(value: Value) -> TreeValue:
    return TreeValue(value, is_new=True)


def fitted(
    name: str, values: Mapping[tuple[str, ...], Value | TreeValue], rules: TreeRules = V2
) -> list[Value | None]:
    tree = {
        Key(path, name): value if isinstance(value, TreeValue) else TreeValue(value)
        for path, value in values.items()
    }
    result = fit(tree, rules).values
    return [result.get(key) for key in tree]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({POD: 50_000, ONE: 50_000}, [50_000, 50_000], id="fits"),
        pytest.param({POD: 50_000, ONE: 60_000, TWO: 70_000}, [70_000, 60_000, 70_000], id="largest-child"),
        pytest.param({CLASS: 10_000, POD: 20_000, ONE: 30_000}, [30_000] * 3, id="over-two-levels"),
        pytest.param({CLASS: 10_000, ONE: 30_000}, [30_000] * 2, id="a-level-is-not-known"),
        pytest.param({POD: context(50_000), ONE: 60_000}, [60_000, 60_000], id="the-kubelets-parent"),
        pytest.param({POD: 50_000, ONE: -1}, [50_000, -1], id="unlimited-child-asks-nothing"),
        pytest.param({POD: -1, ONE: 60_000}, [-1, 60_000], id="unlimited-parent"),
        pytest.param({CLASS: 5_000, POD: -1, ONE: 9_000}, [9_000, -1, 9_000], id="unlimited-between"),
        pytest.param({CLASS: bound(2_000), POD: 50_000, ONE: 50_000}, [2_000, -1, -1], id="bounded"),
        pytest.param({CLASS: bound(90_000), POD: -1, ONE: 5_000}, [90_000, -1, -1], id="bounded-above"),
        pytest.param({CLASS: bound(90_000), POD: 5_000, ONE: new(5_000)}, [90_000, -1, -1], id="created"),
        pytest.param({CLASS: -1, POD: bound(5_000), ONE: 9_000}, [-1, 5_000, -1], id="bounded-pod"),
        pytest.param({CLASS: bound(90_000), POD: bound(5_000)}, [90_000, 5_000], id="bounded-twice"),
        pytest.param({CLASS: bound(5_000), POD: bound(90_000)}, [5_000, 5_000], id="by-the-lower-bound"),
        pytest.param(
            {CLASS: bound(9_000), POD: bound(5_000), ONE: 2_000}, [9_000, 5_000, -1], id="below-two"
        ),
        pytest.param({CLASS: bound(-1), POD: 5_000}, [-1, 5_000], id="bound-without-limit"),
        pytest.param({CLASS: bound(500), POD: 5_000}, [1_000, -1], id="bound-below-the-range"),
        pytest.param({ONE: 20}, [1_000], id="below-the-range"),
        pytest.param({ONE: -2}, [-1], id="negative"),
        pytest.param({ONE: MAX_CPU_QUOTA_US + 1}, [MAX_CPU_QUOTA_US], id="above-the-range"),
        pytest.param({ONE: context(20)}, [20], id="what-others-wrote-stays"),
    ],
)
def test_quotas(values: Mapping[tuple[str, ...], Value | TreeValue], expected: list[Value]) -> None:
    assert fitted(QUOTA, values) == expected


def test_quotas_are_compared_as_shares_of_a_cpu() -> None:
    tree = {
        Key(POD, QUOTA): TreeValue(100_000),
        Key(ONE, QUOTA): TreeValue(60_000),
        Key(ONE, PERIOD): TreeValue(20_000),
    }
    assert fit(tree, V2).values[Key(POD, QUOTA)] == 300_000
    tree[Key(POD, PERIOD)] = TreeValue(50_000)
    assert fit(tree, V2).values[Key(POD, QUOTA)] == 150_000


def test_each_change_has_a_note() -> None:
    tree = {Key(CLASS, QUOTA): bound(2_000), Key(POD, QUOTA): TreeValue(50_000)}
    assert fit(tree, V2).notes == (FitNote(Key(POD, QUOTA), 50_000, -1, "/kubepods/besteffort is bounded"),)
    tree = {Key(POD, QUOTA): TreeValue(1_000), Key(ONE, QUOTA): TreeValue(2_000)}
    assert fit(tree, V2).notes == (
        FitNote(Key(POD, QUOTA), 1_000, 2_000, "/kubepods/besteffort/pod1/one has 2000"),
    )


def test_only_claimed_quotas_of_units_are_rounded() -> None:
    assert fitted(QUOTA, {POD: 83_334}, SYSTEMD) == [84_000]
    assert fitted(QUOTA, {POD: 83_334}, V2) == [83_334]
    assert fitted(QUOTA, {POD: context(83_334)}, SYSTEMD) == [83_334]
    assert fitted(QUOTA, {CLASS: bound(83_334)}, SYSTEMD) == [83_334]
    assert fitted(QUOTA, {POD: context(50_500), ONE: 83_334}, SYSTEMD) == [84_000, 84_000]


@pytest.mark.parametrize(
    ("quota", "burst", "expected"),
    [
        pytest.param(100_000, 1_000_000, 100_000, id="issue-2326"),
        pytest.param(100_000, 50_000, 50_000, id="below"),
        pytest.param(-1, 1_000_000, 1_000_000, id="unlimited"),
        pytest.param(None, 1_000_000, 1_000_000, id="no-quota"),
    ],
)
def test_a_burst_is_at_most_the_quota(quota: int | None, burst: int, expected: int) -> None:
    tree = {Key(ONE, BURST): TreeValue(burst)}
    if quota is not None:
        tree[Key(ONE, QUOTA)] = TreeValue(quota)
    assert fit(tree, V2).values[Key(ONE, BURST)] == expected


def test_a_burst_follows_a_quota_that_becomes_unlimited_or_rounded() -> None:
    tree = {
        Key(CLASS, QUOTA): bound(2_000),
        Key(ONE, QUOTA): TreeValue(10_000),
        Key(ONE, BURST): TreeValue(50_000),
    }
    assert fit(tree, V2).values[Key(ONE, BURST)] == 50_000
    del tree[Key(CLASS, QUOTA)]
    tree[Key(ONE, QUOTA)] = TreeValue(10_001)
    assert fit(tree, SYSTEMD).values[Key(ONE, BURST)] == 11_000


@pytest.mark.parametrize(
    ("rules", "values", "expected"),
    [
        pytest.param(V2, {POD: "0-3", ONE: "2-5"}, ["0-5", "2-5"], id="parents-get-what-children-have"),
        pytest.param(V2, {POD: "", ONE: "2-5"}, ["", "2-5"], id="no-list-holds-all"),
        pytest.param(V1, {POD: context("0-7"), ONE: "2-5"}, ["0-7", "2-5"], id="subset"),
        pytest.param(V2, {CLASS: bound("0-3"), POD: "2-5", ONE: "3"}, ["0-3", "2-3", "3"], id="bounded"),
        pytest.param(V2, {CLASS: bound("0-3"), ONE: "4-5"}, ["0-3", "0-3"], id="bounded-no-common-member"),
        pytest.param(V2, {CLASS: bound("0-3"), POD: "", ONE: ""}, ["0-3", "", ""], id="v2-bounded-no-list"),
        pytest.param(V1, {CLASS: bound("0-3"), POD: "", ONE: ""}, ["0-3"] * 3, id="v1-bounded-no-list"),
        pytest.param(V1, {POD: context("0-7"), ONE: ""}, ["0-7", "0-7"], id="v1-clear-is-the-parents"),
        pytest.param(V1, {POD: "0-7", ONE: new("")}, ["0-7", ""], id="v1-clear-at-creation"),
        pytest.param(V1, {CLASS: bound("0-3"), ONE: new("")}, ["0-3", ""], id="v1-bounded-at-creation"),
        pytest.param(V2, {CLASS: bound("0-3"), POD: "0", ONE: "1"}, ["0-3", "0-1", "1"], id="wider-within"),
        pytest.param(V2, {CLASS: bound("0-3"), POD: bound("0"), ONE: "1"}, ["0-3", "0", "0"], id="twice"),
        pytest.param(V1, {CLASS: bound("0-3"), POD: "0", ONE: ""}, ["0-3", "0", "0"], id="v1-bounded-pod"),
        pytest.param(V2, {POD: "0-7", ONE: ""}, ["0-7", ""], id="v2-clear"),
        pytest.param(V1, {ONE: ""}, [None], id="v1-clear-of-an-unknown-parent"),
        pytest.param(V1, {CLASS: context("0-1"), POD: back("0-3")}, ["0-1", "0-1"], id="v1-parent-shrank"),
        pytest.param(V1, {CLASS: context("0-1"), POD: back("2")}, ["0-1", "0-1"], id="v1-nothing-in-common"),
        pytest.param(V1, {CLASS: context("0-3"), POD: back("0-1")}, ["0-3", "0-1"], id="v1-parent-grew"),
        pytest.param(V1, {POD: "0-1", ONE: back("0-3")}, ["0-3", "0-3"], id="v1-claimed-parent-grows"),
        pytest.param(
            V1, {CLASS: context("0-1"), POD: back(""), ONE: back("")}, ["0-1"] * 3, id="v1-top-down"
        ),
        pytest.param(V1, {ONE: back("0-3")}, ["0-3"], id="v1-back-below-an-unknown-parent"),
        pytest.param(V2, {CLASS: context("0-1"), POD: back("0-3")}, ["0-3", "0-3"], id="v2-back"),
    ],
)
@pytest.mark.parametrize("name", ["cpuset.cpus", "cpuset.mems"])
def test_lists(
    name: str,
    rules: TreeRules,
    values: Mapping[tuple[str, ...], Value | TreeValue],
    expected: list[Value | None],
) -> None:
    assert fitted(name, values, rules) == expected


@pytest.mark.parametrize("name", ["memory.low", "memory.high"])
@pytest.mark.parametrize(
    ("least", "value", "expected"),
    [
        pytest.param(80, 60, 80, id="V154-V155"),
        pytest.param(80, 100, 100, id="above"),
        pytest.param(80, 0, 0, id="none"),
        pytest.param(0, 60, 60, id="no-min"),
        pytest.param(-1, 60, -1, id="unlimited-min"),
        pytest.param(80, -1, -1, id="unlimited"),
    ],
)
def test_low_and_high_are_at_least_min(name: str, least: int, value: int, expected: int) -> None:
    tree = {Key(POD, "memory.min"): TreeValue(least), Key(POD, name): TreeValue(value)}
    assert fit(tree, V2).values[Key(POD, name)] == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cpu.shares", 1, 2),
        ("cpu.shares", 300_000, 262_144),
        ("cpu.bvt_warp_ns", -1, -1),
        ("cpu.bvt_warp_ns", 3, 2),
        ("memory.limit_in_bytes", -7, -1),
        ("cpuset.cpus", "0-3", "0-3"),
        ("oom_score_adj", -998, -998),
        ("memory_swap_limit_bytes", 10**30, (1 << 63) - 1),
    ],
)
def test_the_range_of_a_parameter(name: str, value: Value, expected: Value) -> None:
    assert clamped(name, value) == expected


# --- properties ------------------------------------------------------------------------------------------

PATHS = [CLASS, POD, ONE, TWO, (*CLASS, "pod2"), (*CLASS, "pod2", "three")]
RULES = st.builds(TreeRules, cgroup_version=st.sampled_from([1, 2]), rounds_quotas=st.booleans())
PERIODS = st.sampled_from([CPU_PERIOD_US, 10_000, 99_999, 1_000])


def tree_values(values: st.SearchStrategy[Value]) -> st.SearchStrategy[TreeValue]:
    # What is bounded is claimed.
    flags = st.sampled_from(
        [
            (True, False, False),
            (True, True, False),
            (True, False, True),
            (False, False, False),
            (False, False, False, True),
        ]
    )
    return st.tuples(values, flags).map(lambda each: TreeValue(each[0], *each[1]))


QUOTA_TREES = st.dictionaries(
    st.builds(Key, st.sampled_from(PATHS), st.just(QUOTA)),
    tree_values(st.one_of(st.just(-1), st.integers(1_000, MAX_CPU_QUOTA_US))),
)
BURST_TREES = st.dictionaries(
    st.builds(Key, st.sampled_from(PATHS), st.just(BURST)), tree_values(st.integers(0, 10**7))
)
PERIOD_TREES = st.dictionaries(st.builds(Key, st.sampled_from(PATHS), st.just(PERIOD)), tree_values(PERIODS))
CPU_TREES = st.builds(
    lambda *trees: {**trees[0], **trees[1], **trees[2]}, QUOTA_TREES, BURST_TREES, PERIOD_TREES
)
LIST_TREES = st.dictionaries(
    st.builds(Key, st.sampled_from(PATHS), st.just("cpuset.cpus")),
    tree_values(st.frozensets(st.integers(0, 7)).map(lambda cpus: ",".join(map(str, sorted(cpus))))),
)
MEMORY_TREES = st.dictionaries(
    st.builds(Key, st.sampled_from(PATHS), st.sampled_from(["memory.min", "memory.low", "memory.high"])),
    tree_values(st.integers(-1, 10**9)),
)


def pairs(values: Mapping[Key, Value], name: str) -> list[tuple[Key, Key]]:
    """All ancestors and descendants."""
    keys = [key for key in values if key.name == name]
    return [
        (one, other)
        for one in keys
        for other in keys
        if one != other and other.path[: len(one.path)] == one.path
    ]


@given(CPU_TREES, RULES)
def test_the_kernel_takes_fitted_quotas(tree: dict[Key, TreeValue], rules: TreeRules) -> None:
    values = fit(tree, rules).values

    def share(key: Key) -> float:
        period = int(values.get(Key(key.path, PERIOD), CPU_PERIOD_US))
        return int(values[key]) / period

    for parent, child in pairs(values, QUOTA):
        if UNLIMITED not in (values[parent], values[child]):
            assert share(parent) >= share(child)
    for key, value in values.items():
        if key.name == BURST:
            quota = values.get(Key(key.path, QUOTA), UNLIMITED)
            assert quota == UNLIMITED or int(value) <= int(quota)


@given(CPU_TREES, RULES)
def test_a_bounded_quota_stays_and_below_it_are_bounds_only(
    tree: dict[Key, TreeValue], rules: TreeRules
) -> None:
    values = fit(tree, rules).values
    for parent, child in pairs(values, QUOTA):
        if tree[parent].is_bound and values[parent] != UNLIMITED:
            assert values[child] == UNLIMITED or tree[child].is_bound
            assert int(values[parent]) <= int(tree[parent].value)


@given(LIST_TREES, RULES)
def test_the_kernel_takes_fitted_lists(tree: dict[Key, TreeValue], rules: TreeRules) -> None:
    values = fit(tree, rules).values
    for parent, child in pairs(values, "cpuset.cpus"):
        above, below = (parse_cpu_list(str(values[key])) for key in (parent, child))
        assert not above or below <= above
    if rules.cgroup_version == 1:
        assert all(values[key] != "" or tree[key].is_new for key in values)


@given(st.one_of(CPU_TREES, LIST_TREES, MEMORY_TREES), RULES)
def test_fitting_again_changes_nothing(tree: dict[Key, TreeValue], rules: TreeRules) -> None:
    first = fit(tree, rules)
    again = {key: tree[key]._replace(value=value) for key, value in first.values.items()}
    assert fit(again, rules).values == first.values


@given(st.one_of(CPU_TREES, LIST_TREES, MEMORY_TREES), RULES)
def test_every_change_of_a_value_is_noted(tree: dict[Key, TreeValue], rules: TreeRules) -> None:
    result = fit(tree, rules)
    changed = {key for key in tree if result.values.get(key) != tree[key].value}
    assert changed == {note.key for note in result.notes}
    assert list(result.values) == [key for key in tree if key in result.values]
