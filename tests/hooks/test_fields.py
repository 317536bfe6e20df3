"""Changes as flat fields, and what views show of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.hooks import (
    CLEAR,
    CgroupChange,
    ContainerChange,
    DeviceSpec,
    Hook,
    MountSpec,
    PodChange,
    ResourceChange,
)
from runtimeproxy.hooks.fields import Field, change_from, is_same
from tests.hooks.flat import CREATE, QUOTA, RUN, SHARES, flat


@pytest.mark.parametrize(
    ("field", "name"),
    [
        (SHARES, "resources.cpu_shares"),
        (Field("resources.unified", "cpu.weight"), "resources.unified[cpu.weight]"),
        (Field("annotations", "a/b"), "annotations[a/b]"),
        (Field("env", "KEY"), "env[KEY]"),
        (Field("cgroup", "cpu.shares"), "cgroup[cpu.shares]"),
        (Field("cgroup_parent"), "cgroup_parent"),
        (Field("cdi_devices", "vendor.com/gpu=0"), "cdi_devices[vendor.com/gpu=0]"),
    ],
)
def test_names_of_fields(field: Field, name: str) -> None:
    assert str(field) == name


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
POD_CHANGE = PodChange(
    labels={"l": "1"},
    annotations={"a": CLEAR},
    cgroup_parent="/y",
    resources=ResourceChange(memory_limit_bytes=-1),
    cgroup={"cpu.shares": 2},
    reason="why",
)


@pytest.mark.parametrize(
    ("hook", "change"), [(CREATE, CONTAINER_CHANGE), (RUN, POD_CHANGE)], ids=["container", "pod"]
)
def test_flattening_loses_nothing(hook: Hook, change: CgroupChange) -> None:
    assert change_from(hook, flat(change, hook)) == replace(change, reason="")


@pytest.mark.parametrize(
    ("hook", "groups"),
    [
        (Hook.PRE_UPDATE_CONTAINER_RESOURCES, {"resources", "resources.unified", "annotations", "cgroup"}),
        (Hook.PRE_START_CONTAINER, {"cgroup"}),
        (Hook.EVALUATE_QOS_CLASS, {"cgroup"}),
    ],
)
def test_what_does_not_count_at_a_hook_is_left_out(hook: Hook, groups: set[str]) -> None:
    assert {field.group for field in flat(CONTAINER_CHANGE, hook)} == groups


def test_sandbox_updates_take_resources_only() -> None:
    fields = flat(POD_CHANGE, Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES)
    assert {field.group for field in fields} == {"resources", "cgroup"}


@pytest.mark.parametrize(
    ("field", "old", "new", "same"),
    [
        (SHARES, 5, 5, True),
        (SHARES, 5, 6, False),
        (SHARES, None, CLEAR, True),
        (SHARES, 5, CLEAR, False),
        (QUOTA, None, -1, True),
        (QUOTA, 1_000, -1, False),
        (Field("resources", "memory_limit_bytes"), None, -1, True),
        (Field("resources", "oom_score_adj"), None, 0, True),
        (SHARES, None, 0, False),
        (Field("cgroup", "cpu.cfs_quota_us"), None, -1, False),
        (Field("env", "K"), b"v", "v", True),
        (Field("env", "K"), b"\xff", "v", False),
        (Field("mounts", "/c"), None, MountSpec(host_path="/h", container_path="/c"), False),
    ],
)
def test_setting_what_is_there_already_changes_nothing(field: Field, old: Any, new: Any, same: bool) -> None:
    assert is_same(field, old, new) is same
