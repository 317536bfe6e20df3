"""The command `koord-runtime-proxy`: its parser, messages and exit codes."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from runtimeproxy import __version__, signals
from runtimeproxy.commands.arguments import (
    PROGRAM,
    Parser,
    UsageError,
    flags,
    without_klog_flags,
    without_wrong_flags,
)
from runtimeproxy.commands.catalog import COMMANDS
from runtimeproxy.commands.configuration import read_settings
from runtimeproxy.commands.exit_codes import MEANINGS, CommandError, ExitCode
from runtimeproxy.config.validation import CombinedConfigError, combined_message
from runtimeproxy.errors import ConfigError, RuntimeProxyError

_SERVE: Final = "process:serve"
"""Without a command."""

_EXIT_CODES: Final = "\n".join(f"  {code:<4} {text}" for code, text in MEANINGS.items())

_DESCRIPTION: Final = """\
Applies resource policies by QoS class to pods and containers: as a CRI proxy between the kubelet and the
container runtime, which forwards everything else byte for byte; as an NRI plugin of the runtime; or
stand-alone ([daemon] mode of the configuration). Without a command it serves.
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
  KOORD_RUNTIMEPROXY_DAEMON_MODE=nri {PROGRAM}
      serve as an NRI plugin of the runtime; the kubelet is left as it is
  {PROGRAM} check-config --config /etc/koord-runtime-proxy/config.toml
      check a configuration without serving
  {PROGRAM} explain default/web --output json
      show why the values of a pod are what they are, for a program

signals:
  SIGTERM       drains and ends
  SIGHUP        reloads the configuration; an invalid one changes nothing
  SIGUSR1, 2    bypass on, off: all calls pass without policies (sent by the command bypass)
  SIGRTMIN+1    starts a new process and hands over to it (sent by the command upgrade)

exit codes:
{_EXIT_CODES}
"""


_FLAGS_OF_ALL: Final = f"All commands take the flags that {PROGRAM} --help lists."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    Args:
        argv: the arguments without the program's name; None for the process's own.
    """
    # gRPC's core reads it when it is loaded; it would write plain lines to standard error, past the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        argv, ignored = without_klog_flags(sys.argv[1:] if argv is None else argv)
        parser = make_parser()
        argv, wrong = without_wrong_flags(argv, COMMANDS)
        try:
            arguments = parser.parse_args(argv)
        except UsageError as error:
            _fail(f"{'; '.join((*wrong, str(error)))} (see {PROGRAM} --help)")
            return ExitCode.USAGE
        if wrong:
            return _wrong_usage(arguments, wrong)
        if ignored:
            print(f"{PROGRAM}: flags of klog are ignored: {', '.join(ignored)}", file=sys.stderr)
        return _run(arguments)
    except ConfigError as error:
        _fail(combined_message(error))
        return ExitCode.USAGE
    except CommandError as error:
        _fail(str(error))
        return error.code
    except RuntimeProxyError as error:
        _fail(str(error))
        return ExitCode.NO_DAEMON if isinstance(error, signals.NoInstanceError) else ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader has ended, as with `head`; Python's own flush at the end must not report it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE


def make_parser() -> argparse.ArgumentParser:
    """The parser of the program with all commands; completion and man page are made of it, too."""
    parser = Parser(
        prog=PROGRAM,
        parents=[flags()],
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"{PROGRAM} [FLAG ...] [COMMAND] [FLAG ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.set_defaults(run=_SERVE)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    flags_of_all = flags(is_shown=False)
    for each in COMMANDS:
        command = commands.add_parser(
            each.name,
            usage=f"{PROGRAM} {each.name} {each.usage}[FLAG ...]",
            epilog=_FLAGS_OF_ALL,
            parents=[flags_of_all],
            allow_abbrev=False,
            help=each.text,
            description=each.text[:1].upper() + each.text[1:] + each.more,
        )
        for names, about in each.arguments.items():
            command.add_argument(*names.split(), **about)
        command.set_defaults(run=each.run)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.run != _SERVE:
        signals.unblock()
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names of pods and texts of policies are shown in every locale.
            sys.stdout.reconfigure(errors="backslashreplace")
    module, _, function = arguments.run.partition(":")
    run: Callable[[argparse.Namespace], int]
    run = getattr(importlib.import_module(f"runtimeproxy.commands.{module}"), function)
    code = run(arguments)
    print(end="", flush=True)  # an error of writing is reported as the command's
    return code


def _wrong_usage(arguments: argparse.Namespace, wrong: Sequence[str]) -> int:
    """Reports the problems of the flags together with those of the configuration."""
    errors = read_settings(arguments).errors
    if errors:
        raise CombinedConfigError([*(ConfigError("flag", "", text) for text in wrong), *errors])
    _fail(f"{'; '.join(wrong)} (see {PROGRAM} --help)")
    return ExitCode.USAGE


def _fail(message: str) -> None:
    """Prints an error, and reports it to the process that started this one as its successor, if one did."""
    from runtimeproxy.frontends.cri_proxy.handover.protocol import report_to_predecessor

    print(f"{PROGRAM}: {message}", file=sys.stderr)
    report_to_predecessor(message)
