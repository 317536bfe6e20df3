import io
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from runtimeproxy import logs
from runtimeproxy.logs import FailureLog, LogHandler, format_json, format_text


def record(message: str, *args: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("proxy.part", logging.WARNING, __file__, 1, message, args, None)
    made.created = 1_700_000_000.25
    vars(made).update(fields)
    return made


def test_json_has_one_object_per_line() -> None:
    line = format_json(record("pod %s changed", "a\nb", pod="ns/name", shares=512, ratio=0.5, owner=None))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "proxy.part",
        "message": "pod a\nb changed",
        "pod": "ns/name",
        "shares": 512,
        "ratio": 0.5,
        "owner": None,
    }


def test_text_has_the_fields_behind_the_message() -> None:
    line = format_text(record("changed", pod="ns/name", reason='two "words"', empty=""))
    assert line == '2023-11-14T22:13:20.250Z WARNING changed pod=ns/name reason="two \\"words\\"" empty=""'


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ({"a": (1, float("inf"))}, {"a": [1, "inf"]}),
        (b"bytes", "b'bytes'"),
        (logging, str(logging)),
    ],
    ids=["nan", "infinity", "nested", "bytes", "object"],
)
def test_json_carries_any_value(value: object, shown: object) -> None:
    assert json.loads(format_json(record("x", field=value)))["field"] == shown


def test_a_field_does_not_replace_what_every_line_has() -> None:
    assert json.loads(format_json(record("x", level="mine")))["level_"] == "mine"


def test_text_of_others_cannot_begin_a_line_of_its_own() -> None:
    line = format_text(record("pod %s", "x\n2023 ERROR forged", name_="a\nb", changes=["a", "b"]))
    assert "\n" not in line
    assert line.endswith('name_="a\\nb" changes=["a", "b"]')


def test_long_texts_are_cut() -> None:
    entry = json.loads(format_json(record("x" * 10_000, field="y" * 10_000)))
    assert entry["message"].startswith("x" * logs.TEXT_LIMIT + "...")
    assert len(entry["field"]) < logs.TEXT_LIMIT + 50


def failing() -> logging.LogRecord:
    made = record("failed")
    try:
        int("reason")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def test_a_traceback_is_part_of_the_entry() -> None:
    assert "ValueError: invalid" in json.loads(format_json(failing()))["error"]
    first, *trace = format_text(failing()).splitlines()
    assert first.endswith("failed")
    assert trace[-1].startswith("ValueError: invalid")


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_arguments_that_cannot_be_shown_do_no_harm() -> None:
    assert "cannot be shown" in format_text(record("x %s", Unshowable()))
    assert "cannot be shown" in format_text(record("x %d", "y"))


