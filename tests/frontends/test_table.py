"""What each mode does with each field: the document, and the declarations of policies behind it."""

from __future__ import annotations

import pytest

from policies.startup_boost import StartupBoost
from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.hooks.ways import SETTABLE, Way, left_undone, way_of
from tests.frontends import table


def test_the_document_has_the_present_table() -> None:
    assert table.written() == table.README.read_text()


@pytest.mark.parametrize(
    ("method", "name", "expected"),
    [
        ("container", "cpu.shares", (Way.MESSAGE, Way.MESSAGE, Way.FILE_AFTER)),
        ("container", "cpu.cfs_burst_us", (Way.FILE_AFTER, Way.FILE_BEFORE, Way.FILE_AFTER)),
        ("container", "oom_score_adj", (Way.MESSAGE, Way.MESSAGE, Way.FILE_AFTER)),
        ("container", "memory_swap_limit_bytes", (Way.MESSAGE, Way.MESSAGE, Way.NONE)),
        ("container", "rdt_class", (Way.NONE, Way.MESSAGE, Way.NONE)),
        ("container", "env", (Way.MESSAGE, Way.MESSAGE, Way.NONE)),
        ("pod", "cpu.shares", (Way.FILE_BEFORE, Way.FILE_BEFORE, Way.FILE_AFTER)),
        ("pod", "labels", (Way.MESSAGE, Way.NONE, Way.NONE)),
        ("qos_class", "memory.min", (Way.FILE, Way.FILE, Way.FILE)),
        ("node", "sysctl", (Way.FILE, Way.FILE, Way.FILE)),
    ],
)
def test_the_way_of_a_field(method: str, name: str, expected: tuple[Way, ...]) -> None:
    assert tuple(way_of(carried_in(mode), method, name) for mode in table.MODES) == expected


def test_each_name_has_a_way_in_each_mode() -> None:
    for method, names in SETTABLE.items():
        for name in names:
            assert all(isinstance(way, Way) for way in table.ways_of(method, name))
    # What has a cgroup file gets there in every mode.
    files = {way for name in SETTABLE["qos_class"] for way in table.ways_of("container", name)}
    assert Way.NONE not in files


def test_what_a_mode_leaves_undone() -> None:
    sets = {"pod": frozenset({"labels", "cpu.shares"}), "container": frozenset({"env", "cpuset.cpus"})}
    found = {mode: left_undone(carried_in(mode), sets) for mode in table.MODES}
    assert found == {"proxy": [], "nri": ["pod labels"], "standalone": ["pod labels", "env"]}


def test_the_proxy_leaves_nothing_of_the_built_in_policies_undone() -> None:
    for policy in built_in():
        # What it leads to is no answer of its, and goes by file in each mode.
        assert policy.sets_fields or policy is StartupBoost, policy.name
        assert not left_undone(carried_in("proxy"), policy.sets_fields)
