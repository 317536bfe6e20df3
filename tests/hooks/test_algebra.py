import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.fields.tables import NEUTRAL, PARAMETERS
from runtimeproxy.hooks.algebra import (
    Claim,
    ClaimOutcome,
    Resolved,
    Role,
    Value,
    claims_of,
    resolve,
)
from runtimeproxy.hooks.changes import CLEAR, Add, AtMost, Clear, Scale
from runtimeproxy.hooks.claimants import Claimant, labels_of
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.units import parse_cpu_list

QUOTA = "cpu.cfs_quota_us"
CPUS = "cpuset.cpus"


def put(owner: str, value: float | str | Clear, priority: int = 0) -> Claim:
    return Claim(Claimant(owner), Role.SET, value, priority)


def scale(owner: str, ratio: float, priority: int = 0) -> Claim:
    return Claim(Claimant(owner), Role.SCALE, ratio, priority)


def add(owner: str, amount: int, ceiling: int | None = None) -> Claim:
    return Claim(Claimant(owner), Role.ADD, amount, ceiling=ceiling)


def at_most(owner: str, bound: Value, priority: int = 0) -> Claim:
    return Claim(Claimant(owner), Role.AT_MOST, bound, priority)


def notes(resolved: Resolved) -> list[tuple[str, ClaimOutcome, str]]:
    return [(note.claim.owner.name, note.outcome, note.reason) for note in resolved.notes]


@pytest.mark.parametrize(
    ("base", "claims", "expected"),
    [
        pytest.param(100_000, [], 100_000, id="base"),
        pytest.param(None, [], None, id="nothing-asked-for"),
        pytest.param(100_000, [put("a", 50_000)], 50_000, id="set"),
        pytest.param(100_000, [put("z", 1_000, 10), put("a", 2_000, 20)], 2_000, id="highest-priority"),
        pytest.param(100_000, [put("a", 1_000, 10), put("b", 2_000, 10)], 2_000, id="then-the-later-name"),
        pytest.param(100_000, [put("a", CLEAR)], -1, id="clear-is-neutral"),
        pytest.param(100_000, [scale("n", 1.2)], 83_334, id="V037-scale-rounds-up"),
        pytest.param(100_000, [scale("n", 1.0)], 100_000, id="V038-ratio-1"),
        pytest.param(100_000, [scale("n", -1)], 100_000, id="V040-ratio-off"),
        pytest.param(200_000, [scale("n", 1.5)], 133_334, id="V046"),
        pytest.param(330_000, [scale("n", 1.1)], 300_000, id="decimal-ratio-is-exact"),
        pytest.param(10_600, [scale("n", 1.06)], 10_000, id="decimal-ratio-is-exact-2"),
        pytest.param(100_000, [scale("n", 0.5)], 100_000, id="ratio-below-1"),
        pytest.param(1_100, [scale("n", 5.0)], 1_000, id="scale-to-the-least"),
        pytest.param(-1, [scale("n", 1.2)], -1, id="unlimited-is-not-scaled"),
        pytest.param(None, [scale("n", 1.2)], None, id="nothing-asked-for-is-not-scaled"),
        pytest.param(100_000, [scale("a", 1.2, 10), scale("b", 2.0, 5)], 83_334, id="one-scale"),
        pytest.param(-1, [put("b", 120_000), scale("n", 1.2)], 100_000, id="set-then-scale"),
        pytest.param(100_000, [add("b", 20_000)], 120_000, id="add"),
        pytest.param(100_000, [add("b", 20_000), add("c", 5_000)], 125_000, id="adds-sum-up"),
        pytest.param(100_000, [add("b", 50_000, 130_000)], 130_000, id="add-to-its-ceiling"),
        pytest.param(100_000, [add("b", 50_000, 90_000)], 100_000, id="ceiling-below-the-value"),
        pytest.param(100_000, [add("b", -50_000)], 100_000, id="add-is-not-negative"),
        pytest.param(-1, [add("b", 50_000)], -1, id="unlimited-takes-no-add"),
        pytest.param(120_000, [scale("n", 1.2), add("b", 50_000, 300_000)], 150_000, id="issue-2306"),
        pytest.param(100_000, [at_most("s", 40_000)], 40_000, id="at-most"),
        pytest.param(100_000, [at_most("s", 40_000), at_most("t", 30_000)], 30_000, id="every-at-most"),
        pytest.param(100_000, [at_most("s", 140_000)], 100_000, id="at-most-above"),
        pytest.param(-1, [at_most("s", 140_000)], 140_000, id="at-most-makes-finite"),
        pytest.param(None, [at_most("s", 140_000)], 140_000, id="at-most-of-nothing-asked-for"),
        pytest.param(-1, [at_most("s", -1)], -1, id="at-most-unlimited"),
        pytest.param(
            100_000,
            [put("batch-resource", 50_000), put("cpuset", -1, 20), scale("n", 1.2), add("b", 5_000)],
            -1,
            id="unlimited-of-cpuset-voids-scale-and-add",
        ),
        pytest.param(
            100_000,
            [put("cpuset", -1, 20), scale("n", 1.2), add("b", 5_000), at_most("s", 2_000)],
            2_000,
            id="all-four",
        ),
    ],
)
def test_a_quota(base: int | None, claims: Sequence[Claim], expected: int | None) -> None:
    for order in itertools.permutations(claims):
        assert resolve(QUOTA, base, order).value == expected


