"""The command `audit`: what policies changed, refused or failed to do."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.commands.client import client_settings, reading
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import BAD, DOUBTFUL, FAINT, GOOD, Cell, Page, Words, print_message
from runtimeproxy.commands.values import moment, utc_now
from runtimeproxy.documents.reading import printable

if TYPE_CHECKING:
    from runtimeproxy.commands.audit_files import AuditFiles
    from runtimeproxy.core.audit_history import SavedEntries

_STYLES: Final = {
    "changed": GOOD,
    "would-change": FAINT,
    "refused": BAD,
    "failed": BAD,
    "invalid": BAD,
    "not-applied": DOUBTFUL,
    "start": FAINT,
    "stop": FAINT,
    "gap": BAD,
}
_KIND_WIDTH: Final = len("would-change")
_OVERLAP: Final = timedelta(seconds=10)
"""How far back the daemon is asked after its file was read."""


def audit(arguments: Namespace) -> int:
    """Shows past entries, and with `--follow` those to come."""
    since, until = arguments.since, arguments.until
    if since is not None and until is not None and since > until:
        raise CommandError("--since is later than --until", ExitCode.USAGE)
    if arguments.follow and until is not None:
        raise CommandError("--follow has no --until", ExitCode.USAGE)
    request = api_pb2.WatchAuditRequest(
        pod=arguments.pod or "",
        policy=arguments.policy or "",
        follow=arguments.follow,
        limit=arguments.limit,
        kinds=arguments.kind,
    )
    for field, time in (("since", since), ("until", until)):
        if time is not None:
            getattr(request, field).FromDatetime(time)
    printer = _Printer(arguments.output)
    try:
        path = _file_of_daemon(arguments) if since is not None or until is not None else ""
        recent = _Recent(arguments, request)
        if not path or not _show_file(path, request, printer, recent):
            _show_remembered(arguments, request, printer)
        elif arguments.follow:
            for entries in recent.read():
                printer.add(entries)
    except CommandError as error:
        if arguments.follow or printer.has_entries or error.code is not ExitCode.NO_DAEMON:
            raise
        _show_without_daemon(arguments, request, printer, error)
    printer.end("" if since is None and until is None else " in that time")
    return ExitCode.OK


class _Printer:
    """Prints entries, and to standard error where they come from."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._page = Page() if form == "text" else None
        self.has_entries = False

    def add(self, entries: Iterable[api_pb2.AuditEntry]) -> None:
        for entry in entries:
            self.has_entries = True
            if self._page is None:
                print_message(entry, self._form, is_stream=True)
            else:
                self._page.line(audit_words(entry, is_short=self._page.is_terminal))
        print(end="", flush=True)

    def note(self, text: str) -> None:
        print(f"{PROGRAM}: {text}", file=sys.stderr)

    def end(self, when: str) -> None:
        if self._page is not None and not self.has_entries:
            self._page.line(f"no such entries{when}")


