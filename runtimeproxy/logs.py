"""Structured logs on standard error: text on a terminal, JSON elsewhere; logging never blocks its caller.

A record is formatted in the thread that logs; the text goes through a bounded queue to a thread that writes
it. Lines that do not fit are dropped and counted. Fields come from `extra={...}`. Messages and fields must
hold no secrets; both are cut when long, so that no whole request is logged by mistake.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Final, Literal, TextIO
from weakref import WeakSet

QUEUE_LIMIT: Final = 4_096
"""Lines in the queue: some MiB at most, and seconds of a busy node."""
DROP_REPORT_INTERVAL_S: Final = 10.0
"""Between two lines that report dropped records."""
CLOSE_TIMEOUT_S: Final = 1.0
"""How long the end of the process waits for a log reader that does not read."""
TEXT_LIMIT: Final = 2_048
"""Longest message and field value, in characters."""
TRACEBACK_LIMIT: Final = 16_384
"""Longest traceback, in characters."""
FAILURE_INTERVAL_S: Final = 60.0
FAILURE_CAUSES: Final = 1_000
"""Causes that one `FailureLog` remembers: some hundred KiB, and some MiB with the longest texts."""

Format = Literal["auto", "text", "json"]

JOURNAL_VARIABLE: Final = "JOURNAL_STREAM"
"""Names journald's stream by device and inode. Source: systemd.exec(5), Environment Variables Set."""

_PRIORITIES: Final = (
    (logging.CRITICAL, "<2>"),
    (logging.ERROR, "<3>"),
    (logging.WARNING, "<4>"),
    (logging.INFO, "<6>"),
)
_DEBUG_PRIORITY: Final = "<7>"
"""Prefixes of lines by lowest level. Source: sd-daemon(3), SD_CRIT to SD_DEBUG."""

_QUIET_LOGGERS: Final = ("hpack", "grpc", "asyncio")
"""Libraries without debug lines in the log; hpack's hold decoded headers with credentials."""

_LIMITED_LOGGERS: Final = frozenset({"grpc", "asyncio"})
"""Libraries that log a traceback for errors that clients can cause, such as a request that does not parse."""

_CHAIN_LIMIT: Final = 16
"""Exceptions of one chain that are shown; of thousands the last ones are enough."""

_FRAME_LIMIT: Final = 64
"""Frames of one traceback that are shown; more are a recursion."""

_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

logger = logging.getLogger(__name__)


def configure(level: str = "info", format_name: Format = "auto", stream: TextIO | None = None) -> LogHandler:
    """Sends all logs of the process to a stream, through a new handler that replaces an earlier one.

    `format_name`: `auto` is text on a terminal and JSON elsewhere. `stream`: where to write; None for
    standard error.

    Returns:
        The handler; `close` writes the queued lines, and is also called at the end of the process.
    """
    stream = stream or sys.stderr
    is_text = stream.isatty() if format_name == "auto" else format_name == "text"
    formatted = format_text if is_text else format_json
    handler = LogHandler(stream, with_priority(formatted) if is_journal(stream) else formatted)
    handler.addFilter(LibraryFailures())
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each, LogHandler)]:
        root.removeHandler(earlier)
        earlier.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler


def is_journal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a stream leads to journald, which takes a line's priority from its first characters."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        # Closed, or no file at all (io.UnsupportedOperation is both).
        return False
    return environ.get(JOURNAL_VARIABLE) == f"{status.st_dev}:{status.st_ino}"


def with_priority(format_record: Callable[[logging.LogRecord], str]) -> Callable[[logging.LogRecord], str]:
    """The same format with a priority before each line, as journald reads it."""

    def formatted(record: logging.LogRecord) -> str:
        level = record.levelno
        prefix = next((text for lowest, text in _PRIORITIES if level >= lowest), _DEBUG_PRIORITY)
        return prefix + format_record(record).replace("\n", f"\n{prefix}")

    return formatted


