"""Audit entries about answers for what runs: what policies in dry-run would change, and what cannot be used.

Used in the event loop's thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeAlias

from runtimeproxy.hooks.audit import AuditEntry, AuditKind, AuditSink, Subject
from runtimeproxy.hooks.decision import Decision, evaluation_of
from runtimeproxy.hooks.fields import CGROUP, View, pod_of
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.hooks.views import ContainerView

MOST_ENTRIES: Final = 100
"""About single values, of one change; the others are counted."""

MOST_IN_CALLS: Final = 1_000
"""Pods whose sandbox is being made, or never was; many times those of a node."""

_TOLD: Final = frozenset({AuditKind.WOULD_CHANGE, AuditKind.LEFT_OUT})
_WITHOUT_ANSWER: Final = frozenset({AuditKind.FAILED, AuditKind.INVALID, AuditKind.OFF})

_SUM: Final = Hook.EVALUATE_POD

_Subject: TypeAlias = tuple[str, str, str]
"""Uid of the pod, name of the container, and the QoS class or the node."""
Look: TypeAlias = Callable[[str, Mapping[str, str]], Awaitable[Mapping[str, tuple[str, bool]]]]
_Answer: TypeAlias = tuple[str, str, AuditKind]
"""Policy, field, or the reason if it is about none, and kind."""


class AnswerAudit:
    """Makes an entry where an answer differs from the last one that an entry told, in calls too.

    Of a file that holds the value already there is none.

    Args:
        look: Reads the present value of parameters of a cgroup, and whether it is the given one.
        would_change: Takes entries about policies in dry-run.
        left_out: Takes entries about answers that cannot be used.
    """

    def __init__(
        self,
        would_change: AuditSink,
        left_out: AuditSink,
        look: Look,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._look = look
        self._sinks = {AuditKind.WOULD_CHANGE: would_change, AuditKind.LEFT_OUT: left_out}
        self._now_s = clock
        self._told: dict[_Subject, dict[_Answer, str]] = {}
        # Uids of pods that calls have told of since the last `keep` that had them; oldest first.
        self._in_calls: dict[str, None] = {}
        self._entries = 0
        self._more = Counter[tuple[AuditKind, str, Mode]]()

    def on_entry(self, entry: AuditEntry) -> None:
        """Takes an entry that another one made, such as about the creation."""
        if entry.kind in _TOLD:
            subject = entry.pod_uid, entry.container, entry.target
            self._told.setdefault(subject, {})[_answer(entry)] = entry.new
            self._in_calls[entry.pod_uid] = None
            if len(self._in_calls) > MOST_IN_CALLS:
                del self._in_calls[next(iter(self._in_calls))]

    async def add(self, decisions: Iterable[tuple[Decision, str]]) -> None:
        """Takes decisions on what runs, each with the cgroup that it is about; empty if that is not known."""
        for decision, cgroup in decisions:
            subject = _subject(decision.view)
            before = self._told.get(subject, {})
            if not decision.audit and not before:
                continue
            found = {_answer(each): each for each in decision.audit if each.kind in _TOLD}
            changed = [entry for answer, entry in found.items() if before.get(answer) != entry.new]
            # A policy without an answer has not changed it.
            silent = {each.policy for each in decision.audit if each.kind in _WITHOUT_ANSWER}
            kept = {answer: new for answer, new in before.items() if answer[0] in silent}
            if told := kept | {answer: entry.new for answer, entry in found.items()}:
                self._told[subject] = told
            else:
                self._told.pop(subject, None)
            for entry in await self._with_old(changed, cgroup):
                self._tell(entry)

    async def _with_old(self, entries: Iterable[AuditEntry], cgroup: str) -> list[AuditEntry]:
        """The entries with the values of the files; without those that change nothing."""
        # Policies may want different values of one file, or have answers that cannot be used.
        wanted: dict[str, dict[str, str]] = {}
        for each in entries:
            is_asked = bool(cgroup) and each.kind is AuditKind.WOULD_CHANGE and not each.old
            if is_asked and (name := _parameter(each)):
                wanted.setdefault(each.policy, {})[name] = each.new
        present = {policy: await self._look(cgroup, values) for policy, values in wanted.items()}
        found = []
        for each in entries:
            of_policy = present.get(each.policy, {}) if each.kind is AuditKind.WOULD_CHANGE else {}
            old, is_same = of_policy.get(_parameter(each), (each.old, False))
            if not is_same:
                found.append(each._replace(old=old))
        return found

    def keep(self, uids: Collection[str]) -> None:
        """Forgets all pods but these, and those whose sandbox is being made: they are no records yet."""
        for uid in uids:
            self._in_calls.pop(uid, None)
        for subject in [each for each in self._told if each[0] and each[0] not in uids]:
            if subject[0] not in self._in_calls:
                del self._told[subject]

    def close(self) -> None:
        """Ends a change: makes entries about values that had none of their own."""
        time_s = self._now_s()
        for (kind, policy, mode), count in self._more.items():
            entry = AuditEntry(time_s, _SUM, kind, policy, mode, "", "", "", "", target="pods")
            self._sinks[kind](entry._replace(reason=f"{count} more values of a change of many pods"))
        self._more.clear()
        self._entries = 0

    def _tell(self, entry: AuditEntry) -> None:
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            self._more[entry.kind, entry.policy, entry.mode] += 1
        else:
            self._sinks[entry.kind](entry)


def _parameter(entry: AuditEntry) -> str:
    """The cgroup parameter of an entry; empty if it is about something else."""
    group, _, key = entry.field.removesuffix("]").partition("[")
    return key if group == CGROUP else ""


def _answer(entry: AuditEntry) -> _Answer:
    return entry.policy, entry.field or entry.reason, entry.kind


def _subject(view: View) -> _Subject:
    pod = pod_of(view)
    if pod is None:
        return "", "", Subject(evaluation_of(view), view, 0.0).target
    return pod.uid, view.name if isinstance(view, ContainerView) else "", ""
