"""The command `replay`: what today's policies would decide otherwise on recorded calls."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.commands.configuration import load_settings, loaded_policies
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import Page, counted, print_value

if TYPE_CHECKING:
    from runtimeproxy.record.replay import Difference, Replay

_NONE: Final = "-"


def replay(arguments: Namespace) -> int:
    """Prints what would differ; without a runtime, and without a daemon."""
    settings = load_settings(arguments)
    from runtimeproxy.record.entries import RecordingError, open_recording
    from runtimeproxy.record.replay import replay as run

    path = Path(arguments.file)
    try:
        with path.open("rb") as file:
            recording = open_recording(file)
            found = run(recording, loaded_policies(settings), settings.hooks.rules)
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror}", ExitCode.USAGE) from error
    except RecordingError as error:
        raise CommandError(f"{path} {error}", ExitCode.USAGE) from error
    if arguments.output == "text":
        _print_text(found, is_all=arguments.all)
    else:
        print_value(as_json(found), arguments.output)
    return ExitCode.FAILED if found.differences else ExitCode.OK


def as_json(found: Replay) -> dict[str, Any]:
    # Empty lists and texts are there, too.
    return {
        "calls": found.calls,
        "differingCalls": found.differing,
        "firstTime": _time(found.first_s),
        "lastTime": _time(found.last_s),
        "isCutOff": found.is_cut_off,
        "skippedCalls": [{"reason": reason, "calls": count} for reason, count in found.skipped.items()],
        "serverFields": found.server_fields,
        "failures": [
            {"policy": policy, "reason": reason, "times": count}
            for (policy, reason), count in found.failures.items()
        ],
        "differences": [_difference(each) for each in found.differences],
    }


def _difference(difference: Difference) -> dict[str, Any]:
    found = asdict(difference)
    found |= {"wasBy": found.pop("was_by"), "nowBy": found.pop("now_by")}
    return {"time": _time(found.pop("time_s")), **found}


def _time(time_s: float | None) -> str | None:
    if time_s is None:
        return None
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")


def _print_text(found: Replay, *, is_all: bool) -> None:
    page = Page()
    if found.differences:
        page.table(*(_each(found.differences) if is_all else _kinds(found.differences)))
        page.gap()
    else:
        page.line("nothing would differ")
    if found.first_s is not None:
        period = f"{_time(found.first_s)} to {_time(found.last_s)}"
        page.line(f"{counted(found.calls, 'call')} from {period}, {found.differing} would differ")
    for reason, count in found.skipped.items():
        page.line(f"{counted(count, 'call')} not replayed: {reason}")
    if found.server_fields:
        page.line(f"{counted(found.server_fields, 'value')} of hook servers not compared")
    for (policy, reason), count in found.failures.items():
        page.line(f"policy {policy} failed {counted(count, 'time')}: {reason}")
    if found.is_cut_off:
        page.line("the recording was cut off: its last entry is not whole")


_Row = tuple[str, ...]


def _each(differences: Iterable[Difference]) -> tuple[_Row, list[_Row]]:
    columns = ("TIME", "CALL", "POD", "FIELD", "WAS", "NOW", "WAS BY", "NOW BY")
    rows = [
        (_time(each.time_s) or _NONE, each.method, _place(each), each.field, *_values(each))
        for each in differences
    ]
    return columns, list[_Row](rows)


def _kinds(differences: Iterable[Difference]) -> tuple[_Row, list[_Row]]:
    """Equal differences as one, the most frequent first."""
    found: dict[_Row, list[Difference]] = {}
    for each in differences:
        found.setdefault((each.method, each.field, *_values(each)), []).append(each)
    columns = ("CALLS", "CALL", "FIELD", "WAS", "NOW", "WAS BY", "NOW BY", "SUCH AS")
    rows = [
        (str(len(alike)), *kind, _place(alike[0]))
        for kind, alike in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    return columns, rows


def _values(each: Difference) -> _Row:
    return tuple(text or _NONE for text in (each.was, each.now, each.was_by, each.now_by))


def _place(each: Difference) -> str:
    return "/".join(part for part in (each.namespace, each.pod, each.container) if part)
