"""Running pods whose values change, on plain files: what is evaluated, what is written, and how fast."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from runtimeproxy.cgroups.pace import PIECE_S, SHARE, Pace
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteOutcome, WriteResult
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.hooks.claimants import Claimant, parse_claimant
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.hooks.views import Resources
from runtimeproxy.ledger import evaluate as module
from runtimeproxy.ledger.answers import (
    by_parameter,
    class_cgroups,
    requested_of_pod,
    resized_pod,
    with_requests,
    without_lower_limit,
)
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.change_log import MOST_LINES
from runtimeproxy.ledger.evaluate import Evaluator
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.rates import ChangeRates
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.records import Book, ContainerRecord, Entry, Level, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.testing import CgroupFiles
from tests.ledger.claims import decision_of

IMPOSSIBLE = (
    "..",
    "/",
    ".slice",
    "-.slice",
    "/kubepods/x/../../../outside",
    "/kubepods/a\nb",
    "/kubepods/a\0b",
    f"/kubepods/{'x' * 256}",
)
"""Cgroup parents that are none."""
REQUESTED = Resources(cpu_quota_us=100_000, cpu_shares=512, memory_limit_bytes=1 << 20)
CLASS = "/kubepods/besteffort"


class Refusing(CgroupWriter):
    """A kernel that refuses what is written to some cgroups."""

    refuses: Callable[[str], bool] = staticmethod(lambda cgroup: False)

    def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        refused = tuple(
            WriteResult(each.cgroup, name, value, WriteOutcome.FAILED, error="EBUSY: no")
            for level in levels
            for each in level
            if self.refuses(each.cgroup)
            for name, value in each.values.items()
        )
        left = [[each for each in level if not self.refuses(each.cgroup)] for level in levels]
        return (*refused, *super().write_levels(left))


class Scene:
    """Pods that run, and policies whose answer is data.

    Attributes:
        pod_claims: What the policies want of each pod.
        box_claims: What they want of each container.
        asked: The names of the pods, in the order in which policies were asked.
        audit: The entries of changed values.
    """

    def __init__(self, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.files = CgroupFiles(folder / "cgroup", version=2)
        self.store = PodStore()
        self.writer = Refusing(self.files.root)
        self.journal = Journal(folder / "state", "boot")
        self.ledger = Ledger(self.writer, self.journal, "boot")
        self.pod_claims: Mapping[str, tuple[Claim, ...]] = {}
        self.box_claims: Mapping[str, tuple[Claim, ...]] = {}
        self.silent: frozenset[str] = frozenset()
        self.asked: list[str] = []
        self.audit: list[AuditEntry] = []
        self.is_standby = False
        self.on_asked: Callable[[str], None] = self.asked.append
        self.evaluator = Evaluator(
            self.store,
            self.ledger,
            self._evaluate,
            lambda pod, box: f"{pod.cgroup_parent}/{box.id}",
            partial(asyncio.get_running_loop().run_in_executor, executor),
            BY_CALLS,
            lambda: self.is_standby,
            audit=self.audit.append,
        )

    def add(self, count: int, **more: object) -> None:
        for number in range(count):
            parent = f"{CLASS}/pod{number}"
            pod = PodRecord(id=f"s{number}", name=f"web{number}", namespace="shop", cgroup_parent=parent)
            self.store.pods.put(replace(pod, **more))  # type: ignore[arg-type]
            box = ContainerRecord(
                id=f"box{number}",
                pod_id=pod.id,
                name="main",
                requested=REQUESTED,
                booked=REQUESTED,
                state=Lifecycle.RUNNING,
            )
            self.store.containers.put(box)
            self.store.containers.put(replace(box, id=f"new{number}", state=Lifecycle.CREATED))
            self.files.make(f"{parent}/{box.id}")
            for cgroup in (parent, f"{parent}/{box.id}"):
                values = {"cpu.cfs_quota_us": 100_000, "memory.limit_in_bytes": 1 << 20}
                CgroupWriter(self.files.root).write(cgroup, values)

    def texts(self) -> dict[str, str]:
        return {str(path): path.read_text() for path in self.files.root.rglob("*") if path.is_file()}

    def quotas(self, name: str = "") -> list[str]:
        """The quotas of all pods, or of the containers of this name."""
        found = sorted(
            self.files.root.glob(
                f"kubepods/besteffort/pod*/{name}*/cpu.max" if name else "kubepods/besteffort/pod*/cpu.max"
            )
        )
        return [path.read_text().split()[0] for path in found]

    async def _evaluate(
        self, pod: PodRecord, containers: Sequence[ContainerRecord]
    ) -> tuple[Decision, Sequence[Decision]]:
        self.on_asked(pod.name)
        box = decision_of(self.box_claims, self.silent)
        return decision_of(self.pod_claims, self.silent), [box] * len(containers)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    with ThreadPoolExecutor(1) as executor:
        made = Scene(tmp_path, executor)
        yield made
        made.journal.close()


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(scene.evaluator.run())
    try:
        async with asyncio.timeout(30):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def quota(value: int, owner: str = "batch") -> dict[str, tuple[Claim, ...]]:
    return {"cpu.cfs_quota_us": (Claim(parse_claimant(owner), Role.SET, value, reason=f"is {owner}"),)}


async def test_running_pods_get_new_values_and_give_them_back(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.add(3)
    before = scene.texts()
    scene.pod_claims, scene.box_claims = quota(50_000), quota(40_000)
    with caplog.at_level(logging.INFO):
        await scene.evaluator.evaluate_all(["a strategy"])
    assert scene.quotas() == ["50000"] * 3
    assert scene.quotas("box") == ["40000"] * 3
    assert "policies want other values of 3 running pods: a strategy" in caplog.text
    line = next(record for record in caplog.records if "web0" in record.getMessage())
    assert line.getMessage() == (
        "changed values of pod shop/web0: cpu.cfs_quota_us 100000 -> 50000 (batch), "
        "main cpu.cfs_quota_us 100000 -> 40000 (batch)"
    )
    change = {"field": "cpu.cfs_quota_us", "from": "100000", "policy": "batch", "reason": "is batch"}
    cgroup = f"/{CLASS.strip('/')}/pod0"
    assert vars(line)["changes"] == [
        {**change, "container": "", "cgroup": cgroup, "to": "50000"},
        {**change, "container": "main", "cgroup": f"{cgroup}/box0", "to": "40000"},
    ]
    of_pod, of_box = scene.audit[:2]
    assert of_pod.time_s == of_box.time_s
    assert (of_pod.hook, of_pod.kind, of_pod.mode) == (Hook.EVALUATE_POD, AuditKind.CHANGED, Mode.ENFORCE)
    assert (of_pod.pod_namespace, of_pod.pod_name, of_pod.sandbox_id) == ("shop", "web0", "s0")
    assert (of_box.hook, of_box.pod_name, of_box.container) == (Hook.EVALUATE_CONTAINER, "web0", "main")
    assert of_box[11:16] == ("cgroup[cpu.cfs_quota_us]", "100000", "40000", "is batch", "")
    assert (of_box.policy, of_box.call, of_box.target) == ("batch", "", "")
    assert len(scene.audit) == 6
    caplog.clear()
    await scene.evaluator.evaluate_all()
    assert caplog.records == []
    assert len(scene.audit) == 6
    scene.pod_claims = scene.box_claims = {}
    with caplog.at_level(logging.INFO):
        await scene.evaluator.evaluate_all()
    assert "main cpu.cfs_quota_us 40000 -> 100000 (batch, given back)" in caplog.text
    assert {each.reason for each in scene.audit[6:]} == {"given back"}
    assert scene.texts() == before
    assert len(scene.ledger.books) == 0


@pytest.mark.parametrize("found_us", [100_000, 40_000, 70_000])
@pytest.mark.parametrize("booked_us", [100_000, 40_000])
async def test_values_of_before_without_a_book_are_given_back_once(
    scene: Scene, caplog: pytest.LogCaptureFixture, booked_us: int, found_us: int
) -> None:
    """As after version 0.1. Another program may have changed it, or it is as the kubelet requested it."""
    scene.add(1)
    record = scene.store.containers.get("box0")
    assert record is not None
    booked, owners = (
        replace(REQUESTED, cpu_quota_us=booked_us),
        {"resources.cpu_quota_us": (Claimant("batch"),)},
    )
    scene.store.containers.put(replace(record, booked=booked, owners=owners))
    CgroupWriter(scene.files.root).write(f"{CLASS}/pod0/box0", {"cpu.cfs_quota_us": found_us})
    await scene.evaluator.evaluate_all()
    is_ours = found_us == booked_us
    assert scene.quotas("box") == ["100000" if is_ours else str(found_us)]
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            await scene.evaluator.evaluate_all()
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_policy_without_an_answer_keeps_its_values(scene: Scene) -> None:
    scene.add(1)
    scene.pod_claims = quota(50_000)
    await scene.evaluator.evaluate_all()
    scene.pod_claims, scene.silent = {}, frozenset({"batch"})
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["50000"]
    scene.silent = frozenset()
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["100000"]


async def test_pods_that_are_not_asked_about(scene: Scene) -> None:
    scene.add(1, state=Lifecycle.STOPPED)
    await scene.evaluator.evaluate_all()
    assert scene.asked == []


async def test_requests_of_a_moment_are_one(scene: Scene) -> None:
    scene.add(1)
    done = asyncio.Event()
    scene.on_asked = lambda name: done.set()
    async with running(scene):
        for reason in ("a", "b", "a"):
            scene.evaluator.request(reason)
        await done.wait()
    assert scene.evaluator.rounds == 1


async def test_a_standby_leaves_everything_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 1000.0)
    scene.add(1)
    scene.is_standby = True
    async with running(scene):
        scene.evaluator.request("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (scene.asked, scene.evaluator.has_evaluated) == ([], False)
        # Its end is a request, which waits for no interval.
        scene.is_standby = False
        asked = asyncio.Event()
        scene.on_asked = lambda name: asked.set()
        scene.evaluator.request("b")
        await asked.wait()


async def test_a_bug_costs_one_evaluation(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)
    failed, done = asyncio.Event(), asyncio.Event()

    async def prepare() -> None:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError
        done.set()

    scene.evaluator._prepare = prepare
    async with running(scene):
        scene.evaluator.request("a")
        await failed.wait()
        scene.evaluator.request("a")
        await done.wait()
    assert "running pods could not be evaluated" in caplog.text


@pytest.mark.parametrize("parent", IMPOSSIBLE)
async def test_a_cgroup_that_cannot_be_is_a_problem_of_its_pod(
    scene: Scene, parent: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene.add(2)
    bad = PodRecord(id="bad", name="bad", namespace="shop", cgroup_parent=parent)
    scene.store.pods.put(bad)
    scene.pod_claims = quota(50_000)
    for _ in range(2):
        await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["50000"] * 2
    (reason,) = scene.evaluator.unevaluated.reasons.values()
    lines = [each.getMessage() for each in caplog.records if each.levelno > logging.INFO]
    assert lines == [f"pod shop/bad: cannot be evaluated, others are: {reason}"]
    assert caplog.records[-1].exc_info is None
    assert await scene.evaluator.move_off(frozenset({1}))
    await scene.evaluator.evaluate_pod("bad")
    scene.store.pods.remove("bad")
    await scene.evaluator.evaluate_all()
    assert scene.evaluator.unevaluated.reasons == {}


async def test_a_bug_that_one_pod_shows_is_a_problem_of_that_pod(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.add(3)
    scene.pod_claims = quota(50_000)

    def ask(name: str) -> None:
        if name == "web1":
            raise ZeroDivisionError("no")

    scene.on_asked = ask
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["50000", "100000", "50000"]
    assert scene.evaluator.unevaluated.reasons == {"s1": "ZeroDivisionError: no"}
    assert [each.exc_info is not None for each in caplog.records if "web1" in each.getMessage()] == [True]
    scene.on_asked = scene.asked.append
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["50000"] * 3
    assert scene.evaluator.unevaluated.reasons == {}


async def test_a_large_change_has_a_rate(scene: Scene) -> None:
    slept: list[float] = []
    now_s = [100.0]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now_s[0] += seconds

    scene.evaluator.changes._sleep, scene.evaluator.changes._now_s = sleep, lambda: now_s[0]
    scene.evaluator._pace = Pace(lambda: now_s[0])
    scene.add(20)
    scene.evaluator.changes.rates = ChangeRates(pods_per_s=4)
    scene.pod_claims = quota(50_000)
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["50000"] * 20
    assert sum(slept) == pytest.approx(19 / 4)
    slept.clear()
    scene.evaluator.changes.rates = ChangeRates(pods_per_s=4, large_percent=100)
    scene.pod_claims = quota(60_000)
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["60000"] * 20
    assert slept == []


async def test_an_evaluation_rests_after_each_piece(scene: Scene) -> None:
    slept: list[float] = []
    now_s = [100.0]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now_s[0] += seconds

    def ask(name: str) -> None:
        now_s[0] += PIECE_S / 2

    scene.evaluator._sleep, scene.on_asked = sleep, ask
    scene.evaluator._pace = Pace(lambda: now_s[0])
    scene.add(20)
    await scene.evaluator.evaluate_all()
    # The last piece ends with the evaluation.
    assert slept == pytest.approx([PIECE_S / SHARE - PIECE_S] * 9)


async def test_a_large_change_ends_when_too_much_fails(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.add(30)
    scene.evaluator.changes.rates = ChangeRates(pods_per_s=10_000)
    scene.pod_claims = quota(50_000)
    scene.writer.refuses = lambda cgroup: True
    await scene.evaluator.evaluate_all()
    assert scene.evaluator.changes.problem == "a change ended: 11 of 11 pods failed, 19 are left"
    assert "could not be changed: cpu.cfs_quota_us - -> 50000 (batch: EBUSY: no)" in caplog.text
    scene.writer.refuses = lambda cgroup: False
    await scene.evaluator.evaluate_all()
    assert scene.evaluator.changes.problem == ""
    scene.ledger.verify(set(Level))
    assert scene.quotas() == ["50000"] * 30


async def test_a_change_of_many_pods_has_a_bounded_number_of_lines(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.add(MOST_LINES + 12)
    scene.evaluator.changes.rates = ChangeRates(pods_per_s=10_000)
    scene.pod_claims, scene.box_claims = quota(50_000), quota(40_000)
    scene.writer.refuses = lambda cgroup: cgroup.endswith("pod3")
    with caplog.at_level(logging.INFO):
        await scene.evaluator.evaluate_all(["a strategy"])
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("changed values of pod ") for line in lines) == MOST_LINES
    assert lines[-1] == "changed values of 12 more pods: cpu.cfs_quota_us (batch) 24 times"
    assert sum("could not be changed" in line for line in lines) == 1
    (failed,) = (each for each in scene.audit if each.kind is AuditKind.FAILED)
    assert (failed.pod_name, failed.new, failed.reason) == ("web3", "50000", "EBUSY: no")
    changed = [each for each in scene.audit if each.kind is AuditKind.CHANGED]
    assert len({each.pod_name for each in changed if each.pod_name}) == MOST_LINES
    assert (changed[-1].policy, changed[-1].field) == ("batch", "cgroup[cpu.cfs_quota_us]")
    assert (changed[-1].target, changed[-1].reason) == ("12 more pods", "24 values of a change of many pods")
    assert [each.pod_name for each in changed].count("") == 1


async def test_one_pod_that_fails_stops_no_other(scene: Scene) -> None:
    scene.add(30)
    scene.evaluator.changes.rates = ChangeRates(pods_per_s=10_000)
    scene.pod_claims = quota(50_000)
    scene.writer.refuses = lambda cgroup: cgroup.endswith("pod3")
    await scene.evaluator.evaluate_all()
    assert sorted(scene.quotas()) == ["100000", *["50000"] * 29]


async def test_a_newer_change_takes_the_place_of_one_that_is_under_way(scene: Scene) -> None:
    scene.add(20)
    scene.pod_claims = quota(50_000)

    def refuses(cgroup: str) -> bool:
        scene.pod_claims = quota(60_000)
        scene.evaluator.request("a newer one")
        return False

    scene.writer.refuses = refuses
    await scene.evaluator.evaluate_all()
    assert sorted(scene.quotas()) == ["50000", *["60000"] * 19]
    scene.writer.refuses = lambda cgroup: False
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["60000"] * 20


async def test_a_change_that_is_withdrawn_at_once_reaches_no_more_pods(scene: Scene) -> None:
    scene.add(20)
    scene.pod_claims = quota(50_000)
    written: list[str] = []

    def refuses(cgroup: str) -> bool:
        written.append(cgroup)
        scene.pod_claims = {}
        scene.evaluator.request("withdrawn")
        return False

    scene.writer.refuses = refuses
    await scene.evaluator.evaluate_all()
    assert len(set(written)) == 1
    await scene.evaluator.evaluate_all()
    assert len(set(written)) == 1
    assert scene.quotas() == ["100000"] * 20


async def test_changes_without_an_end_reach_every_pod(scene: Scene) -> None:
    """A strategy that changes faster than its values can be written."""
    scene.add(20)
    written: list[str] = []
    values = itertools.count(50_000)

    def refuses(cgroup: str) -> bool:
        written.append(cgroup)
        scene.pod_claims = quota(next(values))
        scene.evaluator.request("the next one")
        return False

    scene.pod_claims = quota(next(values))
    scene.writer.refuses = refuses
    for _ in range(3):
        written.clear()
        await scene.evaluator.evaluate_all()
        assert len(set(scene.quotas()) - {"100000"}) == len(set(written)) == 20
    scene.writer.refuses = lambda cgroup: False
    scene.pod_claims = quota(60_000)
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["60000"] * 20


async def test_a_call_that_came_meanwhile_counts(scene: Scene) -> None:
    scene.add(2)
    scene.pod_claims = quota(50_000)

    def ask(name: str) -> None:
        if name == "web1" and not scene.asked:
            scene.asked.append(name)
            pod = scene.store.pods.get("s0")
            assert pod is not None
            scene.store.pods.put(replace(pod, labels={"a": "b"}))
            scene.pod_claims = quota(70_000)

    scene.on_asked = ask
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["70000", "70000"]


async def test_a_call_that_came_while_a_pod_was_asked_about_again_counts(scene: Scene) -> None:
    scene.add(1)

    def ask(name: str) -> None:
        scene.asked.append(name)
        scene.pod_claims = quota(40_000 + 10_000 * len(scene.asked))
        if len(scene.asked) == 1:
            scene.evaluator.request("something else")
        elif len(scene.asked) == 2:
            pod = scene.store.pods.get("s0")
            assert pod is not None
            scene.store.pods.put(replace(pod, labels={"a": "b"}))

    scene.on_asked = ask
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["70000"]


async def test_qos_classes_follow_their_pods(scene: Scene) -> None:
    scene.add(1)
    before = scene.texts()

    silent: set[str] = set()

    async def others() -> tuple[Sequence[Wanted], frozenset[str]]:
        wanted = [Wanted(CgroupTarget(Level.QOS_CLASS, CLASS), scene.pod_claims)] if scene.pod_claims else []
        return wanted, frozenset(silent)

    scene.evaluator._evaluate_others = others
    scene.pod_claims = quota(50_000)
    await scene.evaluator.evaluate_all()
    assert scene.files.read(CLASS, "cpu.max") == "50000"
    scene.pod_claims = {}
    silent.add("batch")
    await scene.evaluator.evaluate_all()
    assert scene.files.read(CLASS, "cpu.max") == "50000", "its policy has no answer yet"
    silent.clear()
    await scene.evaluator.evaluate_all()
    assert scene.texts() == before


@pytest.mark.parametrize("lowers", [False, True])
async def test_memory_limits_fall_only_if_that_is_allowed(scene: Scene, *, lowers: bool) -> None:
    scene.add(1)
    scene.evaluator.changes.rates = ChangeRates(lowers_memory=lowers)
    scene.box_claims = {"memory.limit_in_bytes": (Claim(Claimant("batch"), Role.SET, 4096),)}
    await scene.evaluator.evaluate_all()
    found = scene.files.read(f"{CLASS}/pod0/box0", "memory.max")
    assert found == ("4096" if lowers else str(1 << 20))


LIMIT = "memory.limit_in_bytes"
OLD = (Claim(Claimant("batch"), Role.SET, 8192),)


@pytest.mark.parametrize(
    ("value", "entry", "requested", "expected"),
    [
        pytest.param(4096, None, 8192, None, id="below-what-was-asked-for"),
        pytest.param(4096, None, None, None, id="below-no-limit"),
        pytest.param(16384, None, 8192, 16384, id="above-it"),
        pytest.param(-1, None, 8192, -1, id="no-limit-any-more"),
        pytest.param(4096, Entry(OLD, 8192), None, 8192, id="below-our-own"),
        pytest.param(8192, Entry(OLD, 8192), None, 8192, id="the-same"),
        pytest.param(9000, Entry(OLD, 8192), None, 9000, id="above-our-own"),
    ],
)
def test_without_lower_limit(
    value: int, entry: Entry | None, requested: int | None, expected: int | None
) -> None:
    claims = {LIMIT: (Claim(Claimant("batch"), Role.SET, value),)}
    asked = {} if requested is None else {LIMIT: requested}
    wanted = Wanted(CgroupTarget(Level.POD, "/a"), claims, asked)
    book = None if entry is None else Book("/a", Level.POD, {LIMIT: entry})
    found = without_lower_limit(wanted, book).claims.get(LIMIT)
    assert (found[0].value if found else None) == expected


def test_the_requests_of_containers_come_to_those_of_a_pod() -> None:
    def boxes(*resources: Resources) -> list[ContainerRecord]:
        return [ContainerRecord(id=str(number), requested=each) for number, each in enumerate(resources)]

    assert requested_of_pod([]) == {}
    assert requested_of_pod(boxes(REQUESTED, REQUESTED)) == {
        "cpu.cfs_quota_us": 200_000,
        "memory.limit_in_bytes": 2 << 20,
        "cpu.shares": 1024,
    }
    unlimited = {"cpu.cfs_quota_us": -1, "memory.limit_in_bytes": -1}
    assert requested_of_pod(boxes(Resources(), Resources(cpu_quota_us=-1))) == unlimited
    none = Resources(cpu_shares=2)
    assert requested_of_pod(boxes(REQUESTED, none)) == {**unlimited, "cpu.shares": 512}
    assert requested_of_pod(boxes(none, none, Resources())) == {**unlimited, "cpu.shares": 2}


@pytest.mark.parametrize(
    ("own", "containers", "wanted"),
    [
        (Resources(), [Resources(cpu_quota_us=1, cpu_shares=2)], Resources(cpu_quota_us=1, cpu_shares=2)),
        (
            Resources(),
            [Resources(cpu_quota_us=1, memory_limit_bytes=3), Resources(memory_limit_bytes=4)],
            Resources(memory_limit_bytes=7),
        ),
        (Resources(cpu_shares=5), [Resources(cpu_quota_us=1)], Resources(cpu_shares=5)),
        (Resources(), [], Resources()),
    ],
    ids=["one", "one-unlimited", "told", "none"],
)
def test_a_pod_of_which_no_resources_are_told_has_those_of_its_containers(
    own: Resources, containers: list[Resources], wanted: Resources
) -> None:
    made = [ContainerRecord(id=str(number), requested=each) for number, each in enumerate(containers)]
    pod = PodRecord(id="p", requested=own)
    assert with_requests(pod, made).requested == wanted
    # What was found may be the values of policies.
    found = [replace(each, recovered=True) for each in made]
    assert with_requests(pod, found).requested == own


@pytest.mark.parametrize(
    ("of_pod", "before", "now", "expected"),
    [
        (Resources(cpu_quota_us=100), [100], [150], Resources(cpu_quota_us=150)),
        (Resources(cpu_quota_us=100), [40, 60], [40, 30], Resources(cpu_quota_us=70)),
        (Resources(cpu_quota_us=100), [40, 60], [40, -1], Resources()),
        (Resources(), [None], [50], Resources(cpu_quota_us=50)),
        (Resources(cpu_quota_us=300), [40, 60], [40, 30], Resources(cpu_quota_us=300)),
        (Resources(cpu_quota_us=300), [], [40], Resources(cpu_quota_us=300)),
        (Resources(cpu_quota_us=300), [40, 60], [40, 290], Resources(cpu_quota_us=330)),
        (Resources(cpu_quota_us=100), [40, 60, None], [40, 90, None], Resources(cpu_quota_us=130)),
        (Resources(cpu_quota_us=100), [40, 60, None], [40, 30, None], Resources(cpu_quota_us=70)),
        (Resources(cpu_quota_us=300), [40, 60, -1], [40, 290, -1], Resources(cpu_quota_us=330)),
        (Resources(cpu_quota_us=300), [40, 60, -1], [40, 90, -1], Resources(cpu_quota_us=300)),
    ],
    ids=[
        "raised",
        "lowered",
        "unlimited",
        "limited",
        "limit of the pod",
        "first container",
        "above an init container",
        "beside an ephemeral container",
        "lowered beside one",
        "above an init container, beside one",
        "below an init container",
    ],
)
def test_a_resized_pod_has_the_sums_of_its_containers_or_its_own_limits(
    of_pod: Resources, before: list[int | None], now: list[int | None], expected: Resources
) -> None:
    pod = PodRecord(id="p", requested=of_pod, booked=of_pod)
    were, are = (
        [ContainerRecord(id="c", requested=Resources(cpu_quota_us=each)) for each in values]
        for values in (before, now)
    )
    found = resized_pod(pod, were, are)
    assert (found.requested, found.booked) == (expected, expected)


async def test_amounts_count_on_nothing_of_a_container_that_was_found_at_the_runtime(scene: Scene) -> None:
    """After a loss of the state folder its quota may be ours, and would be divided with each loss."""
    scene.add(1, recovered=True)
    box = scene.store.containers.get("box0")
    assert box is not None
    scene.store.containers.put(replace(box, recovered=True))
    scale = Claim(Claimant("normalization"), Role.SCALE, 2.0)
    scene.pod_claims = scene.box_claims = {"cpu.cfs_quota_us": (scale,)}
    await scene.evaluator.evaluate_all()
    assert (scene.quotas(), scene.quotas("box")) == (["100000"], ["100000"])
    # A resize by the kubelet says what the container has to have.
    scene.store.containers.put(replace(box, recovered=False))
    await scene.evaluator.evaluate_all()
    assert scene.quotas("box") == ["50000"]
    both = (
        scale,
        Claim(Claimant("batch"), Role.SET, 60_000),
        Claim(Claimant("suppress"), Role.AT_MOST, 25_000),
    )
    scene.pod_claims = {"cpu.cfs_quota_us": both}
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["25000"]
    scene.pod_claims = {"cpu.cfs_quota_us": (scale, both[2]._replace(value=70_000))}
    await scene.evaluator.evaluate_all()
    assert scene.quotas() == ["70000"]


def test_values_by_parameter() -> None:
    unified = {"memory.high": "4096", "memory.low": "max", "memory.min": "x", "memory.swap.max": "0"}
    resources = replace(REQUESTED, unified=unified, cpuset_cpus="0-1")
    assert by_parameter(resources) == {
        "cpu.cfs_quota_us": 100_000,
        "cpu.shares": 512,
        "memory.limit_in_bytes": 1 << 20,
        "cpuset.cpus": "0-1",
        "memory.high": 4096,
        "memory.low": -1,
        "memory.min": "x",
        "memory.swap.max": "0",
    }


GUARANTEED, BURSTABLE, BEST_EFFORT = KubeQoSClass


@pytest.mark.parametrize(
    ("path", "qos", "root"),
    [
        pytest.param("/kubepods/besteffort/podu1", BEST_EFFORT, "/kubepods", id="best-effort"),
        pytest.param("/kubepods/podu1", GUARANTEED, "/kubepods", id="guaranteed"),
        pytest.param("/kubelet/kubepods/burstable/podu1", BURSTABLE, "/kubelet/kubepods", id="nested"),
    ],
)
def test_the_cgroups_of_qos_classes(path: str, qos: KubeQoSClass, root: str) -> None:
    assert class_cgroups([(tuple(path[1:].split("/")), qos)]) == {
        GUARANTEED: root,
        BURSTABLE: f"{root}/burstable",
        BEST_EFFORT: f"{root}/besteffort",
    }


def test_the_cgroups_of_qos_classes_with_systemd() -> None:
    path = ("kubepods.slice", "kubepods-burstable.slice", "kubepods-burstable-podu1.slice")
    foreign = [
        (("podu1",), BURSTABLE),
        (("mine", "podu1"), GUARANTEED),
        (("system.slice", "podu1"), GUARANTEED),
    ]
    assert class_cgroups([*foreign, (path, BURSTABLE)]) == {
        GUARANTEED: "/kubepods.slice",
        BURSTABLE: "/kubepods.slice/kubepods-burstable.slice",
        BEST_EFFORT: "/kubepods.slice/kubepods-besteffort.slice",
    }


def test_pods_of_another_cgroup_driver_do_not_decide_where_classes_are() -> None:
    slices = ("kubepods.slice", "kubepods-besteffort.slice", "kubepods-besteffort-podu0.slice")
    others = [(("kubepods", "burstable", f"podu{number}"), BURSTABLE) for number in (1, 2)]
    for pods in ([(slices, BEST_EFFORT), *others], [*others, (slices, BEST_EFFORT)]):
        assert class_cgroups(pods)[BEST_EFFORT] == "/kubepods/besteffort"


def cpus(value: str) -> dict[str, tuple[Claim, ...]]:
    return {"cpuset.cpus": (Claim(Claimant("cpuset"), Role.SET, value),)}


def cpus_of(scene: Scene) -> list[str]:
    found = sorted(scene.files.root.glob("kubepods/besteffort/pod*/box*/cpuset.cpus"))
    return [path.read_text().strip() for path in found]


async def test_what_runs_leaves_some_cpus_at_once(scene: Scene) -> None:
    """Only pods with values there are asked, at no rate, whatever else is requested."""
    scene.add(3)
    scene.evaluator.changes.rates = ChangeRates(pods_per_s=0.001, large_percent=0)
    for number, value in enumerate(("0-3", "0-3", "4-7")):
        scene.box_claims = cpus(value)
        path = f"{CLASS}/pod{number}/box{number}"
        scene.ledger.change([Wanted(CgroupTarget(Level.CONTAINER, path), scene.box_claims)])
    scene.box_claims = cpus("0-1")
    scene.evaluator.request("the same")
    assert await scene.evaluator.move_off(frozenset({2, 3}))
    assert cpus_of(scene) == ["0-1", "0-1", "4-7"]
    assert scene.asked == ["web0", "web1"]
    # What was decided before it is evaluated again.
    assert scene.evaluator.rounds == 1
    # Nobody is there any more.
    assert await scene.evaluator.move_off(frozenset({2, 3}))
    assert scene.asked == ["web0", "web1"]


async def test_who_cannot_leave_is_told(scene: Scene) -> None:
    scene.add(2)
    scene.box_claims = cpus("0-3")
    await scene.evaluator.evaluate_all()
    scene.box_claims = cpus("0-1")
    scene.writer.refuses = lambda cgroup: "box0" in cgroup
    assert not await scene.evaluator.move_off(frozenset({2}))
    assert cpus_of(scene) == ["0-3", "0-1"]
    scene.writer.refuses = lambda cgroup: False
    assert await scene.evaluator.move_off(frozenset({2}))
    assert cpus_of(scene) == ["0-1", "0-1"]


async def test_another_process_makes_them_leave(scene: Scene) -> None:
    scene.add(1)
    scene.box_claims = cpus("0-3")
    await scene.evaluator.evaluate_all()
    scene.is_standby = True
    assert not await scene.evaluator.move_off(frozenset({2}))
