"""Every field of every key: its default, a wrong type, a value out of range, and unknown ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from runtimeproxy.slo.keys import SECTION_BY_KEY, SECTIONS, Section
from runtimeproxy.slo.reading import json_key
from runtimeproxy.slo.schema import Bandwidth, CpuBurstStrategy, Duration, Quantity, Range
from tests.slo.configs import FILE, loaded


class Leaf:
    """A field with a value, at a path of JSON keys."""

    def __init__(self, section: Section, path: tuple[str, ...], hint: Any) -> None:
        self.section = section
        self.path = path
        self.marks: tuple[object, ...] = ()
        options = [each for each in get_args(hint) if each is not type(None)]
        if get_origin(hint) is not Annotated and type(None) in get_args(hint):
            hint = options[0]
        if get_origin(hint) is Annotated:
            hint, *marks = get_args(hint)
            self.marks = tuple(marks)
        self.kind = hint

    @property
    def within(self) -> Range | None:
        return next((each for each in self.marks if isinstance(each, Range)), None)

    def has(self, kind: type) -> bool:
        return any(isinstance(each, kind) for each in self.marks)

    def config(self, value: object) -> dict[str, object]:
        """The key with this field alone."""
        for key in reversed(self.path):
            value = [value] if key == "[]" else {key: value}
        assert isinstance(value, dict)
        return value if self.section.is_inline else {"clusterStrategy": value}

    def place(self) -> str:
        text = ".".join(self.path).replace(".[]", "[0]")
        return text if self.section.is_inline else f"clusterStrategy.{text}"

    def __repr__(self) -> str:
        return f"{self.section.key}:{self.place()}"


def leaves(section: Section, kind: type, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    hints = get_type_hints(kind, include_extras=True)
    for each in dataclasses.fields(kind):
        yield from _leaves(section, hints[each.name], (*path, json_key(each.name)))


def _leaves(section: Section, hint: Any, path: tuple[str, ...]) -> Iterator[Leaf]:
    plain = next((one for one in get_args(hint) if dataclasses.is_dataclass(one)), hint)
    if get_origin(hint) is tuple:
        yield from _leaves(section, get_args(hint)[0], (*path, "[]"))
    elif get_origin(hint) is Mapping:
        yield from _leaves(section, get_args(hint)[1], (*path, "name"))
    elif dataclasses.is_dataclass(plain):
        assert isinstance(plain, type)
        yield from leaves(section, plain, path)
    else:
        yield Leaf(section, path, hint)


LEAVES = [leaf for section in SECTIONS for leaf in leaves(section, section.kind)]
OF_SECTION = pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.key)


def _of(section: Section) -> list[Leaf]:
    return [leaf for leaf in LEAVES if leaf.section is section]


def errors(leaf: Leaf, value: object) -> list[str]:
    result = loaded({leaf.section.key: leaf.config(value)})
    assert all(each.file == FILE and each.key == leaf.section.key for each in result.problems)
    assert leaf.section.key not in result.good or not result.problems
    return [each.path for each in result.problems if not each.is_warning]


def test_there_are_as_many_fields_as_koordinator_has() -> None:
    counts = {section.key: sum(leaf.section is section for leaf in LEAVES) for section in SECTIONS}
    one_class = 4 + 14 + 1 + 18 + 4 + 5  # cpuQOS, memoryQOS, blkioQOS, a block of it, resctrlQOS, networkQOS
    assert counts == {
        "resource-threshold-config": 19,
        "resource-qos-config": 2 + 5 * one_class,
        "cpu-burst-config": 5,
        "system-config": 8,
        "host-application-config": 6,
        "colocation-config": 20,
        "cpu-normalization-config": 2 + 4,
        # Of this project.
        "cpu-guard-config": 10,
        "startup-boost-config": 2,
    }


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("cpu_evict_be_satisfaction_upper_percent", "cpuEvictBESatisfactionUpperPercent"),
        ("mid_static_cpu_reserved_percent", "midStaticCPUReservedPercent"),
        ("model_read_seq_iops", "modelReadSeqIOPS"),
        ("net_qos_policy", "netQOSPolicy"),
        ("memcg_reap_back_ground", "memcgReapBackGround"),
        ("lsr_class", "lsrClass"),
        ("blkio_qos", "blkioQOS"),
        ("cache_id", "cacheID"),
    ],
)
def test_names_are_koordinators(name: str, key: str) -> None:
    assert json_key(name) == key


@OF_SECTION
def test_a_wrong_type_is_an_error_with_its_place(section: Section) -> None:
    for leaf in _of(section):
        wrong: list[object] = [{}, []]
        if leaf.kind is not str or leaf.has(Duration):
            wrong.append("x?")
        if leaf.kind is not bool:
            wrong.append(True)
        if leaf.kind is not float and not leaf.has(Quantity):
            wrong.append(1.5)
        if leaf.within is None and not leaf.has(Bandwidth):
            wrong.append(1)
        for value in wrong:
            assert errors(leaf, value)[:1] == [leaf.place()], (leaf, value)


@OF_SECTION
def test_a_value_out_of_range_is_an_error_with_its_place(section: Section) -> None:
    for leaf in _of(section):
        if leaf.within is None:
            continue
        low, high, is_above = leaf.within
        step = 0.001 if leaf.kind is float else 1
        for value in (low if is_above else low - step, high + step):
            number = value if leaf.kind is float else int(value)
            if number <= high or not leaf.has(Quantity):  # a quantity above is read as the largest
                assert leaf.place() in errors(leaf, number), (leaf, number)


@OF_SECTION
def test_the_ends_of_a_range_are_inside(section: Section) -> None:
    for leaf in _of(section):
        if leaf.within is None:
            continue
        low, high, is_above = leaf.within
        for value in (low + 0.001 if is_above else low, high):
            number = value if leaf.kind is float else int(value)
            reasons = [each.reason for each in loaded({section.key: leaf.config(number)}).problems]
            # An end of a range of two fields may leave no room for the other one: that is said otherwise.
            assert not any("at least" in each or "at most" in each for each in reasons), (leaf, number)


@OF_SECTION
def test_null_is_absent(section: Section) -> None:
    for leaf in _of(section):
        if "[]" not in leaf.path and "name" not in leaf.path:  # a list's item, a mapping's entry
            assert loaded({section.key: leaf.config(None)}).strategies == loaded({}).strategies, leaf


@OF_SECTION
def test_an_unknown_field_is_a_warning_and_the_rest_counts(section: Section) -> None:
    config: dict[str, object] = {"nonsense": 1, "enable": True, "policy": "auto", "minFreeKbytesFactor": 7}
    result = loaded({section.key: config if section.is_inline else {"clusterStrategy": config}})
    assert all(each.is_warning for each in result.problems)
    assert any(each.path.endswith("nonsense") for each in result.problems)
    assert section.key in result.good


def test_a_misspelled_field_is_guessed() -> None:
    (problem,) = loaded({"cpu-burst-config": {"clusterStrategy": {"cpuBurstPercents": 1}}}).problems
    assert "did you mean cpuBurstPercent?" in problem.reason
    assert str(problem) == (
        f"{FILE}: cpu-burst-config: clusterStrategy.cpuBurstPercents is not a known field, "
        "and is not used; did you mean cpuBurstPercent?"
    )


@pytest.mark.parametrize("spelling", ["CPUBURSTPERCENT", "cpuburstpercent", "CpuBurstPercent"])
def test_keys_match_in_any_case(spelling: str) -> None:
    result = loaded({"cpu-burst-config": {"ClusterSTRATEGY": {spelling: 200}}})
    assert result.strategies.cpu_burst.cpu_burst_percent == 200
    assert result.problems == ()


def test_the_last_of_two_spellings_counts_and_is_reported() -> None:
    result = loaded({"cpu-burst-config": {"clusterStrategy": {"policy": "auto", "Policy": "none"}}})
    assert result.strategies.cpu_burst.policy == "none"
    assert [each.is_warning for each in result.problems] == [True]


def test_a_key_that_is_there_twice_is_reported() -> None:
    text = '{"clusterStrategy": {"policy": "auto"}, "clusterStrategy": {"cpuBurstPercent": 7}}'
    result = loaded({"cpu-burst-config": text})
    assert result.strategies.cpu_burst == CpuBurstStrategy(cpu_burst_percent=7)
    assert [str(each) for each in result.problems] == [
        f'{FILE}: cpu-burst-config has the key "clusterStrategy" twice in one object; the last one is used'
    ]


def test_names_of_mappings_match_exactly() -> None:
    result = loaded({"system-config": {"clusterStrategy": {"schedFeatures": {"ID_A": True, "id_a": False}}}})
    assert result.strategies.system.sched_features == {"ID_A": True, "id_a": False}


def test_quantities_are_texts_or_numbers() -> None:
    for value in ("10G", " 10G", 10_000_000_000, "10000000000"):
        result = loaded({"system-config": {"clusterStrategy": {"totalNetworkBandwidth": value}}})
        assert result.strategies.system.total_network_bandwidth == 10_000_000_000
    for value in ("fast", "-1", -1, True):
        assert not loaded({"system-config": {"clusterStrategy": {"totalNetworkBandwidth": value}}}).good


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not valid JSON: Expecting property name"),
        ("", "is not valid JSON: Expecting value"),
        ('{"clusterStrategy": {"cpuBurstPercent": NaN}}', "NaN is not a number of JSON"),
        ("[1]", "is not an object"),
        ("null", "is not an object"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"a":' * 100_000, "is nested too deeply"),
        ("{" + " " * (1 << 20) + "}", "is longer than 1048576 characters"),
        ('{"clusterStrategy": {"cpuBurstPercent": ' + "9" * 65 + "}}", "a number has 65 digits"),
        ("[1" + ",1" * (1 << 15) + ",1]", "has more than 32768 values"),
        ('{"clusterStrategy": 3}', "is not an object"),
        ('{"nodeStrategies": {}}', "is not a list"),
        ('{"nodeStrategies": [3]}', "is not an object"),
        ('{"podStrategies": "x"}', "is not a list"),
    ],
)
@pytest.mark.parametrize("key", ["cpu-burst-config", "resource-qos-config"])
def test_texts_that_are_no_strategies(key: str, text: str, reason: str) -> None:
    result = loaded({key: text})
    errors = [each for each in result.problems if not each.is_warning]
    assert any(reason in each.reason for each in errors), result.problems
    assert key not in result.good
    assert result.strategies == loaded({}).strategies


@pytest.mark.parametrize(
    ("key", "config", "path", "reason"),
    [
        (
            "host-application-config",
            {"applications": [{"name": f"a{number}"} for number in range(257)]},
            "applications",
            "has 257 items, more than 256",
        ),
        (
            "system-config",
            {"clusterStrategy": {"schedFeatures": {f"F{number}": True for number in range(257)}}},
            "clusterStrategy.schedFeatures",
            "has 257 entries, more than 256",
        ),
    ],
)
def test_lists_and_mappings_are_bounded(key: str, config: object, path: str, reason: str) -> None:
    assert [(each.path, each.reason) for each in loaded({key: config}).problems] == [(path, reason)]


@pytest.mark.parametrize("text", ["0", "5m", ".5h", "1h30m", "-1.5s"])
def test_durations_are_those_of_go(text: str) -> None:
    config = {"metricAggregatePolicy": {"durations": [text]}}
    assert loaded({"colocation-config": config}).problems == ()


@pytest.mark.parametrize("text", ["", "5", "5d", "m", "1ms" * 21 + "1m and more"])
def test_texts_that_are_no_durations(text: str) -> None:
    config = {"metricAggregatePolicy": {"durations": [text]}}
    assert "colocation-config" not in loaded({"colocation-config": config}).good


def test_problems_are_one_line_that_can_be_printed() -> None:
    text = '{"clusterStrategy": {"a\\nerror: b\\u001b[1m\\ud800": 1}}'
    (problem,) = loaded({"cpu-burst-config": text}).problems
    assert str(problem) == (
        f"{FILE}: cpu-burst-config: clusterStrategy.a\\nerror: b\\x1b[1m\\ud800 is not a known field, "
        "and is not used"
    )


def test_many_problems_are_counted_not_listed() -> None:
    unknown = {f"x{number}": 1 for number in range(5_000)}
    result = loaded({"cpu-burst-config": {"clusterStrategy": {**unknown, "cpuBurstPercent": 0}}})
    assert len(result.problems) == 51
    assert result.problems[0].path == "clusterStrategy.cpuBurstPercent"
    assert result.problems[-1].reason == "and 4951 more problems"
    assert all(len(str(each)) < 400 for each in result.problems)


def test_long_names_and_values_are_shortened() -> None:
    long = "x" * 100_000
    config = {"clusterStrategy": {long: 1, "policy": long, "cpuBurstPercent": long}}
    for problem in loaded({"cpu-burst-config": config, long: "{}"}).problems:
        assert len(str(problem)) < 400


def test_unused_keys_are_named() -> None:
    result = loaded({"resource-amplification-config": "{broken", "example": "{}"})
    assert [(each.key, each.is_warning) for each in result.problems] == [
        ("resource-amplification-config", True),
        ("example", True),
    ]
    assert all("is not used" in each.reason for each in result.problems)


def test_the_table_of_keys_is_complete() -> None:
    assert json.dumps(sorted(SECTION_BY_KEY)) == json.dumps(
        [
            "colocation-config",
            "cpu-burst-config",
            "cpu-guard-config",
            "cpu-normalization-config",
            "host-application-config",
            "resource-qos-config",
            "resource-threshold-config",
            "startup-boost-config",
            "system-config",
        ]
    )
