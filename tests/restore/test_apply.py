"""What is on the node, and how it is changed: a fake runtime, and plain files in place of cgroups."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome, WriteResult
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.views import Resources
from runtimeproxy.ledger.journal import Journal, read_boot_id
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.offline import ledger_of
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.records import (
    Book,
    CgroupRecord,
    ContainerRecord,
    Entry,
    Level,
    Lifecycle,
    ManagedValue,
    Original,
    PodRecord,
)
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.restore.command import (
    loosen,
    observe,
    restore_cgroups,
    restore_container,
    states,
)
from runtimeproxy.restore.plan import COPIED, CgroupPlan, ContainerPlan, NodeState, Status, plan
from runtimeproxy.testing import CallError, CgroupFiles, FakeRuntime, preload
from tests.ledger.claims import set_values

POD = "/kubepods/pod1"
BOX = f"{POD}/box"


@pytest.fixture
async def client(fake_runtime: FakeRuntime) -> AsyncIterator[GrpcRuntimeClient]:
    with ThreadPoolExecutor(1) as executor:
        found = GrpcRuntimeClient(ClientSettings(fake_runtime.endpoint, 10, 10), executor)
        yield found
        await found.close()


@pytest.fixture
def files(tmp_path: Path) -> CgroupFiles:
    made = CgroupFiles(tmp_path / "cgroup", version=2)
    made.make(BOX)
    return made


@pytest.fixture
def writer(files: CgroupFiles) -> CgroupWriter:
    return CgroupWriter(files.root)


def saved_containers(fake_runtime: FakeRuntime, count: int) -> tuple[ContainerRecord, ...]:
    """The containers of the runtime, whose shares belong to a policy."""
    preload(fake_runtime.state, 1, count)
    for kept in fake_runtime.state.containers.values():
        kept.resources.cpu_shares = 512
    return tuple(
        ContainerRecord(
            id=kept.id,
            pod_id=kept.sandbox_id,
            requested=Resources(cpu_shares=2),
            booked=Resources(cpu_shares=512),
            owners={"resources.cpu_shares": (Claimant("policy"),)},
        )
        for kept in fake_runtime.state.containers.values()
    )


def saved_container(fake_runtime: FakeRuntime) -> ContainerRecord:
    """The one container of the runtime."""
    (record,) = saved_containers(fake_runtime, 1)
    return record


def planned(record: ContainerRecord) -> ContainerPlan:
    """What is planned for a container that is as the checkpoint says."""
    (found,) = plan(Saved((), (record,)), NodeState({record.id: record}), CgroupWriter()).containers
    return found


async def test_what_is_there(
    fake_runtime: FakeRuntime,
    client: GrpcRuntimeClient,
    files: CgroupFiles,
    writer: CgroupWriter,
    tmp_path: Path,
) -> None:
    record = saved_container(fake_runtime)
    (files.folder(POD) / "cpuset.cpus").write_text("2-3\n")
    (files.folder(POD) / "cpu.idle").unlink()
    (files.folder(POD) / "cpu.idle").symlink_to("cpu.weight")
    values = dict.fromkeys(("cpu.shares", "cpu.bvt_warp_ns", "cpu.idle", "unknown"), ManagedValue(1, 2))
    saved = Saved(
        (PodRecord(id=record.pod_id, cgroup_parent=POD),),
        (record, ContainerRecord(id="gone", pod_id="gone", owners={"a": (Claimant("b"),)})),
        (CgroupRecord(POD, values), CgroupRecord("/gone", values), CgroupRecord("/..", values)),
    )
    found = await observe(saved, client, ledger_of(saved, tmp_path, writer), writer)
    assert found.containers.keys() == {record.id}
    assert found.containers[record.id].booked.cpu_shares == 512
    seen = {state.book.id: (set(state.present), set(state.unreadable)) for state in found.cgroups}
    assert seen == {POD: ({"cpu.shares"}, {"cpu.idle"}), "/gone": (set(), set())}
    assert found.whole_lists["cpuset.cpus"][record.pod_id] == "2-3"
    assert found.whole_lists["cpuset.cpus"]["gone"]
    assert found.whole_lists["cpuset.mems"][record.pod_id]


async def test_cpus_of_a_pod_are_those_that_it_gets_back(
    fake_runtime: FakeRuntime,
    client: GrpcRuntimeClient,
    files: CgroupFiles,
    writer: CgroupWriter,
    tmp_path: Path,
) -> None:
    record = saved_container(fake_runtime)
    (files.folder(POD) / "cpuset.cpus").write_text("2-3\n")
    (files.folder(POD) / "cpuset.mems").write_text("5\n")
    values = {"cpuset.cpus": ManagedValue("2-3", "0-7"), "cpuset.mems": ManagedValue("4", None)}
    pods = (PodRecord(id=record.pod_id, cgroup_parent=POD),)
    saved = Saved(pods, (record,), (CgroupRecord(POD, values),))
    found = await observe(saved, client, ledger_of(saved, tmp_path, writer), writer)
    assert found.whole_lists["cpuset.cpus"] == {record.pod_id: "0-7"}
    assert found.whole_lists["cpuset.mems"] == {record.pod_id: "5"}


@pytest.mark.parametrize(
    ("version", "expected"), [pytest.param(1, "0-3", id="v1"), pytest.param(2, "0-7", id="v2")]
)
async def test_cpus_of_a_pod_on_version_1_are_those_that_the_cgroups_above_have(
    fake_runtime: FakeRuntime,
    client: GrpcRuntimeClient,
    tmp_path: Path,
    version: Literal[1, 2],
    expected: str,
) -> None:
    """The runtime would refuse the whole update otherwise."""
    record = saved_container(fake_runtime)
    files = CgroupFiles(tmp_path / "cgroup", version=version)
    files.make(BOX)
    files.write("/kubepods", "cpuset.cpus", "0-3")
    writer = CgroupWriter(files.root)
    values = {"cpuset.cpus": ManagedValue("2-3", "0-7")}
    saved = Saved((PodRecord(id=record.pod_id, cgroup_parent=POD),), (record,), (CgroupRecord(POD, values),))
    found = await observe(saved, client, ledger_of(saved, tmp_path, writer), writer)
    assert found.whole_lists["cpuset.cpus"] == {record.pod_id: expected}


async def test_a_container_of_which_the_runtime_says_nothing(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient, writer: CgroupWriter, tmp_path: Path
) -> None:
    saved = Saved(containers=saved_containers(fake_runtime, 2))
    fake_runtime.on("ContainerStatus", error=CallError("INTERNAL", "no such thing"), times=1)
    found = plan(saved, await observe(saved, client, ledger_of(saved, tmp_path, writer), writer), writer)
    assert [(line.status, line.reason) for line in found.lines] == [
        (Status.FAILED, "ContainerStatus: INTERNAL: no such thing"),
        (Status.PLANNED, ""),
    ]
    (line,) = await restore_container(client, found.containers[0])
    assert line.status is Status.FAILED
    assert "UpdateContainerResources" not in fake_runtime.recorded.methods


async def test_a_container_gets_its_values(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    record = saved_container(fake_runtime)
    (line,) = await restore_container(client, planned(record))
    assert line.status is Status.RESTORED
    (call,) = (call for call in fake_runtime.recorded if call.method == "UpdateContainerResources")
    linux = api_pb2.LinuxContainerResources(cpu_shares=2)
    expected = api_pb2.UpdateContainerResourcesRequest(container_id=record.id, linux=linux)
    assert api_pb2.UpdateContainerResourcesRequest.FromString(call.raw) == expected


async def test_a_value_that_the_runtime_does_not_change(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    record = saved_container(fake_runtime)
    fake_runtime.on("UpdateContainerResources", response=api_pb2.UpdateContainerResourcesResponse())
    (line,) = await restore_container(client, planned(record))
    assert line.status is Status.FAILED
    assert "does not change it" in line.reason


@pytest.mark.parametrize("changes", [True, False], ids=["changed", "not changed"])
async def test_a_file_that_the_runtime_reports(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient, changes: bool
) -> None:
    record = saved_container(fake_runtime)
    fake_runtime.state.containers[record.id].resources.unified["memory.high"] = "4096"
    record = replace(
        record,
        booked=Resources(unified={"memory.high": "4096"}),
        owners={"resources.unified[memory.high]": (Claimant("policy"),)},
    )
    if not changes:
        fake_runtime.on("UpdateContainerResources", response=api_pb2.UpdateContainerResourcesResponse())
    (line,) = await restore_container(client, planned(record))
    assert line.status is (Status.RESTORED if changes else Status.FAILED)


async def test_a_container_that_goes_meanwhile(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    record = saved_container(fake_runtime)
    fake_runtime.state.remove_container(record.id)
    (line,) = await restore_container(client, planned(record))
    assert line.status is Status.LEFT


@pytest.mark.parametrize("refuses", [True, False], ids=["refused", "taken"])
async def test_a_container_that_ends_meanwhile(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient, refuses: bool
) -> None:
    record = saved_container(fake_runtime)
    fake_runtime.state.stop_container(record.id)
    if refuses:
        fake_runtime.on("UpdateContainerResources", error=CallError("UNKNOWN", "it does not run"))
    (line,) = await restore_container(client, planned(record))
    assert (line.status, line.reason) == (Status.LEFT, "the container has ended")


async def test_a_container_that_may_still_be_there(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    record = saved_container(fake_runtime)
    fake_runtime.on("UpdateContainerResources", error=CallError("UNKNOWN", "not now"))
    fake_runtime.on("ContainerStatus", error=CallError("UNKNOWN", "not now either"))
    (line,) = await restore_container(client, planned(record))
    assert (line.status, line.reason) == (Status.FAILED, "UpdateContainerResources: UNKNOWN: not now")


async def test_without_a_value_to_send_the_runtime_is_not_asked(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    record = replace(
        saved_container(fake_runtime),
        booked=Resources(oom_score_adj=9),
        owners={"resources.oom_score_adj": (Claimant("policy"),)},
    )
    (line,) = await restore_container(client, planned(record))
    assert line.status is Status.FAILED
    assert len(fake_runtime.recorded) == 0


def cgroup_plans(writer: CgroupWriter, folder: Path, *records: CgroupRecord) -> tuple[CgroupPlan, ...]:
    """What is planned for cgroups as they are, by the checkpoint of version 0.1."""
    saved = Saved(cgroups=records)
    node = NodeState({}, states(ledger_of(saved, folder, writer), writer))
    return plan(saved, node, writer).cgroups


def test_files_get_what_they_held(files: CgroupFiles, writer: CgroupWriter, tmp_path: Path) -> None:
    for cgroup in (POD, BOX):
        (files.folder(cgroup) / "memory.max").write_text("4096\n")
    (files.folder(POD) / "cpu.weight").write_text("20\n")
    (files.folder("/kubepods") / "cpu.weight").write_text("20\n")
    records = (
        CgroupRecord(BOX, {"memory.limit_in_bytes": ManagedValue(4096, 8192)}),
        CgroupRecord(
            POD, {"memory.limit_in_bytes": ManagedValue(4096, 8192), "cpu.shares": ManagedValue(512, 2597)}
        ),
        CgroupRecord("/gone", {"cpu.shares": ManagedValue(512, 2)}),
        CgroupRecord("/kubepods", {"cpu.shares": ManagedValue(512, None)}),
    )
    lines = restore_cgroups(writer, cgroup_plans(writer, tmp_path, *records))
    assert [(line.target, line.status) for line in lines] == [
        (BOX, Status.RESTORED),
        (POD, Status.RESTORED),
        (POD, Status.RESTORED),
        ("/kubepods", Status.FAILED),
    ]
    assert files.read(POD, "memory.max") == files.read(BOX, "memory.max") == "8192"
    assert files.read(POD, "cpu.weight") == "100"


def test_a_container_that_had_no_cpus_of_its_own_gets_every_cpu(writer: CgroupWriter, tmp_path: Path) -> None:
    """The kernel takes no empty list while processes run, and the runtime neither: its file is left alone."""
    record = ContainerRecord(
        id="box",
        pod_id="pod",
        booked=Resources(cpuset_cpus="1"),
        owners={"resources.cpuset_cpus": (Claimant("cpuset"),)},
        state=Lifecycle.RUNNING,
    )
    entries = {"cpuset.cpus": Entry((Claim(Claimant("cpuset"), Role.SET, "1"),), "1", booked="1")}
    writer.write(BOX, {"cpuset.cpus": "1"})
    saved = Saved(containers=(record,), books=(Book(BOX, Level.CONTAINER, entries, {}, read_boot_id()),))
    whole = {"cpuset.cpus": {"pod": "0-7"}}
    node = NodeState({"box": record}, states(ledger_of(saved, tmp_path, writer), writer), whole)
    found = plan(saved, node, writer)
    (container,) = found.containers
    assert container.values == Resources(cpuset_cpus="0-7")
    assert found.cgroups == ()


def test_a_killed_daemon_leaves_its_journal(files: CgroupFiles, writer: CgroupWriter, tmp_path: Path) -> None:
    before = files.read(POD, "cpu.max")
    journal = Journal(tmp_path, read_boot_id())
    set_values(Ledger(writer, journal, read_boot_id()), POD, {"cpu.cfs_quota_us": 50_000})
    assert files.read(POD, "cpu.max") != before
    os.close(journal._descriptor)
    (line,) = restore_cgroups(writer, cgroup_plans(writer, tmp_path))
    assert line.status is Status.RESTORED
    assert files.read(POD, "cpu.max") == before


def test_a_container_that_has_ended_is_not_in_the_sum_of_its_pod(
    files: CgroupFiles, writer: CgroupWriter, tmp_path: Path
) -> None:
    """The original is not known; the container was started again, and the kubelet keeps the one of before."""
    writer.write(POD, {"cpu.cfs_quota_us": 50_000})
    requested = Resources(cpu_quota_us=100_000)
    box = ContainerRecord(id="box", pod_id="pod", requested=requested, state=Lifecycle.RUNNING)
    saved = Saved(
        pods=(PodRecord(id="pod", cgroup_parent=POD),),
        containers=(replace(box, id="before", state=Lifecycle.STOPPED), box),
        cgroups=(CgroupRecord(POD, {"cpu.cfs_quota_us": ManagedValue(50_000, None)}),),
    )
    node = NodeState({}, states(ledger_of(saved, tmp_path, writer), writer))
    (line,) = restore_cgroups(writer, plan(saved, node, writer).cgroups)
    assert (line.new, line.status) == (100_000, Status.RESTORED)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        pytest.param(ManagedValue(4096, 8192), "8192", id="more"),
        pytest.param(ManagedValue(8192, 4096), "8192", id="less"),
        pytest.param(ManagedValue(8192, -1), "max", id="no-limit"),
    ],
)
def test_pods_are_loosened_before_their_containers_get_more(
    files: CgroupFiles, writer: CgroupWriter, tmp_path: Path, kept: ManagedValue, expected: str
) -> None:
    (files.folder(POD) / "memory.max").write_text(f"{kept.wanted}\n")
    record = CgroupRecord(POD, {"memory.limit_in_bytes": kept, "cpu.shares": ManagedValue(512, 2)})
    loosen(writer, cgroup_plans(writer, tmp_path, record))
    assert files.read(POD, "memory.max") == expected
    assert files.read(POD, "cpu.weight") == "100"


@pytest.mark.parametrize(
    ("name", "file", "wanted"),
    [
        pytest.param("memory.limit_in_bytes", "memory.max", 4096, id="a-number"),
        pytest.param("cpuset.cpus", "cpuset.cpus", "2-3", id="a-list"),
    ],
)
def test_a_value_that_no_file_ever_held(
    files: CgroupFiles, writer: CgroupWriter, tmp_path: Path, name: str, file: str, wanted: int | str
) -> None:
    (files.folder(POD) / file).write_text(f"{wanted}\n")
    plans = cgroup_plans(writer, tmp_path, CgroupRecord(POD, {name: ManagedValue(wanted, "nonsense")}))
    loosen(writer, plans)
    (line,) = restore_cgroups(writer, plans)
    assert line.status is Status.FAILED
    assert files.read(POD, file) == str(wanted)


def test_every_weight_comes_back(files: CgroupFiles, writer: CgroupWriter, tmp_path: Path) -> None:
    path = files.folder(POD) / "cpu.weight"
    for weight in (2, 20, 39, 99, 100, 5000, 9999, 10_000):
        path.write_text(f"{weight}\n")
        value = writer.read(POD, "cpu.shares")
        assert value is not None
        path.write_text("1\n")
        record = CgroupRecord(POD, {"cpu.shares": ManagedValue(2, value)})
        restore_cgroups(writer, cgroup_plans(writer, tmp_path, record))
        assert path.read_text() == f"{weight}\n"


def test_lists_on_version_1_are_those_of_the_cgroup_above(tmp_path: Path) -> None:
    """From the top down; an original with more than the cgroup above has now is cut."""
    files = CgroupFiles(tmp_path / "cgroup", version=1)
    files.make(BOX)
    files.write("/kubepods", "cpuset.cpus", "0-3")
    writer = CgroupWriter(files.root)
    claims = {"cpuset.cpus": Entry((Claim(Claimant("cpuset"), Role.SET, "1"),), "1")}
    for cgroup in (POD, BOX):
        files.write(cgroup, "cpuset.cpus", "1")
    original = {"cpuset.cpus": Original("0-7\n")}
    books = (
        Book(POD, Level.POD, claims, original, read_boot_id()),
        Book(BOX, Level.CONTAINER, claims, {}, read_boot_id()),
    )
    saved = Saved(books=books)
    node = NodeState({}, states(ledger_of(saved, tmp_path, writer), writer))
    lines = restore_cgroups(writer, plan(saved, node, writer).cgroups)
    assert [(line.target, line.new, line.status, line.reason) for line in lines] == [
        (POD, "0-3", Status.RESTORED, COPIED),
        (BOX, "0-3", Status.RESTORED, COPIED),
    ]
    assert [files.read(cgroup, "cpuset.cpus") for cgroup in (POD, BOX)] == ["0-3", "0-3"]


def test_a_file_that_is_still_there_is_no_cgroup_that_is_gone(
    files: CgroupFiles, writer: CgroupWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever error the kernel gives."""
    (files.folder(POD) / "cpu.weight").write_text("20\n")
    plans = cgroup_plans(writer, tmp_path, CgroupRecord(POD, {"cpu.shares": ManagedValue(512, 2)}))
    gone = WriteResult(POD, "cpu.shares", 2, WriteOutcome.MISSING, error="ENODEV: No such device")
    monkeypatch.setattr(writer, "write_levels", lambda _: (gone,))
    (line,) = restore_cgroups(writer, plans)
    assert (line.status, line.reason) == (Status.FAILED, "ENODEV: No such device")
    (files.folder(POD) / "cpu.weight").unlink()
    (line,) = restore_cgroups(writer, plans)
    assert (line.status, line.reason) == (Status.LEFT, "the cgroup is gone")
