"""Targets of Katalyst's dynamic configuration: validity, choice, what a node keeps.

Vectors G: katalyst-core pkg/controller/kcc/kcct_test.go and pkg/util/kcct_test.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from runtimeproxy.documents.reading import InputError
from runtimeproxy.katalyst.dynamic_config import NO_CONFIG, read_config
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.katalyst.targets import (
    MAX_TARGETS,
    NOTHING,
    ChoiceStep,
    NodeTraits,
    ResolvedConfig,
    Target,
    choose,
    config_hash,
    invalid_reasons,
    read_custom_config,
    read_target,
    resolve,
)
from tests.katalyst.objects import CREATED_S, NODE, custom_config, target

HOUR_S = 3600.0
LABELS = {"aa": "bb", "l1": "x"}
TRAITS = NodeTraits(NODE, LABELS)


def read(*documents: dict[str, Any]) -> list[Target]:
    return [read_target(each, "file.yaml") for each in documents]


def customs(*keys: str) -> list[Any]:
    return [read_custom_config(custom_config({0: list(keys)}))]


def invalid(*documents: dict[str, Any], keys: Iterable[str] = ("aa", "l1", "l2")) -> dict[str, str]:
    return invalid_reasons(read(*documents), customs(*keys))


def resolved(
    *documents: dict[str, Any], before: ResolvedConfig = NOTHING, now_s: float = CREATED_S
) -> ResolvedConfig:
    return resolve(read(*documents), customs("aa", "l1", "l2"), TRAITS, now_s, before)


# Validity


@pytest.mark.parametrize(
    ("selector", "other"),
    [("aa=bb", "aa=cc"), ("aa=bb", "aa in (cc,dd)"), ("aa=bb", "aa notin (bb,cc)")],
)
def test_g6_selectors_that_do_not_overlap_are_valid(selector: str, other: str) -> None:
    assert invalid(target("one", selector=selector), target("two", selector=other), keys=["aa"]) == {}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            target("x", selector="aa=bb", nodes=["n1"], last="1h"),
            "has both nodeLabelSelector and ephemeralSelector.nodeNames",
        ),
        (target("x", selector="zz=bb"), "selects by zz, but the allowed keys of priority 0 are aa, l1, l2"),
        (target("x", selector="zz"), "selects by zz, but the allowed keys of priority 0 are aa, l1, l2"),
        (
            target("x", selector="aa=bb", priority=7),
            "selects by aa, but the allowed keys of priority 7 are none",
        ),
        (target("x", selector="aa=bb", last="1h"), "has ephemeralSelector.lastDuration without nodeNames"),
        (target("x", last="1h"), "has ephemeralSelector.lastDuration without nodeNames"),
        (target("x", nodes=["n1"]), "has ephemeralSelector.nodeNames without lastDuration"),
        (
            target("x", nodes=["n1"], last="1h", created=None),
            "has a lastDuration, but no metadata.creationTimestamp from which it lasts",
        ),
        (target("x", selector="aa in"), "spec.nodeLabelSelector: has its end where '(' should be"),
        (target("x", last="soon", nodes=["n1"]), "not a duration such as 24h"),
        (target("x", nodes=["A B"]), "spec.ephemeralSelector.nodeNames[0]: 'A B' is not the name of a node"),
        (target("x", nodes="n1"), "spec.ephemeralSelector.nodeNames: is a text"),
        (target("x", nodes=[5]), "spec.ephemeralSelector.nodeNames[0]: is a"),
        (target("x", priority="high"), "spec.priority: is not a whole number of 32 bits"),
        (target("x", priority=2**40), "spec.priority: is not a whole number of 32 bits"),
        (target("x", paused="no"), "spec.paused: is neither true nor false"),
        (target("x", created="yesterday"), "metadata.creationTimestamp: is 'yesterday', not a time"),
        (target("x", config=[1]), "spec.config is not an object"),
        (
            target("x", config={"reclaimedResourceConfig": {"enableReclaim": "yes"}}),
            'spec.config.reclaimedResourceConfig.enableReclaim is "yes", not true or false',
        ),
        (target("x", config={"a": "b" * 300_000}), "spec.config: is longer than 262144 characters"),
        ({"kind": "AdminQoSConfiguration", "metadata": {"name": "x"}, "spec": 5}, "spec: is a"),
    ],
)
def test_what_is_not_valid(document: dict[str, Any], reason: str) -> None:
    (found,) = invalid(document).values()
    assert reason in found


def test_a_target_without_a_name_cannot_be_read() -> None:
    for metadata in ({}, {"name": ""}, {"name": 5}, {"name": "x" * 300}, {"name": "x", "namespace": []}, 5):
        with pytest.raises(InputError):
            read_target({"metadata": metadata})


def test_g17_no_node_is_named_twice() -> None:
    one = target("one", nodes=["n1"], last="1h")
    assert invalid(one, target("two", nodes=["n2"], last="1h")) == {}
    assert invalid(one, target("two", nodes=["n1", "n3"], last="1h")) == {
        "two": "names the node n1, as one does",
        "one": "names the node n1, as two does",
    }


def test_g18_one_target_is_for_all_nodes() -> None:
    assert invalid(target("one"), target("two")) == {
        "one": "is for all nodes, as two is",
        "two": "is for all nodes, as one is",
    }


def test_selectors_of_one_priority_must_not_overlap() -> None:
    documents = [target("one", selector="l1=x"), target("two", selector="l2=y")]
    assert invalid(*documents) == {
        "one": "may select the same nodes as two, of the same priority",
        "two": "may select the same nodes as one, of the same priority",
    }
    allowed = [read_custom_config(custom_config({0: ["l1"], 1: ["l2"]}))]
    documents[1]["spec"]["priority"] = 1
    assert invalid_reasons(read(*documents), [each for each in allowed if each]) == {}


def test_one_custom_config_says_which_labels_may_be_used() -> None:
    selecting, general = target("one", selector="aa=bb"), target("two")
    none = "has a nodeLabelSelector, but there is no KatalystCustomConfig of adminqosconfigurations"
    assert invalid_reasons(read(selecting, general), []) == {"one": none}
    two = [*customs("aa"), *customs("aa")]
    found = invalid_reasons(read(selecting, general), two)
    assert found.keys() == {"one", "two"}
    assert "there are 2 KatalystCustomConfigs of adminqosconfigurations, not one" in found["two"]
    bad = custom_config({0: ["aa"]})
    bad["spec"]["nodeLabelSelectorAllowedKeyList"] = {"aa": 1}
    found = invalid_reasons(read(general), [each for each in [read_custom_config(bad)] if each])
    assert "KatalystCustomConfig kcc: spec.nodeLabelSelectorAllowedKeyList: is" in found["two"]
    assert read_custom_config(custom_config({0: ["aa"]}, resource="evictionconfigurations")) is None


def test_more_targets_than_are_compared() -> None:
    documents = [target(f"t{number}", selector=f"aa=v{number}") for number in range(MAX_TARGETS + 1)]
    found = invalid(*documents)
    assert len(found) == MAX_TARGETS + 1
    assert set(found.values()) == {f"is one of {MAX_TARGETS + 1} targets, more than {MAX_TARGETS}"}
    assert invalid(*documents[:MAX_TARGETS]) == {}


# Choice


def test_g2_two_that_name_the_node() -> None:
    choice = choose(read(target("one", nodes=[NODE]), target("two", nodes=[NODE])), NODE, LABELS)
    assert (choice.target, choice.step) == (None, ChoiceStep.NODE_NAMES)
    assert choice.conflict == "more than one applies by nodeNames (one, two): the node keeps what it has"


@pytest.mark.parametrize(
    ("documents", "name"),
    [
        pytest.param([target("a", nodes=[NODE]), target("b", selector="aa=bb")], "a", id="G3"),
        pytest.param(
            [target("b", selector="aa=bb"), target("c")], "b", id="a-selector-before-the-global-one"
        ),
        pytest.param(
            [
                target("b", selector="aa=bb"),
                target("d", selector="l1=x", priority=2),
                target("a", nodes=[NODE]),
            ],
            "a",
            id="G5",
        ),
        pytest.param(
            [target("b", selector="aa=bb"), target("d", selector="l1=x", priority=2)],
            "d",
            id="highest-priority",
        ),
        pytest.param([target("b", selector="aa=cc"), target("c")], "c", id="the-global-one"),
        pytest.param([target("b", selector="aa=cc"), target("a", nodes=["other"])], None, id="none"),
        pytest.param([target("b", selector="aa in"), target("c")], "b", id="unreadable-may-match"),
    ],
)
def test_the_choice(documents: list[dict[str, Any]], name: str | None) -> None:
    choice = choose(read(*documents), NODE, LABELS)
    assert (choice.target and choice.target.name) == name
    others = {each["metadata"]["name"] for each in documents} - {name}
    assert choice.reasons.keys() == others
    assert choose(read(*reversed(documents)), NODE, LABELS).reasons == choice.reasons


def test_two_selectors_of_the_highest_priority_are_ambiguous() -> None:
    documents = [target(name, selector=text) for name, text in (("one", "aa=bb"), ("two", "l1=x"))]
    assert choose(read(*documents, target("three")), NODE, LABELS).is_ambiguous


# What applies


ON = {"reclaimedResourceConfig": {"enableReclaim": True}}
OFF = {"reclaimedResourceConfig": {"enableReclaim": False}}


def test_a_target_applies_with_its_version_and_a_reason_for_each() -> None:
    found = resolved(target("all", config=OFF), target("mine", nodes=[NODE], last="1h", config=ON))
    assert found.config.enable_reclaim is True
    assert (found.config.target, found.config.version) == ("AdminQoSConfiguration mine", config_hash(ON))
    assert len(found.config.version) == 12
    assert [(each.name, each.is_applied, each.reason) for each in found.targets] == [
        ("all", False, "mine applies by nodeNames, which goes before global"),
        ("mine", True, "names the node"),
    ]
    assert found.problems == ()
    assert found.end_s == CREATED_S + HOUR_S


def test_a_target_that_has_ended_is_none() -> None:
    documents = target("all", config=OFF), target("mine", nodes=[NODE], last="1h", config=ON)
    found = resolved(*documents, before=resolved(*documents), now_s=CREATED_S + HOUR_S + 1)
    assert found.config.enable_reclaim is False
    assert found.end_s is None
    assert found.targets[1].reason == "has ended: lastDuration was over at 2026-11-28T01:00:00Z"


def test_an_invalid_target_leaves_all_as_it_was() -> None:
    good = resolved(target("all", config=ON))
    found = resolved(target("all", config=OFF), target("other"), before=good)
    assert found.config == good.config
    assert found.good == good.good
    assert found.problems[-1] == (
        "AdminQoSConfiguration: 2 of them are not valid; the node goes by the last ones that all were"
    )
    # A label of the node that changes meanwhile is heeded: the last valid ones are chosen among.
    selecting = resolved(target("one", selector="aa=bb", config=ON), target("all", config=OFF))
    assert selecting.config.enable_reclaim is True
    found = resolve(read(target("x", last="1h")), customs("aa"), NodeTraits(NODE, {}), CREATED_S, selecting)
    assert found.config.enable_reclaim is False
    # Valid again: taken over.
    assert resolved(target("all", config=OFF), before=found).config.enable_reclaim is False


def test_without_any_valid_ones_nothing_applies() -> None:
    found = resolved(target("one", config=ON), target("two", config=ON))
    assert found.config == NO_CONFIG
    assert not any(each.is_applied for each in found.targets)


def test_an_ambiguous_choice_keeps_what_the_node_has() -> None:
    good = resolved(target("all", config=ON))
    both = read(target("one", nodes=[NODE]), target("two", nodes=[NODE]))
    found = resolve([], [], TRAITS, CREATED_S, good._replace(good=(tuple(both), ())))
    assert found.config == NO_CONFIG  # no target is there
    invalid_one = read(target("x", last="1h"))
    found = resolve(invalid_one, [], TRAITS, CREATED_S, good._replace(good=(tuple(both), ())))
    assert found.config == good.config
    assert found.problems[-1].startswith("AdminQoSConfiguration: more than one applies by nodeNames")


def test_targets_that_are_gone_leave_the_settings() -> None:
    assert resolved(before=resolved(target("all", config=ON))).config == NO_CONFIG


def test_a_paused_target_and_a_canary_wait() -> None:
    good = resolved(target("all", config=ON))
    found = resolved(target("all", config=OFF, paused=True), before=good)
    assert found.config == good.config
    assert found.notes == ("AdminQoSConfiguration all: is paused: the node keeps what it has",)
    assert found.problems == ()
    assert (found.targets[0].is_applied, found.targets[0].version) == (True, config_hash(ON))
    # What it has already is no change.
    assert resolved(target("all", config=ON, paused=True), before=good).notes == ()
    for canary, is_applied in (("20%", False), (5, False), ("100%", True), (None, True)):
        document = target("all", config=OFF)
        document["spec"]["updateStrategy"] = {"rollingUpdate": {"canary": canary}}
        found = resolved(document, before=good)
        assert (found.config.enable_reclaim is False) is is_applied
        assert bool(found.notes) is not is_applied


# Configuration


def test_the_fields_and_those_that_are_not_supported() -> None:
    raw = {
        "reclaimedResourceConfig": {
            "enableReclaim": True,
            "minReclaimedResourceForAllocate": {"cpu": "3500m", "memory": "5Gi"},
            "reservedResourceForReport": {"cpu": "4"},
        },
        "advisorConfig": {
            "cpuAdvisorConfig": {"allowSharedCoresOverlapReclaimedCores": False},
            "memoryAdvisorConfig": {},
        },
        "fineGrainedResourceConfig": {
            "cpuBurstConfig": {"enableDedicatedCoresDefaultCPUBurst": True, "defaultCPUBurstPercent": 50}
        },
        "runtimeProxyConfig": {"snbRatio": 1.5, "defaultLevel": "shared_cores", "reservedCPUs": "0-1"},
        "evictionConfig": {"dryRun": ["*"]},
        "newerConfig": {},
        "advisorConfg": None,
    }
    config, problems = read_config(raw, target="t")
    assert config.pool_settings() == {
        "enable_reclaim": True,
        "overlap": False,
        "reclaim_reserve": 4,
        "snb_ratio": 1.5,
    }
    assert (config.cpu_burst_enable, config.cpu_burst_percent, config.on_error) == (True, 50.0, None)
    assert config.default_level is QosLevel.SHARED
    named = {each.path.removeprefix("spec.config."): each.needs_attention for each in problems}
    assert named == {
        "reclaimedResourceConfig.minReclaimedResourceForAllocate.memory": False,
        "reclaimedResourceConfig.reservedResourceForReport": False,
        "advisorConfig.memoryAdvisorConfig": False,
        "runtimeProxyConfig.reservedCPUs": False,
        "evictionConfig": False,
        "newerConfig": False,
        "advisorConfg": True,
    }


def test_null_and_an_empty_object_set_nothing() -> None:
    for raw in (None, {}, {"reclaimedResourceConfig": None}):
        config, problems = read_config(raw)
        assert (config, problems) == (NO_CONFIG, ())


@pytest.mark.parametrize(
    "raw",
    [
        {"reclaimedResourceConfig": {"minReclaimedResourceForAllocate": {"cpu": -1}}},
        {"reclaimedResourceConfig": {"minReclaimedResourceForAllocate": {"cpu": "1e9"}}},
        {"reclaimedResourceConfig": []},
        {"fineGrainedResourceConfig": {"cpuBurstConfig": {"defaultCPUBurstPercent": 101}}},
        {"runtimeProxyConfig": {"snbRatio": 0.5}},
        {"runtimeProxyConfig": {"defaultLevel": "best_cores"}},
        {"runtimeProxyConfig": {"onError": "panic"}},
    ],
)
def test_a_configuration_with_a_wrong_value_is_not_used(raw: dict[str, Any]) -> None:
    assert read_config(raw).error


def test_the_version_is_that_of_the_configuration_alone() -> None:
    assert (
        config_hash({"a": 1, "b": [2]}) == config_hash({"b": [2], "a": 1}) != config_hash({"a": 1, "b": [3]})
    )
    assert config_hash(None) == config_hash({})
