"""The CPU mode, and what leads to it, from what is wanted and what was written."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from runtimeproxy.hooks import ContainerChange, ContainerView, Hook, PodView, ResourceChange
from runtimeproxy.hooks.fields import Merged
from runtimeproxy.hooks.validation import usable
from runtimeproxy.ledger.cpu_mode import (
    CORE_SCHED_FEATURE,
    CORE_SCHED_SYSCTL,
    GROUP_IDENTITY_SYSCTL,
    OF_MODES,
    OWN,
    CpuMode,
    plan,
)

POD = PodView(id="s", name="web", namespace="shop", uid="u")
BOX = ContainerView(id="c", name="main", pod=POD)
IDENTITY, CORE, OFF = CpuMode.GROUP_IDENTITY, CpuMode.CORE_SCHEDULING, CpuMode.OFF
NOTHING: frozenset[str] = frozenset()
IDENTITIES, COOKIES = OWN[IDENTITY], OWN[CORE]


def sysctls(identity: int | None = None, core: int | None = None) -> dict[str, str]:
    values = {GROUP_IDENTITY_SYSCTL: identity, CORE_SCHED_SYSCTL: core}
    return {name: str(value) for name, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("wanted", "written", "mode", "is_change", "excluded"),
    [
        (sysctls(), sysctls(), OFF, False, NOTHING),
        (sysctls(1, 0), sysctls(), IDENTITY, True, COOKIES),
        (sysctls(1, 0), sysctls(1, 0), IDENTITY, False, COOKIES),
        (sysctls(1), sysctls(1), IDENTITY, False, COOKIES),
        (sysctls(0, 1), sysctls(), CORE, True, IDENTITIES),
        (sysctls(0, 1), sysctls(1, 0), CORE, True, IDENTITIES),
        (sysctls(0, 1), sysctls(0, 1), CORE, False, IDENTITIES),
        (sysctls(1, 0), sysctls(0, 1), IDENTITY, True, COOKIES),
        (sysctls(), sysctls(1, 0), OFF, True, OF_MODES),
        (sysctls(), sysctls(0, 1), OFF, True, OF_MODES),
        # Killed between two sysctls; a kernel in which group identity has no sysctl.
        (sysctls(), sysctls(None, 0), OFF, False, OF_MODES),
        (sysctls(0, 1), sysctls(0, 0), CORE, True, IDENTITIES),
        (sysctls(1, 0), sysctls(None, 0), IDENTITY, True, COOKIES),
        # A policy that only keeps core scheduling off; another one may set identities then.
        (sysctls(None, 0), sysctls(None, 0), OFF, False, NOTHING),
        (sysctls(None, 0), sysctls(1, 0), OFF, True, OF_MODES),
    ],
)
def test_the_mode(
    wanted: Mapping[str, str],
    written: Mapping[str, str],
    mode: CpuMode,
    is_change: bool,
    excluded: frozenset[str],
) -> None:
    found = plan({**wanted, "vm.swappiness": 10}, {**written, "vm.swappiness": "60"})
    assert (found.mode, found.is_change, found.excluded) == (mode, is_change, excluded)
    assert found.sysctls == wanted
    assert found.problem == ""


def test_what_is_switched_off_comes_first() -> None:
    assert list(plan({CORE_SCHED_SYSCTL: 1, GROUP_IDENTITY_SYSCTL: 0}, {}).sysctls) == [
        GROUP_IDENTITY_SYSCTL,
        CORE_SCHED_SYSCTL,
    ]


def test_a_kernel_whose_core_scheduling_is_a_feature_of_the_scheduler() -> None:
    core = {GROUP_IDENTITY_SYSCTL: "0", CORE_SCHED_FEATURE: "1"}
    found = plan(core, sysctls(1))
    assert (found.mode, found.is_change, found.excluded) == (CORE, True, IDENTITIES)
    found = plan({GROUP_IDENTITY_SYSCTL: 1, CORE_SCHED_FEATURE: 0}, core)
    assert (found.mode, found.is_change, found.excluded) == (IDENTITY, True, COOKIES)
    assert next(iter(found.sysctls)) == CORE_SCHED_FEATURE
    assert plan({GROUP_IDENTITY_SYSCTL: 1, CORE_SCHED_FEATURE: 1}, core).problem


@pytest.mark.parametrize("written", [sysctls(), sysctls(1, 0), sysctls(0, 1)])
def test_two_modes_are_none(written: dict[str, str]) -> None:
    """The one in force stays."""
    found = plan(sysctls(1, 1), written)
    assert found == plan(written, written)._replace(problem=found.problem)
    assert "group identity and core scheduling" in found.problem


@pytest.mark.parametrize("name", sorted(OF_MODES))
def test_a_message_carries_no_value_of_a_mode(name: str) -> None:
    """It would be written whatever the mode is."""
    change = ContainerChange(resources=ResourceChange(unified={name: "1"}))
    found = usable(Hook.PRE_CREATE_CONTAINER, change, Merged(BOX))
    assert (found.fields, len(found.left_out)) == ({}, 1)