class _Recent:
    """What the daemon remembers of the last seconds beside a file; with `follow` also what is to come."""

    def __init__(self, arguments: Namespace, request: api_pb2.WatchAuditRequest) -> None:
        self._arguments = arguments
        # To the millisecond, as files have times.
        now = utc_now()
        self._since = now.replace(microsecond=now.microsecond // 1000 * 1000) - _OVERLAP
        self._in_file = Counter[bytes]()
        self._request = api_pb2.WatchAuditRequest()
        self._request.CopyFrom(request)
        self._request.limit = 0
        if not request.HasField("since") or moment(request.since) < self._since:
            self._request.since.FromDatetime(self._since)

    def note(self, entry: api_pb2.AuditEntry) -> None:
        """Notes an entry that the file has."""
        if moment(entry.time) >= self._since - timedelta(milliseconds=1):
            self._in_file[_identity(entry)] += 1

    def read(self) -> Iterator[list[api_pb2.AuditEntry]]:
        """The others, response by response."""
        timeout_s = None if self._request.follow else self._arguments.timeout
        with reading(self._arguments) as api:
            for response in api.WatchAudit(self._request, timeout=timeout_s):
                yield [each for each in response.entries if not self._is_in_file(each)]

    def _is_in_file(self, entry: api_pb2.AuditEntry) -> bool:
        # As often as the file has it.
        identity = _identity(entry)
        self._in_file[identity] -= 1
        return self._in_file[identity] >= 0


def _identity(entry: api_pb2.AuditEntry) -> bytes:
    # Files have times to the millisecond.
    copy = api_pb2.AuditEntry()
    copy.CopyFrom(entry)
    copy.ClearField("time")
    return copy.SerializeToString(deterministic=True)


def _show_remembered(arguments: Namespace, request: api_pb2.WatchAuditRequest, printer: _Printer) -> None:
    """Shows what the daemon remembers, and with `follow` what is to come."""
    timeout_s = None if request.follow else arguments.timeout
    with reading(arguments) as api:
        for response in api.WatchAudit(request, timeout=timeout_s):
            if response.HasField("oldest") and moment(response.oldest) > moment(request.since):
                oldest = moment(response.oldest).astimezone().isoformat(timespec="seconds")
                printer.note(f"the daemon does not remember all of before {oldest}; audit.file keeps more")
            printer.add(response.entries)


def _file_of_daemon(arguments: Namespace) -> str:
    # As the running daemon has it; empty for none.
    with reading(arguments) as api:
        status = api.GetStatus(api_pb2.GetStatusRequest(), timeout=arguments.timeout)
        return str(status.audit_file.path)


def _show_file(
    path: str, request: api_pb2.WatchAuditRequest, printer: _Printer, recent: _Recent | None = None
) -> bool:
    """Shows what `audit.file` and its rotations have; returns False if it cannot be read.

    `recent`: also without `follow` what is not written yet; None if the daemon is down.
    """
    from runtimeproxy.commands.audit_files import AuditFiles

    files = AuditFiles(Path(path))
    try:
        if files.problem:
            printer.note(f"audit.file cannot be read: {files.problem}")
            return False
        _note_files(files, request, printer)
        entries = _matching(files, request, recent)
        if recent is not None and not request.follow:
            entries = chain(entries, chain.from_iterable(recent.read()))
        printer.add(_newest(entries, request.limit))
        for note in files.notes:
            printer.note(note)
    finally:
        files.close()
    return True


def _note_files(files: AuditFiles, request: api_pb2.WatchAuditRequest, printer: _Printer) -> None:
    others = [each.name for each in files.read[:-1]]
    text = f"read from {printable(files.read[-1])}" + (f" and {', '.join(others)}" if others else "")
    if request.HasField("since") and files.oldest:
        oldest = datetime.fromisoformat(files.oldest)
        if oldest > moment(request.since):
            text += f"; they hold nothing of before {oldest.astimezone().isoformat(timespec='seconds')}"
    printer.note(text)


def _matching(
    files: AuditFiles, request: api_pb2.WatchAuditRequest, recent: _Recent | None
) -> Iterator[api_pb2.AuditEntry]:
    from runtimeproxy.service.api.audit_feed import entry_message, matches, seconds

    since_s = seconds(request.since) if request.HasField("since") else None
    until_s = seconds(request.until) if request.HasField("until") else None
    wanted = api_pb2.WatchAuditRequest(pod=request.pod, policy=request.policy, kinds=request.kinds)
    for entry in files.entries(since_s, until_s):
        if matches(wanted, entry):
            message = entry_message(entry)
            if recent is not None:
                recent.note(message)
            yield message


def _newest(entries: Iterable[api_pb2.AuditEntry], most: int) -> Iterable[api_pb2.AuditEntry]:
    return deque(entries, maxlen=most) if most else entries


def _show_without_daemon(
    arguments: Namespace, request: api_pb2.WatchAuditRequest, printer: _Printer, error: CommandError
) -> None:
    """Shows what is on disk: `audit.file`, or else the last entries in the state folder.

    Raises:
        CommandError: The given one, if there is nothing that can be read.
    """
    settings = client_settings(arguments)
    saved, problem = _saved(Path(settings.state.dir))
    path = settings.audit.file
    if not (path and _show_file(path, request, printer)):
        if saved is None:
            raise CommandError("; ".join(filter(None, (str(error), problem))), error.code) from error
        from runtimeproxy.core.audit_history import FILE
        from runtimeproxy.service.api.audit_feed import entry_message, matches

        printer.note(f"read from {printable(Path(settings.state.dir) / FILE)}: the last entries")
        found = [each for each in saved.entries if matches(request, each)]
        found.sort(key=lambda each: each.time_s)
        printer.add(_newest(map(entry_message, found), request.limit))
    printer.note(f"the daemon does not answer: {error}")
    if saved is not None and not saved.has_ended:
        since = datetime.fromtimestamp(saved.saved_s).astimezone().isoformat(timespec="seconds")
        text = f"it did not end in order, or hangs: entries that came after {since} may be missing"
        printer.note(text)


def _saved(state_folder: Path) -> tuple[SavedEntries | None, str]:
    """The last entries in the state folder, and why they cannot be read."""
    from runtimeproxy.core.audit_history import FILE, audit_state_file, saved_entries

    path = state_folder / FILE
    if not os.path.lexists(path):
        return None, ""
    if not os.access(path, os.R_OK):
        return None, f"{printable(path)}: user {os.geteuid()} may not read it"
    file = audit_state_file(state_folder)
    return file.load(saved_entries), file.unusable


def audit_words(entry: api_pb2.AuditEntry, *, is_short: bool) -> Words:
    """One entry as a line; a short one has the time of the day only, and no ids."""
    time: datetime = moment(entry.time).astimezone()
    form = "%H:%M:%S" if time.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S"
    stamp = time.strftime(form) if is_short else time.isoformat(timespec="milliseconds")
    place = "/".join(part for part in (entry.namespace, entry.pod, entry.container) if part) or entry.target
    words: list[str | Cell] = [
        Cell(stamp, FAINT),
        "  ",
        Cell(entry.kind.ljust(_KIND_WIDTH), _STYLES.get(entry.kind, DOUBTFUL)),
        *(f"  {part}" for part in (place, entry.policy, entry.field) if part),
    ]
    if entry.field and (entry.before or entry.after):
        words.append(f" {entry.before or '-'} -> {entry.after or '-'}")
    if entry.reason:
        words.append(f": {entry.reason}")
    if entry.note:
        words.append(f" ({entry.note})")
    if entry.trace_id and not is_short:
        words.append(Cell(f"  trace {entry.trace_id}", FAINT))
    return words
