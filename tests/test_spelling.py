"""Names that are nearly known ones."""

from __future__ import annotations

import itertools
import random

import pytest

from runtimeproxy.slo.annotations import MAX_GUESSES
from runtimeproxy.slo.keys import SECTION_BY_KEY
from runtimeproxy.slo.loading import load
from runtimeproxy.slo.names import NODE_ANNOTATIONS, NODE_LABELS
from runtimeproxy.slo.object_names import MAX_NAMES, NODE_NAMES, POD_NAMES, name_problems
from runtimeproxy.spelling import edits, nearest, nearest_key
from tests.slo.configs import loaded, pod

BURST = "cpu-burst-config"


@pytest.mark.parametrize(
    ("one", "other", "number"),
    [
        ("", "", 0),
        ("cpu", "cpu", 0),
        ("cpu", "cpuu", 1),
        ("cpu", "cp", 1),
        ("cpu", "cpx", 1),
        ("brust", "burst", 1),
        ("cpu-brust-config", "cpu-burst-confg", 2),
        ("abcdef", "badcfe", None),
        ("ab", "ba", 1),
        ("ca", "abc", None),
        ("", "ab", 2),
        ("", "abc", None),
        ("abc", "xyz", None),
    ],
)
def test_edits(one: str, other: str, number: int | None) -> None:
    assert edits(one, other, 2) == edits(other, one, 2) == number


def aligned(one: str, other: str) -> int:
    """The distance of optimal string alignment, as it is defined."""
    table = {(row, 0): row for row in range(len(one) + 1)} | {(0, col): col for col in range(len(other) + 1)}
    for row, col in itertools.product(range(1, len(one) + 1), range(1, len(other) + 1)):
        is_same = one[row - 1] == other[col - 1]
        found = [table[row - 1, col] + 1, table[row, col - 1] + 1, table[row - 1, col - 1] + (not is_same)]
        if row > 1 and col > 1 and one[row - 2 : row] == other[col - 2 : col][::-1]:
            found.append(table[row - 2, col - 2] + 1)
        table[row, col] = min(found)
    return table[len(one), len(other)]


def test_edits_near_the_diagonal_are_those_of_the_whole_table() -> None:
    draw = random.Random(5)
    for _ in range(3_000):
        one = "".join(draw.choices("ab", k=draw.randrange(7)))
        other = "".join(draw.choices("ab", k=draw.randrange(7)))
        number = aligned(one, other)
        for most in range(3):
            assert edits(one, other, most) == (number if number <= most else None), (one, other, most)


@pytest.mark.parametrize(
    ("name", "known", "guess"),
    [
        ("cpuBurstPercnt", ["cpuBurstPercent", "policy"], "cpuBurstPercent"),
        ("CPUBURSTPERCNT", ["cpuBurstPercent"], "cpuBurstPercent"),
        ("enabel", ["enable"], "enable"),
        ("polcy", ["policy", "policies"], "policy"),
        # Of short names one edit is allowed, not two.
        ("qso", ["qos"], "qos"),
        ("cpu", ["qos"], ""),
        ("mode", ["name"], ""),
        ("nmae", ["name"], "name"),
        ("rnge1", ["range"], "range"),
        # The nearest counts, and of two the first.
        ("lsrClas", ["lsClass", "lsrClass"], "lsrClass"),
        ("xsClass", ["asClass", "lsClass"], "asClass"),
        # A domain makes no short name a long one.
        ("koordinator.sh/xyz", ["koordinator.sh/qos"], ""),
        ("x" * 10_000, ["x" * 10_001], ""),
        ("nonsense", ["cpuBurstPercent"], ""),
    ],
)
def test_the_name_that_was_meant(name: str, known: list[str], guess: str) -> None:
    assert nearest(name, known) == guess


def test_no_known_key_is_taken_for_another_one() -> None:
    for key in SECTION_BY_KEY:
        assert nearest(key, SECTION_BY_KEY.keys() - {key}) == ""


@pytest.mark.parametrize(
    ("config", "path", "guess"),
    [
        ({"clusterStrategy": {"cpuBurstPercnt": 200}}, "clusterStrategy.cpuBurstPercnt", "cpuBurstPercent"),
        ({"clusterStrategi": {}}, "clusterStrategi", "clusterStrategy"),
        ({"nodeStrategy": []}, "nodeStrategy", ""),
        ({"nodeStratgies": []}, "nodeStratgies", "nodeStrategies"),
        # One level too high.
        ({"cpuBurstPercent": 200}, "cpuBurstPercent", "clusterStrategy.cpuBurstPercent"),
        ({"clusterStrategy": {"cpuBurstShares": 2}}, "clusterStrategy.cpuBurstShares", ""),
        (
            {"nodeStrategies": [{"nodeSelector": {"matchLabels": {"a": "b"}}, "nmae": "a"}]},
            "nodeStrategies[0].nmae",
            "name",
        ),
        (
            {"podStrategies": [{"namespace": "a", "policy": "none", "podSelecter": {}}]},
            "podStrategies[0].podSelecter",
            "podSelector",
        ),
    ],
)
def test_fields(config: dict[str, object], path: str, guess: str) -> None:
    """A misspelled one is a problem of the node, another one a note; all else counts."""
    result = loaded({BURST: config})
    (problem,) = result.problems
    assert (problem.path, problem.guess, problem.needs_attention) == (path, guess, bool(guess))
    assert problem.is_unknown_name
    assert problem.is_warning
    assert problem.reason.endswith(f"did you mean {guess}?") == bool(guess)
    assert BURST in result.good


