"""What has to be written so that a node is as the kubelet wants it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.cgroups.writer import FileText
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.records import Book, ContainerRecord, Entry, Level, Lifecycle, Original, PodRecord
from runtimeproxy.restore.plan import (
    AT_CREATION,
    CgroupState,
    Line,
    NodeState,
    RestorePlan,
    Status,
    Value,
    kept_book,
    without_owners,
)
from runtimeproxy.restore.plan import plan as planned

POD = PodRecord(id="pod", name="web", namespace="shop", uid="u1", cgroup_parent="/kubepods/podu1")
RUNNING = ContainerRecord(id="box", state=Lifecycle.RUNNING, recovered=True)


class Numbers:
    """Files that hold a number each."""

    def decode(self, name: str, text: str) -> Value | None:
        return int(text) if text else None

    def encode(self, name: str, value: Value) -> str | None:
        return str(value)

    def matches(self, name: str, value: Value, text: str) -> bool:
        return int(text) == value

    def parts(self, name: str, text: str) -> tuple[str, ...]:
        return (text,)

    def file_of(self, name: str) -> str | None:
        return name


def plan(saved: Saved, node: NodeState) -> RestorePlan:
    return planned(saved, node, Numbers())


def state(wanted: Value, original: Value | None, current: Value | None, **more: Any) -> CgroupState:
    """A pod's cgroup with one value."""
    entries = {"cpu.shares": Entry((Claim(Claimant("policy"), Role.SET, wanted),), wanted)}
    text = None if original is None else f"{original}\n"
    cgroup = more.pop("cgroup", "/kubepods/podu1")
    book = Book(cgroup, Level.POD, entries, {"cpu.shares": Original(text, 5)}, "boot")
    present = {} if current is None else {"cpu.shares": FileText("cpu.shares", f"{current}\n", 5)}
    return CgroupState(book, present, **more)


def owned(requested: Mapping[str, Any], applied: Mapping[str, Any]) -> ContainerRecord:
    """A container whose applied values all belong to a policy."""
    scalars = {name for name in {*requested, *applied} if name != "unified"}
    names = {f"resources.{name}" for name in scalars}
    unified = {*requested.get("unified", {}), *applied.get("unified", {})}
    return ContainerRecord(
        id="box",
        pod_id="pod",
        name="main",
        requested=Resources(**requested),
        booked=Resources(**applied),
        owners=dict.fromkeys(
            [*sorted(names), *(f"resources.unified[{key}]" for key in unified)], (Claimant("policy"),)
        ),
        state=Lifecycle.RUNNING,
    )


def node(**values: Any) -> NodeState:
    """A node on which the container runs, with what the runtime says of it."""
    whole = {"cpuset.cpus": {"pod": "0-7"}, "cpuset.mems": {"pod": "0"}}
    return NodeState({"box": replace(RUNNING, booked=Resources(**values))}, (), whole)


