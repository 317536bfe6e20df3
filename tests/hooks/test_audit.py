"""Values in audit entries, also after the writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.hooks import (
    CLEAR,
    ContainerChange,
    ContainerView,
    DeviceSpec,
    Hook,
    MountSpec,
    Policy,
)
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, Subject, WrittenAudit, shown
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import Field, FieldUpdate, Value
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.node.snapshot import Node
from tests.hooks.asking import decide


@pytest.mark.parametrize(
    ("group", "value", "text"),
    [
        ("resources", 512, "512"),
        ("resources", None, ""),
        ("annotations", CLEAR, ""),
        ("annotations", "x" * 300, "x" * 256 + "..."),
        ("env", "hunter2", "<set>"),
        ("env", b"hunter2", "<set>"),
        ("env", CLEAR, ""),
        ("mounts", MountSpec(host_path="/h", container_path="/c"), "/h:/c:ro"),
        ("mounts", MountSpec(host_path="/h", container_path="/c", readonly=False), "/h:/c:rw"),
        ("devices", DeviceSpec(host_path="/dev/a", container_path="/dev/b"), "/dev/a:/dev/b:rwm"),
    ],
)
def test_values_are_shown_without_secrets(group: str, value: Value, text: str) -> None:
    assert shown(Field(group, "key"), value) == text


def test_long_names_and_reasons_are_cut() -> None:
    """A hook server may answer with names and values of 4 MiB, and each line has them several times."""
    update = FieldUpdate(Field("annotations", "k" * 5_000_000), None, "v")
    subject = Subject(Hook.PRE_CREATE_CONTAINER, ContainerView(), 0.0)
    entry = subject.entry(AuditKind.CHANGED, "a", "r" * 5_000_000, update)
    assert entry.field.startswith("annotations[kkk")
    assert entry.reason.startswith("rrr")
    assert len(entry.field) < 300
    assert len(entry.reason) < 1_100


class Shares(Policy):
    name = "shares"

    def container(self, container: ContainerView, node: Node) -> ContainerChange:
        return ContainerChange(cgroup={"cpu.shares": 512, "cpu.bvt_warp_ns": -1}, reason="why")


@pytest.fixture
async def decision() -> Decision:
    workers = Workers(1)
    chain = Chain([bind(Shares(), PolicySettings())], workers)
    made = await decide(chain, Hook.PRE_UPDATE_CONTAINER_RESOURCES)
    workers.close()
    return made


def result(
    outcome: WriteOutcome = WriteOutcome.WRITTEN, error: str = "", *, old: int | None = None
) -> WriteResult:
    return WriteResult("/pod", "cpu.shares", 512, outcome, old, error)


def after(decision: Decision, written: dict[str, WriteResult]) -> Decision:
    return replace(decision, audit=WrittenAudit(decision.audit, decision.owners, written))


def told(decision: Decision) -> dict[str, tuple[AuditKind, str, str]]:
    return {entry.field: (entry.kind, entry.old, entry.reason) for entry in decision.audit}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (result(old=0), (AuditKind.CHANGED, "0", "why")),
        (
            result(WriteOutcome.MISSING, "ENOENT: no such file"),
            (AuditKind.LEFT_OUT, "", "ENOENT: no such file"),
        ),
        (result(WriteOutcome.FAILED, "EBUSY: no", old=0), (AuditKind.FAILED, "0", "EBUSY: no")),
        (result(WriteOutcome.PENDING), (AuditKind.PENDING, "", "why")),
    ],
)
def test_changed_is_only_what_was_written(
    decision: Decision, written: WriteResult, expected: tuple[AuditKind, str, str]
) -> None:
    made = after(decision, {"cpu.shares": result(old=2), "cpu.bvt_warp_ns": written})
    assert told(made) == {
        "cgroup[cpu.shares]": (AuditKind.CHANGED, "2", "why"),
        "cgroup[cpu.bvt_warp_ns]": expected,
    }


def test_a_value_that_another_policy_replaced_was_not_written(decision: Decision) -> None:
    owners = dict.fromkeys(decision.owners, (Claimant("somebody-else"),))
    written = {"cpu.shares": result(old=2)}
    assert told(after(replace(decision, owners=owners), written)).keys() == {"cgroup[cpu.bvt_warp_ns]"}


def test_a_value_that_several_policies_lead_to_was_written_for_each(decision: Decision) -> None:
    both = Claimant("a.json", ClaimantKind.SERVER), Claimant("shares")
    owners = dict.fromkeys(decision.owners, both)
    written = {"cpu.shares": result(WriteOutcome.FAILED, "EBUSY: no"), "cpu.bvt_warp_ns": result(old=0)}
    assert told(after(replace(decision, owners=owners), written)) == {
        "cgroup[cpu.shares]": (AuditKind.FAILED, "", "EBUSY: no"),
        "cgroup[cpu.bvt_warp_ns]": (AuditKind.CHANGED, "0", "why"),
    }


def test_what_a_file_held_already_is_no_change(decision: Decision) -> None:
    written = {"cpu.shares": result(WriteOutcome.UNCHANGED, old=512), "cpu.bvt_warp_ns": result(old=0)}
    assert told(after(decision, written)).keys() == {"cgroup[cpu.bvt_warp_ns]"}


def test_what_the_writer_does_not_tell_stays(decision: Decision) -> None:
    assert after(decision, {}).audit == decision.audit
    assert after(decision, {"memory.high": result(old=1)}).audit == decision.audit


@pytest.mark.parametrize("kind", [AuditKind.CONFLICT, AuditKind.FAILED, AuditKind.WOULD_CHANGE])
def test_other_entries_stay(decision: Decision, kind: AuditKind) -> None:
    entries: tuple[AuditEntry, ...] = tuple(_with_kind(entry, kind) for entry in decision.audit)
    other = Decision(hook=decision.hook, merged=decision.merged, audit=entries)
    assert after(other, {"cpu.shares": result(old=2)}).audit == entries


def _with_kind(entry: AuditEntry, kind: AuditKind) -> AuditEntry:
    return entry._replace(kind=kind)


async def test_the_chain_tells_what_its_writer_returns() -> None:
    workers = Workers(1)
    sink: list[AuditEntry] = []
    chain = Chain([bind(Shares(), PolicySettings())], workers, sink=sink.append)
    written = {"cpu.shares": result(old=2), "cpu.bvt_warp_ns": result(WriteOutcome.FAILED, "EBUSY: no")}
    await decide(chain, Hook.PRE_UPDATE_CONTAINER_RESOURCES, apply=lambda _: written)
    workers.close()
    assert [(entry.field, entry.old, entry.kind, entry.reason) for entry in sink] == [
        ("cgroup[cpu.shares]", "2", AuditKind.CHANGED, "why"),
        ("cgroup[cpu.bvt_warp_ns]", "", AuditKind.FAILED, "EBUSY: no"),
    ]
