"""The audit in the log: one line per decision that has something to tell."""

import asyncio
import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from runtimeproxy.hooks import Hook, Mode
from runtimeproxy.hooks.audit import (
    DECISIONS_A_TURN,
    LINES_A_TURN,
    AuditEntry,
    AuditKind,
    AuditLog,
    AuditQueue,
)
from runtimeproxy.logs import format_text


def entry(**changes: Any) -> AuditEntry:
    fields: dict[str, Any] = {
        "time_s": 1.0,
        "hook": Hook.PRE_CREATE_CONTAINER,
        "kind": AuditKind.CHANGED,
        "policy": "cpuset",
        "mode": Mode.ENFORCE,
        "pod_namespace": "default",
        "pod_name": "web",
        "pod_uid": "u",
        "container": "main",
        "field": "resources.cpuset_cpus",
        "old": "",
        "new": "0-3",
        "reason": "allocated",
    }
    return AuditEntry(**{**fields, **changes})


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


async def logged(caplog: pytest.LogCaptureFixture, *entries: AuditEntry) -> list[logging.LogRecord]:
    audit = AuditLog()
    for each in entries:
        audit(each)
    assert caplog.records == []
    audit.flush()
    return caplog.records


class Noticed(logging.Handler):
    """Lets a test wait for lines; raises for one at a time of `bad_s`."""

    def __init__(self) -> None:
        super().__init__()
        self.bad_s = -1.0
        self.times_s: asyncio.Queue[float] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        if record.created == self.bad_s:
            raise RuntimeError("a handler of somebody else")
        self.times_s.put_nowait(record.created)

    async def next_s(self) -> float:
        """The time of the next line."""
        async with asyncio.timeout(30):
            return await self.times_s.get()


@pytest.fixture
def noticed() -> Iterator[Noticed]:
    handler = Noticed()
    logging.getLogger("runtimeproxy.audit").addHandler(handler)
    yield handler
    logging.getLogger("runtimeproxy.audit").removeHandler(handler)


async def test_all_fields_of_one_decision_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    second = entry(policy="batch-resource", field="resources.cpu_quota_us", old="100000", new="-1")
    (record,) = await logged(caplog, entry(), second)
    assert record.message == (
        "default/web/main changed: resources.cpuset_cpus - -> 0-3 (cpuset), "
        "resources.cpu_quota_us 100000 -> -1 (batch-resource)"
    )
    about = vars(record)
    assert (about["pod"], about["container"], about["uid"]) == ("default/web", "main", "u")
    assert about["changes"][0] == {
        "field": "resources.cpuset_cpus",
        "from": "",
        "to": "0-3",
        "policy": "cpuset",
        "reason": "allocated",
    }


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"container": "side"}, id="another container"),
        pytest.param({"kind": AuditKind.WOULD_CHANGE}, id="another kind"),
        pytest.param({"pod_uid": "v"}, id="another pod"),
        pytest.param({"time_s": 2.0}, id="another call"),
        pytest.param({"hook": Hook.PRE_UPDATE_CONTAINER_RESOURCES}, id="another hook"),
    ],
)
async def test_other_decisions_have_lines_of_their_own(
    caplog: pytest.LogCaptureFixture, other: dict[str, Any]
) -> None:
    assert len(await logged(caplog, entry(), entry(**other))) == 2


async def test_a_refusal_says_why(caplog: pytest.LogCaptureFixture) -> None:
    refused = entry(kind=AuditKind.REFUSED, field="", new="", reason="no CPU is free")
    (record,) = await logged(caplog, refused)
    assert record.message == "default/web/main refused: cpuset: no CPU is free"


