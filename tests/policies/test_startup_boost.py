"""Start-up boost: what the policy says of a container, from strategies and the annotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from policies.startup_boost import StartupBoost, amount_us, wanted_boost
from runtimeproxy.hooks import ContainerView, PodView, Resources
from runtimeproxy.hooks.boost import BoostsStarts, WantedBoost
from runtimeproxy.hooks.loading import checked
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.names import STARTUP_BOOST
from tests.slo.configs import good

KEY = "startup-boost-config"
POD_STRATEGY = {"name": "java", "podSelector": {"matchLabels": {"runtime": "java"}}, "limitPercent": 500}
CONFIG = {"clusterStrategy": {"limitPercent": 300}, "podStrategies": [POD_STRATEGY]}


def wanted(
    config: object = None,
    annotation: str | None = None,
    *,
    qos: QoSClass = QoSClass.LS,
    quota_us: int | None = 50_000,
    period_us: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> WantedBoost | None:
    node = Node(strategies=good({} if config is None else {KEY: config}).strategies)
    annotations = {} if annotation is None else {STARTUP_BOOST: annotation}
    pod = PodView(qos=qos, annotations=annotations, labels=labels or {})
    view = ContainerView(pod=pod, requested=Resources(cpu_quota_us=quota_us, cpu_period_us=period_us))
    return StartupBoost().wanted_boost(view, node)


@pytest.mark.parametrize(
    ("quota_us", "percent", "amount"),
    [(50_000, 400, 150_000), (50_000, 100, 0), (1_001, 150, 500), (100_000, 10_000, 9_900_000)],
)
def test_the_amount(quota_us: int, percent: int, amount: int) -> None:
    assert amount_us(quota_us, percent) == amount


def test_a_strategy_of_the_cluster_of_pods_and_the_annotation() -> None:
    found = wanted(CONFIG)
    assert found is not None
    assert found[:4] == (50_000, 100_000, 100_000, 120.0)
    assert str(found.reason).startswith(f"CPU quota 50000 x 300 % (cluster strategy of {KEY} in ")
    assert str(found.reason).endswith(") - 50000 = 100000")
    found = wanted(CONFIG, labels={"runtime": "java"})
    assert found is not None
    assert found.amount_us == 200_000
    assert f"(pod strategy java of {KEY} in " in str(found.reason)
    found = wanted(CONFIG, '{"limitPercent": 200, "maxSeconds": 30}', labels={"runtime": "java"})
    assert found is not None
    assert found[:4] == (50_000, 100_000, 50_000, 30.0)
    assert str(found.reason) == f"CPU quota 50000 x 200 % (annotation {STARTUP_BOOST}) - 50000 = 50000"


def test_another_period() -> None:
    found = wanted(CONFIG, quota_us=25_000, period_us=50_000)
    assert found is not None
    assert found[:3] == (25_000, 50_000, 50_000)


@pytest.mark.parametrize("quota_us", [None, 0, -1])
def test_without_a_limit_there_is_nothing_to_boost(quota_us: int | None) -> None:
    assert wanted(CONFIG, quota_us=quota_us) is None


@pytest.mark.parametrize("qos", list(QoSClass))
def test_the_classes(qos: QoSClass) -> None:
    has_boost = qos in (QoSClass.LS, QoSClass.SYSTEM, QoSClass.NONE)
    assert (wanted(CONFIG, qos=qos) is not None) is has_boost


@pytest.mark.parametrize(
    "config", [None, {}, {"clusterStrategy": {}}, {"clusterStrategy": {"maxSeconds": 5}}]
)
def test_off_unless_configured(config: object) -> None:
    assert wanted(config) is None


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("[", STARTUP_BOOST),
        ('{"limitPercent": 99}', "limitPercent"),
        ('{"limitPercent": 10001}', "limitPercent"),
        ('{"maxSeconds": 0}', "maxSeconds"),
        ('{"limitPercent": "much"}', "limitPercent"),
    ],
)
def test_a_bad_annotation_is_reported_and_the_strategy_counts(annotation: str, problem: str) -> None:
    found = wanted(CONFIG, annotation)
    assert found is not None
    assert found.amount_us == 100_000
    view = ContainerView(pod=PodView(qos=QoSClass.LS, annotations={STARTUP_BOOST: annotation}))
    change = StartupBoost().container(view, Node())
    assert change is not None
    assert problem in change.problems[0]
    assert (change.resources, change.cgroup) == (None, {})


def test_a_container_in_a_vm_has_no_quota_to_add_to() -> None:
    annotations = {STARTUP_BOOST: '{"limitPercent": 200}'}
    pod = PodView(qos=QoSClass.LS, annotations=annotations, runtime_handler="kata-qemu")
    view = ContainerView(pod=pod, requested=Resources(cpu_quota_us=50_000))
    assert wanted_boost(view, Node()) is None
    change = StartupBoost().container(view, Node())
    assert change is not None
    (problem,) = change.problems
    assert problem.startswith(f"{STARTUP_BOOST}: a container in a VM (Kata Containers) has no quota")
    assert wanted_boost(replace(view, pod=replace(pod, runtime_handler="")), Node()) is not None


def test_it_is_a_policy_that_boosts() -> None:
    assert checked([StartupBoost])
    assert isinstance(StartupBoost(), BoostsStarts)
    assert StartupBoost().container(ContainerView(), Node()) is None
