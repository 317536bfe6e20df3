"""System configuration. Cases Vnnn are those of Koordinator's sysreconcile/system_config_test.go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from policies.core_sched import CoreSched
from policies.group_identity import GroupIdentity
from policies.system_config import (
    GROUP_IDENTITY,
    IDLE_SAVER_WMARK,
    MIN_FREE_KBYTES,
    PAGE_CACHE_LIMIT,
    REAP_BACKGROUND,
    WATERMARK_SCALE_FACTOR,
    SystemConfig,
    min_free_kbytes,
)
from runtimeproxy.fields.kernel_settings import KERNEL_SETTINGS, SCHED_FEATURE_FILES
from runtimeproxy.hooks import NodeChange
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.decision import evaluate
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.ledger.answers import lost_settings, settings_of
from runtimeproxy.ledger.kernel_settings import DROP_IN
from runtimeproxy.ledger.unapplied import UnappliedCause
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.slo.schema import ClassQoS, CpuPolicy, CpuQoS, QoSPolicies, QoSStrategy, System
from runtimeproxy.slo.strategies import Strategies
from tests.lab.programs import REPOSITORY

GI = 1 << 30
FEATURES = frozenset({Feature.BVT, Feature.GROUP_IDENTITY_SYSCTL})


def node(capacity_bytes: int | None = 16 * GI, **system: Any) -> Node:
    capacity = {} if capacity_bytes is None else {"memory": capacity_bytes}
    strategies = Strategies(system=System(**system))
    return Node(strategies=strategies, capacity=capacity, features=FEATURES)


def change(on: Node) -> NodeChange:
    found = SystemConfig().node(on)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("capacity_bytes", "factor", "expected"),
    [
        pytest.param(512 * GI, 88, 4_724_464, id="V230"),
        pytest.param(16 * GI, 100, 167_772, id="default"),
        pytest.param(1_023, 100, 0, id="less-than-a-kilobyte"),
    ],
)
def test_min_free_kbytes(capacity_bytes: int, factor: int, expected: int) -> None:
    assert min_free_kbytes(capacity_bytes, factor) == expected


@pytest.mark.parametrize(
    ("capacity_bytes", "factor", "expected"),
    [
        (1_000 * 1_024 * 1_024, 100, 10_240),
        (999 * 1_024 * 1_024, 100, None),
        (1_000 * GI, 100, 10_485_760),
        (1_001 * GI, 100, None),
    ],
)
def test_what_is_out_of_range_is_not_written_and_said(
    capacity_bytes: int, factor: int, expected: int | None
) -> None:
    found = change(node(capacity_bytes, min_free_kbytes_factor=factor))
    assert found.sysctl.get(MIN_FREE_KBYTES) == expected
    problem = f"{MIN_FREE_KBYTES} is left alone"
    assert [each.startswith(problem) for each in found.problems] == [True] * (expected is None)


def test_the_scale_factor_has_a_smaller_range_than_the_strategy() -> None:
    assert change(node(watermark_scale_factor=10)).sysctl[WATERMARK_SCALE_FACTOR] == 10
    found = change(node(watermark_scale_factor=9))
    assert WATERMARK_SCALE_FACTOR not in found.sysctl
    assert found.problems == (f"{WATERMARK_SCALE_FACTOR} is left alone: 9 is not in 10 to 400",)


def test_without_a_strategy_fields_have_koordinators_defaults() -> None:
    found = change(node())
    assert found.sysctl == {MIN_FREE_KBYTES: 167_772, WATERMARK_SCALE_FACTOR: 150}
    assert found.kernel_settings == {REAP_BACKGROUND: 0}
    assert found.problems == ()


def test_without_any_configuration_nothing_is_set() -> None:
    without = replace(node(), states={Input.STRATEGIES: InputState.WITHDRAWN})
    assert SystemConfig().node(without) is None


def test_the_memory_of_the_machine_stands_for_a_capacity_that_is_not_known() -> None:
    found = change(replace(node(None), memory_bytes={0: 8 * GI, 1: 8 * GI}))
    assert found.sysctl[MIN_FREE_KBYTES] == 167_772
    found = change(node(None))
    assert found.problems == (f"{MIN_FREE_KBYTES} is left alone: the node's memory is not known",)
    assert found.sysctl == {WATERMARK_SCALE_FACTOR: 150}


def test_switches_and_scheduler_features() -> None:
    """V232: which of these differ from the kernel's, the ledger sees."""
    found = change(
        node(
            memcg_reap_back_ground=1,
            page_cache_limit_enabled=1,
            sched_group_identity_enabled=0,
            sched_idle_saver_wmark=-5,
            sched_features={"ID_EXPELLER_SHARE_CORE": False, "ID_ABSOLUTE_EXPEL": True},
        )
    )
    assert found.kernel_settings == {
        REAP_BACKGROUND: 1,
        PAGE_CACHE_LIMIT: 1,
        "sched_features.ID_ABSOLUTE_EXPEL": 1,
        "sched_features.ID_EXPELLER_SHARE_CORE": 0,
    }
    assert (found.sysctl[GROUP_IDENTITY], found.sysctl[IDLE_SAVER_WMARK]) == (0, -5)
    assert found.problems == ()


