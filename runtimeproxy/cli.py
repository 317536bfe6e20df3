"""The command `koord-runtime-proxy`: flags, subcommands, messages and exit codes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from runtimeproxy import __version__
from runtimeproxy.commands import COMMANDS, EXIT_FAILED, EXIT_USAGE, PROGRAM, read_settings, serve
from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH
from runtimeproxy.config.sources import FLAGS
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.errors import ConfigError, RuntimeProxyError
from runtimeproxy.service import signals

_OTHER_OPTIONS: Final = ("--config", "--dry-run", "--backend-runtime-mode", "--help", "--version")

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

_DESCRIPTION: Final = """\
A CRI proxy between the kubelet and the container runtime that applies resource policies by QoS class
and forwards everything else byte for byte. Without a command it serves.
"""

_EPILOG: Final = f"""\
precedence:
  A flag wins over an environment variable, that over the configuration file, that over the default.
  Every key of the file has a variable: KOORD_RUNTIMEPROXY_<GROUP>_<KEY>, for example
  KOORD_RUNTIMEPROXY_PROXY_DRAIN_S. Sockets are written /path, unix:/path or unix:///path.

  Flags of klog (-v, --logtostderr, ...) are accepted and ignored, for existing command lines.

examples:
  {PROGRAM}
      serve on the default socket in front of containerd
  {PROGRAM} --remote-runtime-service-endpoint unix:///run/crio/crio.sock
      serve in front of CRI-O
  {PROGRAM} check-config --config /etc/koord-runtime-proxy/config.toml
      check a configuration without serving

signals:
  SIGTERM       drains and ends
  SIGHUP        reloads the configuration; an invalid one changes nothing
  SIGUSR1, 2    bypass on, off: all calls pass without policies (sent by the command bypass)
  SIGRTMIN+1    starts a new process and hands over to it (sent by the command upgrade)

exit codes:
  0  success          1  failure          2  invalid flag, variable or configuration
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    Args:
        argv: the arguments without the program's name; None for the process's own.
    """
    # gRPC's core reads it when it is loaded; it would write plain lines to standard error, past the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        argv, ignored = without_klog_flags(sys.argv[1:] if argv is None else argv)
        parser = _parser()
        argv, wrong = _without_wrong_flags(argv)
        try:
            arguments = parser.parse_args(argv)
        except _UsageError as error:
            _fail(f"{'; '.join((*wrong, str(error)))} (see {PROGRAM} --help)")
            return EXIT_USAGE
        if wrong:
            return _wrong_usage(arguments, wrong)
        if ignored:
            print(f"{PROGRAM}: flags of klog are ignored: {', '.join(ignored)}", file=sys.stderr)
        command: Callable[[argparse.Namespace], int] = arguments.run
        if command is not serve:
            signals.unblock()
        return command(arguments)
    except ConfigError as error:
        _fail(_configuration_message(error))
        return EXIT_USAGE
    except RuntimeProxyError as error:
        _fail(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 128 + 2  # as a shell shows SIGINT


class _UsageError(Exception):
    """The arguments cannot be parsed; the text says why."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)


def _parser() -> argparse.ArgumentParser:
    flags = _flags()
    parser = _Parser(
        prog=PROGRAM,
        parents=[flags],
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"{PROGRAM} [FLAG ...] [COMMAND] [FLAG ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.set_defaults(run=serve)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for each in COMMANDS:
        command = commands.add_parser(
            each.name,
            usage=f"{PROGRAM} {each.name} {each.usage}[FLAG ...]",
            parents=[flags],
            allow_abbrev=False,
            help=each.text,
            description=each.text[:1].upper() + each.text[1:] + each.more,
        )
        for name, about in each.arguments.items():
            command.add_argument(name, **about)
        command.set_defaults(run=each.run)
    return parser


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


def _without_wrong_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without unknown flags and invalid choices, and a message for each of these.

    argparse would stop at the first one; these are reported together, and with those of file and environment.
    """
    choices = {flag.option: flag.choices for flag in FLAGS}
    known = [*choices, *_OTHER_OPTIONS]
    commands = {command.name for command in COMMANDS}
    kept: list[str] = []
    wrong: list[str] = []
    remaining = list(argv)
    while remaining:
        argument = remaining.pop(0)
        name, equals, value = argument.partition("=")
        following = remaining[:1] if not equals else []
        if name.startswith("--") and name != "--" and name not in known:
            wrong.append(f"unknown flag {name}" + _suggestion(name, known))
            if following and not following[0].startswith("-") and following[0] not in commands:
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


def _suggestion(name: str, known: Sequence[str]) -> str:
    import difflib  # start-up time, spent only where a name is wrong

    guess = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {guess[0]}?" if guess else ""


def _wrong_usage(arguments: argparse.Namespace, wrong: Sequence[str]) -> int:
    """Reports the problems of the flags together with those of the configuration."""
    errors = read_settings(arguments).errors
    if errors:
        raise CombinedConfigError([*(ConfigError("flag", "", text) for text in wrong), *errors])
    _fail(f"{'; '.join(wrong)} (see {PROGRAM} --help)")
    return EXIT_USAGE


def _flags() -> _Parser:
    """The flags, which may stand before or after a command; absent ones set no attribute."""
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    titles = {"proxy": "sockets", "hooks": "hooks", "state": "state and logs", "log": "state and logs"}
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(titles.values())}
    for flag in FLAGS:
        groups[titles[flag.name.partition(".")[0]]].add_argument(
            flag.option,
            dest=flag.destination,
            metavar=flag.metavar,
            choices=flag.choices or None,
            help=f"{flag.help} (default: {flag.default or 'none'})".replace("%", "%%"),
        )
    groups["sockets"].add_argument(
        "--backend-runtime-mode", metavar="MODE", help="only Containerd, for any CRI runtime (default)"
    )
    groups["state and logs"].add_argument(
        "--config",
        metavar="FILE",
        help=f"configuration file in TOML (default: {DEFAULT_CONFIG_PATH}, if there)",
    )
    return parser


def _configuration_message(error: ConfigError) -> str:
    if not isinstance(error, CombinedConfigError) or len(error.errors) == 1:
        return f"configuration error: {error}"
    return "\n  ".join(("configuration errors:", *map(str, error.errors)))


def _fail(message: str) -> None:
    """Prints an error, and reports it to the process that started this one as its successor, if one did."""
    from runtimeproxy.service.handover.protocol import report_to_predecessor

    print(f"{PROGRAM}: {message}", file=sys.stderr)
    report_to_predecessor(message)
