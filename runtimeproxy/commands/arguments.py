"""Parsing arguments: flags that may stand before or after a command, and errors of all of them at once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH
from runtimeproxy.config.sources import FLAGS
from runtimeproxy.spelling import did_you_mean, nearest

PROGRAM: Final = "koord-runtime-proxy"

_OPTIONS_OF_ALL: Final = ("--config", "--backend-runtime-mode", "--help", "--version")

_KLOG_VALUES: Final = frozenset(
    [
        "log_backtrace_at",
        "log_dir",
        "log_file",
        "log_file_max_size",
        "log_flush_frequency",
        "logging_format",
        "stderrthreshold",
        "v",
        "vmodule",
    ]
)
"""Flags of klog with a value. Source: klog.InitFlags and k8s.io/component-base/logs."""
_KLOG_SWITCHES: Final = frozenset(
    ["add_dir_header", "alsologtostderr", "logtostderr", "one_output", "skip_headers", "skip_log_headers"]
)
_KLOG_LEVEL: Final = re.compile(r"-v[0-9]+")
"""Source: spf13/pflag takes `-v4`, too."""


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        run: its function, as `module:function` below this package; takes the parsed arguments and returns the
            exit code. The module is imported when the command runs: a start must not load it.
        text: description in the list of commands and, as a sentence, in its own help.
        more: the rest of its own help.
        usage: its own arguments, before the flags that all commands have.
        arguments: these arguments by name (`-f --file`), with keyword arguments of `add_argument`.
    """

    name: str
    run: str
    text: str
    more: str = "."
    usage: str = ""
    arguments: Mapping[str, Mapping[str, Any]] = {}


class UsageError(Exception):
    """The arguments cannot be parsed; the text says why."""


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def without_klog_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without klog's flags, and these flags as they were spelled, each once.

    A flag has one dash or two, and underscores or dashes between its words; a value follows it after `=` or,
    unless the flag is a boolean, as the next argument. Source: Go's flag, spf13/pflag and klog.InitFlags.
    """
    kept: list[str] = []
    ignored: dict[str, None] = {}
    remaining = iter(argv)
    for argument in remaining:
        spelled, equals, _ = argument.partition("=")
        name = spelled.removeprefix("-").removeprefix("-").replace("-", "_")
        if not spelled.startswith("-") or not (
            name in _KLOG_VALUES or name in _KLOG_SWITCHES or _KLOG_LEVEL.fullmatch(argument)
        ):
            kept.append(argument)
            continue
        ignored[spelled] = None
        if name in _KLOG_VALUES and not equals:
            next(remaining, None)
    return kept, list(ignored)


def without_wrong_flags(argv: Sequence[str], commands: Sequence[Command]) -> tuple[list[str], list[str]]:
    """The arguments without unknown flags and invalid choices, and a message for each of these.

    argparse would stop at the first one; these are reported together, and with those of file and environment.
    """
    choices = {flag.option: flag.choices for flag in FLAGS}
    own = (name for command in commands for names in command.arguments for name in names.split())
    known = [*choices, *_OPTIONS_OF_ALL, *(name for name in own if name.startswith("--"))]
    command_names = {command.name for command in commands}
    kept: list[str] = []
    wrong: list[str] = []
    remaining = list(argv)
    while remaining:
        argument = remaining.pop(0)
        name, equals, value = argument.partition("=")
        following = remaining[:1] if not equals else []
        if name.startswith("--") and name != "--" and name not in known:
            wrong.append(f"unknown flag {name}" + did_you_mean(nearest(name, known)))
            if following and not following[0].startswith("-") and following[0] not in command_names:
                del remaining[0]
        elif (allowed := choices.get(name)) and (given := [value] if equals else following):
            if given[0] in allowed:
                kept += [name, given[0]]
            else:
                wrong.append(
                    f"argument {name}: invalid choice: {given[0]!r} (choose from {', '.join(allowed)})"
                )
            del remaining[: len(following)]
        else:
            kept.append(argument)
    return kept, wrong


def flags(*, is_shown: bool = True) -> Parser:
    """The flags, which may stand before or after a command; absent ones set no attribute.

    Args:
        is_shown: Whether the help has them all, or the configuration file only.
    """
    parser = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    titles = {
        "proxy": "sockets",
        "hooks": "hooks",
        "node": "node",
        "state": "state, logs and traces",
        "log": "state, logs and traces",
        "tracing": "state, logs and traces",
    }
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(titles.values())}
    for flag in FLAGS:
        groups[titles[flag.name.partition(".")[0]]].add_argument(
            flag.option,
            dest=flag.destination,
            metavar=flag.metavar,
            choices=flag.choices or None,
            help=f"{flag.help} (default: {flag.default or 'none'})".replace("%", "%%")
            if is_shown
            else argparse.SUPPRESS,
        )
    groups["sockets"].add_argument(
        "--backend-runtime-mode",
        metavar="MODE",
        help="only Containerd, for any CRI runtime (default)" if is_shown else argparse.SUPPRESS,
    )
    (groups["state, logs and traces"] if is_shown else parser).add_argument(
        "--config",
        metavar="FILE",
        help=f"configuration file in TOML (default: {DEFAULT_CONFIG_PATH}, if there)",
    )
    return parser