class LogHandler(logging.Handler):
    """Formats records in the thread that logs, and passes the text to a thread that writes it.

    No record leaves the thread that made it, which may still change it.
    """

    def __init__(
        self,
        stream: TextIO,
        format_record: Callable[[logging.LogRecord], str],
        *,
        limit: int = QUEUE_LIMIT,
        clock: Callable[[], float] = time.monotonic,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._format_record = format_record
        self._limit = limit
        self._clock = clock
        self._close_timeout_s = close_timeout_s
        self._queue: SimpleQueue[str | threading.Event | None] = SimpleQueue()
        self._counting = threading.RLock()
        self._overflowed = 0
        self._failed = 0
        self._reported = 0
        self._report_at = 0.0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._overflowed + self._failed

    def handle(self, record: logging.LogRecord) -> bool:
        """Emits a record that passes the filters; without the base's lock, for which threads would wait."""
        if not self.filter(record):
            return False
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Formats and queues a record; never blocks and never raises."""
        if self._is_closed or self._queue.qsize() >= self._limit:
            self._count_overflow()
            return
        try:
            line = self._format_record(record)
        except Exception:  # noqa: BLE001 - a field may be of any kind; logging must not raise
            self._count_overflow()
            return
        self._queue.put(line)

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Waits until all lines queued before are written, at most for the time given."""
        if self._is_closed or threading.current_thread() is self._thread:
            return
        written = threading.Event()
        self._queue.put(written)
        written.wait(timeout_s)

    def close(self) -> None:
        """Writes the queued lines, for a bounded time, and ends the thread; later records are dropped."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
            self._thread.join(self._close_timeout_s)
        super().close()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif isinstance(item, str):
                self._write(item)
            self._report_dropped()
        self._report_at = 0.0
        self._report_dropped()

    def _count_overflow(self) -> None:
        with self._counting:
            self._overflowed += 1

    def _next(self) -> str | threading.Event | Literal[False] | None:
        """The next item; None at the end; False when it is time to report dropped records."""
        has_unreported = self.dropped > self._reported
        try:
            return self._queue.get(
                timeout=max(self._report_at - self._clock(), 0) if has_unreported else None
            )
        except Empty:
            return False

    def _write(self, line: str) -> None:
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except Exception:  # noqa: BLE001 - a full disk or a closed pipe cannot be logged
            self._failed += 1

    def _report_dropped(self) -> None:
        dropped, now = self.dropped, self._clock()
        if dropped == self._reported or now < self._report_at:
            return
        self._report_at = now + DROP_REPORT_INTERVAL_S
        lost, self._reported = dropped - self._reported, dropped
        report = logger.makeRecord(logger.name, logging.WARNING, __file__, 0, "log records dropped", (), None)
        report.dropped = lost
        self._write(self._format_record(report))


def dropped_lines() -> int:
    return sum(each.dropped for each in logging.getLogger().handlers if isinstance(each, LogHandler))


def flush_failures() -> None:
    # The repetitions that all failure logs have suppressed in intervals that are over.
    for each in tuple(_FAILURE_LOGS):
        each.flush()


class FailureLog:
    """Logs each cause at most once per interval, with the number of repetitions since; for all threads.

    For everything that other programs can cause at will, such as a broken connection or a failing policy.

    Args:
        interval_s: least time between two lines of one cause.
        clock: a monotonic time in seconds.
        output: where the lines go; None for the logger of this module.
        limit: most causes that are remembered; the oldest are forgotten first.

    Attributes:
        last: the text of the last failure, whether it was logged or only counted; empty for none.
    """

    def __init__(
        self,
        interval_s: float = FAILURE_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        *,
        output: logging.Logger | None = None,
        limit: int = FAILURE_CAUSES,
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._output = output or logger
        self._limit = limit
        # The garbage collector may log within any statement, in the thread that has the lock.
        self._lock = threading.RLock()
        self._causes: OrderedDict[Hashable, _Cause] = OrderedDict()
        self.last = ""
        _FAILURE_LOGS.add(self)

    def __len__(self) -> int:
        return len(self._causes)

    def report(
        self,
        source: str,
        cause: Hashable,
        text: str,
        *,
        level: int = logging.WARNING,
        error: BaseException | None = None,
        **fields: object,
    ) -> bool:
        """Logs a failure; returns whether there was a line, False if it was only counted.

        Args:
            source: the part that failed, such as a policy's name.
            cause: equal for failures of one source that need no second line. Long ones are cut.
            text: the failure, without secrets. It is cut when long.
            level: the line's.
            error: its traceback is logged.
            fields: the line's.
        """
        now_s = self._clock()
        self.last = text = _cut(text)
        if isinstance(cause, str):
            cause = _cut(cause)
        with self._lock:
            known = self._causes.get((source, cause))
            if known is not None and now_s < known.until_s:
                known.suppressed += 1
                return False
            repeated = known.suppressed if known is not None else 0
            self._causes[source, cause] = _Cause(source, text, level, now_s + self._interval_s)
            self._causes.move_to_end((source, cause))
            if len(self._causes) > self._limit:
                self._causes.popitem(last=False)
        self._log(level, source, text, repeated, error, fields)
        return True

    def flush(self) -> None:
        """Logs the repetitions of causes that have not come again since their interval ended."""
        now_s = self._clock()
        with self._lock:
            causes = tuple(self._causes.values())
            over = [each for each in causes if each.suppressed and now_s >= each.until_s]
            due = [(each.level, each.source, each.text, each.suppressed) for each in over]
            for each in over:
                each.suppressed = 0
        for level, source, text, suppressed in due:
            self._log(level, source, text, suppressed, None, {})

    def _log(
        self,
        level: int,
        source: str,
        text: str,
        repeated: int,
        error: BaseException | None,
        fields: Mapping[str, object],
    ) -> None:
        suffix = f" ({repeated} more times since the last report)" if repeated else ""
        self._output.log(level, "%s: %s%s", source, text, suffix, exc_info=error, extra=dict(fields))


_FAILURE_LOGS: Final[WeakSet[FailureLog]] = WeakSet()
"""All of them; made and flushed in the event loop's thread."""


@dataclass(slots=True)
class _Cause:
    """A cause that was logged: until when it is only counted, and its count."""

    source: str
    text: str
    level: int
    until_s: float
    suppressed: int = 0


class LibraryFailures(logging.Filter):
    """Sends the records of libraries through a `FailureLog`: once per cause and interval."""

    def __init__(self, failures: FailureLog | None = None) -> None:
        super().__init__()
        self._failures = failures or FailureLog()

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a library's record, which goes to the failure log instead."""
        if record.name.partition(".")[0] not in _LIMITED_LOGGERS:
            return True
        error = record.exc_info[1] if record.exc_info else None
        self._failures.report(
            record.name, _library_cause(record, error), _message(record), level=record.levelno, error=error
        )
        return False


def _library_cause(record: logging.LogRecord, error: BaseException | None) -> Hashable:
    """Source lines of the record and its error: texts of libraries hold addresses, which always differ."""
    frames = list(traceback.walk_tb(error.__traceback__)) if error is not None else []
    raised = [(frame.f_code.co_filename, line) for frame, line in frames[-1:]]
    return record.pathname, record.lineno, type(error).__qualname__, *raised


def format_text(record: logging.LogRecord) -> str:
    """One line for people: time, level, message, `key=value` fields; a traceback follows on its own lines.

    Of a list of tables only the distinct reasons are shown: the message has the rest.
    """
    parts = [_time(record), f"{record.levelname:<7}", _printable(_cut(_message(record)))]
    for key, value in _fields(record):
        if isinstance(value, list) and any(isinstance(each, dict) for each in value):
            rows = [each for each in value if isinstance(each, dict)]
            parts += (f"reason={_quoted(reason)}" for reason in dict.fromkeys(_reasons(rows)))
        elif not isinstance(value, dict):
            parts.append(f"{key}={_quoted(value)}")
    line = " ".join(parts)
    return f"{line}\n{trace}" if (trace := _traceback(record)) else line


def format_json(record: logging.LogRecord) -> str:
    """One JSON object on one line: time, level, logger, message, fields, and `error` with a traceback."""
    entry: dict[str, object] = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _cut(_message(record)),
    }
    for key, value in _fields(record):
        entry[f"{key}_" if key in entry else key] = value
    if trace := _traceback(record):
        entry["error"] = trace
    return _JSON.encode(entry)