async def test_a_value_that_is_not_quite_the_answered_one_says_so(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = await logged(caplog, entry(note="834 is too little"))
    assert record.message == (
        "default/web/main changed: resources.cpuset_cpus - -> 0-3 (cpuset; 834 is too little)"
    )
    assert vars(record)["changes"][0]["reason"] == "allocated; 834 is too little"
    assert record.levelno == logging.INFO


async def test_what_is_left_out_is_a_warning_with_all_names(caplog: pytest.LogCaptureFixture) -> None:
    reason = "CPU 4-999 not online, only 0-3"
    left_out = entry(kind=AuditKind.LEFT_OUT, new="0-999", reason=reason, sandbox_id="s1", container_id="c1")
    (record,) = await logged(caplog, left_out)
    assert record.message == f"default/web/main left-out: resources.cpuset_cpus 0-999 (cpuset: {reason})"
    about = vars(record)
    assert (about["sandbox"], about["container_id"], about["uid"]) == ("s1", "c1", "u")
    assert record.levelno == logging.WARNING
    text = format_text(record)
    assert reason in text
    assert "uid=u" in text
    assert "sandbox=s1" in text


async def test_failed_writes_have_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    failed = [
        entry(kind=AuditKind.FAILED, field=f"cgroup[{name}]", old="1", new="2", reason="EBUSY: no")
        for name in ("cpu.shares", "cpu.idle")
    ]
    first, second = await logged(caplog, *failed)
    assert first.message == "default/web/main failed: cgroup[cpu.shares] 1 -> 2 (cpuset: EBUSY: no)"
    assert "cgroup[cpu.idle]" in second.message
    assert {first.levelno, second.levelno} == {logging.WARNING}


async def test_a_pods_line_names_no_container(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = await logged(caplog, entry(container=""))
    assert record.message.startswith("default/web changed: ")


async def test_a_line_tells_when_its_call_came(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = await logged(caplog, entry(time_s=17.25))
    assert (record.created, record.msecs) == (17.25, 250)


async def test_entries_wait_for_the_next_turn_of_the_loop_or_a_flush(
    caplog: pytest.LogCaptureFixture,
) -> None:
    audit = AuditLog()
    for time_s in (1.0, 2.0):
        audit(entry(time_s=time_s))
    assert caplog.records == []
    audit.flush()
    assert [record.created for record in caplog.records] == [1.0, 2.0]
    audit.flush()
    assert len(caplog.records) == 2


async def test_entries_are_logged_after_a_while_also_behind_a_flush(noticed: Noticed) -> None:
    audit = AuditLog()
    audit(entry(time_s=1.0))
    assert await noticed.next_s() == 1.0
    audit(entry(time_s=2.0))
    audit.flush()
    audit(entry(time_s=3.0))
    assert [await noticed.next_s(), await noticed.next_s()] == [2.0, 3.0]


async def test_many_lines_take_some_turns(noticed: Noticed) -> None:
    audit = AuditLog()
    count = 3 * LINES_A_TURN + 1
    seen: list[int] = []
    ended = asyncio.Event()

    def look() -> None:
        seen.append(noticed.times_s.qsize())
        if seen[-1] < count:
            asyncio.get_running_loop().call_soon(look)
        else:
            ended.set()

    for number in range(count):
        audit(entry(time_s=float(number)))
    look()
    async with asyncio.timeout(30):
        await ended.wait()
    assert max(later - before for before, later in pairwise(seen)) == LINES_A_TURN
    assert [await noticed.next_s() for _ in range(count)] == [float(number) for number in range(count)]


async def test_nothing_is_made_that_nobody_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    audit = AuditLog()
    audit(entry())
    audit.flush()
    assert caplog.records == []


async def test_a_handler_that_raises_costs_one_line(noticed: Noticed) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda *_: told.set())
    noticed.bad_s = 2.0
    audit = AuditLog()
    for time_s in (1.0, 2.0, 3.0):
        audit(entry(time_s=time_s))
    assert [await noticed.next_s(), await noticed.next_s()] == [1.0, 3.0]
    assert told.is_set()
    audit(entry(time_s=4.0))
    assert await noticed.next_s() == 4.0


async def test_a_handler_that_raises_at_the_end_costs_one_line(noticed: Noticed) -> None:
    noticed.bad_s = 1.0
    audit = AuditLog()
    for time_s in (1.0, 2.0):
        audit(entry(time_s=time_s))
    audit.flush()
    assert await noticed.next_s() == 2.0


async def test_readers_get_entries_in_their_order_once_the_calls_have_gone_on() -> None:
    first: list[AuditEntry] = []
    second: asyncio.Queue[AuditEntry] = asyncio.Queue()

    def raises(_: AuditEntry) -> None:
        raise ValueError("a bug in another reader")

    audit = AuditQueue((first.append, raises, second.put_nowait), gather_s=0.0)
    entries = [entry(time_s=float(number), field=field) for number in range(3) for field in "ab"]
    for each in entries:
        audit(each)
    assert first == []
    assert [await second.get() for _ in entries] == first == entries


async def test_entries_of_many_decisions_take_many_turns_of_the_loop() -> None:
    found: list[AuditEntry] = []
    audit = AuditQueue((found.append,), gather_s=0.0)
    for number in range(3 * DECISIONS_A_TURN):
        for field in "ab":
            audit(entry(time_s=float(number), field=field))
    sizes = []
    while len(found) < 6 * DECISIONS_A_TURN:
        await asyncio.sleep(0)
        sizes.append(len(found))
    steps = {after - before for before, after in pairwise([0, *sizes])}
    assert steps <= {0, 2 * DECISIONS_A_TURN}, "a decision is handed on whole"


async def test_what_is_gathered_at_the_end_is_handed_on() -> None:
    found: list[AuditEntry] = []
    audit = AuditQueue((found.append,), gather_s=3600.0)
    audit(entry())
    audit.flush()
    assert found == [entry()]
