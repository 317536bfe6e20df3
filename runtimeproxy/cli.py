"""The command `koord-runtime-proxy`: flags, subcommands, messages and exit codes.

Each subcommand imports what it needs itself: a start must not load it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from runtimeproxy import __version__
from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH, Settings
from runtimeproxy.config.sources import FLAGS, Reading, config_path, read
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.errors import ConfigError, RuntimeProxyError
from runtimeproxy.service import signals

if TYPE_CHECKING:
    from runtimeproxy.hooks.loading import LoadResult
    from runtimeproxy.hooks.policy import Policy
    from runtimeproxy.hooks.settings import PolicySettings

PROGRAM: Final = "koord-runtime-proxy"

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""A wrong flag, variable or configuration file. Source: argparse's own."""

_DOCKER: Final = (
    "Docker is not supported: run cri-dockerd in front of it, and give its socket as "
    "--remote-runtime-service-endpoint (usually /run/cri-dockerd.sock)"
)

_OTHER_OPTIONS: Final = (
    "--config",
    "--dry-run",
    "--backend-runtime-mode",
    "--help",
    "--version",
    "--node-labels",
    "--node-annotations",
    "--pod",
    "--output",
)

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
        return _run(arguments)
    except ConfigError as error:
        _fail(_configuration_message(error))
        return EXIT_USAGE
    except RuntimeProxyError as error:
        _fail(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 128 + 2  # as a shell shows SIGINT
    except BrokenPipeError:
        # Nobody reads on, as with `head`; Python's own flush at the end must not report it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a shell shows SIGPIPE


def _run(arguments: argparse.Namespace) -> int:
    command: Callable[[argparse.Namespace], int] = arguments.run
    if command is not _serve:
        signals.unblock()
    code = command(arguments)
    print(end="", flush=True)  # an error of writing is reported as the command's
    return code


# Subcommands


def _serve(arguments: argparse.Namespace) -> int:
    """Serves until a signal ends it; runs without a command."""
    settings = _load_settings(arguments)
    from runtimeproxy import logs
    from runtimeproxy.service.daemon import run

    handler = logs.configure(settings.log.level, settings.log.format)
    try:
        return run(settings, partial(_load_settings, arguments))
    finally:
        handler.flush()


def _check_config(arguments: argparse.Namespace) -> int:
    from runtimeproxy.config.validation import check_on_node

    reading = _read_settings(arguments)
    path, is_named = config_path(arguments, os.environ)
    findings = check_on_node(reading, _load_policies(reading.settings))
    for warning in findings.warnings:
        print(f"{PROGRAM}: warning: {warning}", file=sys.stderr)
    if findings.problems:
        raise CombinedConfigError(findings.problems)
    source = path if is_named or Path(path).exists() else "no file, defaults"
    print(f"{source}: the configuration is valid")
    return EXIT_OK


def _check_slo(arguments: argparse.Namespace) -> int:
    settings = _load_settings(arguments)
    from runtimeproxy.check_slo import UsageError, check

    try:
        text, is_good = check(arguments, settings)
    except UsageError as error:
        _fail(str(error))
        return EXIT_USAGE
    print(text)
    return EXIT_OK if is_good else EXIT_FAILED


def _list_policies(arguments: argparse.Namespace) -> int:
    from runtimeproxy.hooks.loading import is_enabled
    from runtimeproxy.hooks.settings import PolicySettings

    settings = _load_settings(arguments)
    result = _load_policies(settings)
    shown = {policy.name for policy in result.policies}
    unset = PolicySettings()
    shown |= {
        policy.name
        for policy in result.classes
        if not is_enabled(policy, settings.policies.get(policy.name, unset))
    }
    rows: list[tuple[str, ...]] = [("NAME", "PRIORITY", "MODE", "ON FAILURE", "METHODS")]
    rows += (
        _policy_row(policy, settings.policies.get(policy.name))
        for policy in result.classes
        if policy.name in shown
    )
    rows += ((each.name, "-", "not loaded", "-", "-", each.text) for each in result.problems)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        *columns, methods = row[:5]
        cells = (cell.ljust(width) for cell, width in zip(columns, widths, strict=True))
        print("  ".join((*cells, methods)))
        for line in filter(None, row[5:]):
            print(f"    {line}")
    return EXIT_FAILED if result.problems else EXIT_OK


def _load_policies(settings: Settings) -> LoadResult:
    """Loads all policies, as the daemon does at its start."""
    from runtimeproxy.hooks.loading import PolicyLoader, Sources

    hooks = settings.hooks
    sources = Sources(hooks.third_party, hooks.policies_dir, hooks.load_timeout_s)
    return PolicyLoader().load(sources, settings.policies)


def _policy_row(policy: type[Policy], settings: PolicySettings | None) -> tuple[str, ...]:
    from runtimeproxy.hooks.loaded import origin_of, overridden_methods
    from runtimeproxy.hooks.loading import is_enabled
    from runtimeproxy.hooks.settings import PolicySettings

    chosen = settings or PolicySettings()
    priority = policy.priority if chosen.priority is None else chosen.priority
    mode = chosen.mode.value if is_enabled(policy, chosen) else "disabled"
    methods = ", ".join(overridden_methods(policy))
    summary = str(policy.__doc__ or "").strip().split("\n")[0]
    origin = f"from {origin_of(policy)}"
    return policy.name, str(priority), mode, chosen.failure_policy.value, methods, summary, origin


def _bypass(arguments: argparse.Namespace) -> int:
    endpoint = _load_settings(arguments).proxy.endpoint
    from runtimeproxy.service.signals import BYPASS_OFF, BYPASS_ON, signal_instance

    is_on = arguments.state == "on"
    pid = signal_instance(endpoint, BYPASS_ON if is_on else BYPASS_OFF)
    print(f"process {pid}: bypass is {'on' if is_on else 'off'}")
    return EXIT_OK


def _upgrade(arguments: argparse.Namespace) -> int:
    proxy = _load_settings(arguments).proxy
    from runtimeproxy.service.handover.upgrade import request_upgrade

    old, new = request_upgrade(proxy.endpoint, proxy.upgrade_start_s)
    print(f"process {new} serves; process {old} ends after its last call")
    return EXIT_OK


def _restore(arguments: argparse.Namespace) -> int:
    settings = _load_settings(arguments)
    from runtimeproxy.restore.command import is_complete, restore, table
    from runtimeproxy.service.kubelet import kubelet_settings
    from runtimeproxy.service.signals import is_served

    proxy = settings.proxy
    for each in () if is_served(proxy.endpoint) else kubelet_settings(proxy.endpoint):
        print(f"{PROGRAM}: warning: {each.advice(proxy)}", file=sys.stderr)
    lines = restore(settings, dry_run=arguments.dry_run)
    print("\n".join(table(lines)) if lines else "nothing to restore")
    return EXIT_OK if is_complete(lines) else EXIT_FAILED


def _version(_: argparse.Namespace) -> int:
    print(f"{PROGRAM} {__version__}")
    return EXIT_OK


def _demo(arguments: argparse.Namespace) -> int:
    settings = _load_settings(arguments)
    from runtimeproxy.demo.main import run_demo

    return run_demo(settings)


def _load_settings(arguments: argparse.Namespace) -> Settings:
    """Reads flags, environment and file.

    Raises:
        CombinedConfigError: every problem.
    """
    reading = _read_settings(arguments)
    if reading.errors:
        raise CombinedConfigError(reading.errors)
    return reading.settings


def _read_settings(arguments: argparse.Namespace) -> Reading:
    """Reads flags, environment and file; problems are in the result."""
    reading = read(arguments, os.environ)
    mode = getattr(arguments, "backend_runtime_mode", "Containerd")
    if mode == "Containerd":
        return reading
    reason = _DOCKER if mode == "Docker" else f"{mode!r} is not a mode: only Containerd is"
    wrong_mode = ConfigError("flag", "--backend-runtime-mode", reason)
    return replace(reading, errors=(wrong_mode, *reading.errors))


class _Command(NamedTuple):
    """A subcommand.

    Attributes:
        text: description in the list of commands and, as a sentence, in its own help.
        more: the rest of its own help.
        usage: its own arguments, before the flags that all commands have.
        arguments: these arguments, with keyword arguments of `add_argument`.
    """

    name: str
    run: Callable[[argparse.Namespace], int]
    text: str
    more: str = "."
    usage: str = ""
    arguments: Mapping[str, Mapping[str, Any]] = {}


_PAIRS: Final = {"action": "append", "default": [], "metavar": "K=V,..."}

_COMMANDS: Final = (
    _Command(
        "check-config",
        _check_config,
        "check flags, environment, file, policies and hook servers' registrations",
        ". Prints every problem, and the exit code is 2 then; warnings leave it 0.",
    ),
    _Command(
        "check-slo",
        _check_slo,
        "show what strategies say, where each value comes from, and what is wrong",
        ". FILE holds Kubernetes objects (the ConfigMap slo-controller-config, this node's Node and "
        "NodeSLO), or is a folder of such files or of a mounted ConfigMap. Nothing is changed, and no "
        "instance need run; the exit code is 1 if something cannot be used.",
        "FILE... [--node-labels K=V,...] [--node-annotations K=V,...] [--pod FILE] [--output text|json] ",
        {
            "files": {"nargs": "+", "metavar": "FILE", "help": "file or folder with the objects"},
            "--node-labels": {**_PAIRS, "help": "labels of the node, beside those of its Node object"},
            "--node-annotations": {**_PAIRS, "help": "annotations of the node, in the same way"},
            "--pod": {"metavar": "FILE", "help": "also show what counts for the Pod in this file"},
            "--output": {"choices": ("text", "json"), "default": "text", "help": "(default: text)"},
        },
    ),
    _Command(
        "list-policies",
        _list_policies,
        "list all policies with their methods and settings",
        ". Also those that cannot be loaded, with the reason; the exit code is 1 then.",
    ),
    _Command("version", _version, "show the version"),
    _Command("demo", _demo, "drive a pod of each QoS class through the proxy and show what changes"),
    _Command(
        "bypass",
        _bypass,
        "let all calls pass without policies (on), or end that (off)",
        ". Signals the instance that serves on the proxy's socket.",
        "(on | off) ",
        {"state": {"choices": ("on", "off"), "help": "kept by an upgrade, not by a restart"}},
    ),
    _Command(
        "upgrade",
        _upgrade,
        "replace the serving instance by a new process, without a failed call",
        ". If the new one does not come up, the old one continues to serve.",
    ),
    _Command(
        "restore",
        _restore,
        "give running containers and pod cgroups the values that the kubelet requested",
        ", from the checkpoint in the state folder: to remove the proxy from a node, after it has ended. "
        "Values that another program has changed since are left alone.",
        "[--dry-run] ",
        {"--dry-run": {"action": "store_true", "help": "only show the changes"}},
    ),
)
"""In the order of the help."""


# Arguments and errors


class _UsageError(Exception):
    """The arguments cannot be parsed; the text says why."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        parents=[_flags()],
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"{PROGRAM} [FLAG ...] [COMMAND] [FLAG ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.set_defaults(run=_serve)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    flags = _flags(is_shown=False)
    for each in _COMMANDS:
        command = commands.add_parser(
            each.name,
            usage=f"{PROGRAM} {each.name} {each.usage}[FLAG ...]",
            epilog=_FLAGS_OF_ALL,
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
    commands = {command.name for command in _COMMANDS}
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
    errors = _read_settings(arguments).errors
    if errors:
        raise CombinedConfigError([*(ConfigError("flag", "", text) for text in wrong), *errors])
    _fail(f"{'; '.join(wrong)} (see {PROGRAM} --help)")
    return EXIT_USAGE


def _flags(*, is_shown: bool = True) -> _Parser:
    """The flags, which may stand before or after a command; absent ones set no attribute.

    Args:
        is_shown: Whether the help has them all, or the configuration file only.
    """
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    titles = {
        "proxy": "sockets",
        "hooks": "hooks",
        "node": "node",
        "state": "state and logs",
        "log": "state and logs",
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
    (groups["state and logs"] if is_shown else parser).add_argument(
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