_JSON: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - an argument's __str__ may raise; logging must not
        return f"{record.msg} (its arguments cannot be shown)"


def _time(record: logging.LogRecord) -> str:
    second = int(record.created // 1)
    return f"{_second(second)}.{int((record.created - second) * 1000):03}Z"


@lru_cache(maxsize=8)
def _second(since_epoch_s: int) -> str:
    return datetime.fromtimestamp(since_epoch_s, UTC).replace(tzinfo=None).isoformat()


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    for key, value in vars(record).items():
        if key not in _STANDARD_ATTRIBUTES:
            yield key, _plain(value)


def _reasons(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    return (reason for row in rows if isinstance(reason := row.get("reason"), str) and reason)


def _plain(value: object) -> object:
    """The value as JSON can carry it: finite numbers, None, text, and tables and lists of such."""
    if isinstance(value, str):
        return value if len(value) <= TEXT_LIMIT else _cut(value)
    if isinstance(value, dict):
        return {_cut(_shown(key)): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return _plain(dict(value))
    return _cut(_shown(value))


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - its own __str__ may raise; logging must not
        return f"({type(value).__name__} that cannot be shown)"


def _cut(text: str, limit: int = TEXT_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _printable(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _quoted(value: object) -> str:
    if isinstance(value, dict | list):
        return _escaped(json.dumps(value, ensure_ascii=False))
    text = str(value)
    is_plain = text.isprintable() and text and not any(letter in text for letter in ' "=')
    return text if is_plain else _escaped(json.dumps(text, ensure_ascii=False))


def _escaped(text: str) -> str:
    """The text with the characters escaped that a terminal may obey: controls, and changes of direction.

    JSON escapes of them only those below U+0020.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _JSON.encode(each)[1:-1] for each in text)


def _traceback(record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[1] is not None:
        return _cut(_escaped("\n".join(_trace_lines(record.exc_info[1]))), TRACEBACK_LIMIT)
    return _cut(_escaped(record.exc_text or ""), TRACEBACK_LIMIT)


def _trace_lines(error: BaseException, above: frozenset[int] = frozenset()) -> Iterator[str]:
    """The lines of a traceback with its causes; no source lines, for which a thread would read files."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    above |= {id(error)}
    if earlier is not None and id(earlier) not in above and len(above) < _CHAIN_LIMIT:
        yield from _trace_lines(earlier, above)
        yield "which led to:"
    yield "Traceback (most recent call last):"
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in frames[:_FRAME_LIMIT]:
        yield f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_qualname}'
    if len(frames) > _FRAME_LIMIT:
        yield f"  ({len(frames) - _FRAME_LIMIT} more)"
    yield "".join(traceback.format_exception_only(error)).rstrip()
    if isinstance(error, BaseExceptionGroup) and len(above) < _CHAIN_LIMIT:
        for inner in error.exceptions:
            yield "of which one is:"
            yield from _trace_lines(inner, above)
