"""Merging is pure: order, owners, conflicts, views."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.hooks import (
    CLEAR,
    CgroupChange,
    ContainerChange,
    ContainerView,
    DeviceSpec,
    Hook,
    MountSpec,
    PodChange,
    PodView,
    ResourceChange,
    Resources,
)
from runtimeproxy.hooks.audit import Subject
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.decision import Decision, Progress, make_decision
from runtimeproxy.hooks.fields import Field, Merged, current_value, merge
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.qos import KubeQoSClass, PriorityClass, QoSClass
from tests.hooks.flat import CREATE, QUOTA, RUN, SHARES, apply, flat


def resources(**values: Any) -> ContainerChange:
    return ContainerChange(resources=ResourceChange(**values))


def decided(
    view: ContainerView | PodView, *changes: CgroupChange, hook: Hook = CREATE, **options: Any
) -> Decision:
    """The decision on changes by the policies `p0`, `p1`..."""
    merged = Merged(view)
    for number, change in enumerate(changes):
        merged, _ = merge(merged, f"p{number}", flat(change, hook), **options)
    return decision_of(merged, hook)


def decision_of(merged: Merged, hook: Hook = CREATE) -> Decision:
    return make_decision(Subject(hook, merged.start, 0.0), Progress(merged))


CONTAINER_CHANGE = ContainerChange(
    resources=ResourceChange(cpu_shares=5, cpuset_cpus=CLEAR, unified={"cpu.idle": "1"}),
    annotations={"a": "b", "gone": CLEAR},
    env={"K": "v"},
    mounts=(MountSpec(host_path="/h", container_path="/c"),),
    devices=(DeviceSpec(host_path="/dev/a", container_path="/dev/b"),),
    cdi_devices=("vendor.com/gpu=0", "vendor.com/gpu=1"),
    cgroup_parent="/x",
    cgroup={"cpu.idle": 1},
    reason="why",
)


def test_each_field_has_one_owner_and_the_merged_change_has_all() -> None:
    decision = decided(ContainerView(), resources(cpu_shares=5), resources(cpu_quota_us=1_000))
    assert decision.owners == {
        "resources.cpu_shares": (Claimant("p0"),),
        "resources.cpu_quota_us": (Claimant("p1"),),
    }
    assert decision.change == resources(cpu_shares=5, cpu_quota_us=1_000)


@pytest.mark.parametrize(
    ("rule", "owner", "value"), [(ConflictRule.LATER, "p1", 7), (ConflictRule.EARLIER, "p0", 5)]
)
def test_two_values_for_one_field_are_a_conflict(rule: ConflictRule, owner: str, value: int) -> None:
    first, _ = merge(Merged(ContainerView()), "p0", {SHARES: 5}, rule=rule)
    second, updates = merge(first, "p1", {SHARES: 7}, rule=rule)
    assert [(update.old, update.new, update.other) for update in updates] == [(5, 7, "p0")]
    assert decision_of(second).owners == {"resources.cpu_shares": (Claimant(owner),)}
    assert isinstance(second.view, ContainerView)
    assert second.view.current.cpu_shares == value


def test_the_same_value_twice_is_no_conflict_and_stays_with_the_first() -> None:
    first, _ = merge(Merged(ContainerView()), "p0", {SHARES: 5})
    second, updates = merge(first, "p1", {SHARES: 5})
    assert updates == ()
    (field,) = second.fields.values()
    assert (field.owners, field.value) == ((Claimant("p0"),), 5)
    assert [claim.owner for claim in field.claims] == [Claimant("p0"), Claimant("p1")]


def test_a_value_that_is_there_already_is_owned_but_not_changed() -> None:
    view = ContainerView(current=Resources(cpu_shares=5))
    merged, updates = merge(Merged(view), "p0", {SHARES: 5, QUOTA: -1})
    assert updates == ()
    decision = decision_of(merged, Hook.PRE_UPDATE_CONTAINER_RESOURCES)
    assert decision.change is None
    assert decision.owners == dict.fromkeys(
        ("resources.cpu_shares", "resources.cpu_quota_us"), (Claimant("p0"),)
    )


def test_a_value_set_back_by_a_later_policy_is_no_change() -> None:
    view = ContainerView(current=Resources(cpu_shares=5))
    assert decided(view, resources(cpu_shares=7), resources(cpu_shares=5)).change is None


def test_reasons_are_gathered() -> None:
    first, _ = merge(Merged(ContainerView()), "p0", {SHARES: 5}, reason="one")
    second, _ = merge(first, "p1", {QUOTA: 2_000}, reason="two")
    assert decision_of(second).merged.reasons == {"p0": "one", "p1": "two"}


def test_the_container_view_shows_a_change() -> None:
    view = ContainerView(
        env={"K": b"old", "GONE": b"1", "KEPT": b"\xff"},
        annotations={"gone": "x", "kept": "y"},
        current=Resources(cpuset_cpus="0-1", unified={"memory.high": "1"}),
        requested=Resources(cpu_shares=2),
        pod=PodView(cgroup_parent="/kubepods/burstable/p", kube_qos=KubeQoSClass.BURSTABLE),
    )
    after = apply(view, CONTAINER_CHANGE, CREATE)
    after = apply(after, ContainerChange(env={"GONE": CLEAR}), CREATE)
    assert isinstance(after, ContainerView)
    assert after.env == {"K": b"v", "KEPT": b"\xff"}
    assert after.annotations == {"a": "b", "kept": "y"}
    assert after.current == Resources(cpu_shares=5, unified={"memory.high": "1", "cpu.idle": "1"})
    assert after.requested is view.requested
    assert (after.pod.cgroup_parent, after.pod.kube_qos) == ("/x", KubeQoSClass.GUARANTEED)


def test_the_pod_view_shows_a_change_and_what_is_derived_from_it() -> None:
    change = PodChange(
        labels={"koordinator.sh/qosClass": "BE", "koordinator.sh/priority-class": "koord-batch"},
        cgroup_parent="/kubepods/besteffort/p",
        annotations={"a": "b"},
        resources=ResourceChange(cpu_shares=5),
    )
    after = apply(PodView(labels={"app": "x"}), change, RUN)
    assert isinstance(after, PodView)
    assert (after.qos, after.priority) == (QoSClass.BE, PriorityClass.BATCH)
    assert after.kube_qos is KubeQoSClass.BEST_EFFORT
    assert after.labels["app"] == "x"
    assert after.annotations == {"a": "b"}
    assert after.resources.cpu_shares == 5


def test_cgroup_values_and_mounts_leave_the_view_as_it_is() -> None:
    view = ContainerView()
    change = ContainerChange(cgroup={"cpu.idle": 1}, mounts=CONTAINER_CHANGE.mounts)
    assert apply(view, change, CREATE) is view


def test_what_a_policy_keeps_of_its_answer_changes_nothing_afterwards() -> None:
    env: dict[str, Any] = {"K": "v"}
    result = decided(ContainerView(), ContainerChange(env=env))
    env["K"] = "w"
    assert result.change == ContainerChange(env={"K": "v"})


values = st.fixed_dictionaries(
    {},
    optional={
        "cpu_shares": st.integers(2, 5),
        "cpu_quota_us": st.sampled_from([-1, 1_000, 2_000]),
        "memory_limit_bytes": st.sampled_from([-1, 1, 2, CLEAR]),
        "cpuset_cpus": st.sampled_from(["0", "1", CLEAR]),
    },
)


@given(st.lists(values, max_size=4), values)
def test_the_last_value_of_each_field_counts_and_the_view_shows_it(
    wanted: list[dict[str, Any]], original: dict[str, Any]
) -> None:
    original = {key: value for key, value in original.items() if value is not CLEAR}
    view = ContainerView(current=Resources(**original))
    result = decided(view, *(resources(**each) for each in wanted))
    last: dict[str, Any] = {}
    for each in wanted:
        last |= each
    for name, value in last.items():
        shown = current_value(result.view, Field("resources", name))
        assert shown == (None if value is CLEAR else value)
    change = result.change
    changed = flat(change) if change else {}
    assert all(last[field.key] == value for field, value in changed.items())
    assert {str(field) for field in changed} <= set(result.owners) == {f"resources.{name}" for name in last}
