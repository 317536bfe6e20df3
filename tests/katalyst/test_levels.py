"""Levels by annotations: Katalyst's own cases (E1 to E22), and each combination that is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import inf

import pytest

from runtimeproxy.katalyst.burst import burst_of_level
from runtimeproxy.katalyst.levels import (
    CPU_ENHANCEMENT,
    MEMORY_ENHANCEMENT,
    NETWORK_ENHANCEMENT,
    NUMA_IDS,
    NUMA_NUMBER,
    QOS_LEVEL,
    BurstPolicy,
    KatalystQos,
    LevelRules,
    Vocabulary,
    class_of,
    disagreement,
    effective_class,
    is_cpuset_pool,
    katalyst_qos,
    keeps_away,
    named_level,
    oom_priority,
    oom_score_adj,
    parse_burst_percent,
    parse_numa_ids,
    requested_amount,
)
from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU, QosLevel
from runtimeproxy.qos import QOS_CLASS_LABEL, QoSClass
from runtimeproxy.slo.schema import CpuBurstPolicy, CpuBurstStrategy

SHARED = LevelRules(default_level=QosLevel.SHARED)
"""As Katalyst itself."""
BOUND = {"numa_binding": "true"}


def annotated(
    level: str | None = None,
    cpu: Mapping[str, object] | str | None = None,
    memory: Mapping[str, object] | str | None = None,
    **others: str,
) -> dict[str, str]:
    found = {} if level is None else {QOS_LEVEL: level}
    for name, value in ((CPU_ENHANCEMENT, cpu), (MEMORY_ENHANCEMENT, memory)):
        if value is not None:
            found[name] = value if isinstance(value, str) else json.dumps(value)
    return found | others


def qos_of(annotations: Mapping[str, str], rules: LevelRules = SHARED) -> KatalystQos:
    found = katalyst_qos(annotations, rules)
    assert found is not None
    return found


def reasons(qos: KatalystQos) -> list[str]:
    return list(map(str, qos.problems))


@pytest.mark.parametrize("level", list(QosLevel))
def test_the_annotation_names_the_level(level: QosLevel) -> None:
    assert named_level({QOS_LEVEL: level.value}, SHARED) is level


def test_without_an_annotation_a_pod_has_the_default_level() -> None:  # E1
    assert qos_of({}) == KatalystQos(is_default=True, yields=True)
    assert katalyst_qos({}, LevelRules()) is None
    assert katalyst_qos({CPU_ENHANCEMENT: "{}"}, LevelRules()) is None


TIERS = replace(
    SHARED,
    selectors={
        QosLevel.DEDICATED: {"tier": "0"},
        QosLevel.RECLAIMED: {"tier": "9", "batch": "yes"},
    },
)


@pytest.mark.parametrize(
    ("annotations", "level"),
    [
        ({"tier": "0"}, QosLevel.DEDICATED),  # E3
        ({"tier": "9"}, QosLevel.RECLAIMED),
        ({"batch": "yes"}, QosLevel.RECLAIMED),
        # Absent keys are fine, and others' keys with unknown values say nothing.
        ({"tier": "5"}, None),
        ({QOS_LEVEL: "dedicated_cores", "tier": "0"}, QosLevel.DEDICATED),
    ],
)
def test_selectors_name_levels(annotations: dict[str, str], level: QosLevel | None) -> None:
    assert named_level(annotations, TIERS) is level


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        (
            {QOS_LEVEL: "dedicated_cores", "batch": "yes"},
            "reclaimed_cores contradict each other: 1 of 2",
        ),  # E4
        ({QOS_LEVEL: "reclaimed_cores", "tier": "0"}, "dedicated_cores contradict each other: 1 of 2"),
        ({"tier": "9", "batch": "no"}, "reclaimed_cores contradict each other: 1 of 2"),
        ({QOS_LEVEL: "share"}, "'share' is no level: dedicated_cores, "),
        ({QOS_LEVEL: ""}, "'' is no level"),
        ({QOS_LEVEL: "Shared_cores"}, "'Shared_cores' is no level"),
    ],
)
def test_contradictions_are_errors_in_every_order(annotations: dict[str, str], reason: str) -> None:
    for each in (annotations, dict(reversed(annotations.items()))):
        with pytest.raises(ValueError, match=reason):
            named_level(each, TIERS)
        qos = qos_of(each, TIERS)
        assert reason in qos.refusal
        assert (qos.level, qos.pool) == (QosLevel.SHARED, "share")


def test_two_levels_at_once_are_an_error() -> None:
    rules = LevelRules(selectors={QosLevel.SYSTEM: {"agent": "1"}, QosLevel.RECLAIMED: {"batch": "1"}})
    with pytest.raises(ValueError, match="more than one level: reclaimed_cores, system_cores"):
        named_level({"agent": "1", "batch": "1"}, rules)


@pytest.mark.parametrize(
    ("level", "policy", "expected"),
    [
        ("dedicated_cores", "dynamic", BurstPolicy.DYNAMIC),  # E6
        ("shared_cores", None, BurstPolicy.DEFAULT),
        ("shared_cores", "static", BurstPolicy.STATIC),
        ("reclaimed_cores", "static", BurstPolicy.CLOSED),
        ("reclaimed_cores", None, BurstPolicy.CLOSED),
        ("shared_cores", "Static", BurstPolicy.DEFAULT),
    ],
)
def test_burst_policies(level: str, policy: str | None, expected: BurstPolicy) -> None:
    cpu = {} if policy is None else {"cpu_burst_policy": policy}
    qos = qos_of(annotated(level, cpu, BOUND))
    assert qos.burst_policy is expected
    assert bool(qos.problems) is (
        policy == "dynamic" or (policy == "static" and expected == "closed") or policy == "Static"
    )


def test_burst_percents() -> None:  # E7
    assert qos_of({}).burst_percent is None
    assert parse_burst_percent("50") == 50
    assert parse_burst_percent("150") == 100
    for text in ("invalid", "", "NaN", "inf", "-1", "1_0", "\uff15"):
        with pytest.raises(ValueError, match="is"):
            parse_burst_percent(text)
    qos = qos_of(annotated("shared_cores", {"cpu_burst_percent": "invalid"}))
    assert (qos.burst_percent, qos.refusal) == (None, "")
    assert reasons(qos) == ["cpu_burst_percent: 'invalid' is not a number, and is not used"]


@pytest.mark.parametrize(
    ("text", "expected"), [("", set()), ("0,2,3", {0, 2, 3}), ("0,2-3", {0, 2, 3}), ("1-3", {1, 2, 3})]
)
def test_numa_ids(text: str, expected: set[int]) -> None:  # E9
    assert parse_numa_ids(text, range(4)) == expected
    assert qos_of(annotated("dedicated_cores", memory=BOUND, **{NUMA_IDS: text})).numa_ids == expected


@pytest.mark.parametrize("text", ["0,2,4", "invalid"])
def test_numa_ids_that_the_node_lacks(text: str) -> None:  # E10
    with pytest.raises(ValueError, match=r"no NUMA node 4|invalid"):
        parse_numa_ids(text, range(4))


@pytest.mark.parametrize(
    ("level", "asked", "expected"),
    [
        *(("reclaimed_cores", *each) for each in ((-50, -50), (-150, -100), (100, -1), (300, 300))),  # E12
        *(("shared_cores", *each) for each in ((39, 39), (-100, 0), (210, 99))),  # E13
        *(("dedicated_cores", *each) for each in ((139, 139), (99, 100), (210, 199), (300, 300))),
        *(("system_cores", *each) for each in ((221, 221), (121, 200), (322, 299), (300, 300))),  # E15
        *((("reclaimed_cores", None, -100), ("shared_cores", None, 0))),  # E16
        *((("dedicated_cores", None, 100), ("system_cores", None, 200), (None, None, -100))),
        (None, 50, -100),
    ],
)
def test_oom_priorities(level: str | None, asked: int | None, expected: int) -> None:
    assert oom_priority(None if level is None else QosLevel(level), asked) == expected
    if level is not None and asked is not None:
        qos = qos_of(annotated(level, memory={**BOUND, "oom_priority": str(asked)}))
        assert qos.oom_priority == expected
        assert bool(qos.problems) is (asked != expected)


def test_oom_scores_keep_the_order() -> None:
    scores = list(map(oom_score_adj, range(-100, 301)))
    assert (scores[0], scores[-1]) == (1000, -997)
    assert scores == sorted(set(scores), reverse=True)


def bound(level: QosLevel, pool: str, *, share: bool = True) -> KatalystQos:
    return KatalystQos(level=level, pool=pool, numa_binding=True, numa_share=share)


DEDICATED = bound(QosLevel.DEDICATED, "dedicated")
ALONE = bound(QosLevel.DEDICATED, "dedicated", share=False)
SNB = bound(QosLevel.SHARED, "share")


@pytest.mark.parametrize(
    ("holder", "candidate", "expected"),
    [
        (DEDICATED, KatalystQos(), False),  # E18
        (ALONE, ALONE, False),  # E19
        (ALONE, SNB, True),
        (DEDICATED, bound(QosLevel.SHARED, "share", share=False), True),
        (
            bound(QosLevel.SHARED, "share", share=False),
            bound(QosLevel.SHARED, "share", share=False),
            False,
        ),  # E21
        (bound(QosLevel.SHARED, "share", share=False), bound(QosLevel.SHARED, "batch"), True),
        (SNB, bound(QosLevel.SHARED, "batch"), False),
        # Only what is bound itself keeps others away.
        (KatalystQos(numa_share=False), ALONE, False),
        (bound(QosLevel.RECLAIMED, "reclaim", share=False), ALONE, False),
    ],
)
def test_pods_that_keep_others_away(holder: KatalystQos, candidate: KatalystQos, expected: bool) -> None:
    assert keeps_away(holder, candidate) is expected


def test_requested_amounts() -> None:  # E22
    assert requested_amount({"cpu": 123}) == 123
    assert requested_amount({RECLAIMED_MILLICPU: 234_001}) == 235
    assert requested_amount({"memory": 256}) == 256
    assert requested_amount({RECLAIMED_MEMORY: 256}) == 256
    with pytest.raises(ValueError, match="not found"):
        requested_amount({})
    with pytest.raises(ValueError, match=r"cpu and .*reclaimed_millicpu in one"):
        requested_amount({"cpu": 1, RECLAIMED_MILLICPU: 1000})


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        (annotated("dedicated_cores"), "numa_binding: dedicated_cores needs it: 'true'"),
        # Only the exact text is true.
        (
            annotated("dedicated_cores", memory={"numa_binding": "True"}),
            "numa_binding: dedicated_cores needs",
        ),
        (
            annotated(
                "dedicated_cores",
                {"distribute_evenly_across_numa": "true"},
                {**BOUND, "numa_exclusive": "true"},
            ),
            "distribute_evenly_across_numa: does not go with numa_exclusive",
        ),
        (
            annotated("dedicated_cores", {"full_pcpus_pairing": "true"}, {**BOUND, "numa_exclusive": "true"}),
            "full_pcpus_pairing: does not go with numa_exclusive",
        ),
        (
            annotated("shared_cores", {"suppression_tolerance_rate": "1.5"}),
            "suppression_tolerance_rate: is for reclaimed_cores only",
        ),
        (
            annotated("reclaimed_cores", {"suppression_tolerance_rate": "x"}),
            "suppression_tolerance_rate: 'x'",
        ),
        (annotated("shared_cores", **{NUMA_NUMBER: "two"}), f"{NUMA_NUMBER}: 'two' is not a whole number"),
        (annotated("shared_cores", **{NUMA_NUMBER: "-1"}), f"{NUMA_NUMBER}: -1 is not in 0 to"),
        (annotated("shared_cores", **{NUMA_IDS: "a"}), f"{NUMA_IDS}: "),
        (
            annotated("shared_cores", {"cpuset_pool": "reclaim"}),
            "cpuset_pool: 'reclaim' is not the name of a pool",
        ),
        (annotated("shared_cores", {"cpuset_pool": "a b"}), "cpuset_pool: 'a b' is not the name of a pool"),
    ],
)
def test_refused_combinations(annotations: dict[str, str], reason: str) -> None:
    qos = qos_of(annotations)
    assert qos.refusal.startswith(reason)
    # What is left is a plain pod of the shared pool.
    assert qos == KatalystQos(problems=qos.problems)


def test_all_enhancements_are_read() -> None:
    cpu = {
        "distribute_evenly_across_numa": "true",
        "align_by_socket": "true",
        "full_pcpus_pairing": "true",
        "numa_share": "false",
        "cpu_burst_policy": "static",
        "cpu_burst_percent": "12.5",
        "cpuset_pool": "ignored",
    }
    memory = {**BOUND, "rss_overuse_threshold": "1.2", "oom_priority": "150", NUMA_NUMBER: "2"}
    assert qos_of(annotated("dedicated_cores", cpu, memory)) == KatalystQos(
        level=QosLevel.DEDICATED,
        pool="dedicated",
        numa_binding=True,
        align_by_socket=True,
        distribute_evenly=True,
        full_pcpus=True,
        numa_number=2,
        numa_share=False,
        oom_priority=150,
        burst_policy=BurstPolicy.STATIC,
        burst_percent=12.5,
        rss_overuse_threshold=1.2,
    )
    reclaimed = qos_of(annotated("reclaimed_cores"))
    assert (reclaimed.pool, reclaimed.suppression_tolerance_rate) == ("reclaim", inf)
    assert (
        qos_of(annotated("reclaimed_cores", {"suppression_tolerance_rate": "0.5"})).suppression_tolerance_rate
        == 0.5
    )


@pytest.mark.parametrize(
    ("level", "name", "pool"),
    [
        ("shared_cores", None, "share"),
        ("shared_cores", "batch", "batch"),
        ("system_cores", None, ""),
        ("system_cores", "reserve", "reserve"),
        ("reclaimed_cores", "batch", "reclaim"),
    ],
)
def test_pools(level: str, name: str | None, pool: str) -> None:
    qos = qos_of(annotated(level, {} if name is None else {"cpuset_pool": name}))
    assert (qos.pool, qos.problems) == (pool, ())


@pytest.mark.parametrize(
    "name", ["reserve", "dedicated", "interrupt", "fallback", "isolation-1", "system-x", "share-NUMA0"]
)
def test_names_that_no_shared_pool_has(name: str) -> None:
    assert not is_cpuset_pool(name)


def test_enhancements_are_one_flat_map() -> None:
    # In the order cpu, memory, network, and any key in any of them.
    annotations = annotated(
        "shared_cores", {"numa_binding": "true", "cpuset_pool": "a"}, {"cpuset_pool": "b"}
    )
    annotations[NETWORK_ENHANCEMENT] = json.dumps({"cpuset_pool": "c"})
    qos = qos_of(annotations)
    assert (qos.numa_binding, qos.pool) == (True, "c")
    assert reasons(qos) == [
        f"cpuset_pool: has two values, and that of {MEMORY_ENHANCEMENT} is used",
        f"cpuset_pool: has two values, and that of {NETWORK_ENHANCEMENT} is used",
    ]


@pytest.mark.parametrize(
    ("cpu", "pool", "problem"),
    [
        ("{", "share", f"{CPU_ENHANCEMENT}: "),
        ("[]", "share", f"{CPU_ENHANCEMENT}: "),
        ('"x"', "share", f"{CPU_ENHANCEMENT}: "),
        ("{" + " " * 70_000 + "}", "share", f"{CPU_ENHANCEMENT}: has more than "),
        ('{"cpuset_pool": "a", "numa_share": false}', "a", "numa_share: is not a text, and is not used"),
    ],
)
def test_enhancements_that_cannot_be_read(cpu: str, pool: str, problem: str) -> None:
    qos = qos_of(annotated("shared_cores", cpu))
    assert (qos.pool, qos.refusal) == (pool, "")
    assert reasons(qos)[0].startswith(problem)


def test_values_without_an_effect_are_reported() -> None:
    memory = {
        "numa_exclusive": "true",
        "oom_priority": "high",
        "rss_overuse_threshold": "0",
        "numa_binding": "1",
    }
    qos = qos_of(annotated("shared_cores", {"cpu_burst_policy": "dynamic"}, memory))
    assert qos.refusal == ""
    assert sorted(each.place for each in qos.problems) == [
        "cpu_burst_policy",
        "numa_binding",
        "numa_exclusive",
        "oom_priority",
        "rss_overuse_threshold",
    ]


def test_misspelled_keys_are_reported() -> None:
    annotations = annotated("shared_cores", {"cpuset_poll": "a", "example.com/own": "b"})
    assert reasons(qos_of(annotations)) == [
        f"cpuset_poll: no enhancement of {CPU_ENHANCEMENT} has this name; did you mean cpuset_pool?"
    ]
    many = json.dumps({f"numa_binding{number}": 1 for number in range(500)})
    assert len(qos_of(annotated("shared_cores", many)).problems) <= 8


def test_aliases_and_defaults() -> None:
    rules = LevelRules(
        aliases={"example.com/memory": MEMORY_ENHANCEMENT}, default_values={"numa_exclusive": "true"}
    )
    other = {QOS_LEVEL: "dedicated_cores", "example.com/memory": '{"numa_binding": "true"}'}
    assert qos_of(other, rules).numa_exclusive
    # The usual name comes first, and what a pod says comes before the default.
    usual = {**other, MEMORY_ENHANCEMENT: '{"numa_binding": "true", "numa_exclusive": "false"}'}
    assert not qos_of(usual, rules).numa_exclusive
    # A default that has no effect on a pod is no problem of that pod.
    assert qos_of(annotated("shared_cores"), rules).problems == ()


@pytest.mark.parametrize(
    ("qos", "expected"),
    [
        (KatalystQos(level=QosLevel.SYSTEM), QoSClass.SYSTEM),
        (KatalystQos(level=QosLevel.DEDICATED, numa_binding=True, numa_exclusive=True), QoSClass.LSE),
        (KatalystQos(level=QosLevel.DEDICATED, numa_binding=True), QoSClass.LSR),
        (KatalystQos(level=QosLevel.DEDICATED), QoSClass.LSE),
        (KatalystQos(), QoSClass.LS),
        (KatalystQos(numa_binding=True), QoSClass.LS),
        (KatalystQos(level=QosLevel.RECLAIMED), QoSClass.BE),
    ],
)
def test_the_class_of_a_level(qos: KatalystQos, expected: QoSClass) -> None:
    assert effective_class(qos) is expected


def test_dedicated_cpus_of_any_numa_nodes_are_for_those_who_allow_them() -> None:
    """Users ask for CPUs of their own without a NUMA node (kubewharf/katalyst-core #608)."""
    refused = qos_of(annotated("dedicated_cores"), LevelRules())
    assert (refused.level, [each.place for each in refused.problems]) == (QosLevel.SHARED, ["numa_binding"])
    rules = LevelRules(allow_unbound_dedicated=True)
    allowed = qos_of(annotated("dedicated_cores"), rules)
    assert (allowed.level, allowed.pool, allowed.problems) == (QosLevel.DEDICATED, "dedicated", ())
    assert effective_class(allowed) is QoSClass.LSE
    # All else is refused as before.
    pairs = annotated(
        "dedicated_cores", memory=BOUND | {"numa_exclusive": "true"}, cpu={"full_pcpus_pairing": "true"}
    )
    assert qos_of(pairs, rules).refusal


def test_a_pod_of_both_vocabularies() -> None:
    labels, annotations = {QOS_CLASS_LABEL: "BE"}, annotated("shared_cores")
    first = qos_of(annotations, LevelRules())
    assert class_of(labels, first) is QoSClass.LS
    assert class_of({}, first) is QoSClass.LS
    assert disagreement(labels, first) == (
        "label koordinator.sh/qosClass BE and shared_cores, which is treated as LS, differ: LS is used"
    )
    second = qos_of(annotations, LevelRules(order=(Vocabulary.KOORDINATOR, Vocabulary.KATALYST)))
    assert class_of(labels, second) is QoSClass.BE
    assert disagreement(labels, second).endswith("differ: BE is used")
    # An unknown label says nothing.
    assert class_of({QOS_CLASS_LABEL: "XX"}, second) is QoSClass.LS
    assert disagreement({QOS_CLASS_LABEL: "LS"}, first) == ""
    # The default level is for pods without any class.
    default = qos_of({})
    assert (class_of(labels, default), disagreement(labels, default)) == (QoSClass.BE, "")


OFF = CpuBurstStrategy()
ON = CpuBurstStrategy(policy=CpuBurstPolicy.AUTO, cpu_burst_percent=300)


@pytest.mark.parametrize(
    ("node", "policy", "percent", "expected"),
    [
        (OFF, BurstPolicy.DEFAULT, 50.0, (CpuBurstPolicy.NONE, 1000)),
        (ON, BurstPolicy.DEFAULT, None, (CpuBurstPolicy.AUTO, 300)),
        (ON, BurstPolicy.DEFAULT, 50.0, (CpuBurstPolicy.AUTO, 50)),
        (ON, BurstPolicy.CLOSED, 50.0, (CpuBurstPolicy.NONE, 300)),
        (ON, BurstPolicy.DYNAMIC, None, (CpuBurstPolicy.NONE, 300)),
        (ON, BurstPolicy.STATIC, None, (CpuBurstPolicy.CPU_BURST_ONLY, 100)),
        (OFF, BurstPolicy.STATIC, None, (CpuBurstPolicy.CPU_BURST_ONLY, 100)),
        (OFF, BurstPolicy.STATIC, 12.5, (CpuBurstPolicy.CPU_BURST_ONLY, 12)),
    ],
)
def test_the_burst_of_a_level(
    node: CpuBurstStrategy, policy: BurstPolicy, percent: float | None, expected: tuple[CpuBurstPolicy, int]
) -> None:
    found = burst_of_level(node, KatalystQos(burst_policy=policy, burst_percent=percent))
    assert (found.policy, found.cpu_burst_percent) == expected
