"""The command `audit`: what policies changed, refused or failed to do."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime
from typing import Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.commands.client import reading
from runtimeproxy.commands.exit_codes import ExitCode
from runtimeproxy.commands.output import BAD, DOUBTFUL, FAINT, GOOD, Cell, Page, Words, print_message
from runtimeproxy.commands.values import moment

_STYLES: Final = {
    "changed": GOOD,
    "would-change": FAINT,
    "refused": BAD,
    "failed": BAD,
    "invalid": BAD,
    "not-applied": DOUBTFUL,
}
_KIND_WIDTH: Final = len("would-change")


def audit(arguments: Namespace) -> int:
    """Shows recent decisions, and with `--follow` those to come."""
    request = api_pb2.WatchAuditRequest(
        pod=arguments.pod or "",
        policy=arguments.policy or "",
        follow=arguments.follow,
        limit=arguments.limit,
        kinds=arguments.kind,
    )
    timeout_s = None if arguments.follow else arguments.timeout
    page = Page() if arguments.output == "text" else None
    has_entries = False
    with reading(arguments) as api:
        for response in api.WatchAudit(request, timeout=timeout_s):
            for entry in response.entries:
                has_entries = True
                if page is None:
                    print_message(entry, arguments.output, is_stream=True)
                else:
                    page.line(audit_words(entry, is_short=page.is_terminal))
            print(end="", flush=True)
    if page is not None and not has_entries:
        page.line("no such decisions since the start of the daemon")
    return ExitCode.OK


def audit_words(entry: api_pb2.AuditEntry, *, is_short: bool) -> Words:
    """One entry as a line; a short one has the time of the day only, and no ids."""
    time: datetime = moment(entry.time).astimezone()
    stamp = time.strftime("%H:%M:%S") if is_short else time.isoformat(timespec="milliseconds")
    place = "/".join(part for part in (entry.namespace, entry.pod, entry.container) if part) or entry.target
    words: list[str | Cell] = [
        Cell(stamp, FAINT),
        "  ",
        Cell(entry.kind.ljust(_KIND_WIDTH), _STYLES.get(entry.kind, DOUBTFUL)),
        f"  {place}  {entry.policy}",
    ]
    if entry.field:
        words.append(f"  {entry.field}")
        if entry.before or entry.after:
            words.append(f" {entry.before or '-'} -> {entry.after or '-'}")
    if entry.reason:
        words.append(f": {entry.reason}")
    if entry.note:
        words.append(f" ({entry.note})")
    if entry.trace_id and not is_short:
        words.append(Cell(f"  trace {entry.trace_id}", FAINT))
    return words
