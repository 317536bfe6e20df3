"""The command `doctor`: what is wrong with this installation, and what to do."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.commands.client import reading
from runtimeproxy.commands.configuration import read_settings
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import BAD, DOUBTFUL, FAINT, GOOD, Cell, Page, counted, print_value
from runtimeproxy.doctor.checks import Finding, Severity, examine
from runtimeproxy.doctor.facts import QosManagerFacts
from runtimeproxy.doctor.gather import ApiAnswer, gather
from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.offline import Offline

_STYLES: Final = {Severity.OK: GOOD, Severity.WARNING: DOUBTFUL, Severity.PROBLEM: BAD}
_LEVEL_WIDTH: Final = max(len(level) for level in Severity)


def doctor(arguments: Namespace) -> int:
    """Examines this node; fails if there is a problem. Warnings leave the exit code 0."""
    settings = read_settings(arguments)
    carried = carried_in(settings.settings.daemon.mode)
    findings = examine(gather(settings, Offline(settings.settings), carried, _ask(arguments)))
    if arguments.output == "text":
        show_findings(findings, Page())
    else:
        print_value(findings_as_json(findings), arguments.output)
    levels = {each.level for found in findings.values() for each in found}
    return ExitCode.FAILED if Severity.PROBLEM in levels else ExitCode.OK


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
