"""`koord-qos-manager`, also as `python -m runtimeproxy.qosmanager`: its parser, messages and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from runtimeproxy import __version__
from runtimeproxy.config.settings import DEFAULT_CONFIG_PATH
from runtimeproxy.config.sources import FLAGS, read
from runtimeproxy.config.validation import combined_message
from runtimeproxy.errors import ConfigError
from runtimeproxy.process import limit_arenas, without_tls
from runtimeproxy.qosmanager import resources, status

if TYPE_CHECKING:
    from runtimeproxy.qosmanager.manager import Configuration, SampleSource

PROGRAM: Final = "koord-qos-manager"

_FLAGS: Final = ("proxy.endpoint", "log.level", "log.format")
"""The keys of the configuration that have a flag here, too."""
_STATUS_FLAGS: Final = ("proxy.endpoint",)

_COMMANDS: Final = {"status": status.shown, "resources": resources.shown}

_DESCRIPTION: Final = """\
Computes from samples what pods may use at the moment: it suppresses the CPU of BE pods, lets throttled pods
burst, and evicts under pressure. It claims values from koord-runtime-proxy, which applies them; without that
it waits, and computes nothing.
"""

_EPILOG: Final = f"""\
configuration:
  It reads the configuration file of koord-runtime-proxy: the groups qosmanager and plugins, the admin socket
  (api.admin_socket), cgroups and log. A flag wins over an environment variable, that over the file.

examples:
  {PROGRAM}
      run with {DEFAULT_CONFIG_PATH}
  KOORD_RUNTIMEPROXY_QOSMANAGER_MODE=dry-run {PROGRAM} --log-format text
      compute and explain, and claim nothing
  {PROGRAM} status
      whether one runs on this node, and what its plugins do
  {PROGRAM} resources
      what the node has, keeps, uses, and what pods of reclaimed_cores can have, for each NUMA node, too

signals:
  SIGTERM       ends; claims count on until their lease ends, so that a restart changes no value
  SIGHUP        reloads the configuration; an invalid one changes nothing

exit codes:
  0    ended by SIGTERM; of status: nothing is wrong, one runs or none is needed
  1    failure; of status: strategies ask for what nothing does, or no sample comes from where the
       configuration says; of resources: nothing is reported now
  2    invalid flag, variable or configuration
  3    of status and resources: the daemon does not answer
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    # gRPC's core reads it when it is loaded; it would write plain lines to standard error, past the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    arguments = make_parser().parse_args(argv)
    try:
        return _run(arguments)
    except ConfigError as error:
        print(f"{PROGRAM}: {combined_message(error)}", file=sys.stderr)
        return 2


def make_parser() -> argparse.ArgumentParser:
    """The parser of the program; completion and man page are made of it, too."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    _add_flags(parser, _FLAGS)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    text = "show whether a QoS manager runs on this node, and has to"
    own = commands.add_parser("status", help=text, description=f"{text[0].upper()}{text[1:]}.")
    _add_flags(own, _STATUS_FLAGS, is_command=True)
    status.add_arguments(own)
    text = "show what the node has and can give, as the plugin katalyst-reporter reports it"
    own = commands.add_parser(
        "resources", help=text, description=f"{text[0].upper()}{text[1:]}. {resources.DESCRIPTION}"
    )
    _add_flags(own, _STATUS_FLAGS, is_command=True)
    resources.add_arguments(own)
    return parser


def _add_flags(parser: argparse.ArgumentParser, names: Collection[str], *, is_command: bool = False) -> None:
    """Adds flags of the configuration; those of a command leave what stands before it."""
    default = argparse.SUPPRESS if is_command else None
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=default,
        help=f"configuration file in TOML (default: {DEFAULT_CONFIG_PATH}, if there)",
    )
    for flag in FLAGS:
        if flag.name in names:
            parser.add_argument(
                flag.option,
                dest=flag.destination,
                metavar=flag.metavar,
                default=default,
                choices=flag.choices or None,
                help=f"{flag.help} (default: {flag.default})",
            )


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command in _COMMANDS:
        shown = _COMMANDS[arguments.command]
        code, text = shown(read(arguments, os.environ).settings, arguments.output)
        print(text, file=sys.stderr if code == status.NO_DAEMON else sys.stdout)
        return code
    with without_tls():
        import asyncio  # noqa: F401
    from runtimeproxy.qosmanager.manager import all_plugins, configured, run

    plugins = all_plugins(read(arguments, os.environ))

    def configuration() -> Configuration:
        return configured(read(arguments, os.environ), plugins)

    first = configuration()
    from runtimeproxy import logs

    limit_arenas()
    handler = logs.configure(first.settings.log.level, first.settings.log.format)
    try:
        return run(first, configuration, plugins, _sampler(first))
    finally:
        handler.flush()


def _sampler(configuration: Configuration) -> SampleSource:
    from pathlib import Path

    from runtimeproxy.cgroups.mounts import find_mounts
    from runtimeproxy.qosmanager.samples.kernel_files import hybrid_mount
    from runtimeproxy.qosmanager.samples.sampler import Sampler

    root = Path(configuration.settings.cgroups.root)
    return Sampler({**find_mounts(root), **hybrid_mount(root)}, most_cpus=os.cpu_count() or 1)


if __name__ == "__main__":
    sys.exit(main())