@pytest.mark.parametrize(
    ("base", "claims", "expected"),
    [
        pytest.param("0-3", [put("c", "2,4")], "2,4", id="set"),
        pytest.param("0-3", [put("c", "4 2")], "4 2", id="as-it-is-written"),
        pytest.param("0-3", [put("c", CLEAR)], "", id="clear"),
        pytest.param("0-3", [put("c", 3)], "0-3", id="a-number-is-no-list"),
        pytest.param("0-3", [at_most("s", "2-5")], "2-3", id="intersection"),
        pytest.param("0-3", [put("c", "0-7"), at_most("s", "2-5")], "2-5", id="set-then-intersection"),
        pytest.param("", [at_most("s", "2-5")], "2-5", id="all-of-the-parent"),
        pytest.param(None, [at_most("s", "2-5")], "2-5", id="nothing-asked-for"),
        pytest.param("0-3", [put("c", CLEAR), at_most("s", "2-5")], "2-5", id="clear-then-at-most"),
        pytest.param("0-3", [at_most("s", "2-5"), at_most("t", "3-9")], "3", id="every-at-most"),
        pytest.param("0-1", [at_most("s", "2-5")], "2-5", id="empty-is-the-at-most"),
        pytest.param("0-1", [at_most("s", "2-3", 5), at_most("t", "4-5")], "2-3", id="at-mosts-that-differ"),
        pytest.param("0-1", [at_most("s", "")], "0-1", id="empty-at-most"),
        pytest.param("0-1", [at_most("s", "none")], "0-1", id="at-most-that-is-no-list"),
        pytest.param("0-3", [scale("n", 2.0), add("b", 1)], "0-3", id="no-amount"),
    ],
)
def test_a_list_of_cpus(base: str | None, claims: Sequence[Claim], expected: str) -> None:
    for order in itertools.permutations(claims):
        assert resolve(CPUS, base, order).value == expected


def test_a_list_without_a_common_member_is_reported() -> None:
    resolved = resolve(CPUS, "0-3", [put("cpuset", "0-1"), at_most("suppress", "4-5")])
    text = "0-1 shares no member with 4-5 of suppress"
    assert (resolved.value, resolved.problem, labels_of(resolved.owners)) == ("4-5", text, "suppress")
    assert notes(resolved) == [("cpuset", ClaimOutcome.LOST, text)]
    assert resolve(CPUS, "0-1", [at_most("suppress", "4-5")]).problem == text
    assert not resolve(CPUS, "0-4", [at_most("suppress", "4-5")]).problem


