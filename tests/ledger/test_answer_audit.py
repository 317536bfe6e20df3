"""Audit entries about answers for what runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runtimeproxy.hooks import Hook, Mode
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import Merged
from runtimeproxy.hooks.views import PodView
from runtimeproxy.ledger.answer_audit import MOST_ENTRIES, MOST_IN_CALLS, AnswerAudit

FIELD = "cgroup[cpu.shares]"


def entry(new: str, kind: AuditKind = AuditKind.WOULD_CHANGE, uid: str = "u", **more: Any) -> AuditEntry:
    return AuditEntry(
        1.0, Hook.EVALUATE_POD, kind, "p", Mode.DRY_RUN, "default", "web", uid, "", field=FIELD, new=new
    )._replace(**more)


class Told:
    """What was told, and files that hold what a test says."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []
        self.files: dict[str, tuple[str, bool]] = {}
        self.compare: Callable[[str], tuple[str, bool]] | None = None
        self.audit = AnswerAudit(self.entries.append, self.entries.append, self._look)

    async def _look(self, cgroup: str, values: Mapping[str, str]) -> Mapping[str, tuple[str, bool]]:
        assert cgroup == "/kubepods/web"
        if self.compare is not None:
            return {name: self.compare(new) for name, new in values.items()}
        return {name: each for name, each in self.files.items() if name in values}

    async def evaluate(self, *entries: AuditEntry, uid: str = "u") -> list[tuple[str, str, str]]:
        """The entries that a decision on a pod leads to."""
        self.entries.clear()
        view = PodView(uid=uid, name="web")
        decision = Decision(hook=Hook.EVALUATE_POD, merged=Merged(view), audit=entries)
        await self.audit.add([(decision, "/kubepods/web")])
        return [(str(each.kind), each.old, each.new) for each in self.entries]


async def test_only_another_answer_is_told() -> None:
    told = Told()
    assert await told.evaluate(entry("1")) == [("would-change", "", "1")]
    assert await told.evaluate(entry("1")) == []
    assert await told.evaluate(entry("2")) == [("would-change", "", "2")]
    assert await told.evaluate() == []
    assert await told.evaluate(entry("2")) == [("would-change", "", "2")], "it had ended"
    assert await told.evaluate(entry("2"), uid="other") == [("would-change", "", "2")]


async def test_what_a_call_told_is_known() -> None:
    told = Told()
    told.audit.on_entry(entry("1"))
    told.audit.on_entry(entry("7", AuditKind.CHANGED, uid="x"))
    assert await told.evaluate(entry("1")) == []
    # Its sandbox is still being made.
    told.audit.keep(())
    assert await told.evaluate(entry("1")) == []
    told.audit.keep(("u",))
    told.audit.keep(())
    assert await told.evaluate(entry("1")) == [("would-change", "", "1")]


async def test_pods_whose_sandbox_is_never_made_are_forgotten() -> None:
    told = Told()
    for number in range(MOST_IN_CALLS + 1):
        told.audit.on_entry(entry("1", uid=f"u-{number}"))
    told.audit.keep(())
    assert await told.evaluate(entry("1"), uid="u-0") == [("would-change", "", "1")]
    assert await told.evaluate(entry("1"), uid="u-1") == []


async def test_a_policy_that_fails_has_not_changed_its_answer() -> None:
    told = Told()
    await told.evaluate(entry("1"))
    assert await told.evaluate(entry("", AuditKind.FAILED, field="")) == []
    assert await told.evaluate(entry("1")) == []


async def test_the_file_has_the_old_value_or_the_new_one_already() -> None:
    told = Told()
    told.files = {"cpu.shares": ("0", False)}
    assert await told.evaluate(entry("1")) == [("would-change", "0", "1")]
    told.files = {"cpu.shares": ("2", True)}
    assert await told.evaluate(entry("2")) == []
    # Its value is known from the request.
    assert await told.evaluate(entry("3", old="9")) == [("would-change", "9", "3")]


async def test_policies_with_different_answers_about_one_file() -> None:
    told = Told()
    told.compare = lambda new: ("0", new == "0")
    left_out = entry("9", AuditKind.LEFT_OUT, policy="q", reason="is not in -1 to 2")
    found = await told.evaluate(entry("1"), entry("0", policy="r"), left_out)
    assert found == [("would-change", "0", "1"), ("left-out", "", "9")]
    assert await told.evaluate(entry("1"), entry("2", policy="r"), left_out) == [("would-change", "0", "2")]


async def test_answers_that_cannot_be_used() -> None:
    told = Told()
    left_out = entry("9", AuditKind.LEFT_OUT, reason="is not in -1 to 2")
    problem = entry("", AuditKind.LEFT_OUT, field="", reason="annotation x is no number")
    assert await told.evaluate(left_out, problem) == [("left-out", "", "9"), ("left-out", "", "")]
    assert await told.evaluate(left_out, problem) == []


async def test_a_change_of_many_pods_is_summed_up() -> None:
    told = Told()
    entries = []
    for number in range(MOST_ENTRIES + 3):
        await told.evaluate(entry("1", uid=str(number)), uid=str(number))
        entries += told.entries
    assert len(entries) == MOST_ENTRIES
    told.entries.clear()
    told.audit.close()
    (more,) = told.entries
    assert (more.kind, more.policy, more.target) == (AuditKind.WOULD_CHANGE, "p", "pods")
    assert more.reason == "3 more values of a change of many pods"
    assert await told.evaluate(entry("2")) == [("would-change", "", "2")]
