"""The last audit entries on disk, and entries about modes and strategies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.core.audit import AuditQueues
from runtimeproxy.core.audit_events import (
    BY_COMMAND,
    MOST_FIELDS,
    TIME_IS_OVER,
    audit_configured_modes,
    audit_modes,
    audit_strategies,
)
from runtimeproxy.core.audit_history import FILE, AuditHistory
from runtimeproxy.hooks.audit import REMEMBERED, REMEMBERED_EVENTS, AuditEntry, AuditKind, Subject
from runtimeproxy.hooks.modes import Override, selector_of
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.views import PodView
from runtimeproxy.labels import LabelSelector
from runtimeproxy.service.parts import Parts
from runtimeproxy.slo.schema import Threshold
from runtimeproxy.slo.strategies import Layer, Provenance, Strategies
from runtimeproxy.vocabulary import Mode


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Process:
    """What one process has in memory."""

    def __init__(self, folder: Path, thread: ThreadPoolExecutor, now_s: float = 1_000.0) -> None:
        self.audit = AuditQueues((), ())
        self.modes: dict[str, Mode] = {}
        self.history = AuditHistory(
            folder, self.audit, thread, lambda: self.modes, has_file=False, clock=lambda: now_s
        )

    @property
    def told(self) -> list[tuple[str, str]]:
        self.audit.flush()
        return [(str(each.kind), each.reason) for each in self.audit.ring.entries]

    def tell(self, *reasons: str) -> None:
        for each in reasons:
            self.audit.add_event(AuditKind.START, each)

    def decide(self, number: int, time_s: float = 1_000.0) -> None:
        """Audits so many entries of one second each, about pods."""
        for each in range(number):
            pod = Subject(Hook.PRE_CREATE_CONTAINER, PodView(name=f"pod-{each}"), time_s + each)
            self.audit.decisions(pod.entry(AuditKind.CHANGED, "p", ""))


async def test_a_process_goes_on_where_the_last_one_ended(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    first = Process(tmp_path, thread)
    await first.history.load(is_successor=False)
    first.tell("one", "two")
    await first.history.save(has_ended=True)
    first.tell("too late")
    await first.history.save()
    second = Process(tmp_path, thread)
    await second.history.load(is_successor=False)
    assert second.told == [("start", "one"), ("start", "two")]
    # Failures of a policy are those of the process that runs it.
    assert second.audit.ring.last_failures == {}
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_successor", [False, True])
async def test_a_crash_is_named(tmp_path: Path, thread: ThreadPoolExecutor, is_successor: bool) -> None:
    first = Process(tmp_path, thread)
    await first.history.load(is_successor=False)
    await first.history.save(is_first=True)
    second = Process(tmp_path, thread, now_s=2_000.0)
    await second.history.load(is_successor=is_successor)
    assert [kind for kind, _ in second.told] == ([] if is_successor else ["gap"])
    if not is_successor:
        (gap,) = second.audit.ring.entries
        assert (gap.old, gap.new) == ("1970-01-01T00:16:40.000+00:00", "1970-01-01T00:33:20.000+00:00")


async def test_the_modes_of_the_configuration_are_kept(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    first = Process(tmp_path, thread)
    await first.history.load(is_successor=False)
    assert first.history.modes_before == {}
    first.modes = {"cpuset": Mode.DRY_RUN}
    await first.history.save(has_ended=True)
    # One that ends before it has loaded its policies.
    second = Process(tmp_path, thread)
    await second.history.load(is_successor=False)
    await second.history.save(has_ended=True)
    third = Process(tmp_path, thread)
    await third.history.load(is_successor=False)
    assert third.history.modes_before == {"cpuset": Mode.DRY_RUN}


async def test_only_what_is_new_is_written(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    process = Process(tmp_path, thread)
    await process.history.save()
    assert not (tmp_path / FILE).exists(), "nothing was read yet"
    await process.history.load(is_successor=False)
    process.tell("one")
    await process.history.save()
    written = (tmp_path / FILE).stat().st_ino
    await process.history.save()
    assert (tmp_path / FILE).stat().st_ino == written
    process.tell(*("more",) * (REMEMBERED_EVENTS + 1))
    process.decide(REMEMBERED + 1)
    await process.history.save()
    saved = json.loads((tmp_path / FILE).read_text())
    assert sum(len(each["changes"]) for each in saved["entries"]) == REMEMBERED + REMEMBERED_EVENTS


async def test_pods_that_come_and_go_do_not_push_events_out(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    first = Process(tmp_path, thread)
    await first.history.load(is_successor=False)
    first.tell("one")
    first.decide(2 * REMEMBERED)
    await first.history.save(has_ended=True)
    second = Process(tmp_path, thread)
    await second.history.load(is_successor=False)
    second.decide(2 * REMEMBERED, time_s=5_000.0)
    second.tell("two")
    second.audit.flush()
    assert [each.reason for each in second.audit.ring.events] == ["one", "two"]
    assert [each.time_s for each in second.audit.ring.decisions] == [
        5_500.0 + each for each in range(REMEMBERED)
    ]


async def test_from_when_on_nothing_is_missing(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    process = Process(tmp_path, thread)
    ring = process.audit.ring
    process.decide(REMEMBERED - 1)
    process.tell("later than all")
    process.audit.flush()
    assert ring.complete_from_s == 1_000.0
    process.decide(2, time_s=2_000.0)
    process.audit.flush()
    assert ring.complete_from_s == 1_001.0


async def test_an_upgrade_that_fails_is_gone_on_after(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    process = Process(tmp_path, thread)
    await process.history.load(is_successor=False)
    process.tell("one")
    await process.history.save(has_ended=True)
    await process.history.take_back()
    assert json.loads((tmp_path / FILE).read_text())["has_ended"] is False


@pytest.mark.parametrize("text", ["", "{}", '{"version":1,"has_ended":true,"time":"x","entries":[]}', "\x00"])
async def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, thread: ThreadPoolExecutor, text: str
) -> None:
    (tmp_path / FILE).write_text(text)
    process = Process(tmp_path, thread)
    await process.history.load(is_successor=False)
    assert process.told == []
    assert "audit.json is not usable: audit entries of before the start are not known" in (
        process.history.file.unusable
    )


async def test_a_full_disk_is_logged_once(
    tmp_path: Path, thread: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    process = Process(folder, thread)
    await process.history.load(is_successor=False)
    folder.write_text("not a folder")
    for reason in ("one", "two"):
        process.tell(reason)
        await process.history.save()
    assert [each.message for each in caplog.records] == [f"{process.history.problem}; a restart forgets them"]
    folder.unlink()
    await process.history.save()
    assert process.history.problem == ""
    assert (folder / FILE).exists()


def changes(audit: AuditQueues) -> list[tuple[str, str, str, str]]:
    audit.flush()
    entries: list[AuditEntry] = list(audit.ring.entries)
    return [(each.policy or each.field, each.old, each.new, each.reason) for each in entries]


WEB = selector_of(["a"], LabelSelector(match_labels={"app": "web"}))


@pytest.mark.parametrize(
    ("before", "after", "why", "told"),
    [
        pytest.param([], [], BY_COMMAND, [], id="nothing"),
        pytest.param(
            [],
            [Override("p", Mode.OFF, reason="r", until_s=0.0)],
            BY_COMMAND,
            [("p", "enforce", "off", "by command; until 1970-01-01T00:00:00+00:00; r")],
            id="for-all",
        ),
        pytest.param(
            [Override("p", Mode.OFF)],
            [Override("p", Mode.OFF), Override("p", Mode.DRY_RUN, WEB)],
            BY_COMMAND,
            [("p", "enforce", "dry-run", "by command; for pods of namespace a and app=web")],
            id="for-some",
        ),
        pytest.param(
            [Override("p", Mode.OFF)],
            [Override("p", Mode.DRY_RUN)],
            BY_COMMAND,
            [("p", "off", "dry-run", "by command")],
            id="another",
        ),
        pytest.param(
            [Override("p", Mode.OFF, until_s=0.0), Override("plugin:x", Mode.OFF)],
            [],
            TIME_IS_OVER,
            [
                ("p", "off", "enforce", f"{TIME_IS_OVER}: it ended at 1970-01-01T00:00:00+00:00"),
                ("plugin:x", "off", "", TIME_IS_OVER),
            ],
            id="ended",
        ),
    ],
)
async def test_modes(
    before: list[Override], after: list[Override], why: str, told: list[tuple[str, str, str, str]]
) -> None:
    audit = AuditQueues((), ())
    audit_modes(audit, before, after, {"p": Mode.ENFORCE}, why)
    assert changes(audit) == told


async def test_modes_of_the_configuration() -> None:
    audit = AuditQueues((), ())
    before = {"a": Mode.ENFORCE, "b": Mode.OFF}
    audit_configured_modes(audit, before, {"a": Mode.DRY_RUN, "b": Mode.OFF, "new": Mode.ENFORCE})
    assert changes(audit) == [("a", "enforce", "dry-run", "by the configuration")]


async def test_strategies() -> None:
    path, source = "threshold.cpu_suppress_threshold_percent", Provenance(Layer.CLUSTER, key="k")
    plain = Strategies()
    changed = replace(
        plain, threshold=Threshold(cpu_suppress_threshold_percent=70), provenance={path: source}
    )
    audit = AuditQueues((), ())
    audit_strategies(audit, plain, plain)
    audit_strategies(audit, plain, changed)
    audit_strategies(audit, changed, plain)
    old = str(plain.threshold.cpu_suppress_threshold_percent)
    assert changes(audit) == [
        (path, old, "70", "cluster strategy of k"),
        (path, "70", old, "default"),
    ]
    assert MOST_FIELDS < REMEMBERED


async def test_an_upgrade_names_a_process_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    audit = AuditQueues((), ())
    parts: Any = SimpleNamespace(
        front_end=SimpleNamespace(mode="proxy"),
        core=SimpleNamespace(audit=audit),
        bypass=SimpleNamespace(status=SimpleNamespace(is_on=False, cause=None)),
    )
    Parts.audit_start(parts, is_successor=True)
    audit.flush()
    (entry,) = audit.ring.entries
    assert entry.reason.endswith(f"mode proxy: it serves in place of process {before}")
