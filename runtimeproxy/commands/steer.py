"""The commands `policy` and `bypass`: they change what the daemon does, by its admin socket or a signal."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.commands.client import endpoint_of, writing
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import Page, print_message
from runtimeproxy.commands.status import bypass_words, show_policies
from runtimeproxy.commands.values import utc_now
from runtimeproxy.hooks.modes import selector_of as selected
from runtimeproxy.labels import EVERY_LABEL, LabelSelector, namespace_problem
from runtimeproxy.service.api.values import selector_message
from runtimeproxy.signals import BYPASS_OFF, BYPASS_ON, signal_instance

RESET: Final = "reset"
"""Takes back what commands have set."""


def policy(arguments: Namespace) -> int:
    """Sets the mode of a policy, for all pods or some of them, for a time or until it is taken back."""
    request = api_pb2.SetPolicyModeRequest(policy=arguments.name, reason=arguments.reason or "")
    if arguments.mode != RESET:
        request.mode = api_pb2.Mode.Value(f"MODE_{arguments.mode.replace('-', '_').upper()}")
    if arguments.namespace or arguments.selector:
        request.selector.CopyFrom(selector_of(arguments.namespace, arguments.selector))
    if arguments.duration is not None:
        if arguments.mode == RESET:
            raise CommandError("--for has no meaning with reset", ExitCode.USAGE)
        request.duration.FromMilliseconds(round(arguments.duration * 1000))
    with writing(arguments) as admin:
        found = admin.SetPolicyMode(request, timeout=arguments.timeout)
    if arguments.output == "text":
        show_policies([found.policy], Page(), utc_now())
    else:
        print_message(found, arguments.output)
    return ExitCode.OK


def selector_of(namespaces: list[str], labels: LabelSelector | None) -> api_pb2.PodSelector:
    """The pods of these namespaces, with these labels."""
    for name in namespaces:
        if problem := namespace_problem(name):
            raise CommandError(f"--namespace: {problem}", ExitCode.USAGE)
    return selector_message(selected(namespaces, labels or EVERY_LABEL))


def bypass(arguments: Namespace) -> int:
    """Turns the bypass on or off: by a signal, which works with a daemon whose API hangs, too.

    A reason can go by the API only; if that does not answer, the signal is sent without it.
    """
    is_on = arguments.state == "on"
    if arguments.reason:
        try:
            with writing(arguments) as admin:
                request = api_pb2.SetBypassRequest(is_on=is_on, reason=arguments.reason)
                found = admin.SetBypass(request, timeout=arguments.timeout)
        except CommandError as error:
            if error.code != ExitCode.NO_DAEMON:
                raise
            print(f"{PROGRAM}: warning: {error}; a signal is sent, without the reason", file=sys.stderr)
        else:
            Page().line(("bypass is ", *bypass_words(found.bypass, utc_now())))
            return ExitCode.OK
    pid = signal_instance(endpoint_of(arguments), BYPASS_ON if is_on else BYPASS_OFF)
    print(f"process {pid}: bypass is {'on' if is_on else 'off'}")
    return ExitCode.OK