@pytest.mark.parametrize(
    ("base", "claims", "expected"),
    [
        pytest.param(
            100_000,
            [put("a", 1_000), put("b", 2_000)],
            [("a", ClaimOutcome.LOST, "b sets this value")],
            id="set",
        ),
        pytest.param(
            100_000,
            [scale("a", 2.0), scale("b", 3.0)],
            [("a", ClaimOutcome.LOST, "b scales this value")],
            id="scale",
        ),
        pytest.param(
            100_000,
            [scale("a", 1.0)],
            [("a", ClaimOutcome.VOID, "a ratio of 1.0 changes nothing")],
            id="ratio-1",
        ),
        pytest.param(
            100_000,
            [scale("a", float("nan"))],
            [("a", ClaimOutcome.VOID, "the ratio is not a number")],
            id="ratio-nan",
        ),
        pytest.param(
            2_000, [scale("a", 4.0)], [("a", ClaimOutcome.CLAMPED, "500 is below 1000")], id="least"
        ),
        pytest.param(
            -1,
            [scale("a", 2.0), add("b", 5)],
            [
                ("a", ClaimOutcome.VOID, "the value is unlimited"),
                ("b", ClaimOutcome.VOID, "the value is unlimited"),
            ],
            id="unlimited",
        ),
        pytest.param(
            100_000,
            [add("a", 50_000, 130_000)],
            [("a", ClaimOutcome.CLAMPED, "100000 + 50000 is above 130000")],
            id="ceiling",
        ),
        pytest.param(100_000, [add("a", -1)], [("a", ClaimOutcome.VOID, "is below 0")], id="negative-add"),
        pytest.param(100_000, [add("a", 0)], [("a", ClaimOutcome.VOID, "adds nothing")], id="add-of-0"),
        pytest.param(
            30_000,
            [at_most("a", 40_000), at_most("b", 20_000)],
            [("a", ClaimOutcome.VOID, "the value is 20000 already")],
            id="at-most",
        ),
        pytest.param(30_000, [at_most("a", -1)], [("a", ClaimOutcome.VOID, "bounds nothing")], id="no-bound"),
        pytest.param(
            30_000,
            [at_most("a", "0-3")],
            [("a", ClaimOutcome.VOID, "is not a whole number")],
            id="list-for-number",
        ),
        pytest.param(
            30_000, [put("a", 1.5)], [("a", ClaimOutcome.VOID, "is not a value of this field")], id="fraction"
        ),
    ],
)
def test_claims_without_their_whole_effect(
    base: int, claims: Sequence[Claim], expected: list[tuple[str, ClaimOutcome, str]]
) -> None:
    for order in itertools.permutations(claims):
        assert notes(resolve(QUOTA, base, order)) == expected


def test_the_owners_and_steps_of_a_value() -> None:
    claims = [at_most("s", 90_000), add("b", 50_000), scale("n", 1.2), put("r", 120_000)]
    resolved = resolve(QUOTA, -1, claims)
    assert labels_of(resolved.owners) == "r+n+b+s"
    assert resolved.steps == (120_000, 100_000, 150_000, 90_000)
    assert resolve(QUOTA, -1, []).owners == ()


def test_the_earlier_policy_counts_if_the_operator_says_so() -> None:
    claims = [put("a", 1_000, 10), put("b", 2_000, 10), put("c", 3_000, 20), scale("x", 2.0), scale("y", 4.0)]
    assert resolve("memory.low", 0, claims, rule=ConflictRule.EARLIER).value == 500
    assert resolve("memory.low", 0, claims, rule=ConflictRule.LATER).value == 750


def test_a_base_that_is_not_known_is_not_calculated_with() -> None:
    claims = [scale("n", 1.2), add("b", 5), at_most("s", 2_000)]
    resolved = resolve(QUOTA, 50_000, claims, is_base_known=False)
    assert resolved.value == 50_000
    assert [note.outcome for note in resolved.notes] == [ClaimOutcome.VOID] * 3
    assert resolve(QUOTA, None, [*claims, put("r", 12_000)], is_base_known=False).value == 2_000
    assert resolve(CPUS, None, [at_most("s", "1")], is_base_known=False).value is None


def test_clearing() -> None:
    assert resolve(QUOTA, 5_000, [put("a", CLEAR)]).is_clear
    assert not resolve(QUOTA, 5_000, [put("a", CLEAR), at_most("s", 2_000)]).is_clear
    assert not resolve(QUOTA, 5_000, [put("a", -1)]).is_clear
    assert resolve("labels[x]", "1", [put("a", CLEAR)]).value is CLEAR
    assert resolve("cpu.shares", 5, [put("a", CLEAR)]).value == 1_024


def test_a_negative_number_is_unlimited_only_where_there_are_limits() -> None:
    assert resolve("cpu.bvt_warp_ns", 2, [put("a", -1), at_most("b", 1)]).value == -1
    assert resolve("cpu.bvt_warp_ns", -1, [add("b", 2)]).value == 1


