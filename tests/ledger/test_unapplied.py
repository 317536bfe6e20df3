"""Whatever is wanted and not in the kernel has a line that says why: one test for each cause."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.algebra import Claim, Resolved, Role
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, Subject
from runtimeproxy.hooks.carried import BY_CALLS, CarriedFields
from runtimeproxy.hooks.claimants import Claimant, parse_claimant
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import ANNOTATIONS, ENV, RESOURCES, Field, Merged
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.views import PodView, Resources
from runtimeproxy.ledger.answers import at_next_start, left_out, without_cgroup
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.evaluate import unknown_cgroups
from runtimeproxy.ledger.kernel_settings import KernelSettings
from runtimeproxy.ledger.rates import ChangeRates
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import Unapplied, UnappliedCause, UnappliedStage, UnappliedValues, Withheld
from runtimeproxy.ledger.unapplied_audit import INTERVAL_S, MOST_ENTRIES, UnappliedAudit
from runtimeproxy.pods.records import ContainerRecord, Level, PodRecord
from tests.ledger.test_evaluate import CLASS, Scene
from tests.ledger.test_leased import Node, first, suppress

POD, BOX = f"{CLASS}/pod0", f"{CLASS}/pod0/box0"
LIMIT, QUOTA = "memory.limit_in_bytes", "cpu.cfs_quota_us"


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    with ThreadPoolExecutor(1) as executor:
        made = Scene(tmp_path, executor)
        made.add(1)
        yield made
        made.journal.close()


def a_set(value: int | str, owner: str = "batch", priority: int = 0) -> tuple[Claim, ...]:
    return (Claim(parse_claimant(owner), Role.SET, value, priority, reason="why"),)


def causes(scene: Scene) -> dict[tuple[str, str], UnappliedCause]:
    """By cgroup and field."""
    found = scene.ledger.books.unapplied.values()
    assert all(each.reason for each in found)
    return {(each.target.cgroup, each.field): each.cause for each in found}


def only(scene: Scene) -> Unapplied:
    (found,) = scene.ledger.books.unapplied.values()
    return found


def test_each_cause_has_a_test() -> None:
    """By its name in this file."""
    named = set(re.findall(r"UnappliedCause\.([A-Z][A-Z_]+)", Path(__file__).read_text()))
    assert named == set(UnappliedCause.__members__)


async def test_what_is_in_force_has_no_line(scene: Scene) -> None:
    scene.pod_claims = scene.box_claims = {QUOTA: a_set(50_000)}
    await scene.evaluator.evaluate_all()
    assert scene.ledger.books.unapplied.values() == ()


async def test_a_lower_memory_limit_waits(scene: Scene) -> None:
    scene.pod_claims = scene.box_claims = {LIMIT: a_set(4096)}
    await scene.evaluator.evaluate_all()
    assert causes(scene) == dict.fromkeys([(POD, LIMIT), (BOX, LIMIT)], UnappliedCause.LOWER_LIMIT)
    each = scene.ledger.books.unapplied.values(POD)[0]
    assert (each.wanted, each.owners, each.target.name) == ("4096", (Claimant("batch"),), "shop/web0")
    assert "ledger.lower_memory_limits" in each.reason
    scene.evaluator.changes.rates = ChangeRates(lowers_memory=True)
    await scene.evaluator.evaluate_all()
    assert scene.ledger.books.unapplied.values() == ()


async def test_a_limit_that_is_no_longer_wanted_waits_no_more(scene: Scene) -> None:
    scene.box_claims = {LIMIT: a_set(4096)}
    await scene.evaluator.evaluate_all()
    scene.box_claims = {}
    await scene.evaluator.evaluate_all()
    assert scene.ledger.books.unapplied.values() == ()


async def test_a_limit_stays_above_what_is_in_use(scene: Scene) -> None:
    scene.evaluator.changes.rates = ChangeRates(lowers_memory=True)
    scene.box_claims = {LIMIT: a_set(4096)}
    (scene.files.folder(BOX) / "memory.current").write_text("10000\n")
    await scene.evaluator.evaluate_all()
    assert only(scene).cause is UnappliedCause.IN_USE
    assert scene.files.read(BOX, "memory.max") == "11000"
    (scene.files.folder(BOX) / "memory.current").write_text("0\n")
    scene.ledger.verify([Level.CONTAINER])
    assert scene.ledger.books.unapplied.values() == ()


async def test_the_kernel_refuses(scene: Scene) -> None:
    scene.pod_claims = {QUOTA: a_set(50_000)}
    scene.writer.refuses = lambda cgroup: cgroup == POD
    await scene.evaluator.evaluate_all()
    assert (only(scene).cause, only(scene).reason, only(scene).wanted) == (
        UnappliedCause.REFUSED,
        "EBUSY: no",
        "50000",
    )
    scene.writer.refuses = lambda cgroup: False
    scene.ledger.verify([Level.POD])
    assert scene.ledger.books.unapplied.values() == ()


async def test_the_cgroup_lacks_the_file(scene: Scene) -> None:
    scene.pod_claims = {"cpu.bvt_warp_ns": a_set(-1)}
    (scene.files.folder(POD) / "cpu.bvt_warp_ns").unlink(missing_ok=True)
    await scene.evaluator.evaluate_all()
    scene.ledger.verify([Level.POD])
    assert only(scene).cause is UnappliedCause.NO_FILE


async def test_the_cgroup_is_not_there(scene: Scene) -> None:
    scene.pod_claims = {QUOTA: a_set(50_000)}
    await scene.evaluator.evaluate_all()
    shutil.rmtree(scene.files.folder(POD))
    scene.ledger.verify([Level.POD])
    assert (only(scene).cause, only(scene).wanted) == (UnappliedCause.NO_CGROUP, "50000")
    scene.files.make(POD)
    scene.ledger.verify([Level.POD])
    assert scene.ledger.books.unapplied.values() == ()


async def test_claims_of_an_owner_do_not_count(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.leased.load(is_successor=False)
    node.is_idle = True
    await first(node, "cpu-suppress", suppress(50_000))
    (each,) = node.leased.unapplied()
    assert (each.cause, each.wanted) == (UnappliedCause.NOT_COUNTING, "at most 50000")
    assert (each.owners, "bypass" in each.reason) == ((parse_claimant("plugin:cpu-suppress"),), True)
    node.is_idle = False
    await node.pass_time(1.0)
    assert tuple(node.leased.unapplied()) == ()
    node.journal.close()


async def test_another_program_keeps_writing(scene: Scene) -> None:
    scene.pod_claims = {QUOTA: a_set(50_000)}
    await scene.evaluator.evaluate_all()
    for _ in range(3):
        (scene.files.folder(POD) / "cpu.max").write_text("70000 100000\n")
        scene.ledger.verify([Level.POD])
    assert only(scene).cause is UnappliedCause.FOREIGN
    assert "70000 100000" in only(scene).reason


async def test_koordlet_writes_it(scene: Scene) -> None:
    scene.ledger.books.observed = frozenset({"memory.high"})
    scene.pod_claims = {"memory.high": a_set(4096)}
    await scene.evaluator.evaluate_all()
    assert only(scene).cause is UnappliedCause.KOORDLET
    (scene.files.folder(POD) / "memory.high").write_text("4096\n")
    scene.ledger.verify([Level.POD])
    assert scene.ledger.books.unapplied.values() == (), "koordlet wants the same"


async def test_a_hook_servers_value_is_written_once(scene: Scene) -> None:
    target = CgroupTarget(Level.POD, POD, "shop/web0")
    wanted = Wanted(target, {"cpu.shares": a_set(512, "server:a.json")}, once=frozenset({"cpu.shares"}))
    scene.ledger.change([wanted])
    (scene.files.folder(POD) / "cpu.weight").write_text("77\n")
    scene.ledger.verify([Level.POD])
    assert only(scene).cause is UnappliedCause.ONCE


async def test_another_owner_counts(scene: Scene) -> None:
    scene.pod_claims = {QUOTA: (*a_set(50_000, "low"), *a_set(70_000, "high", 50))}
    await scene.evaluator.evaluate_all()
    each = only(scene)
    assert (each.cause, each.owners, each.wanted) == (UnappliedCause.CONFLICT, (Claimant("low"),), "50000")
    scene.pod_claims = {QUOTA: a_set(70_000, "high", 50)}
    await scene.evaluator.evaluate_all()
    assert scene.ledger.books.unapplied.values() == ()


async def test_a_value_of_another_cpu_mode(scene: Scene) -> None:
    scene.ledger.books.blocked = frozenset({"cpu.idle"})
    scene.pod_claims = {"cpu.idle": a_set(1)}
    await scene.evaluator.evaluate_all()
    assert only(scene).cause is UnappliedCause.CPU_MODE
    scene.ledger.books.blocked = frozenset()
    await scene.evaluator.evaluate_all()
    assert scene.ledger.books.unapplied.values() == ()


def test_what_the_kubelet_writes_of_a_class(scene: Scene) -> None:
    scene.ledger.change([Wanted(CgroupTarget(Level.QOS_CLASS, CLASS), {"cpu.shares": a_set(512)})])
    assert only(scene).cause is UnappliedCause.KUBELET


async def test_an_amount_on_a_request_that_is_not_known(scene: Scene) -> None:
    box = scene.store.containers.get("box0")
    assert box is not None
    scene.store.containers.put(replace(box, recovered=True))
    scene.box_claims = {QUOTA: (Claim(Claimant("normalization"), Role.SCALE, 2.0),)}
    await scene.evaluator.evaluate_all()
    assert (only(scene).cause, only(scene).wanted) == (UnappliedCause.BASE_UNKNOWN, "divided by 2.0")


@pytest.mark.parametrize("more", [{"detailed": False}, {"cgroup_parent": ""}])
async def test_the_runtime_does_not_say_which_cgroup_a_pod_has(scene: Scene, more: dict[str, object]) -> None:
    """As where its verbose status fails."""
    scene.add(1, **more)
    before = scene.texts()
    scene.pod_claims = scene.box_claims = {QUOTA: a_set(50_000)}
    await scene.evaluator.evaluate_all()
    found = {each.target.name: each for each in scene.ledger.books.unapplied.values()}
    assert found.keys() == {"shop/web0", "shop/web0/main"}
    for each in found.values():
        assert (each.field, each.cause, each.wanted) == (QUOTA, UnappliedCause.CGROUP_UNKNOWN, "50000")
        assert (each.owners, "the runtime's status" in each.reason) == ((Claimant("batch"),), True)
    assert scene.texts() == before
    scene.ledger.books.keep_unapplied((), (), unknown_cgroups(scene.store))
    assert len(scene.ledger.books.unapplied.values()) == 2
    scene.add(1)
    scene.ledger.books.keep_unapplied((), (), unknown_cgroups(scene.store))
    assert scene.ledger.books.unapplied.values() == ()


async def test_the_runtime_does_not_say_what_was_asked_for_a_container(scene: Scene) -> None:
    box = scene.store.containers.get("box0")
    assert box is not None
    scene.store.containers.put(replace(box, detailed=False, requested=Resources(), booked=Resources()))
    scene.pod_claims = scene.box_claims = {QUOTA: a_set(50_000)}
    await scene.evaluator.evaluate_all()
    assert (only(scene).target.name, only(scene).cause) == ("shop/web0/main", UnappliedCause.CGROUP_UNKNOWN)
    assert scene.quotas() == ["50000"]


def test_what_a_message_has_given_is_in_force_without_a_known_cgroup() -> None:
    fields = {
        Field("resources", "cpu_quota_us"): Resolved(50_000, (Claimant("batch"),), claims=a_set(50_000)),
        Field("resources", "cpu_shares"): Resolved(2, (Claimant("batch"),), claims=a_set(2)),
        Field("cgroup", "cpu.idle"): Resolved(1, (Claimant("batch"),), claims=a_set(1)),
    }
    decision = Decision(hook=Hook.EVALUATE_CONTAINER, merged=Merged(PodView(), fields))
    record = ContainerRecord(id="box", booked=Resources(cpu_quota_us=50_000, cpu_shares=512))
    assert without_cgroup(decision, record).keys() == {"cpu.shares", "cpu.idle"}


async def test_pods_wait_for_their_turn_until_the_change_ends(scene: Scene) -> None:
    scene.add(40)
    scene.evaluator.changes.rates = ChangeRates(pods_per_s=1000.0, failed_percent=10.0)
    scene.pod_claims = {QUOTA: a_set(50_000)}
    scene.writer.refuses = lambda cgroup: True
    seen: list[UnappliedCause] = []
    write = scene.ledger.change

    def change(wanted: object) -> object:
        seen.extend(each.cause for each in scene.ledger.books.unapplied.values())
        return write(wanted)  # type: ignore[arg-type]

    scene.ledger.change = change  # type: ignore[method-assign, assignment]
    await scene.evaluator.evaluate_all()
    assert UnappliedCause.TURN in seen
    found = list(causes(scene).values())
    assert set(found) == {UnappliedCause.REFUSED, UnappliedCause.CHANGE_ENDED}
    assert len(found) == 40
    (ended, *_) = [
        each for each in scene.ledger.books.unapplied.values() if each.cause is UnappliedCause.CHANGE_ENDED
    ]
    assert "pods failed" in ended.reason


async def test_a_file_hangs(scene: Scene) -> None:
    async def hangs(work: object) -> object:
        raise TimeoutError("earlier reads or writes of files have not ended")

    scene.evaluator._in_worker = hangs  # type: ignore[assignment]
    scene.pod_claims = {QUOTA: a_set(50_000)}
    await scene.evaluator.evaluate_all()
    assert (only(scene).cause, only(scene).reason) == (
        UnappliedCause.HANGS,
        "earlier reads or writes of files have not ended",
    )


async def test_files_that_cannot_be_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.pod_claims = {QUOTA: a_set(50_000)}
    await scene.evaluator.evaluate_all()

    def no_descriptor(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(CgroupWriter, "look", no_descriptor)
        scene.ledger.verify([Level.POD])
    assert only(scene).cause is UnappliedCause.UNREADABLE
    assert "EMFILE" in only(scene).reason
    scene.ledger.verify([Level.POD])
    assert scene.ledger.books.unapplied.values() == ()


@pytest.mark.parametrize("is_recovered", [False, True])
def test_what_only_a_creation_can_give(*, is_recovered: bool) -> None:
    fields = {
        Field(ENV, "GPU"): Resolved("0", (Claimant("gpu-env"),)),
        Field(ENV, "OLD"): Resolved("0", (Claimant("gpu-env"),)),
        Field(ANNOTATIONS, "same"): Resolved("yes", (Claimant("marks"),)),
        Field(ANNOTATIONS, "other"): Resolved("yes", (Claimant("marks"),)),
        # The record has none: that is the same as 0.
        Field(RESOURCES, "oom_score_adj"): Resolved(0, (Claimant("scores"),)),
    }
    decision = Decision(hook=Hook.EVALUATE_CONTAINER, merged=Merged(PodView(), fields))
    owners = {"env[OLD]": (Claimant("gpu-env"),), "annotations[other]": (Claimant("marks"),)}
    record = ContainerRecord(
        id="box", annotations={"same": "yes", "other": "no"}, owners=owners, recovered=is_recovered
    )
    found = at_next_start(decision, record, BY_CALLS)
    assert {name: (each.cause, each.wanted) for name, each in found.items()} == {
        "env[GPU]": (UnappliedCause.NEXT_START, "<set>"),
        "annotations[other]": (UnappliedCause.NEXT_START, "yes"),
    }
    assert found["env[GPU]"].claims[0].owner == Claimant("gpu-env")
    assert "next container" in found["env[GPU]"].reason
    # A front end whose message has annotations of containers, and no more.
    fewer = CarriedFields("test", {Hook.PRE_CREATE_CONTAINER: {ANNOTATIONS}})
    found = at_next_start(decision, record, fewer)
    assert {name: each.cause for name, each in found.items()} == {
        "env[GPU]": UnappliedCause.NOT_CARRIED,
        "annotations[other]": UnappliedCause.NEXT_START,
    }
    assert "mode test" in found["env[GPU]"].reason
    of_pod = at_next_start(decision, PodRecord(id="pod"), fewer)
    assert {each.cause for each in of_pod.values()} == {UnappliedCause.NOT_CARRIED}


@pytest.mark.parametrize(
    ("field", "is_container", "name"),
    [
        ("cgroup[cpu.idle]", False, "cpu.idle"),
        ("resources.cpu_shares", True, "cpu.shares"),
        ("resources.cpu_shares", False, "resources.cpu_shares"),
        ("resources.unified[io.max]", True, "resources.unified[io.max]"),
    ],
)
def test_what_the_node_does_not_take(field: str, name: str, *, is_container: bool) -> None:
    entry = Subject(Hook.EVALUATE_POD, PodView(), 0.0).entry(AuditKind.LEFT_OUT, "mine", "not on this node")
    off = entry._replace(kind=AuditKind.OFF)
    audit = (entry._replace(field=field, new="7"), entry, off._replace(field=field))
    decision = Decision(hook=Hook.EVALUATE_POD, merged=Merged(PodView(), {}), audit=audit)
    found = left_out(decision, is_container=is_container)
    assert {key: (each.cause, each.wanted, each.reason) for key, each in found.items()} == {
        name: (UnappliedCause.INVALID, "7", "not on this node")
    }
    assert found[name].claims[0].owner == Claimant("mine")


@pytest.mark.parametrize(
    ("prepare", "cause"),
    [
        pytest.param(lambda file: file.unlink(), UnappliedCause.NO_FILE, id="the-kernel-has-none"),
        pytest.param(lambda file: file.chmod(0o400), None, id="written"),
    ],
)
def test_sysctls(tmp_path: Path, prepare: Callable[[Path], None], cause: UnappliedCause | None) -> None:
    file = tmp_path / "sys" / "kernel" / "sched_core"
    file.parent.mkdir(parents=True)
    file.write_text("0\n")
    prepare(file)
    sysctls = KernelSettings(tmp_path / "state", "boot", tmp_path / "sys")
    sysctls.apply({"kernel.sched_core": 1})
    found = {name: each.cause for name, each in sysctls.unapplied.items()}
    assert found == ({} if cause is None else {"kernel.sched_core": cause})
    sysctls.apply({})
    assert sysctls.unapplied == {}


def test_a_sysctl_that_another_program_keeps_writing(tmp_path: Path) -> None:
    file = tmp_path / "sys" / "vm" / "x"
    file.parent.mkdir(parents=True)
    file.write_text("0\n")
    sysctls = KernelSettings(tmp_path / "state", "boot", tmp_path / "sys")
    sysctls.apply({"vm.x": 1})
    for _ in range(3):
        file.write_text("7\n")
        sysctls.verify()
    assert sysctls.unapplied["vm.x"].cause is UnappliedCause.FOREIGN


async def test_what_has_ended_is_forgotten(scene: Scene) -> None:
    scene.pod_claims = scene.box_claims = {LIMIT: a_set(4096)}
    await scene.evaluator.evaluate_all()
    scene.ledger.books.keep_unapplied([POD], ["box0"])
    assert len(scene.ledger.books.unapplied.values()) == 2
    scene.ledger.books.keep_unapplied([POD], [])
    assert only(scene).target.cgroup == POD
    scene.ledger.books.keep_unapplied([], [])
    assert scene.ledger.books.unapplied.values() == ()


# --- the audit ---------------------------------------------------------------------------------------------


def told(scene: Scene, audit: UnappliedAudit, entries: list[AuditEntry]) -> list[AuditEntry]:
    entries.clear()
    audit.add(scene.ledger.books.unapplied.take_new())
    return list(entries)


async def test_the_audit_tells_each_once(scene: Scene) -> None:
    entries: list[AuditEntry] = []
    now_s = 0.0
    audit = UnappliedAudit(entries.append, lambda: now_s)
    scene.box_claims = {LIMIT: a_set(4096)}
    await scene.evaluator.evaluate_all()
    (entry,) = told(scene, audit, entries)
    assert entry.kind is AuditKind.NOT_APPLIED
    assert (entry.pod_namespace, entry.pod_name, entry.container) == ("shop", "web0", "main")
    assert (entry.field, entry.new, entry.policy) == (f"cgroup[{LIMIT}]", "4096", "batch")
    assert (entry.note, entry.hook) == ("lower-limit", Hook.EVALUATE_CONTAINER)
    await scene.evaluator.evaluate_all()
    assert told(scene, audit, entries) == []
    for passed_s, count in ((1.0, 0), (INTERVAL_S + 1, 1)):
        now_s += passed_s
        for claims in ({}, {LIMIT: a_set(4096)}):
            scene.box_claims = claims
            await scene.evaluator.evaluate_all()
        assert len(told(scene, audit, entries)) == count


def test_the_audit_sums_up_what_is_too_much() -> None:
    entries: list[AuditEntry] = []
    values = UnappliedValues(lambda: 5.0)
    for number in range(MOST_ENTRIES + 3):
        target = CgroupTarget(Level.POD, f"/pod{number}", f"shop/web{number}")
        found = {LIMIT: Withheld(a_set(1), UnappliedCause.LOWER_LIMIT, "why")}
        values.note(UnappliedStage.ASKED, target, target.cgroup, found)
    for number in range(7):
        target = CgroupTarget(Level.POD, f"/waiting{number}", f"shop/wait{number}")
        values.note(
            UnappliedStage.ASKED,
            target,
            target.cgroup,
            {QUOTA: Withheld(a_set(1), UnappliedCause.TURN, "why")},
        )
    UnappliedAudit(entries.append).add(values.take_new())
    single = [each for each in entries if each.field]
    sums = {each.note: each.reason.split()[0] for each in entries if not each.field}
    assert len(single) == MOST_ENTRIES
    assert sums == {"lower-limit": "3", "turn": "7"}


async def test_since_when_is_kept_as_long_as_the_cause_is_the_same(scene: Scene) -> None:
    scene.box_claims = {LIMIT: a_set(4096)}
    await scene.evaluator.evaluate_all()
    since_s = only(scene).since_s
    scene.box_claims = {LIMIT: a_set(5000)}
    await asyncio.to_thread(lambda: None)
    await scene.evaluator.evaluate_all()
    assert (only(scene).wanted, only(scene).since_s) == ("5000", since_s)
