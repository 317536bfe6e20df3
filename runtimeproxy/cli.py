"""The command `koord-runtime-proxy`: flags, subcommands, messages and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from runtimeproxy import __version__
from runtimeproxy.config import DEFAULT_CONFIG_PATH, FLAGS, CombinedConfigError, config_path, load
from runtimeproxy.errors import ConfigError, RuntimeProxyError

if TYPE_CHECKING:
    from typing import TypeAlias

    from runtimeproxy.config import Settings
    from runtimeproxy.hooks.policy import Policy
    from runtimeproxy.hooks.settings import PolicySettings

    _Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # noqa: SLF001  # the only name of that type

PROGRAM: Final = "koord-runtime-proxy"

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""A wrong flag, variable or configuration file. Source: argparse's own."""

_OTHER_OPTIONS: Final = ("--config", "--dry-run", "--backend-runtime-mode", "--help", "--version")

_DOCKER: Final = (
    "Docker is not supported: run cri-dockerd in front of it, and give its socket as "
    "--remote-runtime-service-endpoint (usually /run/cri-dockerd.sock)"
)

_DESCRIPTION: Final = """\
A CRI proxy between the kubelet and the container runtime that applies resource policies by QoS class
and forwards everything else byte for byte. Without a command it serves.
"""

_EPILOG: Final = f"""\
precedence:
  A flag wins over an environment variable, that over the configuration file, that over the default.
  Every key of the file has a variable: KOORD_RUNTIMEPROXY_<GROUP>_<KEY>, for example
  KOORD_RUNTIMEPROXY_PROXY_DRAIN_S. Sockets are written /path, unix:/path or unix:///path.

examples:
  {PROGRAM}
      serve on the default socket in front of containerd
  {PROGRAM} --remote-runtime-service-endpoint unix:///run/crio/crio.sock
      serve in front of CRI-O
  {PROGRAM} check-config --config /etc/koord-runtime-proxy/config.toml
      say what is wrong with a configuration, without serving

signals:
  SIGTERM drains and ends; SIGHUP reads the configuration again and keeps the old one if it is wrong;
  SIGUSR1 lets all calls pass without policies, SIGUSR2 ends that: the command bypass sends them;
  SIGRTMIN+1 starts a successor and hands over to it: the command upgrade sends it.

exit codes:
  0  ended as asked          1  failed while it ran          2  wrong flag, variable or configuration
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    Args:
        argv: the arguments without the program's name; None for the process's own.
    """
    try:
        argv = sys.argv[1:] if argv is None else argv
        parser = _parser()
        if misspelled := _misspelled(argv):
            parser.error(misspelled)
        arguments = parser.parse_args(argv)
        command: Callable[[argparse.Namespace], int] = arguments.run
        return command(arguments)
    except ConfigError as error:
        _complain(_configuration_message(error))
        return EXIT_USAGE
    except RuntimeProxyError as error:
        _complain(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 128 + 2  # as a shell shows SIGINT


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line and names the way to the help."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with the exit code for wrong usage."""
        _complain(f"{message} (see {PROGRAM} --help)")
        raise SystemExit(EXIT_USAGE)


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
    parser.set_defaults(run=_serve)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, run, text in (
        ("check-config", _check_config, "read flags, environment, file and policies; say what is wrong"),
        ("list-policies", _list_policies, "show all policies with their hooks and settings"),
        ("version", _version, "show the version"),
        ("demo", _demo, "drive a pod of each QoS class through the proxy and show what changes"),
    ):
        command = commands.add_parser(
            name,
            usage=f"{PROGRAM} {name} [FLAG ...]",
            parents=[flags],
            allow_abbrev=False,
            help=text,
            description=text[:1].upper() + text[1:] + ".",
        )
        command.set_defaults(run=run)
    _add_bypass(commands, flags)
    _add_upgrade(commands, flags)
    _add_restore(commands, flags)
    return parser


def _add_bypass(commands: _Commands, flags: _Parser) -> None:
    text = "let calls pass without policies (on), or hold them for the policies again (off)"
    command = commands.add_parser(
        "bypass",
        usage=f"{PROGRAM} bypass (on | off) [FLAG ...]",
        parents=[flags],
        allow_abbrev=False,
        help=text,
        description=text[:1].upper() + text[1:] + ". Tells the instance that serves on the own socket.",
    )
    command.add_argument("state", choices=("on", "off"), help="a restart of the instance forgets it")
    command.set_defaults(run=_bypass)


def _add_upgrade(commands: _Commands, flags: _Parser) -> None:
    text = "replace the instance that serves by a new process, without a failed call"
    command = commands.add_parser(
        "upgrade",
        usage=f"{PROGRAM} upgrade [FLAG ...]",
        parents=[flags],
        allow_abbrev=False,
        help=text,
        description=text[:1].upper() + text[1:] + ". If the new one does not come up, the old one goes on.",
    )
    command.set_defaults(run=_upgrade)


def _add_restore(commands: _Commands, flags: _Parser) -> None:
    text = "give running containers and pod cgroups the values that the kubelet asked for"
    command = commands.add_parser(
        "restore",
        usage=f"{PROGRAM} restore [--dry-run] [FLAG ...]",
        parents=[flags],
        allow_abbrev=False,
        help=text,
        description=text[:1].upper() + text[1:] + ", from the checkpoint in the state folder: for taking the "
        "proxy off a node, after it has ended. Values that somebody else has changed since are left alone.",
    )
    command.add_argument("--dry-run", action="store_true", help="only show what would be done")
    command.set_defaults(run=_restore)


def _misspelled(argv: Sequence[str]) -> str:
    """What to say of the first flag that does not exist; argparse would complain about its value instead."""
    known = [flag.option for flag in FLAGS] + [*_OTHER_OPTIONS]
    for argument in argv:
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in known:
            import difflib

            guess = difflib.get_close_matches(name, known, n=1)
            return f"there is no flag {name}" + (f"; did you mean {guess[0]}?" if guess else "")
    return ""


def _flags() -> _Parser:
    """The flags that stand before or after a command; absent ones leave no attribute behind."""
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    titles = {"proxy": "sockets", "hooks": "hooks", "state": "state and logs", "log": "state and logs"}
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(titles.values())}
    for flag in FLAGS:
        groups[titles[flag.group]].add_argument(
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


def _load(arguments: argparse.Namespace) -> Settings:
    mode = getattr(arguments, "backend_runtime_mode", "Containerd")
    if mode != "Containerd":
        reason = _DOCKER if mode == "Docker" else f"{mode!r} is no mode: only Containerd is"
        raise ConfigError("flag", "--backend-runtime-mode", reason)
    return load(arguments, os.environ)


def _serve(arguments: argparse.Namespace) -> int:
    settings = _load(arguments)
    from runtimeproxy import logs
    from runtimeproxy.running import run

    handler = logs.configure(settings.log.level, settings.log.format)
    try:
        return run(settings, partial(_load, arguments))
    finally:
        handler.flush()


def _check_config(arguments: argparse.Namespace) -> int:
    settings = _load(arguments)
    from runtimeproxy.errors import PolicyLoadError
    from runtimeproxy.hooks.loading import discover
    from runtimeproxy.hooks.loading import load as load_policies

    path, is_named = config_path(arguments, os.environ)
    try:
        load_policies(discover(third_party=settings.hooks.third_party), settings.policies)
    except PolicyLoadError as error:
        raise ConfigError(path, "policies", str(error)) from error
    source = path if is_named or Path(path).exists() else "no file, defaults"
    print(f"{source}: the configuration is right")
    return EXIT_OK


def _list_policies(arguments: argparse.Namespace) -> int:
    settings = _load(arguments)
    from runtimeproxy.hooks.loading import discover

    rows: list[tuple[str, ...]] = [("NAME", "PRIORITY", "MODE", "ON FAILURE", "HOOKS", "")]
    rows += (
        _policy_row(policy, settings.policies.get(policy.name))
        for policy in discover(third_party=settings.hooks.third_party)
    )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for *columns, hooks, summary in rows:
        cells = (cell.ljust(width) for cell, width in zip(columns, widths, strict=True))
        print("  ".join((*cells, hooks)))
        if summary:
            print(f"    {summary}")
    return EXIT_OK


def _policy_row(policy: type[Policy], settings: PolicySettings | None) -> tuple[str, ...]:
    from runtimeproxy.hooks.loaded import overridden_hooks
    from runtimeproxy.hooks.settings import PolicySettings

    chosen = settings or PolicySettings()
    priority = policy.priority if chosen.priority is None else chosen.priority
    mode = chosen.mode.value if chosen.enabled else "disabled"
    hooks = ", ".join(overridden_hooks(policy))
    summary = (policy.__doc__ or "").strip().split("\n")[0]
    return policy.name, str(priority), mode, chosen.failure_policy.value, hooks, summary


def _bypass(arguments: argparse.Namespace) -> int:
    endpoint = _load(arguments).proxy.endpoint
    from runtimeproxy.ops.switch import set_bypass

    is_on = arguments.state == "on"
    pid = set_bypass(endpoint, is_on=is_on)
    print(f"process {pid} {'lets all calls pass' if is_on else 'holds calls for its policies'}")
    return EXIT_OK


def _upgrade(arguments: argparse.Namespace) -> int:
    proxy = _load(arguments).proxy
    from runtimeproxy.handover.command import upgrade

    old, new = upgrade(proxy.endpoint, proxy.upgrade_start_s)
    print(f"process {new} serves; process {old} ends when its calls have")
    return EXIT_OK


def _restore(arguments: argparse.Namespace) -> int:
    settings = _load(arguments)
    from runtimeproxy.restore.command import is_complete, restore, table

    lines = restore(settings, dry_run=arguments.dry_run)
    print("\n".join(table(lines)) if lines else "nothing to restore")
    return EXIT_OK if is_complete(lines) else EXIT_FAILED


def _version(_: argparse.Namespace) -> int:
    print(f"{PROGRAM} {__version__}")
    return EXIT_OK


def _demo(arguments: argparse.Namespace) -> int:
    settings = _load(arguments)
    from runtimeproxy.demo import run_demo

    return run_demo(settings)


def _configuration_message(error: ConfigError) -> str:
    if not isinstance(error, CombinedConfigError) or len(error.errors) == 1:
        return f"configuration error: {error}"
    return "\n  ".join(("configuration errors:", *map(str, error.errors)))


def _complain(message: str) -> None:
    print(f"{PROGRAM}: {message}", file=sys.stderr)
