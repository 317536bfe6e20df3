"""What front ends carry, and what becomes of the rest of a policy's change."""

from __future__ import annotations

import pytest

from runtimeproxy.fields.tables import CRI_FIELDS, RESOURCE_FIELDS
from runtimeproxy.frontends.front_end import FrontEnd
from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.hooks import ContainerChange, ContainerView, Hook, PodChange, PodView, ResourceChange
from runtimeproxy.hooks.carried import BY_CALLS, CarriedFields
from runtimeproxy.hooks.fields import (
    ANNOTATIONS,
    ENV,
    LABELS,
    RESOURCES,
    UNIFIED,
    Field,
    Merged,
    change_from,
)
from runtimeproxy.hooks.policy import METHOD_HOOKS
from runtimeproxy.hooks.validation import usable

CREATE, UPDATE = Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER_RESOURCES
SWAP, CLASS = "resources.memory_swap_limit_bytes", "resources.rdt_class"
QUOTA = Field(RESOURCES, "cpu_quota_us")
FEW = CarriedFields("few", {CREATE: {"resources.cpuset_cpus", SWAP, ENV}, UPDATE: {"resources.cpuset_cpus"}})
"""Some resources, and of texts the environment."""
CHANGE = ContainerChange(
    resources=ResourceChange(
        cpuset_cpus="0-1",
        cpu_quota_us=-1,
        oom_score_adj=5,
        rdt_class="gold",
        unified={"memory.swap.max": "1"},
    ),
    env={"A": "secret"},
    annotations={"a": "b"},
    requires={"resources.cpu_quota_us": "resources.cpuset_cpus"},
    reason="why",
    reasons={"cpu_quota_us": "no quota"},
)


def test_the_modes_of_the_configuration() -> None:
    proxy, standalone = carried_in("proxy"), carried_in("standalone")
    assert proxy is BY_CALLS
    assert {each.mode for each in (proxy, standalone)} == {"proxy", "standalone"}
    label = Field(LABELS, "a")
    assert proxy.carries_at_creation(label, is_container=False)
    assert not standalone.carries_at_creation(label, is_container=False)
    for hook in (CREATE, UPDATE):
        assert all(proxy.carries(hook, Field(RESOURCES, name)) for name in CRI_FIELDS)
    assert "standalone" in standalone.reason


@pytest.mark.parametrize("is_container", [False, True])
def test_where_policies_are_asked_first(*, is_container: bool) -> None:
    creation = CREATE if is_container else Hook.PRE_RUN_POD_SANDBOX
    evaluation = Hook.EVALUATE_CONTAINER if is_container else Hook.EVALUATE_POD
    assert BY_CALLS.first_hook(is_container=is_container) is creation
    assert carried_in("standalone").first_hook(is_container=is_container) is evaluation


def test_the_methods_that_are_called() -> None:
    assert all(map(BY_CALLS.asks_by, METHOD_HOOKS))
    called = [each for each in METHOD_HOOKS if carried_in("standalone").asks_by(each)]
    assert called == ["pod", "container", "qos_class", "node"]


def test_of_a_creation_what_is_not_carried_goes_by_file_or_is_left_out() -> None:
    found = usable(CREATE, CHANGE, Merged(ContainerView()), carried=FEW)
    assert {str(field): value for field, value in found.fields.items()} == {
        "resources.cpuset_cpus": "0-1",
        "cgroup[cpu.cfs_quota_us]": -1,
        "cgroup[oom_score_adj]": 5,
        "env[A]": "secret",
    }
    assert found.reasons["cpu.cfs_quota_us"] == "no quota"
    names = {CLASS, "resources.unified[memory.swap.max]", "annotations[a]"}
    assert {each.field for each in found.left_out} == names
    assert {each.reason for each in found.left_out} == {FEW.reason}


def test_of_an_update_what_is_not_carried_goes_by_file_or_is_nothing_new() -> None:
    found = usable(UPDATE, CHANGE, Merged(ContainerView()), carried=FEW)
    names = {"resources.cpuset_cpus", "cgroup[cpu.cfs_quota_us]", "cgroup[oom_score_adj]"}
    assert set(map(str, found.fields)) == names
    assert found.left_out == ()


def test_what_depends_on_a_field_that_is_not_carried_is_left_out_with_it() -> None:
    resources, requires = ResourceChange(cpu_quota_us=-1, rdt_class="gold"), {str(QUOTA): CLASS}
    change = ContainerChange(resources=resources, requires=requires)
    found = usable(CREATE, change, Merged(ContainerView()), carried=FEW)
    assert (found.fields, [each.field for each in found.left_out]) == ({}, [CLASS, str(QUOTA)])


