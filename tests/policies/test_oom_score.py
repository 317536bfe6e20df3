"""OOM scores of annotations."""

from __future__ import annotations

import pytest

from policies.annotations import AnnotationError
from policies.oom_score import (
    SCORE,
    SCORES,
    OomScore,
    OomScoreOptions,
    Score,
    annotated_score,
    lowest_score,
)
from runtimeproxy.hooks import ContainerChange, ContainerView, PodView, ResourceChange, Resources
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import KubeQoSClass, QoSClass

AS_KOORDINATOR = OomScoreOptions(minimum=-1_000, lower_best_effort=True)


def change(
    annotations: dict[str, str],
    *,
    name: str = "main",
    qos: QoSClass = QoSClass.LS,
    requested: int | None = None,
    options: OomScoreOptions | None = None,
) -> ContainerChange | None:
    pod = PodView(qos=qos, kube_qos=KubeQoSClass.BURSTABLE, annotations=annotations)
    view = ContainerView(name=name, pod=pod, requested=Resources(oom_score_adj=requested))
    return OomScore(options).container(view, Node())


@pytest.mark.parametrize(
    ("annotations", "container", "score"),
    [
        pytest.param({SCORES: '{"c1":100}', SCORE: "-500"}, "c1", Score(100, SCORES), id="V086, its own"),
        pytest.param({SCORES: '{"c1":100}', SCORE: "-500"}, "c2", Score(-500, SCORE), id="V086, the pod's"),
        pytest.param({SCORES: '{"c1":100}'}, "c2", None, id="of another container"),
        pytest.param({SCORES: '{"c1":0}', SCORE: "5"}, "c1", Score(0, SCORES), id="zero is a score"),
        pytest.param({SCORES: '{"c1":null}', SCORE: "5"}, "c1", Score(0, SCORES), id="null is 0 in Go"),
        pytest.param({SCORES: "null", SCORE: "5"}, "c1", Score(5, SCORE), id="no object"),
        pytest.param({SCORES: "", SCORE: "5"}, "c1", Score(5, SCORE), id="an empty text is none"),
        pytest.param({SCORES: '{"C1":1}', SCORE: "5"}, "c1", Score(5, SCORE), id="names match exactly"),
        pytest.param({SCORE: ""}, "c1", None, id="an empty number is none"),
        pytest.param({SCORE: "+7"}, "c1", Score(7, SCORE), id="a sign"),
        pytest.param({SCORE: "007"}, "c1", Score(7, SCORE), id="zeros"),
        pytest.param({SCORE: "99999"}, "c1", Score(99_999, SCORE), id="the range comes later"),
        pytest.param({SCORES: '{"c1":5}', SCORE: "x"}, "c1", Score(5, SCORES), id="what is not needed"),
        pytest.param({}, "c1", None, id="nothing"),
    ],
)
def test_the_score_of_annotations(annotations: dict[str, str], container: str, score: Score | None) -> None:
    assert annotated_score(annotations, container) == score


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({SCORES: "{", SCORE: "5"}, id="no JSON: the pod's does not stand in for it"),
        pytest.param({SCORES: "[1]", SCORE: "5"}, id="a list"),
        pytest.param({SCORES: '{"c2":"100"}', SCORE: "5"}, id="another container's is a text"),
        pytest.param({SCORES: '{"c1":1.5}'}, id="half"),
        pytest.param({SCORES: '{"c1":true}'}, id="a truth"),
        pytest.param({SCORES: '{"c1":99999999999999999999}'}, id="more than 64 bits"),
        pytest.param({SCORE: " 5"}, id="a space"),
        pytest.param({SCORE: "5.0"}, id="a fraction"),
        pytest.param({SCORE: "1_0"}, id="an underscore"),
        pytest.param({SCORE: "٣"}, id="a digit of another script"),
        pytest.param({SCORE: "9999999999999999999"}, id="a number of more than 64 bits"),
        pytest.param({SCORE: "9" * 5_000}, id="many digits"),
    ],
)
def test_an_unreadable_annotation_sets_nothing(annotations: dict[str, str]) -> None:
    with pytest.raises(AnnotationError):
        annotated_score(annotations, "c1")
    found = change(annotations, name="c1")
    assert found is not None
    assert (found.resources, len(found.problems)) == (None, 1)


