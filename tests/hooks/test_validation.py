"""What can be used of what policies answer, field by field."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runtimeproxy.hooks import (
    CLEAR,
    CgroupChange,
    ContainerChange,
    ContainerView,
    DeviceSpec,
    Hook,
    MountSpec,
    NodeChange,
    PodChange,
    PodView,
    ResourceChange,
    Resources,
)
from runtimeproxy.hooks.changes import Add
from runtimeproxy.hooks.fields import Merged, View
from runtimeproxy.hooks.validation import LeftOut, problem_of, usable
from runtimeproxy.hooks.views import ClassView
from runtimeproxy.node.facts import ANY_NODE, NodeFacts
from runtimeproxy.qos import KubeQoSClass
from tests.hooks.flat import CREATE, RUN

UPDATE = Hook.PRE_UPDATE_CONTAINER_RESOURCES
CONTAINER, POD = ContainerView(), PodView()
GOOD: dict[str, Any] = {"cpu_shares": 512}
"""What stands beside a bad field, and counts."""
V1 = NodeFacts(
    online_cpus=frozenset(range(4)),
    online_memory_nodes=frozenset({0}),
    last_cpu=7,
    cgroup_version=1,
    controllers={"cpu": 1, "cpuset": 1, "memory": 1},
    files={"cpu": {"cpu.shares": True, "cpu.cfs_quota_us": True}},
)
V2 = dataclasses.replace(
    V1,
    cgroup_version=2,
    controllers={"cpu": 2, "cpuset": 2, "memory": 2, "pids": 2},
    files={
        "cpu": {"cpu.weight": True, "cpu.max": True, "cpu.stat": False},
        "memory": {"memory.max": True, "memory.high": True, "memory.current": False},
        "cgroup": {"cgroup.max.depth": True},
    },
)


def used(hook: Hook, change: Any, view: View = CONTAINER, node: NodeFacts = ANY_NODE) -> dict[str, Any]:
    assert problem_of(hook, change) is None
    return {str(field): value for field, value in usable(hook, change, Merged(view), node).fields.items()}


def left_out(
    hook: Hook, change: Any, view: View = CONTAINER, node: NodeFacts = ANY_NODE
) -> dict[str, LeftOut]:
    return {each.field: each for each in usable(hook, change, Merged(view), node).left_out}


PAGE = 4096


def numbered(numbers: Any) -> DeviceSpec:
    return DeviceSpec(host_path="/a", container_path="/b", numbers=numbers)


@pytest.mark.parametrize(
    ("name", "good", "clamped", "bad"),
    [
        (
            "cpu_shares",
            (2, 1024, 262_144, CLEAR),
            {1: 2, 262_145: 262_144, 2**62: 262_144},
            (-1, 0, "5", True, 5.0, 2**64),
        ),
        (
            "cpu_quota_us",
            (-1, 1_000, 2**40, CLEAR),
            {834: 1_000, 1: 1_000, 2**44: 2**44 - 1},
            (0, -2, -1.0, "max"),
        ),
        ("cpu_period_us", (1_000, 1_000_000), {}, (0, 999, 1_000_001, -1)),
        ("memory_limit_bytes", (-1, PAGE, 2**62, CLEAR), {}, (0, 1, PAGE - 1, -2, -1.0, 2**63, "1Gi")),
        ("memory_swap_limit_bytes", (-1, CLEAR), {}, (0, PAGE - 1, -2)),
        ("oom_score_adj", (-1_000, 0, 1_000), {}, (-1_001, 1_001, "0")),
        (
            "cpuset_cpus",
            ("0", "0-3,8", "3,1", CLEAR),
            {",8-15": "8-15", "0-1,": "0-1", " 0 ": "0", "0 2": "0,2", "0-3\n": "0-3", "0-3:1/2": "0,2"},
            ("", ",", "3-1", "a", 0, "0-3;x", b"0", "all", "N"),
        ),
        ("cpuset_mems", ("0-1", CLEAR), {",1": "1"}, ("", "x", "all")),
    ],
)
def test_values_of_resources(
    name: str, good: tuple[Any, ...], clamped: dict[Any, Any], bad: tuple[Any, ...]
) -> None:
    for value in good:
        change = ContainerChange(resources=ResourceChange(**{name: value}))
        found = usable(CREATE, change, Merged(CONTAINER))
        assert (found.left_out, found.notes) == ((), {})
        assert used(CREATE, change) == {f"resources.{name}": value}
    for value, expected in clamped.items():
        change = ContainerChange(resources=ResourceChange(**{name: value}))
        found = usable(CREATE, change, Merged(CONTAINER))
        assert used(CREATE, change) == {f"resources.{name}": expected}
        assert [str(field) for field in found.notes] == [f"resources.{name}"]
        assert found.left_out == ()
    for value in bad:
        change = ContainerChange(resources=ResourceChange(**{name: value}), env={"A": "b"})
        assert used(CREATE, change) == {"env[A]": "b"}
        assert left_out(CREATE, change).keys() == {f"resources.{name}"}


@pytest.mark.parametrize(
    ("name", "good", "clamped", "bad"),
    [
        ("cpu.shares", (2,), {1: 2}, (0, "2")),
        ("cpu.cfs_quota_us", (-1, 1_000), {500: 1_000}, (0,)),
        ("memory.limit_in_bytes", (-1, PAGE), {}, (0, 1)),
        ("cpu.bvt_warp_ns", (-1, 2), {}, (-2, 3)),
        ("cpu.idle", (0,), {}, (1, 2)),
        ("cpuset.cpus", ("0-1",), {"0-1,": "0-1"}, ("", "x")),
        ("memory.high", (-1, 0), {}, (-2,)),
        ("memory.usage_in_bytes", (), {}, (5,)),
        ("some.other_file", (), {}, (5, "text")),
        ("../cpu.shares", (), {}, (2,)),
        ("release_agent", (), {}, ("/bin/sh",)),
        ("cpu.cfs_burst_us", (0, 5, CLEAR), {}, (1.5, None, 2**63, b"x", True)),
        ("cpuacct.usage", (), {}, (CLEAR, 0)),
    ],
)
def test_values_of_cgroups(
    name: str, good: tuple[Any, ...], clamped: dict[Any, Any], bad: tuple[Any, ...]
) -> None:
    for value, expected in {**dict.fromkeys(good), **clamped}.items():
        change = PodChange(cgroup={name: value})
        assert used(RUN, change, POD) == {f"cgroup[{name}]": value if expected is None else expected}
        assert left_out(RUN, change, POD) == {}
    for value in bad:
        change = PodChange(cgroup={name: value, "memory.oom.group": 1})
        assert used(RUN, change, POD) == {"cgroup[memory.oom.group]": 1}
        assert left_out(RUN, change, POD).keys() == {f"cgroup[{name}]"}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("memory.high", "max", "max"),
        ("memory.high", "104857600", "104857600"),
        ("memory.high", "1Gi", None),
        ("memory.max", "12", None),
        ("cpu.weight", "0", None),
        ("cpu.weight", "10000", "10000"),
        ("cpu.max", "max", "max"),
        ("cpu.max", "max 100000", "max 100000"),
        ("cpu.max", "834 100000", "1000 100000"),
        ("cpu.max", "5000 5", None),
        ("cpu.max", "fast", None),
        ("cpuset.cpus", ",2-3", "2-3"),
        ("cpuset.mems", "x", None),
        ("io.weight", "default 50", "default 50"),
        ("a/b", "1", None),
        ("memory.min", CLEAR, CLEAR),
        ("memory.low", "1\0", None),
        ("cpu.bvt_warp_ns", "2", None),
    ],
)
def test_values_of_unified(name: str, value: Any, expected: Any) -> None:
    change = ContainerChange(resources=ResourceChange(unified={name: value}, **GOOD))
    kept = {} if expected is None else {f"resources.unified[{name}]": expected}
    assert used(CREATE, change) == {"resources.cpu_shares": 512, **kept}
    assert bool(left_out(CREATE, change)) is (expected is None)


NOWHERE: Any = object()
MOUNT = MountSpec(host_path="/a", container_path="/b")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (ContainerChange(cgroup=NOWHERE), "cgroup"),
        (ContainerChange(reason=NOWHERE), "reason"),
        (ContainerChange(problems=NOWHERE), "problems"),
        (ContainerChange(requires=NOWHERE), "requires"),
        (ContainerChange(resources=NOWHERE), "resources"),
        (ContainerChange(resources=ResourceChange(unified=NOWHERE)), "resources.unified"),
        (ContainerChange(annotations={"": "x"}), "annotations"),
        (ContainerChange(annotations={"a": NOWHERE}), "annotations[a]"),
        (ContainerChange(annotations={"a": "\ud800"}), "annotations[a]"),
        (ContainerChange(env={"A=B": "x"}), "env"),
        (ContainerChange(env={"A": "x\0"}), "env[A]"),
        (ContainerChange(env=NOWHERE), "env"),
        (ContainerChange(cgroup_parent=""), "cgroup_parent"),
        (ContainerChange(cgroup_parent="/"), "cgroup_parent"),
        (ContainerChange(cgroup_parent="/a/../b"), "cgroup_parent"),
        (ContainerChange(cgroup_parent=NOWHERE), "cgroup_parent"),
        (ContainerChange(mounts=(MountSpec(host_path="a", container_path="/b"),)), "mounts[/b]"),
        (ContainerChange(mounts=NOWHERE), "mounts"),
        (ContainerChange(mounts=(NOWHERE,)), "mounts"),
        (
            ContainerChange(devices=(DeviceSpec(host_path="/a", container_path="/b", permissions="x"),)),
            "devices[/b]",
        ),
        *(
            (
                ContainerChange(devices=(numbered(numbers),)),
                "devices[/b]",
            )
            for numbers in ((-1, 0), (4096, 0), (0, 1 << 20), (1,), (True, 1), ("1", 1), NOWHERE)
        ),
        (ContainerChange(devices=NOWHERE), "devices"),
        (ContainerChange(missing=NOWHERE), "missing"),
        (ContainerChange(missing=(NOWHERE,)), "missing"),
        (ContainerChange(cdi_devices=("vendor.com/gpu",)), "cdi_devices[vendor.com/gpu]"),
        (ContainerChange(cdi_devices=(NOWHERE,)), "cdi_devices"),
        (ContainerChange(cdi_devices=NOWHERE), "cdi_devices"),
        (ContainerChange(resources=ResourceChange(pids_limit=0)), "resources.pids_limit"),
        (ContainerChange(resources=ResourceChange(pids_limit=-2)), "resources.pids_limit"),
        (ContainerChange(resources=ResourceChange(rdt_class="/PODQOS")), "resources.rdt_class"),
        (ContainerChange(resources=ResourceChange(blockio_class=NOWHERE)), "resources.blockio_class"),
    ],
)
def test_nonsense_costs_its_own_field(change: ContainerChange, field: str) -> None:
    beside = dataclasses.replace(change, mounts=(MOUNT,)) if not field.startswith("mounts") else change
    assert left_out(CREATE, beside).keys() == {field}
    assert used(CREATE, beside) == ({} if beside is change else {"mounts[/b]": MOUNT})


@pytest.mark.parametrize(
    "name",
    [
        "",
        "vendor.com/gpu",
        "gpu=0",
        "vendor.com/gpu=",
        "/gpu=0",
        "vendor.com/=0",
        # At a vendor or class of one character the runtime's parser panics.
        "v/gpu=0",
        "vendor/g=0",
        "vendor.com/gpu=0\n",
        "vendor.com/gpu=\0",
        "vendor.com/gpu=\ud800",
        "v\u00e4ndor/gpu=0",
        "vendor.com/gpu=\u0661",
        "vendor.com/gpu=-a",
        "vendor.com/gpu=a-",
        "1vendor/gpu=0",
        "vendor-/gpu=0",
        "vendor.com/a/b=0",
        "vendor.com/gpu=a=b",
        "vendor.com/gpu=a b",
        "vendor.com/gpu=" + "x" * 255,
    ],
)
def test_no_names_of_cdi_devices(name: str) -> None:
    good = "vendor.com/gpu=0"
    change = ContainerChange(cdi_devices=(name, good))
    assert ["not a CDI device" in each.reason for each in left_out(CREATE, change).values()] == [True]
    assert used(CREATE, change) == {f"cdi_devices[{good}]": good}


def test_one_bad_entry_costs_no_other() -> None:
    change = ContainerChange(
        resources=ResourceChange(cpu_shares=-5, cpu_quota_us=834, cpuset_cpus=",0-1", oom_score_adj=5_000),
        env={"A": "1", "B=x": "2", "C": "3"},
        annotations={"a": "1", "b": "\0"},
        mounts=(MOUNT, MountSpec(host_path="relative", container_path="/c")),
    )
    assert used(CREATE, change) == {
        "resources.cpu_quota_us": 1_000,
        "resources.cpuset_cpus": "0-1",
        "env[A]": "1",
        "env[C]": "3",
        "annotations[a]": "1",
        "mounts[/b]": MOUNT,
    }
    assert left_out(CREATE, change).keys() == {
        "resources.cpu_shares",
        "resources.oom_score_adj",
        "env",
        "annotations[b]",
        "mounts[/c]",
    }


PERIOD = "resources.cpu_period_us"
QUOTA = "resources.cpu_quota_us"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        pytest.param({"cpu_period_us": 5, "cpu_quota_us": 50_000}, {}, id="period-takes-quota-along"),
        pytest.param({"cpu_period_us": 5, "cpu_quota_us": -1}, {QUOTA: -1}, id="unlimited-needs-no-period"),
        pytest.param({"cpu_period_us": 5, "cpu_quota_us": CLEAR}, {QUOTA: CLEAR}, id="cleared-neither"),
        pytest.param({"cpu_period_us": 50_000, "cpu_quota_us": 0}, {}, id="quota-takes-period-along"),
        pytest.param(
            {"cpu_period_us": 50_000, "cpu_quota_us": 834}, {PERIOD: 50_000, QUOTA: 1_000}, id="clamped"
        ),
        pytest.param({"cpu_period_us": 50_000}, {PERIOD: 50_000}, id="period-alone"),
    ],
)
def test_a_period_and_its_quota_count_together(resources: dict[str, Any], expected: dict[str, Any]) -> None:
    assert used(CREATE, ContainerChange(resources=ResourceChange(**resources))) == expected
    names = {"cpu_period_us": "cpu.cfs_period_us", "cpu_quota_us": "cpu.cfs_quota_us"}
    if CLEAR not in resources.values():
        change = PodChange(cgroup={names[name]: value for name, value in resources.items()})
        parameters = {f"cgroup[{names[name.partition('.')[2]]}]": value for name, value in expected.items()}
        assert used(RUN, change, POD) == parameters


def test_a_pods_cgroup_has_no_quota_without_its_period() -> None:
    """Its containers keep the kubelet's quotas then, and version 1 refuses more than the pod's."""
    resources = ResourceChange(cpu_period_us=5, cpu_quota_us=30_000)
    change = PodChange(resources=resources, cgroup={"cpu.cfs_quota_us": 30_000, "cpu.shares": 512})
    assert used(RUN, change, POD) == {"cgroup[cpu.shares]": 512}


MIB = 1 << 20
LIMIT = "resources.memory_limit_bytes"
SWAP = "resources.memory_swap_limit_bytes"


@pytest.mark.parametrize(
    ("hook", "current", "limit", "swap", "expected"),
    [
        pytest.param(CREATE, (64, None), 128, None, {LIMIT: 128 * MIB}, id="no-swap-limit"),
        pytest.param(CREATE, (64, 64), 128, None, {}, id="above-the-kubelets-swap"),
        pytest.param(CREATE, (64, 64), 32, None, {LIMIT: 32 * MIB}, id="below-it"),
        pytest.param(CREATE, (64, 64), -1, None, {}, id="unlimited-above-it"),
        pytest.param(CREATE, (64, 64), 128, 256, {LIMIT: 128 * MIB, SWAP: 256 * MIB}, id="both"),
        pytest.param(CREATE, (64, None), 128, 96, {LIMIT: 128 * MIB}, id="own-swap-below-own-limit"),
        pytest.param(CREATE, (64, 64), 128, 96, {}, id="and-the-kubelets-below-it-too"),
        pytest.param(CREATE, (None, None), None, 96, {}, id="swap-without-a-limit"),
        pytest.param(UPDATE, (None, None), None, 96, {SWAP: 96 * MIB}, id="whose-limit-is-not-known"),
        pytest.param(CREATE, (64, None), None, -1, {SWAP: -1}, id="unlimited-swap"),
    ],
)
def test_memory_and_swap_suit_each_other(
    hook: Hook,
    current: tuple[int | None, int | None],
    limit: int | None,
    swap: int | None,
    expected: dict[str, int],
) -> None:
    def of(mib: int | None) -> int | None:
        return mib if mib in (None, -1) else mib * MIB

    resources = Resources(memory_limit_bytes=of(current[0]), memory_swap_limit_bytes=of(current[1]))
    change = ResourceChange(memory_limit_bytes=of(limit), memory_swap_limit_bytes=of(swap))
    view = ContainerView(current=resources)
    assert used(hook, ContainerChange(resources=change), view) == expected


@pytest.mark.parametrize(
    ("asked", "answered", "is_used"),
    [
        ("/kubepods/pod1", "/other/pod1", True),
        ("kubepods-pod1.slice", "other-pod1.slice", True),
        ("kubepods-pod1.slice", "/other/pod1", False),
        ("/kubepods/pod1", "other-pod1.slice", False),
        ("", "/other/pod1", True),
        ("kubepods-pod1.slice", "a--b.slice", False),
    ],
)
def test_a_cgroup_parent_is_of_the_kubelets_kind(asked: str, answered: str, is_used: bool) -> None:
    found = used(RUN, PodChange(cgroup_parent=answered), PodView(cgroup_parent=asked))
    assert found == ({"cgroup_parent": answered} if is_used else {})


@pytest.mark.parametrize(
    ("resources", "node", "reason"),
    [
        ({"cpuset_cpus": "0-999"}, V1, "CPU 4-999 not online, only 0-3"),
        ({"cpuset_mems": "0-1"}, V1, "NUMA node 1 not online, only 0"),
        ({"cpuset_cpus": "2-N"}, V1, "CPU 4-7 not online"),
        ({"unified": {"memory.high": "max"}}, V1, "this node has version 1"),
        ({"unified": {"cpuset.cpus": "7"}}, V2, "CPU 7 not online"),
        ({"unified": {"memory.low": "0"}}, V2, "this kernel has no memory.low"),
        ({"unified": {"memory.current": "0"}}, V2, "memory.current is read-only"),
        ({"unified": {"misc.max": "0"}}, V2, "this node has no cgroup controller misc"),
    ],
)
def test_what_the_node_cannot_take_is_left_out(
    resources: dict[str, Any], node: NodeFacts, reason: str
) -> None:
    change = ContainerChange(resources=ResourceChange(**resources, **GOOD))
    assert used(CREATE, change, node=node) == {"resources.cpu_shares": 512}
    (found,) = left_out(CREATE, change, node=node).values()
    assert reason in found.reason
    assert len(used(CREATE, change)) == (1 if "N" in str(resources) else 2)


@pytest.mark.parametrize(
    ("name", "value", "node", "reason"),
    [
        ("cpu.bvt_warp_ns", 2, V1, "this kernel has no cpu.bvt_warp_ns"),
        ("cpu.bvt_warp_ns", 2, V2, "this kernel has no cpu.bvt_warp_ns"),
        ("net_cls.classid", 5, V1, "this node has no cgroup controller net_cls"),
        ("memory.pagecache_limit.size", 5, V1, "cgroup version 1 has no such file"),
        ("cpuset.cpus", "5", V1, "CPU 5 not online"),
    ],
)
def test_a_parameter_that_the_node_lacks_is_left_out(
    name: str, value: int | str, node: NodeFacts, reason: str
) -> None:
    change = PodChange(cgroup={name: value, "cpu.shares": 512})
    assert used(RUN, change, POD, node) == {"cgroup[cpu.shares]": 512}
    (found,) = left_out(RUN, change, POD, node).values()
    assert reason in found.reason
    assert found.value == str(value)


def test_what_is_not_known_of_a_node_refuses_nothing() -> None:
    files = {"pids.max": "5", "cgroup.max.depth": "3"}
    change = ContainerChange(resources=ResourceChange(unified=files))
    assert len(used(CREATE, change, node=V2)) == 2


def test_a_field_goes_with_the_one_that_it_requires() -> None:
    change = ContainerChange(
        resources=ResourceChange(cpuset_cpus="9", cpu_quota_us=-1, cpu_shares=512),
        requires={QUOTA: "resources.cpuset_cpus"},
    )
    assert used(CREATE, change, node=V1) == {"resources.cpu_shares": 512}
    assert used(CREATE, dataclasses.replace(change, requires={}), node=V1).keys() == {
        QUOTA,
        "resources.cpu_shares",
    }
    assert len(used(CREATE, change)) == 3


def test_what_a_policy_could_not_read_is_reported() -> None:
    change = ContainerChange(env={"A": "1"}, problems=("annotation x is no JSON",))
    assert used(CREATE, change) == {"env[A]": "1"}
    assert left_out(CREATE, change) == {"": LeftOut("", "", "annotation x is no JSON")}


@pytest.mark.parametrize(
    "answer", ["text", {}, PodChange(), NOWHERE, 5, [ContainerChange()]], ids=lambda each: type(each).__name__
)
def test_some_answers_are_none_as_a_whole(answer: object) -> None:
    assert problem_of(CREATE, answer)


@pytest.mark.parametrize(
    ("hook", "change"),
    [
        (RUN, PodChange(labels={"a": "b"}, cgroup_parent="/a", resources=ResourceChange(cpu_shares=2))),
        (RUN, CgroupChange(cgroup={"cpu.shares": 2})),
        (
            CREATE,
            ContainerChange(
                mounts=(MountSpec(host_path="/a", container_path="/b"),), env={"A": "", "B": CLEAR}
            ),
        ),
        (
            CREATE,
            ContainerChange(devices=(DeviceSpec(host_path="/a", container_path="/b", permissions="wr"),)),
        ),
        (
            CREATE,
            ContainerChange(devices=(DeviceSpec(host_path="/a", container_path="/b", numbers=(231, 192)),)),
        ),
        (CREATE, ContainerChange(cdi_devices=("vendor.com/gpu=0", "a-b.c/d_e=x:1.y"))),
        (CREATE, ContainerChange(resources=ResourceChange(pids_limit=-1))),
        (CREATE, ContainerChange(resources=ResourceChange(pids_limit=CLEAR))),
        (Hook.PRE_START_CONTAINER, CgroupChange(cgroup={"cpu.bvt_warp_ns": 1})),
        (Hook.EVALUATE_QOS_CLASS, CgroupChange(cgroup={"cpu.bvt_warp_ns": 1})),
        # Nobody writes weights there.
        (Hook.EVALUATE_NODE, NodeChange(cgroups={"host": {"cpu.idle": 1}})),
    ],
)
def test_what_makes_sense_is_used(hook: Hook, change: CgroupChange) -> None:
    assert problem_of(hook, change) is None
    assert usable(hook, change, Merged(CONTAINER)).left_out == ()


@pytest.mark.parametrize(
    "hook", [Hook.POST_STOP_CONTAINER, Hook.POST_START_CONTAINER, Hook.POST_REMOVE_CONTAINER]
)
def test_some_hooks_answer_nothing(hook: Hook) -> None:
    assert problem_of(hook, CgroupChange()) == f"{hook} cannot return a change"


@pytest.mark.parametrize("hook", [RUN, Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES, Hook.EVALUATE_POD])
def test_a_container_change_is_no_answer_about_a_pod(hook: Hook) -> None:
    assert problem_of(hook, ContainerChange()) == "returned a ContainerChange, not a PodChange or None"


def test_nothing_of_an_environment_is_quoted() -> None:
    change = ContainerChange(env={"TOKEN": "hunter2\0", "PASSWORD=hunter2": "x"})
    found = usable(CREATE, change, Merged(CONTAINER)).left_out
    assert [each.field for each in found] == ["env[TOKEN]", "env"]
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("hook", "view", "problem"),
    [
        (RUN, PodView(kube_qos=KubeQoSClass.BEST_EFFORT), ""),
        (Hook.EVALUATE_POD, PodView(kube_qos=KubeQoSClass.BEST_EFFORT), ""),
        (RUN, PodView(kube_qos=KubeQoSClass.BURSTABLE), "the kubelet resizes pods with CPU requests"),
        (RUN, PodView(), "the kubelet resizes pods with CPU requests"),
        (CREATE, ContainerView(), "the runtime writes weights of containers"),
        (
            Hook.EVALUATE_QOS_CLASS,
            ClassView(qos=KubeQoSClass.BEST_EFFORT),
            "the kubelet writes weights of QoS classes",
        ),
    ],
)
@pytest.mark.parametrize("value", [1, Add(1), 0])
def test_only_pods_whose_weight_nobody_writes_are_idle(
    hook: Hook, view: PodView | ContainerView | ClassView, problem: str, value: Any
) -> None:
    kind = ContainerChange if hook is CREATE else CgroupChange
    found = usable(hook, kind(cgroup={"cpu.idle": value}), Merged(view)).left_out
    assert [each.reason.partition(",")[0] for each in found] == ([problem] if problem and value != 0 else [])