@pytest.mark.parametrize(
    ("requested", "applied", "wanted"),
    [
        pytest.param({"cpu_shares": 1024}, {"cpu_shares": 512}, {"cpu_shares": 1024}, id="asked-for"),
        pytest.param({}, {"cpu_shares": 512}, {"cpu_shares": 1024}, id="no-shares"),
        pytest.param({}, {"cpu_quota_us": 5000}, {"cpu_quota_us": -1}, id="no-quota"),
        pytest.param({"cpu_quota_us": 5000}, {}, {"cpu_quota_us": 5000}, id="taken-away"),
        pytest.param({}, {"memory_limit_bytes": 4096}, {"memory_limit_bytes": -1}, id="no-limit"),
        pytest.param({}, {"cpu_period_us": 5000}, {"cpu_period_us": 100_000}, id="no-period"),
        pytest.param({}, {"cpuset_cpus": "1"}, {"cpuset_cpus": "0-7"}, id="no-cpus"),
        pytest.param({}, {"cpuset_mems": "1"}, {"cpuset_mems": "0"}, id="no-memory-nodes"),
        pytest.param({"cpuset_cpus": "2"}, {"cpuset_cpus": "1"}, {"cpuset_cpus": "2"}, id="other-cpus"),
        pytest.param({}, {"unified": {"memory.high": "1"}}, {"unified": {"memory.high": "max"}}, id="a-file"),
        pytest.param(
            {"unified": {"x": "1"}}, {"unified": {"x": "2"}}, {"unified": {"x": "1"}}, id="any-file"
        ),
        pytest.param({"cpu_shares": 2}, {"cpu_shares": 2}, {}, id="the-same"),
        pytest.param({"cpuset_cpus": "0,1"}, {"cpuset_cpus": "0-1"}, {}, id="the-same-cpus"),
    ],
)
def test_values_of_containers(
    requested: Mapping[str, Any], applied: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    record = owned(requested, applied)
    found = plan(Saved((POD,), (record,)), node(**applied))
    if not wanted:
        assert found.containers == ()
        return
    (container,) = found.containers
    assert container.values == Resources(**wanted)
    assert {line.target for line in found.lines} == {"shop/web/main"}
    assert {line.status for line in found.lines} == {Status.PLANNED}


@pytest.mark.parametrize(
    "applied",
    [
        pytest.param({"unified": {"strange": "1"}}, id="a-file-without-a-known-default"),
    ],
)
def test_values_that_cannot_be_taken_away(applied: Mapping[str, Any]) -> None:
    (line,) = plan(Saved((POD,), (owned({}, applied),)), node()).lines
    assert (line.status, line.new) == (Status.FAILED, None)
    assert "cannot clear one" in line.reason


@pytest.mark.parametrize("requested", [{}, {"oom_score_adj": 5}])
def test_no_update_of_a_container_carries_what_counts_at_its_creation(requested: Mapping[str, Any]) -> None:
    saved = Saved((POD,), (owned(requested, {"oom_score_adj": 9}),))
    ((line,), nothing) = (found.lines for found in (plan(saved, node()), plan(saved, with_book())))
    assert (line.status, line.reason) == (Status.FAILED, AT_CREATION)
    assert nothing == ()


def with_book() -> NodeState:
    """A node on which the score has been given back by process."""
    entries = {"oom_score_adj": Entry((), 5, 5)}
    book = Book("/kubepods/podu1/box", Level.CONTAINER, entries, {}, "boot")
    present = {"oom_score_adj": FileText("oom_score_adj", "5\n", 1)}
    return replace(node(), cgroups=(CgroupState(book, present),))


def test_a_file_gets_what_the_other_values_make_of_it() -> None:
    record = owned({"memory_limit_bytes": 4096}, {"unified": {"memory.max": "1024"}})
    record = replace(record, owners={"resources.unified[memory.max]": (Claimant("policy"),)})
    (container,) = plan(Saved((POD,), (record,)), node()).containers
    assert container.values == Resources(unified={"memory.max": "4096"})


def test_cpus_of_an_unknown_pod_cannot_be_taken_away() -> None:
    found = plan(Saved((), (owned({}, {"cpuset_cpus": "1"}),)), replace(node(), whole_lists={}))
    assert [(line.target, line.status) for line in found.lines] == [("box", Status.FAILED)]


@pytest.mark.parametrize(
    ("record", "containers"),
    [
        pytest.param(owned({}, {"cpu_shares": 2}), {}, id="gone"),
        pytest.param(
            owned({}, {"cpu_shares": 2}),
            {"box": replace(RUNNING, booked=Resources(cpu_shares=9000))},
            id="changed-by-somebody-else",
        ),
        pytest.param(
            replace(owned({}, {"cpu_shares": 2}), owners={}), {"box": RUNNING}, id="owned-by-nobody"
        ),
        pytest.param(
            replace(
                owned({}, {}),
                owners=dict.fromkeys(("labels[a]", "env[b]", "cgroup[cpu.idle]"), (Claimant("p"),)),
            ),
            {"box": RUNNING},
            id="owned-but-no-resource",
        ),
    ],
)
def test_containers_that_are_left_alone(
    record: ContainerRecord, containers: Mapping[str, ContainerRecord]
) -> None:
    assert plan(Saved((POD,), (record,)), NodeState(containers)).lines == ()


def test_a_container_without_its_owners() -> None:
    record = owned({"cpu_shares": 1024}, {"cpu_shares": 2, "cpu_quota_us": 5000})
    (container,) = plan(Saved((POD,), (record,)), node()).containers
    found = without_owners(container, frozenset({"resources.cpu_shares"}))
    assert found.owners == {"resources.cpu_quota_us": (Claimant("policy"),)}
    assert found.booked == Resources(cpu_shares=1024, cpu_quota_us=5000)
    assert found.requested == record.requested


@pytest.mark.parametrize(
    ("wanted", "original", "current", "expected"),
    [
        pytest.param(512, 1024, 512, (Status.PLANNED, 1024), id="as-the-policy-wrote-it"),
        pytest.param(512, 1024, 1024, None, id="as-it-was"),
        pytest.param(512, 512, 512, None, id="never-different"),
        pytest.param(512, 1024, 77, (Status.LEFT, None), id="changed-by-somebody-else"),
        pytest.param(512, None, 512, (Status.FAILED, None), id="not-known-before"),
    ],
)
def test_values_of_cgroups(
    wanted: Value, original: Value | None, current: Value, expected: tuple[Status, Value | None] | None
) -> None:
    found = plan(Saved(), NodeState({}, (state(wanted, original, current),)))
    assert [(line.status, line.new) for line in found.lines] == ([expected] if expected else [])
    values = {"cpu.shares": 1024} if expected and expected[0] is Status.PLANNED else {}
    assert [dict(cgroup.values) for cgroup in found.cgroups] == ([values] if expected else [])
    assert all(cgroup.raw == ({"cpu.shares": "1024\n"} if values else {}) for cgroup in found.cgroups)


def test_a_file_that_cannot_be_read() -> None:
    node = NodeState({}, (state(512, 1024, None, unreadable=frozenset({"cpu.shares"})),))
    (line,) = plan(Saved(), node).lines
    assert (line.status, line.reason) == (Status.FAILED, "the file cannot be read")


def test_a_cgroup_that_is_gone_is_skipped() -> None:
    assert plan(Saved(), NodeState({}, (state(512, 2, None),))).lines == ()


def test_a_value_that_the_runtime_brings_back_has_one_line() -> None:
    """The file of a container follows the update."""
    book = replace(state(2, None, 2).book, id="/kubepods/podu1/box", level=Level.CONTAINER)
    box = CgroupState(book, {"cpu.shares": FileText("cpu.shares", "2\n", 5)})
    saved = Saved((POD,), (owned({}, {"cpu_shares": 2}),))
    (line,) = plan(saved, replace(node(), cgroups=(box,))).lines
    assert line.field == "resources.cpu_shares"
    (line,) = plan(Saved((POD,), ()), replace(node(), cgroups=(box,))).lines
    assert line == Line("/kubepods/podu1/box", "cpu.shares", 2, 1024)


COPIES = {"cpuset.cpus": "0-1"}


@pytest.mark.parametrize(
    ("kept", "copies", "expected"),
    [
        pytest.param({"cpu.idle": Status.FAILED}, {}, {"cpu.idle": Entry((), 1)}, id="one"),
        pytest.param({"cpu.idle": Status.LEFT}, {}, {"cpu.idle": Entry((), 1)}, id="changed-since"),
        pytest.param({}, {}, None, id="none"),
        pytest.param({}, COPIES, {"cpuset.cpus": Entry((), "0-1")}, id="a-copy"),
        pytest.param({"cpuset.cpus": Status.LEFT}, COPIES, {"cpuset.cpus": Entry((), "0-1")}, id="as-above"),
        pytest.param(
            {"cpuset.cpus": Status.FAILED}, COPIES, {"cpuset.cpus": Entry((), "1")}, id="not-written"
        ),
    ],
)
def test_what_the_next_attempt_has_to_know(
    kept: Mapping[str, Status], copies: Mapping[str, Value], expected: Mapping[str, Entry] | None
) -> None:
    entries = {"cpu.shares": Entry((), 2), "cpu.idle": Entry((), 1), "cpuset.cpus": Entry((), "1")}
    found = kept_book(Book("/a", Level.POD, entries), kept, copies)
    assert (found.entries if found else None) == expected


def test_containers_come_first() -> None:
    saved = Saved((POD,), (owned({}, {"cpu_shares": 2}),))
    found = plan(saved, replace(node(), cgroups=(state(512, 2, 512, cgroup="/a"),)))
    assert found.lines == (
        Line("shop/web/main", "resources.cpu_shares", 2, 1024),
        Line("/a", "cpu.shares", 512, 2),
    )
