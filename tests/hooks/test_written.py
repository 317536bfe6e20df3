"""What became of cgroup values, in the audit."""

import pytest

from runtimeproxy.hooks import CgroupChange, ContainerView, Hook, Policy
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.call import Order
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.hooks.written import Written, with_written


class Shares(Policy):
    name = "shares"

    def post_start_container(self, container: ContainerView) -> CgroupChange:
        return CgroupChange(cgroup={"cpu.shares": 512, "cpu.bvt_warp_ns": -1}, reason="why")


@pytest.fixture
async def decision() -> Decision:
    workers = Workers(1)
    chain = Chain([bind(Shares(), PolicySettings())], workers)
    made = await chain.decide(Order(Hook.POST_START_CONTAINER, ContainerView(name="main"), 10))
    workers.close()
    return made


def told(decision: Decision) -> dict[str, tuple[str, str, str]]:
    return {entry.field: (entry.old, entry.new, entry.note) for entry in decision.audit}


def test_old_values_and_notes(decision: Decision) -> None:
    written = {"cpu.shares": Written("2"), "cpu.bvt_warp_ns": Written("", "ENOENT: no such file")}
    assert told(with_written(decision, written)) == {
        "cgroup[cpu.shares]": ("2", "512", ""),
        "cgroup[cpu.bvt_warp_ns]": ("", "-1", "not written: ENOENT: no such file"),
    }


def test_what_a_file_held_already_is_no_change(decision: Decision) -> None:
    written = {"cpu.shares": Written("512", is_unchanged=True), "cpu.bvt_warp_ns": Written("0")}
    assert told(with_written(decision, written)) == {"cgroup[cpu.bvt_warp_ns]": ("0", "-1", "")}


def test_what_the_writer_does_not_tell_stays(decision: Decision) -> None:
    assert with_written(decision, {}) is decision
    assert with_written(decision, {"memory.high": Written("1")}).audit == decision.audit


@pytest.mark.parametrize("kind", [AuditKind.CONFLICT, AuditKind.FAILED, AuditKind.WOULD_CHANGE])
def test_other_entries_stay(decision: Decision, kind: AuditKind) -> None:
    entries: tuple[AuditEntry, ...] = tuple(_with_kind(entry, kind) for entry in decision.audit)
    other = Decision(hook=decision.hook, fold=decision.fold, audit=entries)
    assert with_written(other, {"cpu.shares": Written("2")}).audit == entries


def _with_kind(entry: AuditEntry, kind: AuditKind) -> AuditEntry:
    return entry._replace(kind=kind)


async def test_the_chain_tells_what_its_writer_returns() -> None:
    workers = Workers(1)
    sink: list[AuditEntry] = []
    chain = Chain([bind(Shares(), PolicySettings())], workers, sink=sink.append)
    written = {"cpu.shares": Written("2"), "cpu.bvt_warp_ns": Written("", "gone")}
    await chain.decide(Order(Hook.POST_START_CONTAINER, ContainerView(), 10, lambda _: written))
    workers.close()
    assert [(entry.field, entry.old, entry.note) for entry in sink] == [
        ("cgroup[cpu.shares]", "2", ""),
        ("cgroup[cpu.bvt_warp_ns]", "", "not written: gone"),
    ]
