"""Conversions. Cases Vnnn are those of Koordinator's pkg/koordlet/util/system (CONTRIBUTING.md)."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy import units


@pytest.mark.parametrize(
    ("cpu_millicores", "cpu_shares"),
    [
        pytest.param(0, 2, id="V001"),
        pytest.param(1, 2, id="V002"),
        pytest.param(1500, 1536, id="V004"),
        pytest.param(300_000, 262_144, id="V005-clamped"),
        pytest.param(-5, 2, id="negative"),
        pytest.param(500, 512, id="half-a-core"),
    ],
)
def test_shares_of_a_request(cpu_millicores: int, cpu_shares: int) -> None:
    assert units.cpu_shares_from_millicores(cpu_millicores) == cpu_shares


@pytest.mark.parametrize(
    ("cpu_millicores", "quota_us"),
    [
        pytest.param(0, -1, id="none"),
        pytest.param(-5, -1, id="negative"),
        pytest.param(5, 1_000, id="V007-kernel-minimum"),
        pytest.param(10, 1_000, id="V008"),
        pytest.param(500, 50_000, id="half-a-core"),
        pytest.param(2**63 - 1, 2**44 - 1, id="kernel-maximum"),
    ],
)
def test_quota_of_a_limit(cpu_millicores: int, quota_us: int) -> None:
    assert units.cpu_quota_us_from_millicores(cpu_millicores) == quota_us


@pytest.mark.parametrize(
    ("cpu_shares", "cpu_weight"),
    [
        pytest.param(2, 1, id="V010-least"),
        pytest.param(1_000, 39, id="V010-1000"),
        pytest.param(1_024, 39, id="V010-1024"),
        pytest.param(2_000, 77, id="V010-2000"),
        pytest.param(50_000, 1_908, id="V010-50000"),
        pytest.param(262_144, 10_000, id="V010-most"),
    ],
)
def test_weight_of_shares(cpu_shares: int, cpu_weight: int) -> None:
    assert units.cpu_weight_from_shares(cpu_shares) == cpu_weight


@pytest.mark.parametrize(
    ("cpu_weight", "cpu_shares"),
    [pytest.param(1, 2, id="V013"), pytest.param(10_000, 262_144, id="V013-most")],
)
def test_shares_of_a_weight(cpu_weight: int, cpu_shares: int) -> None:
    assert units.cpu_shares_from_weight(cpu_weight) == cpu_shares


@pytest.mark.parametrize(
    ("convert", "value"),
    [
        pytest.param(units.cpu_weight_from_shares, 0, id="V011"),
        pytest.param(units.cpu_weight_from_shares, 262_145, id="shares-too-many"),
        pytest.param(units.cpu_shares_from_weight, 0, id="V014"),
        pytest.param(units.cpu_shares_from_weight, 10_001, id="V014-too-much"),
        pytest.param(units.cpu_shares_from_weight, -1, id="V014-negative"),
    ],
)
def test_weights_and_shares_out_of_range_are_errors(convert: Callable[[int], int], value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        convert(value)


@given(st.integers(units.MIN_CPU_SHARES, units.MAX_CPU_SHARES))
def test_weights_stay_in_range_and_lose_less_than_one_step(cpu_shares: int) -> None:
    weight = units.cpu_weight_from_shares(cpu_shares)
    assert units.MIN_CPU_WEIGHT <= weight <= units.MAX_CPU_WEIGHT
    assert 0 <= cpu_shares - units.cpu_shares_from_weight(weight) <= 27


@pytest.mark.parametrize(
    ("cpu_shares", "cpu_weight"),
    [(2, 1), (3, 2), (102, 17), (512, 59), (1_024, 100), (2_000, 170), (262_143, 10_000), (262_144, 10_000)],
)
def test_the_quadratic_weight_of_shares(cpu_shares: int, cpu_weight: int) -> None:
    # Source: opencontainers/cgroups v0.0.5 utils_test.go; 2,000 from opencontainers/runc issue 4896.
    assert units.cpu_weight_from_shares(cpu_shares, units.WeightFormula.QUADRATIC) == cpu_weight


@given(st.sampled_from(units.WeightFormula), st.integers(units.MIN_CPU_WEIGHT, units.MAX_CPU_WEIGHT))
def test_the_shares_of_a_weight_lead_back_to_it(formula: units.WeightFormula, weight: int) -> None:
    again = units.cpu_weight_from_shares(units.cpu_shares_from_weight(weight, formula), formula)
    # Of the quadratic formula few shares are small, so some weights have none; linear ones are rounded down.
    assert again <= weight
    if formula is units.WeightFormula.LINEAR or weight >= 100:
        assert weight - again <= 1


def test_1024_shares_are_the_default_weight_of_the_quadratic_formula() -> None:
    assert units.cpu_shares_from_weight(100, units.WeightFormula.QUADRATIC) == 1_024


@pytest.mark.parametrize(
    ("weights", "formula"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param([(2, 1), (262_144, 10_000)], None, id="the-same-in-both"),
        pytest.param([(1_024, 39)], units.WeightFormula.LINEAR, id="linear"),
        pytest.param([(1_024, 100)], units.WeightFormula.QUADRATIC, id="quadratic"),
        pytest.param([(1_024, 39), (2, 1), (512, 59)], units.WeightFormula.QUADRATIC, id="after-an-upgrade"),
        pytest.param([(1_024, 500), (0, 100)], None, id="neither"),
    ],
)
def test_the_formula_that_a_runtime_uses(
    weights: list[tuple[int, int]], formula: units.WeightFormula | None
) -> None:
    assert units.measured_weight_formula(weights) is formula


@pytest.mark.parametrize(
    ("text", "quota_us", "period_us"),
    [
        pytest.param("max 100000", -1, 100_000, id="V016"),
        pytest.param("100000 100000", 100_000, 100_000, id="V017"),
        pytest.param("max 50000\n", -1, 50_000, id="newline"),
        pytest.param("max", -1, 100_000, id="no-period"),
    ],
)
def test_cpu_max_is_read(text: str, quota_us: int, period_us: int) -> None:
    assert units.parse_cpu_max(text) == (quota_us, period_us)


@pytest.mark.parametrize("text", ["", "  ", "-1 100000", "a b", "1 2 3", "1" * 30, "\u0661 100000"])
def test_other_text_of_cpu_max_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"cpu\.max"):
        units.parse_cpu_max(text)


@pytest.mark.parametrize(
    ("quota_us", "period_us", "text"),
    [
        (-1, None, "max"),
        (-1, 100_000, "max 100000"),
        (50_000, None, "50000"),
        (50_000, 20_000, "50000 20000"),
    ],
)
def test_cpu_max_is_written(quota_us: int, period_us: int | None, text: str) -> None:
    assert units.format_cpu_max(quota_us, period_us) == text


@given(st.just(-1) | st.integers(1_000, units.MAX_CPU_QUOTA_US), st.integers(1_000, 1_000_000))
def test_cpu_max_survives_writing_and_reading(quota_us: int, period_us: int) -> None:
    assert units.parse_cpu_max(units.format_cpu_max(quota_us, period_us)) == (quota_us, period_us)


@pytest.mark.parametrize(
    ("text", "limit_bytes"),
    [
        pytest.param("max\n", -1, id="v2-unlimited"),
        pytest.param("-1", -1, id="minus-one"),
        pytest.param("9223372036854771712\n", -1, id="v1-unlimited-4k-pages"),
        pytest.param("9223372036854710272", -1, id="v1-unlimited-64k-pages"),
        pytest.param("0", 0, id="zero"),
        pytest.param("2147483648\n", 2_147_483_648, id="2Gi"),
    ],
)
def test_memory_limit_is_read(text: str, limit_bytes: int) -> None:
    assert units.parse_memory_max(text) == limit_bytes


@pytest.mark.parametrize("text", ["", "many", "1.5", "-2", "max max"])
def test_other_text_of_a_memory_limit_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="memory limit"):
        units.parse_memory_max(text)


@given(st.just(-1) | st.integers(0, 2**62))
def test_memory_limit_survives_writing_and_reading(limit_bytes: int) -> None:
    assert units.parse_memory_max(units.format_memory_max(limit_bytes)) == limit_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500", 500),
        ("2Gi", 2_147_483_648),
        ("16Gi", 17_179_869_184),
        ("1.5", 2),
        ("1.5Gi", 1_610_612_736),
        ("100m", 1),
        ("2k", 2_000),
        ("1E", 10**18),
        ("1e3", 1_000),
        ("12E-1", 2),
        ("5.", 5),
        (".5", 1),
        ("0", 0),
        ("-1.5", -2),
        ("+3", 3),
        ("1n", 1),
        ("16Ei", units.MAX_INT64),
        ("1e999", units.MAX_INT64),
        ("-1e999", -units.MAX_INT64),
        ("1e-999", 1),
        ("0e999", 0),
    ],
)
def test_quantity_as_a_whole_number(text: str, value: int) -> None:
    assert units.quantity_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "cpu_millicores"),
    [("100m", 100), ("1.5", 1_500), ("2", 2_000), ("1u", 1), ("0.0001", 1), ("4k", 4_000_000)],
)
def test_quantity_in_millicores(text: str, cpu_millicores: int) -> None:
    assert units.quantity_millicores(text) == cpu_millicores


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 Gi",
        "Gi",
        ".",
        "-",
        "1e",
        "1Kb",
        "1K",
        "1ki",
        "1e3Gi",
        "NaN",
        "0x10",
        "\u0661",
        "1e99999999",
        "1" * 200,
    ],
)
def test_other_text_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        units.quantity_bytes(text)


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.sampled_from(["", "Ki", "Mi", "m", "k"]))
def test_quantities_are_rounded_up(whole: int, fraction: int, suffix: str) -> None:
    scale = {
        "": Fraction(1),
        "Ki": Fraction(1024),
        "Mi": Fraction(2**20),
        "m": Fraction(1, 1000),
        "k": Fraction(1000),
    }
    exact = Fraction(f"{whole}.{fraction}") * scale[suffix]
    assert 0 <= units.quantity_bytes(f"{whole}.{fraction}{suffix}") - exact < 1


@given(st.text(max_size=20))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    try:
        value = units.quantity_bytes(text)
    except ValueError:
        return
    assert abs(value) <= units.MAX_INT64


SPELLINGS = [
    ("", set()),
    ("0", {0}),
    ("0-3,8", {0, 1, 2, 3, 8}),
    ("5,1", {1, 5}),
    ("2-2", {2}),
    ("0-1,1-2", {0, 1, 2}),
    ("0-9,2-3,9-10", set(range(11))),
    (",8-15", set(range(8, 16))),
    ("0-1,", {0, 1}),
    ("0,,2", {0, 2}),
    (",", set()),
    (" 0 ", {0}),
    ("0-1\n", {0, 1}),
    ("0, 2", {0, 2}),
    ("0 2\t3", {0, 2, 3}),
    ("007", {7}),
    ("0-15:2/4", {0, 1, 4, 5, 8, 9, 12, 13}),
    ("0-6:2/4,9", {0, 1, 4, 5, 9}),
    ("3-9:1/3", {3, 6, 9}),
    ("0-3:0/2", set()),
    ("0-3:9/9", {0, 1, 2, 3}),
]


@pytest.mark.parametrize(("text", "cpus"), SPELLINGS)
def test_cpu_list_is_read(text: str, cpus: set[int]) -> None:
    assert units.parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("N", {7}), ("6-N", {6, 7}), ("all", set(range(8))), ("ALL:1/4", {0, 4}), ("all,9", {*range(8), 9})],
)
def test_the_last_cpu_has_a_letter(text: str, cpus: set[int]) -> None:
    assert units.parse_cpu_list(text, 7) == cpus
    with pytest.raises(ValueError, match="not known"):
        units.parse_cpu_list(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("3,1,0", "3,1,0"),
        ("0-1,1-2", "0-1,1-2"),
        (",8-15", "8-15"),
        (" 0-3, 8,", "0-3,8"),
        ("0-7:1/2", "0,2,4,6"),
        ("5-N", "5-7"),
        (",", ""),
    ],
)
def test_a_list_gets_the_spelling_that_all_read(text: str, plain: str) -> None:
    assert units.plain_cpu_list(text, 7) == plain


@pytest.mark.parametrize("element", [f"0-{units.MAX_CPU_ID}", f"0-{units.MAX_CPU_ID}:1/2"])
def test_a_long_list_takes_no_time(element: str) -> None:
    """An annotation has room for tens of thousands of ranges, each of which may span all CPUs."""
    begun_s = time.process_time()
    most = units.longest_cpu_list() // (len(element) + 1)
    for _ in range(20):
        units.parse_cpu_list(",".join([element] * most))
    assert time.process_time() - begun_s < 2


def test_a_list_is_no_longer_than_the_kernel_takes() -> None:
    every_second = ",".join(map(str, range(0, units.MAX_CPU_ID + 1, 2)))
    assert len(units.parse_cpu_list(every_second)) == (units.MAX_CPU_ID + 1) // 2
    assert units.longest_cpu_list(7) == 148
    for last in (None, 7):
        longest = units.longest_cpu_list(last)
        assert units.parse_cpu_list("0" + " " * (longest - 1), last) == {0}
        with pytest.raises(ValueError, match=f"more than {longest} characters"):
            units.parse_cpu_list("0" + " " * longest, last)


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "3-1",
        "-1",
        "1-",
        "0 - 1",
        "+1",
        "0x1",
        "0;1",
        "0\n1",
        "0-99999",
        "9999",
        "0-4/2",
        "0-4:2",
        "0-4:3/2",
        "0-4:1/0",
        "4:1/2",
        "n",
        "allx",
        "\u0661",
        "0\u00a01",
        "1" * 9_999,
    ],
)
def test_other_text_is_no_cpu_list(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        units.parse_cpu_list(text)
    assert not units.is_cpu_list(text)


def test_the_empty_cpu_list_names_no_cpu() -> None:
    assert not units.is_cpu_list("")
    assert units.is_cpu_list("0-3")


@pytest.mark.parametrize(
    ("cpus", "text"), [((), ""), ((3,), "3"), ((8, 0, 1, 2, 3), "0-3,8"), ((1, 2), "1-2"), ((1, 1), "1")]
)
def test_cpu_list_is_written(cpus: tuple[int, ...], text: str) -> None:
    assert units.format_cpu_list(cpus) == text


@given(st.frozensets(st.integers(0, units.MAX_CPU_ID), max_size=100))
def test_cpu_list_survives_writing_and_reading(cpus: frozenset[int]) -> None:
    assert units.parse_cpu_list(units.format_cpu_list(cpus)) == cpus


@pytest.mark.parametrize(
    ("quota_us", "period_us", "expected"),
    [
        (83_334, 100_000, 84_000),
        (84_000, 100_000, 84_000),
        (1_000, 100_000, 1_000),
        (1_001, 100_000, 2_000),
        (-1, 100_000, -1),
        (12_345, 50_000, 12_500),
        (1_001, 99_999, 1_999),
        (3, 7, 3),
    ],
)
def test_quotas_as_systemd_rounds_them(quota_us: int, period_us: int, expected: int) -> None:
    assert units.rounded_quota(quota_us, period_us) == expected


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("-5", -5), ("9" * 20, 10**20 - 1)])
def test_a_whole_number(text: str, number: int) -> None:
    assert units.parse_integer(text) == number


@pytest.mark.parametrize(
    "text", ["", "-", "--5", " 5", "1_000", "+5", "5.0", "\N{ARABIC-INDIC DIGIT FIVE}", "9" * 21]
)
def test_what_is_no_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        units.parse_integer(text)