class Gate(io.StringIO):
    """A stream whose reader does not read until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.opened = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.opened.wait(30)
        return super().write(text)


def test_a_stream_that_blocks_blocks_no_caller_and_losses_are_reported() -> None:
    stream = Gate()
    handler = LogHandler(stream, format_json, limit=5)
    handler.handle(record("first"))
    assert stream.entered.wait(30)
    for number in range(8):
        handler.handle(record("number %d", number))
    assert handler.dropped == 3
    stream.opened.set()
    handler.close()
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    messages = [entry["message"] for entry in entries]
    assert [message for message in messages if message != "log records dropped"] == [
        "first",
        *(f"number {number}" for number in range(5)),
    ]
    assert sum(entry.get("dropped", 0) for entry in entries) == 3


def test_close_does_not_wait_for_ever() -> None:
    stream = Gate()
    handler = LogHandler(stream, format_json, close_timeout_s=0.05)
    handler.handle(record("x"))
    handler.close()
    handler.handle(record("late"))
    assert handler.dropped == 1
    stream.opened.set()


def test_flush_waits_for_what_was_logged_before() -> None:
    stream = io.StringIO()
    handler = LogHandler(stream, format_json)
    handler.handle(record("x"))
    handler.flush(30)
    assert json.loads(stream.getvalue())["message"] == "x"
    handler.close()
    handler.flush(30)
    handler.close()


def test_a_stream_that_fails_is_counted() -> None:
    stream = io.StringIO()
    stream.close()
    handler = LogHandler(stream, format_json)
    handler.handle(record("x"))
    handler.flush(30)
    assert handler.dropped >= 1
    handler.close()


def test_arguments_are_taken_when_the_line_is_logged() -> None:
    stream = Gate()
    handler = LogHandler(stream, format_text)
    members = ["a"]
    handler.handle(record("members %s", members))
    members.append("b")
    stream.opened.set()
    handler.close()
    assert stream.getvalue().endswith("members ['a']\n")


class Witness:
    """A value of a field that notes which thread reads it."""

    def __init__(self) -> None:
        self.readers: list[threading.Thread] = []

    def __str__(self) -> str:
        self.readers.append(threading.current_thread())
        return "seen"


@pytest.mark.parametrize("format_record", [format_json, format_text])
def test_a_record_is_read_in_the_thread_that_logs_only(
    format_record: Callable[[logging.LogRecord], str],
) -> None:
    stream = Gate()
    handler = LogHandler(stream, format_record)
    witness = Witness()
    table = {"inner": ["before"]}
    made = record("changed", witness=witness, members=["before"], table=table)
    failure = ValueError("before")
    made.exc_info = (ValueError, failure, None)
    handler.handle(made)
    assert witness.readers == [threading.current_thread()]
    vars(made).update(members=["after"], later="after")
    table["inner"].append("after")
    failure.args = ("after",)
    stream.opened.set()
    handler.close()
    assert witness.readers == [threading.current_thread()]
    assert "before" in stream.getvalue()
    assert "after" not in stream.getvalue()


def test_threads_that_log_do_not_wait_for_each_other() -> None:
    class Slow:
        def __str__(self) -> str:
            entered.set()
            opened.wait(30)
            return "slow"

    entered, opened = threading.Event(), threading.Event()
    stream = io.StringIO()
    handler = LogHandler(stream, format_text)
    slow = threading.Thread(target=lambda: handler.handle(record("one", field=Slow())))
    slow.start()
    assert entered.wait(30)
    handler.handle(record("two"))
    handler.flush(30)
    assert stream.getvalue().endswith("two\n")
    opened.set()
    slow.join()
    handler.close()
    assert stream.getvalue().endswith("one field=slow\n")


def test_losses_are_reported_at_most_once_per_interval() -> None:
    now_s = 100.0
    stream = Gate()
    handler = LogHandler(stream, format_json, limit=0, clock=lambda: now_s)
    handler.handle(record("lost"))
    stream.opened.set()
    handler.flush(30)
    handler.handle(record("lost"))
    handler.flush(30)
    assert len(stream.getvalue().splitlines()) == 1
    handler.close()
    assert [json.loads(line)["dropped"] for line in stream.getvalue().splitlines()] == [1, 1]


def test_a_field_that_cannot_be_shown_costs_no_line() -> None:
    assert 'field="(Unshowable that cannot be shown)"' in format_text(record("x", field=Unshowable()))


def test_text_shows_the_reasons_of_tables_once_each() -> None:
    rows = [{"field": "a", "reason": "limit 500"}, {"field": "b", "reason": "limit 500"}, {"field": "c"}]
    line = format_text(record("changed", changes=rows, detail={"reason": "of one table"}))
    assert line.endswith('WARNING changed reason="limit 500"')


def test_a_deep_or_endless_chain_of_errors_is_cut() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    made = record("failed")
    made.exc_info = (ValueError, first, None)
    assert format_text(made).count("ValueError: ") == 2

    def recurse() -> None:
        recurse()

    try:
        recurse()
    except RecursionError:
        made.exc_info = sys.exc_info()
    trace = format_text(made)
    assert trace.count("in test_a_deep_or_endless_chain_of_errors_is_cut") == logs._FRAME_LIMIT
    assert trace.splitlines()[-1].startswith("RecursionError: ")


def test_a_traceback_has_causes_and_the_members_of_a_group() -> None:
    made = record("failed")
    try:
        try:
            int("reason")
        except ValueError as error:
            raise ExceptionGroup("both", [OSError("one"), KeyError("two")]) from error
    except ExceptionGroup:
        made.exc_info = sys.exc_info()
    trace = format_text(made)
    texts = (
        "ValueError: invalid",
        "which led to:",
        "ExceptionGroup: both",
        "OSError: one",
        "KeyError: 'two'",
    )
    places = [trace.index(text) for text in texts]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("level", "prefix"),
    [
        (logging.DEBUG, "<7>"),
        (logging.INFO, "<6>"),
        (logging.WARNING, "<4>"),
        (logging.ERROR, "<3>"),
        (logging.CRITICAL, "<2>"),
    ],
)
@pytest.mark.parametrize("format_record", [format_json, format_text])
def test_each_line_for_the_journal_begins_with_its_priority(
    level: int, prefix: str, format_record: Callable[[logging.LogRecord], str]
) -> None:
    made = failing()
    made.levelno = level
    lines = logs.with_priority(format_record)(made).split("\n")
    assert all(line.startswith(prefix) for line in lines)
    assert "\n".join(line.removeprefix(prefix) for line in lines) == format_record(made)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    level = logger.level
    yield logger
    for handler in [each for each in logger.handlers if isinstance(each, LogHandler)]:
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(level)


def test_configuring_again_replaces_the_handler(root: logging.Logger) -> None:
    one, other = io.StringIO(), io.StringIO()
    logs.configure("info", "json", one)
    logging.getLogger("part").info("to one")
    logs.configure("error", "text", other)
    logging.getLogger("part").info("to nobody")
    logging.getLogger("part").error("to the other")
    for handler in root.handlers:
        handler.flush()
    assert [json.loads(line)["message"] for line in one.getvalue().splitlines()] == ["to one"]
    assert other.getvalue().endswith("to the other\n")
    assert len(other.getvalue().splitlines()) == 1


def test_auto_is_text_on_a_terminal_and_json_elsewhere(root: logging.Logger) -> None:
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader) as seen:
        logs.configure("info", "auto", terminal).handle(record("on a terminal"))
        logs.configure("info", "auto", io.StringIO())
        assert seen.readline().endswith("on a terminal\n")
    handler = logs.configure("info", "auto", stream := io.StringIO())
    handler.handle(record("elsewhere"))
    handler.flush(30)
    assert json.loads(stream.getvalue())["message"] == "elsewhere"


AT_EXIT = """
import logging
from runtimeproxy import logs
logs.configure("info", "json")
for number in range(1000):
    logging.getLogger("x").info("line %d", number)