def test_each_written_parameter_has_a_neutral_value_in_its_range() -> None:
    for name, parameter in PARAMETERS.items():
        if parameter.writable:
            assert parameter.canonical(NEUTRAL[name]) == NEUTRAL[name]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, [(Role.SET, 5, None)]),
        (CLEAR, [(Role.SET, CLEAR, None)]),
        (Scale(1.5), [(Role.SCALE, 1.5, None)]),
        (Scale(1.5, 7), [(Role.SET, 7, None), (Role.SCALE, 1.5, None)]),
        (Add(3, at_most=9), [(Role.ADD, 3, 9)]),
        (AtMost("0-3"), [(Role.AT_MOST, "0-3", None)]),
    ],
)
def test_the_claims_behind_a_policy_value(
    value: Value | Clear | Scale | Add | AtMost, expected: list[object]
) -> None:
    claims = claims_of(Claimant("p"), value, priority=4, reason="why")
    assert [(claim.role, claim.value, claim.ceiling) for claim in claims] == expected
    assert {claim[:1] + claim[3:5] for claim in claims} == {(Claimant("p"), 4, "why")}


# --- properties ------------------------------------------------------------------------------------------

OWNERS = st.sampled_from(["batch-resource", "cpuset", "cpu-burst", "suppress", "server:koordlet"])
QUOTAS = st.one_of(st.just(-1), st.integers(1_000, 10_000_000))
PRIORITIES = st.integers(0, 3)
NUMBER_CLAIMS = st.one_of(
    st.builds(put, OWNERS, st.one_of(QUOTAS, st.just(CLEAR)), PRIORITIES),
    st.builds(scale, OWNERS, st.floats(allow_nan=True) | st.sampled_from([1.0, 1.25, 3.0]), PRIORITIES),
    st.builds(add, OWNERS, st.integers(-5, 10**6), st.none() | QUOTAS),
    st.builds(at_most, OWNERS, QUOTAS, PRIORITIES),
)
LISTS = st.frozensets(st.integers(0, 7)).map(lambda cpus: ",".join(map(str, sorted(cpus))))
LIST_CLAIMS = st.one_of(
    st.builds(put, OWNERS, st.one_of(LISTS, st.just(CLEAR)), PRIORITIES),
    st.builds(at_most, OWNERS, LISTS, PRIORITIES),
    st.builds(scale, OWNERS, st.just(2.0), PRIORITIES),
)


@given(
    QUOTAS,
    st.lists(NUMBER_CLAIMS, max_size=6),
    st.randoms(use_true_random=False),
    st.sampled_from(ConflictRule),
)
def test_the_order_of_claims_does_not_count(
    base: int, claims: list[Claim], random: object, rule: ConflictRule
) -> None:
    shuffled = list(claims)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    # By text, since a ratio that is not a number differs from itself.
    assert repr(resolve(QUOTA, base, claims, rule=rule)) == repr(resolve(QUOTA, base, shuffled, rule=rule))


@given(LISTS, st.lists(LIST_CLAIMS, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_claims_on_a_list_does_not_count(base: str, claims: list[Claim], random: object) -> None:
    shuffled = list(claims)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert resolve(CPUS, base, claims) == resolve(CPUS, base, shuffled)


@given(QUOTAS, st.lists(NUMBER_CLAIMS, max_size=6))
def test_every_claim_is_used_or_has_a_reason(base: int, claims: list[Claim]) -> None:
    resolved = resolve(QUOTA, base, claims)
    accounted = [*map(repr, resolved.used)]
    accounted += [repr(note.claim) for note in resolved.notes if note.outcome is not ClaimOutcome.CLAMPED]
    assert sorted(accounted) == sorted(map(repr, claims))
    assert all(note.reason for note in resolved.notes)


@given(QUOTAS, st.lists(NUMBER_CLAIMS, max_size=6))
def test_the_value_is_within_every_bound(base: int, claims: list[Claim]) -> None:
    value = resolve(QUOTA, base, claims).value
    bounds = [claim.value for claim in claims if claim.role is Role.AT_MOST and claim.value != -1]
    assert isinstance(value, int)
    assert all(isinstance(bound, int) and 0 < value <= bound for bound in bounds)


@given(LISTS, st.lists(LIST_CLAIMS, max_size=6))
def test_a_list_is_within_its_bound(base: str, claims: list[Claim]) -> None:
    value = resolve(CPUS, base, claims).value
    bounds = [
        parse_cpu_list(str(claim.value)) for claim in claims if claim.role is Role.AT_MOST and claim.value
    ]
    assert isinstance(value, str)
    assert not bounds or any(parse_cpu_list(value) <= bound for bound in bounds)
    assert not bounds or value


@given(QUOTAS, st.lists(NUMBER_CLAIMS, max_size=6))
def test_a_claim_without_effect_can_be_withdrawn_without_any(base: int, claims: list[Claim]) -> None:
    resolved = resolve(QUOTA, base, claims)
    assert resolve(QUOTA, base, resolved.used).value == resolved.value