@pytest.mark.parametrize("score", [-1_001, 1_001])
def test_v088_a_score_out_of_range_is_skipped(score: int) -> None:
    found = change({SCORE: str(score)}, options=AS_KOORDINATOR)
    assert found is not None
    assert (found.resources, found.problems) == (
        None,
        (f"annotation {SCORE}: {score} is not in -1000 to 1000",),
    )


@pytest.mark.parametrize("score", [-1_000, -997, 0, 1_000])
@pytest.mark.parametrize("qos", QoSClass)
def test_every_class_has_scores(qos: QoSClass, score: int) -> None:
    found = change({SCORE: str(score)}, qos=qos, options=AS_KOORDINATOR)
    assert found is not None
    assert (found.resources, found.problems) == (ResourceChange(oom_score_adj=score), ())


@pytest.mark.parametrize(
    ("qos", "kube_qos", "requested", "options", "lowest"),
    [
        (QoSClass.LS, KubeQoSClass.BURSTABLE, 900, OomScoreOptions(), -997),
        (QoSClass.LS, KubeQoSClass.BEST_EFFORT, 1_000, OomScoreOptions(), -997),
        (QoSClass.LS, KubeQoSClass.BURSTABLE, 900, OomScoreOptions(minimum=0), 0),
        (QoSClass.LS, KubeQoSClass.BURSTABLE, 900, AS_KOORDINATOR, -1_000),
        (QoSClass.NONE, KubeQoSClass.BURSTABLE, 900, OomScoreOptions(), -997),
        (QoSClass.BE, KubeQoSClass.BURSTABLE, 900, OomScoreOptions(), 900),
        (QoSClass.BE, KubeQoSClass.BEST_EFFORT, 1_000, OomScoreOptions(minimum=0), 1_000),
        (QoSClass.BE, KubeQoSClass.BEST_EFFORT, None, OomScoreOptions(), 0),
        (QoSClass.BE, KubeQoSClass.BEST_EFFORT, 100, OomScoreOptions(minimum=200), 200),
        (QoSClass.BE, KubeQoSClass.BEST_EFFORT, 1_000, OomScoreOptions(lower_best_effort=True), -997),
        (QoSClass.NONE, KubeQoSClass.BEST_EFFORT, 1_000, OomScoreOptions(), 1_000),
    ],
)
def test_the_lowest_score(
    qos: QoSClass,
    kube_qos: KubeQoSClass,
    requested: int | None,
    options: OomScoreOptions,
    lowest: int,
) -> None:
    assert lowest_score(qos, kube_qos, requested, options) == lowest


def test_a_lower_score_becomes_the_lowest_and_is_reported() -> None:
    found = change({SCORE: "-1000"}, qos=QoSClass.BE, requested=980)
    assert found is not None
    assert found.resources == ResourceChange(oom_score_adj=980)
    assert found.problems == (f"annotation {SCORE}: -1000 is below 980, the lowest that it may set",)
    assert found.reasons == {"oom_score_adj": f"annotation {SCORE} -1000, at least 980 = 980"}


def test_best_effort_pods_may_be_killed_sooner() -> None:
    found = change({SCORE: "1000"}, qos=QoSClass.BE, requested=980)
    assert found is not None
    assert (found.resources, found.problems) == (ResourceChange(oom_score_adj=1_000), ())


@pytest.mark.parametrize("minimum", [-1_001, 1_001])
def test_a_minimum_out_of_range_is_no_setting(minimum: int) -> None:
    with pytest.raises(ValueError, match="minimum"):
        OomScoreOptions(minimum=minimum)