"""


def test_the_end_of_the_process_loses_no_line(tmp_path: Path) -> None:
    # Not a pipe: it holds fewer lines, and the process does not wait for a reader that is late.
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", AT_EXIT], stderr=log, check=True)
    assert [json.loads(line)["message"] for line in (tmp_path / "log").read_text().splitlines()] == [
        f"line {number}" for number in range(1000)
    ]


def test_what_a_library_reports_again_and_again_is_one_line(root: logging.Logger) -> None:
    logs.configure("info", "json", stream := io.StringIO())

    for address in range(100):
        for error in (ValueError(address), KeyError(address)):
            logging.getLogger("asyncio").error("Task at %#x: not retrieved", address, exc_info=error)
        logging.getLogger("grpc._server").error("Exception %d", address)
    for handler in root.handlers:
        handler.flush()
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [entry["message"] for entry in entries] == [
        "asyncio: Task at 0x0: not retrieved",
        "asyncio: Task at 0x0: not retrieved",
        "grpc._server: Exception 0",
    ]
    assert ["ValueError: 0" in entries[0]["error"], "KeyError: 0" in entries[1]["error"]] == [True, True]
    assert [entry["level"] for entry in entries] == ["error"] * 3


IN_THE_JOURNAL = """
import logging
from runtimeproxy import logs
logs.configure("info", "{format_name}")
logging.getLogger("x").warning("careful")
"""


@pytest.mark.parametrize(("format_name", "first"), [("json", '<4>{"time":'), ("text", "<4>20")])
def test_the_journals_stream_is_recognised(format_name: Literal["json", "text"], first: str) -> None:
    ours, journal = socket.socketpair()
    with ours, journal:
        status = os.fstat(journal.fileno())
        for stream, expected in ((f"{status.st_dev}:{status.st_ino}", first), ("1:1", first[3:])):
            subprocess.run(
                [sys.executable, "-c", IN_THE_JOURNAL.format(format_name=format_name)],
                stderr=journal.fileno(),
                env={**os.environ, "JOURNAL_STREAM": stream},
                check=True,
            )
            assert ours.recv(65_536).decode().startswith(expected)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_failure_is_logged_once_per_cause_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = FailureLog(60, clock)
    assert failures.report("p", "cause", "text")
    assert [failures.report("p", "cause", "text") for _ in range(4)] == [False] * 4
    failures.report("p", "other cause", "other text")
    failures.report("q", "cause", "text")
    assert caplog.messages == ["p: text", "p: other text", "q: text"]
    clock.now_s = 60
    failures.report("p", "cause", "text")
    assert caplog.messages[-1] == "p: text (4 more times since the last report)"


def test_what_was_suppressed_is_logged_when_the_cause_does_not_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    failures = FailureLog(60, clock)
    for _ in range(3):
        failures.report("p", "cause", "text")
    failures.report("p", "once", "other text")
    failures.flush()
    assert len(caplog.messages) == 2
    clock.now_s = 60
    failures.flush()
    failures.flush()
    assert caplog.messages[2:] == ["p: text (2 more times since the last report)"]


def test_causes_are_bounded_and_the_oldest_go_first(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(60, Clock(), limit=2)
    for cause in ("a", "b", "c", "a", "c"):
        failures.report("p", cause, cause)
    assert caplog.messages == ["p: a", "p: b", "p: c", "p: a"]
    assert len(failures) == 2


def test_of_a_long_failure_only_its_beginning_is_kept() -> None:
    failures = FailureLog(60, Clock())
    for end in "ab":
        failures.report("hook server", "x" * 100_000 + end, "y" * 1_000_000)
    assert len(failures) == 1
    (cause,) = failures._causes
    assert len(repr(cause)) + len(failures._causes[cause].text) < 3 * logs.TEXT_LIMIT


def test_a_failure_may_be_reported_in_the_middle_of_another_one() -> None:
    """The collector runs within any statement, and what it finalizes may log."""
    failures = FailureLog(60, Clock())

    class Collected:
        def __hash__(self) -> int:
            if not len(failures):
                failures.report("task", "never awaited", "a task was destroyed")
            return 1

    reporting = threading.Thread(target=failures.report, args=("other", Collected(), "text"), daemon=True)
    reporting.start()
    reporting.join(30)
    assert len(failures) == 2


def test_a_failure_has_its_level_fields_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    output = logging.getLogger("runtimeproxy.elsewhere")
    error = ValueError("why")
    FailureLog(output=output).report("p", 1, "text", level=logging.ERROR, error=error, pod="web")
    (record,) = caplog.records
    assert (record.name, record.levelno, vars(record)["pod"]) == (output.name, logging.ERROR, "web")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_all_failure_logs_are_flushed_together(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    one, other = FailureLog(60, clock), FailureLog(60, clock)
    for failures in (one, other, one, other, other):
        failures.report("policy", "hung", "hung")

    def flushed() -> list[str]:
        caplog.clear()
        logs.flush_failures()
        # Logs of other tests may still be there.
        return sorted(each for each in caplog.messages if each.startswith("policy: hung"))

    assert caplog.messages == ["policy: hung", "policy: hung"]
    assert flushed() == []
    clock.now_s = 60
    assert flushed() == [
        "policy: hung (1 more times since the last report)",
        "policy: hung (2 more times since the last report)",
    ]


@pytest.mark.parametrize(
    "character", ["\x1b", "\x7f", "\x80", "\x85", "\x9b", "\x9f", "\u202e", "\u2066", "\u200f"]
)
def test_no_character_that_a_terminal_obeys_reaches_the_log(character: str) -> None:
    record = logging.makeLogRecord({"msg": f"a{character}b", "levelno": logging.INFO, "levelname": "INFO"})
    record.field = f"c {character}d"
    record.rows = [f"e{character}"]
    record.table = [{"reason": f"f {character}"}]
    record.exc_info = (ValueError, ValueError(f"g{character}h"), None)
    for written in (format_text(record), format_json(record)):
        assert character not in written
        assert all(each.isprintable() or each == "\n" for each in written)