def test_keys_and_sections() -> None:
    result = loaded(
        {"cpu-brust-config": "{}", "my-extension": "{}"}, node_slo={"cpuBurstStratgy": {}, "a": 1}
    )
    assert [(each.key, each.path, each.guess) for each in result.problems] == [
        ("cpu-brust-config", "", BURST),
        ("my-extension", "", ""),
        ("NodeSLO", "spec.cpuBurstStratgy", "cpuBurstStrategy"),
        ("NodeSLO", "spec.a", ""),
    ]
    assert all(each.is_unknown_name and each.is_warning for each in result.problems)


def test_what_koordinator_has_and_nothing_here_applies_is_known() -> None:
    selector = {"matchLabels": {"a": "b"}}
    texts = {
        "colocation-config": {
            "extensions": {"any": 1},
            "nodeConfigs": [{"nodeSelector": selector, "extensions": {}}],
        },
        "host-application-config": {"applications": [{"name": "a", "strategy": {}}]},
    }
    assert loaded(texts, node_slo={"extensions": {"any": {}}}).problems == ()
    amplification = {"enable": True, "resourceAmplificationRatio": {"cpu": 1.5}, "nodeConfigs": []}
    (problem,) = loaded({"resource-amplification-config": amplification}).problems
    assert not problem.is_unknown_name
    _, problem = loaded({"resource-amplification-config": {"resourceAmplificationRatoi": {}}}).problems
    assert problem.guess == "resourceAmplificationRatio"


def test_misspelled_names_are_kept_before_notes() -> None:
    # Those that come after the most problems of a key are not compared any more.
    unknown = {f"other{number}": 1 for number in range(49)}
    config = {"clusterStrategy": {**unknown, "cpuBurstPercnt": 1, "more": 1}}
    problems = loaded({BURST: config}).problems
    assert len(problems) == 51
    assert [each.guess for each in problems[:2]] == ["cpuBurstPercent", ""]


def test_labels_and_annotations_of_a_pod() -> None:
    annotations = {
        "koordinator.sh/cpuBrust": "{}",
        "koordinator.sh/cpuburst": "{}",
        "koordinator.sh/cpuBurst": "{}",
        "scheduling.koordinator.sh/new-thing": "",
        "scheduling.koordinator.sh/schedule-admission-mine": "true",
        "notkoordinator.sh/cpuBrust": "",
        "example.com/koordinator.sh": "",
    }
    found = name_problems(POD_NAMES, {"koordinator.sh/qosClas": "BE"}, annotations)
    assert [(each.key, each.guess) for each in found] == [
        ("koordinator.sh/qosClas", "koordinator.sh/qosClass"),
        ("koordinator.sh/cpuBrust", "koordinator.sh/cpuBurst"),
        ("koordinator.sh/cpuburst", "koordinator.sh/cpuBurst"),
        ("scheduling.koordinator.sh/new-thing", ""),
    ]
    assert not name_problems(POD_NAMES, POD_NAMES.names)
    assert len(name_problems(POD_NAMES, [f"koordinator.sh/{number}" for number in range(1_000)])) == MAX_NAMES


def test_labels_and_annotations_of_the_node() -> None:
    """They are said with the strategies, whatever else there is."""
    labels = {"node.koordinator.sh/cpu-normalisation-enabled": "true", "kubernetes.io/hostname": "a"}
    annotations = {
        "node.koordinator.sh/resevation": "{}",
        "nod.koordinator.sh/raw-allocatable": "{}",
        "node.koordinator.sh/new-thing": "",
        "koordinator.sh/qosClass": "BE",
        **dict.fromkeys(NODE_NAMES.names - NODE_ANNOTATIONS - NODE_LABELS, ""),
    }
    result = load({}, labels=labels, annotations=annotations)
    assert [(each.key, each.guess) for each in result.problems] == [
        ("node.koordinator.sh/cpu-normalisation-enabled", "node.koordinator.sh/cpu-normalization-enabled"),
        ("node.koordinator.sh/resevation", "node.koordinator.sh/reservation"),
        ("nod.koordinator.sh/raw-allocatable", "node.koordinator.sh/raw-allocatable"),
        ("node.koordinator.sh/new-thing", ""),
        ("koordinator.sh/qosClass", ""),
    ]
    assert [each.needs_attention for each in result.problems] == [True, True, True, False, False]


def test_of_an_annotation_few_names_are_compared() -> None:
    """It is read while a call waits."""
    fields = {f"cpuBurstPercent{number:02}": 1 for number in range(100)}
    problems = loaded({}).strategies.for_pod(pod("LS", {"koordinator.sh/cpuBurst": fields})).problems
    assert sum(bool(each.guess) for each in problems) == MAX_GUESSES


def test_a_newer_koordinators_field_in_an_annotation_is_no_problem_of_a_policy() -> None:
    def problems(**fields: int) -> tuple[str, ...]:
        found = loaded({}).strategies.for_pod(pod("LS", {"koordinator.sh/cpuBurst": fields}))
        return found.problems_of("koordinator.sh/cpuBurst")

    assert problems(burstShares=1) == ()
    (problem,) = problems(cpuBurstPercnt=1)
    assert problem.endswith("did you mean cpuBurstPercent?")


@pytest.mark.parametrize(
    ("name", "guess"),
    [("step", "step_us"), ("endpoint", "proxy_endpoint"), ("step_su", "step_us"), ("us", ""), ("other", "")],
)
def test_a_key_without_its_unit_or_group(name: str, guess: str) -> None:
    assert nearest_key(name, ["proxy_runtime_endpoint", "proxy_endpoint", "step_us"]) == guess
