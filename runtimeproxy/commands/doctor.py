"""The command `doctor`: what is wrong with this installation, and what to do."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy import __version__
from runtimeproxy.commands.client import reading
from runtimeproxy.commands.configuration import read_settings
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import BAD, DOUBTFUL, FAINT, GOOD, Cell, Page, counted, print_value
from runtimeproxy.doctor.checks import Finding, Severity, examine
from runtimeproxy.doctor.facts import QosManagerFacts
from runtimeproxy.doctor.gather import ApiAnswer, ask_runtime, gather
from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.offline import Offline

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings

_STYLES: Final = {Severity.OK: GOOD, Severity.WARNING: DOUBTFUL, Severity.PROBLEM: BAD}
_LEVEL_WIDTH: Final = max(len(level) for level in Severity)


def doctor(arguments: Namespace) -> int:
    """Examines this node; fails if there is a problem. Warnings leave the exit code 0."""
    settings = read_settings(arguments)
    if arguments.record_tree:
        return _record_tree(settings.settings, arguments)
    carried = carried_in(settings.settings.daemon.mode)
    findings = examine(gather(settings, Offline(settings.settings), carried, _ask(arguments)))
    if arguments.output == "text":
        show_findings(findings, Page())
    else:
        print_value(findings_as_json(findings), arguments.output)
    levels = {each.level for found in findings.values() for each in found}
    return ExitCode.FAILED if Severity.PROBLEM in levels else ExitCode.OK


def _record_tree(settings: Settings, arguments: Namespace) -> int:
    """Writes what tells which policies work on this node."""
    from runtimeproxy.doctor.tree import MODE, record_tree, tree_text

    path = Path(arguments.record_tree)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except FileExistsError:
        raise CommandError(f"{path} exists already; name a new file", ExitCode.USAGE) from None
    except OSError as error:
        raise CommandError(f"{path}: cannot be made: {error.strerror}") from error
    runtime = ask_runtime(settings.proxy.runtime_endpoint)
    denied = {"the runtime's version": "this user may not connect"} if runtime.is_denied else {}
    tree = record_tree(runtime=runtime.name, unread=denied)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(tree_text(tree, __version__))
    if arguments.output == "text":
        page = Page()
        page.line(f"{path}: {counted(len(tree.files), 'file')} of this node; read it before you send it")
        for name, reason in tree.unread.items():
            page.entry(Cell("not read", DOUBTFUL), f"{name}: {reason}", indent=2)
    else:
        written = {"file": str(path), "files": len(tree.files), "unread": dict(tree.unread)}
        print_value(written, arguments.output)
    return ExitCode.OK


def _ask(arguments: Namespace) -> ApiAnswer:
    try:
        with reading(arguments) as api:
            status = api.GetStatus(api_pb2.GetStatusRequest(), timeout=arguments.timeout)
    except CommandError as error:
        return ApiAnswer(error=str(error))
    manager = status.qos_manager
    is_missing = manager.state == api_pb2.QosManagerStatus.STATE_MISSING
    is_running = manager.state == api_pb2.QosManagerStatus.STATE_RUNNING
    facts = QosManagerFacts(is_running, is_missing, manager.note)
    # A check of its own has what is missing.
    problems = tuple(each for each in status.problems if not (is_missing and each == manager.note))
    return ApiAnswer(status.daemon.version, "", problems, facts)


def show_findings(findings: dict[str, list[Finding]], page: Page) -> None:
    for name, found in findings.items():
        page.line(name)
        for each in found:
            label = Cell(each.level, _STYLES[each.level])
            page.entry(label, each.text, indent=2, label_width=_LEVEL_WIDTH)
            if each.advice:
                page.entry("", Cell(each.advice, FAINT), indent=2, label_width=_LEVEL_WIDTH)
    page.gap()
    levels = [each.level for found in findings.values() for each in found]
    problems, warnings = levels.count(Severity.PROBLEM), levels.count(Severity.WARNING)
    style = BAD if problems else GOOD
    page.line(Cell(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}", style))


def findings_as_json(findings: dict[str, list[Finding]]) -> list[dict[str, str]]:
    return [
        {"check": name, "level": each.level.value, "text": each.text, "advice": each.advice}
        for name, found in findings.items()
        for each in found
    ]
