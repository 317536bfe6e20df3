"""Leave alone, set and clear, at creation and in updates."""

from __future__ import annotations

import pytest

from runtimeproxy.hooks import CLEAR, ResourceChange, Resources
from runtimeproxy.hooks.changes import Clear, TextEntries
from runtimeproxy.hooks.fields import entry_edits, scalar_edits, written_value
from runtimeproxy.pods.updates import given_fields

NOTHING = Resources()


@pytest.mark.parametrize(
    ("change", "sent", "expected"),
    [
        pytest.param(ResourceChange(), Resources(cpu_shares=2), {}, id="leave-alone"),
        pytest.param(ResourceChange(cpu_shares=4), Resources(cpu_shares=2), {"cpu_shares": 4}, id="set"),
        pytest.param(ResourceChange(cpu_shares=2), Resources(cpu_shares=2), {}, id="set-to-the-same"),
        pytest.param(ResourceChange(cpu_quota_us=-1), NOTHING, {"cpu_quota_us": -1}, id="set-unlimited"),
        pytest.param(ResourceChange(oom_score_adj=0), NOTHING, {}, id="zero-where-nothing-is"),
        pytest.param(
            ResourceChange(oom_score_adj=0), Resources(oom_score_adj=-5), {"oom_score_adj": 0}, id="zero"
        ),
        pytest.param(
            ResourceChange(cpu_shares=CLEAR), Resources(cpu_shares=2), {"cpu_shares": 0}, id="clear"
        ),
        pytest.param(
            ResourceChange(cpu_quota_us=CLEAR),
            Resources(cpu_quota_us=5000),
            {"cpu_quota_us": 0},
            id="clear-quota",
        ),
        pytest.param(
            ResourceChange(cpuset_cpus=CLEAR),
            Resources(cpuset_cpus="0"),
            {"cpuset_cpus": ""},
            id="clear-cpus",
        ),
        pytest.param(ResourceChange(cpuset_cpus=CLEAR), NOTHING, {}, id="clear-nothing"),
        pytest.param(
            ResourceChange(memory_limit_bytes=7, cpuset_mems="1"),
            NOTHING,
            {"memory_limit_bytes": 7, "cpuset_mems": "1"},
            id="several",
        ),
    ],
)
def test_scalars_at_creation(change: ResourceChange, sent: Resources, expected: dict[str, int | str]) -> None:
    assert scalar_edits(change, None, sent, update=False) == expected


@pytest.mark.parametrize(
    ("change", "in_force", "sent", "expected"),
    [
        pytest.param(
            ResourceChange(cpu_shares=4), Resources(cpu_shares=4), NOTHING, {}, id="owned-is-not-sent-again"
        ),
        pytest.param(
            ResourceChange(cpu_shares=4),
            Resources(cpu_shares=2),
            NOTHING,
            {"cpu_shares": 4},
            id="changed-now-is-sent",
        ),
        pytest.param(
            ResourceChange(cpu_shares=4),
            Resources(cpu_shares=4),
            Resources(cpu_shares=2),
            {"cpu_shares": 4},
            id="what-the-kubelet-sends-is-replaced",
        ),
        pytest.param(ResourceChange(cpu_shares=4), None, NOTHING, {"cpu_shares": 4}, id="unknown-is-sent"),
        pytest.param(
            ResourceChange(cpu_quota_us=CLEAR),
            Resources(cpu_quota_us=5000),
            NOTHING,
            {"cpu_quota_us": -1},
            id="clear-quota",
        ),
        pytest.param(
            ResourceChange(cpu_quota_us=CLEAR), Resources(cpu_quota_us=-1), NOTHING, {}, id="quota-is-clear"
        ),
        pytest.param(ResourceChange(cpu_quota_us=CLEAR), NOTHING, NOTHING, {}, id="quota-never-set"),
        pytest.param(
            ResourceChange(cpu_quota_us=CLEAR), None, NOTHING, {"cpu_quota_us": -1}, id="quota-unknown"
        ),
        pytest.param(
            ResourceChange(cpu_shares=CLEAR),
            Resources(cpu_shares=7),
            NOTHING,
            {"cpu_shares": 1024},
            id="clear-shares",
        ),
        pytest.param(
            ResourceChange(memory_limit_bytes=CLEAR, memory_swap_limit_bytes=CLEAR),
            NOTHING,
            Resources(memory_limit_bytes=7, memory_swap_limit_bytes=8),
            {"memory_limit_bytes": -1, "memory_swap_limit_bytes": -1},
            id="clear-sent-limits",
        ),
        pytest.param(
            ResourceChange(cpuset_cpus=CLEAR),
            Resources(cpuset_cpus="0-3"),
            Resources(cpuset_cpus="1"),
            {"cpuset_cpus": ""},
            id="clear-sent-cpus-leaves-the-old-ones",
        ),
        pytest.param(
            ResourceChange(cpuset_cpus=CLEAR), Resources(cpuset_cpus="0-3"), NOTHING, {}, id="clear-cpus"
        ),
    ],
)
def test_scalars_in_an_update(
    change: ResourceChange, in_force: Resources | None, sent: Resources, expected: dict[str, int | str]
) -> None:
    assert scalar_edits(change, in_force, sent, update=True) == expected


@pytest.mark.parametrize(
    ("field", "value", "update", "expected"),
    [
        ("cpu_period_us", CLEAR, True, 100_000),
        ("cpu_period_us", CLEAR, False, 0),
        ("oom_score_adj", CLEAR, True, 0),
        ("cpuset_mems", CLEAR, True, ""),
        ("cpuset_mems", "0", True, "0"),
    ],
)
def test_written_value(field: str, value: int | str | Clear, update: bool, expected: int | str) -> None:
    assert written_value(field, value, update=update) == expected


@pytest.mark.parametrize(
    ("changes", "present", "in_force", "expected"),
    [
        pytest.param({}, {"a": "1"}, None, {}, id="leave-alone"),
        pytest.param({"a": "2"}, {"a": "1"}, None, {"a": "2"}, id="set"),
        pytest.param({"a": ""}, {}, None, {"a": ""}, id="set-to-empty"),
        pytest.param({"a": "1"}, {"a": "1"}, None, {}, id="set-to-the-same"),
        pytest.param({"a": CLEAR}, {"a": "1"}, None, {"a": None}, id="clear"),
        pytest.param({"a": CLEAR}, {}, None, {}, id="clear-nothing"),
        pytest.param({"a": "1"}, {}, {"a": "1"}, {}, id="in-force-is-not-sent-again"),
        pytest.param({"a": "1"}, {"a": "2"}, {"a": "1"}, {"a": "1"}, id="sent-is-replaced"),
    ],
)
def test_entries(
    changes: TextEntries,
    present: dict[str, str],
    in_force: dict[str, str] | None,
    expected: dict[str, str | None],
) -> None:
    assert entry_edits(changes, present, in_force) == expected


def test_given_fields_have_the_names_of_owners() -> None:
    resources = Resources(cpu_shares=2, cpuset_cpus="0", unified={"memory.high": "1"})
    assert given_fields(resources) == {
        "resources.cpu_shares",
        "resources.cpuset_cpus",
        "resources.unified[memory.high]",
    }