@pytest.mark.parametrize(("value", "is_said"), [(0, False), (1, True)])
def test_a_kernel_without_the_switch_of_group_identity(value: int, is_said: bool) -> None:
    """Off is what such a kernel is anyway."""
    found = change(replace(node(sched_group_identity_enabled=value), features=frozenset({Feature.BURST})))
    assert GROUP_IDENTITY not in found.sysctl
    assert any(GROUP_IDENTITY in each for each in found.problems) is is_said


def test_core_scheduling_is_no_feature_to_be_switched_here() -> None:
    found = change(node(sched_features={"CORE_SCHED": True}))
    assert "sched_features.CORE_SCHED" not in found.kernel_settings
    assert "left to cpuPolicy" in found.problems[0]


@pytest.mark.parametrize("name", ["../x", "NO_HRTICK", "", "hrtick", "A" * 65, "A B"])
def test_a_name_that_is_no_features_is_left_out_and_said(name: str) -> None:
    on = node(sched_features={name: True, "HRTICK": True})
    decision = evaluate([bind(SystemConfig())], on, on)
    assert settings_of(decision)["sched_features.HRTICK"] == 1
    assert f"sched_features.{name}" not in settings_of(decision)
    left_out = [each for each in decision.audit if each.kind is AuditKind.LEFT_OUT]
    assert ["is not the name of a kernel setting" in each.reason for each in left_out] == [True]


def test_the_cpu_mode_of_the_node_wins_and_the_conflict_is_said() -> None:
    """A strategy that switches group identity off beside one that uses it."""
    qos = QoSStrategy(ls_class=ClassQoS(cpu_qos=CpuQoS(enable=True, group_identity=2)))
    strategies = Strategies(system=System(sched_group_identity_enabled=0), qos=qos)
    on = Node(strategies=strategies, capacity={"memory": 16 * GI}, features=FEATURES)
    policies = [bind(SystemConfig()), bind(GroupIdentity())]
    decision = evaluate(policies, on, on)
    assert settings_of(decision)[GROUP_IDENTITY] == 1
    lost = lost_settings(decision)
    assert lost.keys() == {GROUP_IDENTITY}
    assert (lost[GROUP_IDENTITY].cause, lost[GROUP_IDENTITY].wanted) == (UnappliedCause.CONFLICT, "0")
    assert [each.owner.name for each in lost[GROUP_IDENTITY].claims] == ["system-config"]
    assert "group-identity" in lost[GROUP_IDENTITY].reason
    decision = evaluate(policies, on, on, rule=ConflictRule.EARLIER)
    assert settings_of(decision)[GROUP_IDENTITY] == 0
    assert [each.owner.name for each in lost_settings(decision)[GROUP_IDENTITY].claims] == ["group-identity"]


def test_core_scheduling_wins_too() -> None:
    of_class = ClassQoS(cpu_qos=CpuQoS(enable=True))
    qos = QoSStrategy(policies=QoSPolicies(cpu_policy=CpuPolicy.CORE_SCHED), ls_class=of_class)
    strategies = Strategies(system=System(sched_group_identity_enabled=1), qos=qos)
    features = frozenset({Feature.GROUP_IDENTITY_SYSCTL, Feature.CORE_SCHED_SYSCTL, Feature.CORE_SCHED})
    on = Node(strategies=strategies, capacity={"memory": 16 * GI}, features=features)
    decision = evaluate([bind(SystemConfig()), bind(CoreSched())], on, on)
    settings = settings_of(decision)
    assert (settings[GROUP_IDENTITY], settings["kernel.sched_core"]) == (0, 1)
    assert lost_settings(decision)[GROUP_IDENTITY].wanted == "1"


def test_reasons_have_the_arithmetic() -> None:
    found = change(node(512 * GI, min_free_kbytes_factor=88, sched_features={"HRTICK": True}))
    reasons = {name: str(each) for name, each in found.reasons.items()}
    assert reasons[MIN_FREE_KBYTES] == (f"memory capacity {512 * GI} / 1024 x 88 / 10000 (default) = 4724464")
    assert reasons["sched_features.HRTICK"] == "strategy's value (default) = 1"


def test_the_drop_in_has_all_files_of_the_policy() -> None:
    text = (REPOSITORY / "systemd" / DROP_IN).read_text()
    paths = [
        word.removeprefix("-")
        for line in text.splitlines()
        if line.startswith("ReadWritePaths=")
        for word in line.removeprefix("ReadWritePaths=").split()
    ]
    sysctls = (MIN_FREE_KBYTES, WATERMARK_SCALE_FACTOR, GROUP_IDENTITY, IDLE_SAVER_WMARK)
    files = [f"/proc/sys/{name.replace('.', '/')}" for name in sysctls]
    files += [f"/sys/{file}" for each in KERNEL_SETTINGS.values() for file in each.files]
    files += [f"/sys/{file}" for file in SCHED_FEATURE_FILES]
    for file in files:
        assert any(PurePosixPath(file).is_relative_to(path) for path in paths), file
    assert "Protect" not in text, "no more rights than these"
