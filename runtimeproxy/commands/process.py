"""Commands about the daemon's process: serving, upgrade, restore, demo, version."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from runtimeproxy import __version__
from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.commands.configuration import load_settings
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.config.sources import config_path


def serve(arguments: Namespace) -> int:
    """Serves until a signal ends it; runs without a command."""
    settings = load_settings(arguments)
    from runtimeproxy import logs
    from runtimeproxy.service.daemon import run

    handler = logs.configure(settings.log.level, settings.log.format)
    try:
        path, is_named = config_path(arguments, os.environ)
        # The default file need not exist.
        path = path if is_named or Path(path).exists() else ""
        return run(settings, partial(load_settings, arguments), path)
    finally:
        handler.flush()


def upgrade(arguments: Namespace) -> int:
    from runtimeproxy.frontends.cri_proxy.handover.upgrade import RestartInsteadError, request_upgrade

    proxy = load_settings(arguments).proxy
    try:
        old, new = request_upgrade(proxy.endpoint, proxy.upgrade_start_s)
    except RestartInsteadError as error:
        raise CommandError(str(error), ExitCode.RESTART_INSTEAD) from error
    print(f"process {new} serves; process {old} ends after its last call")
    return ExitCode.OK


def restore(arguments: Namespace) -> int:
    """Gives what runs the kubelet's values back."""
    settings = load_settings(arguments)
    from runtimeproxy.commands.output import Page, print_value
    from runtimeproxy.kubelet_endpoints import kubelet_settings
    from runtimeproxy.restore.command import HEADERS, is_complete, lines_as_json, restore, table_row
    from runtimeproxy.signals import is_served

    proxy = settings.proxy
    for each in () if is_served(proxy.endpoint) else kubelet_settings(proxy.endpoint):
        print(f"{PROGRAM}: warning: {each.advice(proxy)}", file=sys.stderr)
    lines = restore(settings, dry_run=arguments.dry_run)
    if arguments.output != "text":
        print_value(lines_as_json(lines), arguments.output)
    elif lines:
        Page().table(HEADERS, map(table_row, lines))
    else:
        print("nothing to restore")
    return ExitCode.OK if is_complete(lines) else ExitCode.FAILED


def check_removal(arguments: Namespace) -> int:
    """Fails while a kubelet needs the proxy: packages ask before they are removed."""
    proxy = load_settings(arguments).proxy
    from runtimeproxy.kubelet_endpoints import kubelet_settings

    if found := kubelet_settings(proxy.endpoint):
        raise CommandError("\n".join(each.advice(proxy) for each in found))
    print(f"no kubelet uses {proxy.endpoint}")
    return ExitCode.OK


def version(arguments: Namespace) -> int:
    if arguments.output == "text":
        print(f"{PROGRAM} {__version__}")
    else:
        from runtimeproxy.commands.output import print_value

        print_value({"name": PROGRAM, "version": __version__}, arguments.output)
    return ExitCode.OK


def demo(arguments: Namespace) -> int:
    settings = load_settings(arguments)
    from runtimeproxy.demo.main import run_demo

    return run_demo(settings)