def test_a_value_of_the_cgroup_counts_more_than_the_resource_in_its_place() -> None:
    change = ContainerChange(
        resources=ResourceChange(memory_limit_bytes=1 << 20), cgroup={"memory.limit_in_bytes": 1 << 21}
    )
    found = usable(CREATE, change, Merged(ContainerView()), carried=FEW)
    assert {str(field): value for field, value in found.fields.items()} == {
        "cgroup[memory.limit_in_bytes]": 1 << 21
    }


def test_resources_of_a_sandbox_are_no_values_of_its_pods_cgroup() -> None:
    change = PodChange(resources=ResourceChange(cpu_shares=5), labels={"a": "b"}, annotations={"c": "d"})
    carried = CarriedFields("test", {Hook.PRE_RUN_POD_SANDBOX: {ANNOTATIONS}})
    found = usable(Hook.PRE_RUN_POD_SANDBOX, change, Merged(PodView()), carried=carried)
    assert list(map(str, found.fields)) == ["annotations[c]"]
    assert {each.field for each in found.left_out} == {"resources.cpu_shares", "labels[a]"}


def test_values_of_cgroups_count_wherever_policies_answer() -> None:
    standalone = carried_in("standalone")
    assert all("cgroup" in standalone.counting[each] for each in Hook if each is not Hook.EVALUATE_NODE)
    assert BY_CALLS.counting[Hook.PRE_START_CONTAINER] == {"cgroup"}


BEYOND_THE_CRI = ContainerChange(
    resources=ResourceChange(pids_limit=100, rdt_class="gold", blockio_class="slow"),
    cdi_devices=("vendor.com/gpu=0",),
)


@pytest.mark.parametrize(
    ("hook", "fields", "left_out"),
    [
        (
            CREATE,
            {"cgroup[pids.max]": 100, "cdi_devices[vendor.com/gpu=0]": "vendor.com/gpu=0"},
            {"resources.rdt_class": "gold", "resources.blockio_class": "slow"},
        ),
        (UPDATE, {"cgroup[pids.max]": 100}, {}),
    ],
)
def test_the_cri_has_no_classes_and_no_limit_of_pids(
    hook: Hook, fields: dict[str, object], left_out: dict[str, str]
) -> None:
    found = usable(hook, BEYOND_THE_CRI, Merged(ContainerView()))
    assert {str(field): value for field, value in found.fields.items()} == fields
    assert {each.field: each.value for each in found.left_out} == left_out
    assert {each.reason for each in found.left_out} <= {BY_CALLS.reason}


def test_nri_has_all_of_it_at_a_creation() -> None:
    found = usable(CREATE, BEYOND_THE_CRI, Merged(ContainerView()), carried=carried_in("nri"))
    assert found.left_out == ()
    assert change_from(CREATE, found.fields) == BEYOND_THE_CRI


@pytest.mark.parametrize("hook", [Hook.EVALUATE_CONTAINER, Hook.EVALUATE_POD])
def test_what_runs_is_evaluated_alike(hook: Hook) -> None:
    """What it lacks then is reported by `ledger/answers.py`."""
    nothing = CarriedFields("nothing", {})
    assert nothing.counting[hook] == BY_CALLS.counting[hook] >= {RESOURCES, UNIFIED, ANNOTATIONS}


def test_a_front_end_has_to_say_it() -> None:
    assert "carried_fields" in FrontEnd.__abstractmethods__


def test_an_nri_plugin_changes_containers_but_no_sandbox() -> None:
    nri = carried_in("nri")
    assert nri.first_hook(is_container=False) is Hook.PRE_RUN_POD_SANDBOX
    assert nri.first_hook(is_container=True) is Hook.PRE_CREATE_CONTAINER
    assert not nri.carries_at_creation(Field("labels", "a"), is_container=False)
    assert not nri.carries_at_creation(Field("cgroup_parent"), is_container=True)
    assert nri.carries_at_creation(Field("env", "A"), is_container=True)
    assert all(nri.carries(CREATE, Field(RESOURCES, name)) for name in RESOURCE_FIELDS)
    assert nri.carries(Hook.PRE_UPDATE_CONTAINER_RESOURCES, Field("resources", "cpu_shares"))
