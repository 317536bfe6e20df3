from typing import Any

import pytest

from runtimeproxy.hooks.algebra import Claim, Resolved, Role
from runtimeproxy.hooks.changes import CLEAR
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.fields import RESOURCES, UNIFIED, Field
from runtimeproxy.ledger.answers import claims_of
from runtimeproxy.ledger.fields import VERIFY_S, Base, base_of, is_of_kubelet
from runtimeproxy.pods.records import Level


@pytest.mark.parametrize(
    ("level", "parameter", "base"),
    [
        (Level.CONTAINER, "cpu.cfs_quota_us", Base.REQUESTED),
        (Level.CONTAINER, "cpuset.cpus", Base.REQUESTED),
        (Level.CONTAINER, "memory.limit_in_bytes", Base.REQUESTED),
        (Level.CONTAINER, "memory_swap_limit_bytes", Base.REQUESTED),
        (Level.CONTAINER, "cpu.cfs_burst_us", Base.NEUTRAL),
        (Level.CONTAINER, "memory.high", Base.NEUTRAL),
        (Level.POD, "cpu.cfs_quota_us", Base.ORIGINAL),
        (Level.POD, "cpu.bvt_warp_ns", Base.ORIGINAL),
        (Level.POD, "memory_swap_limit_bytes", Base.NONE),
        (Level.QOS_CLASS, "cpu.shares", Base.NONE),
        (Level.QOS_CLASS, "memory.min", Base.NEUTRAL),
        (Level.QOS_CLASS, "cpu.bvt_warp_ns", Base.NEUTRAL),
        (Level.NODE, "cpu.bvt_warp_ns", Base.ORIGINAL),
        (Level.CONTAINER, "env[A]", Base.NONE),
        (Level.CONTAINER, "oom_score_adj", Base.REQUESTED),
        (Level.POD, "oom_score_adj", Base.NONE),
        # No request of the kubelet has it.
        (Level.CONTAINER, "pids.max", Base.NEUTRAL),
        (Level.POD, "pids.max", Base.ORIGINAL),
        (Level.QOS_CLASS, "pids.max", Base.NONE),
        (Level.CONTAINER, "rdt_class", Base.NONE),
    ],
)
def test_the_base_of_a_field(level: Level, parameter: str, base: Base) -> None:
    assert base_of(level, parameter) is base


@pytest.mark.parametrize(
    ("level", "parameter", "is_its"),
    [
        (Level.QOS_CLASS, "cpu.shares", True),
        (Level.QOS_CLASS, "memory.min", False),
        (Level.POD, "cpu.shares", False),
    ],
)
def test_files_of_qos_classes_that_the_kubelet_writes(level: Level, parameter: str, is_its: bool) -> None:
    assert is_of_kubelet(level, parameter) is is_its


@pytest.mark.parametrize(
    ("field", "given", "claims"),
    [
        (Field(UNIFIED, "pids.max"), "77", {"pids.max": [77]}),
        (Field(UNIFIED, "memory.high"), "max", {"memory.high": [-1]}),
        (Field(UNIFIED, "memory.high"), CLEAR, {"memory.high": [CLEAR]}),
        (Field(UNIFIED, "cpu.max"), "max 100000", {}),
        (Field(RESOURCES, "pids_limit"), 77, {"pids.max": [77]}),
        (Field(RESOURCES, "rdt_class"), "gold", {}),
    ],
)
def test_claims_are_values_of_parameters(field: Field, given: Any, claims: dict[str, list[Any]]) -> None:
    """As a checkpoint can hold them."""
    claim = Claim(Claimant("p"), Role.SET, given)
    found = claims_of({field: Resolved(given, claims=(claim,))}, is_container=True)
    assert {name: [each.value for each in given] for name, given in found.items()} == claims


def test_every_level_is_compared() -> None:
    assert VERIFY_S == {Level.NODE: 60, Level.QOS_CLASS: 1, Level.POD: 10, Level.CONTAINER: 60}
