"""The client of the daemon's API: connecting, time limits, and errors as sentences that say what to do."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.commands.configuration import read_settings
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.config.parsing import parse_endpoint
from runtimeproxy.config.validation import admin_socket
from runtimeproxy.errors import MESSAGE_PREFIX

if TYPE_CHECKING:
    from cri_api.runtimeproxy.v1.api_pb2_grpc import AdminStub, RuntimeProxyStub
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.stubs import BlockingClient

_START: Final = "start it (systemctl start koord-runtime-proxy), or name its socket with --endpoint"
_START_ADMIN: Final = "start it (with api.admin_socket), or name its admin socket with --admin-socket"
_STATUS: Final = "systemctl status koord-runtime-proxy says"
_API: Final = (
    "this daemon does not serve this call of the API runtimeproxy.v1: it needs proxy.own_services = true, "
    "or is older than this command and has to be upgraded"
)

_CODES: Final = {
    "NOT_FOUND": ExitCode.NOT_FOUND,
    "FAILED_PRECONDITION": ExitCode.NOT_FOUND,  # several things have this name
    "INVALID_ARGUMENT": ExitCode.USAGE,
}
"""By gRPC status; the message says it all."""


def client_settings(arguments: Namespace) -> Settings:
    """The settings that say where the daemon is; with a warning if some of them cannot be used.

    With a wrong configuration the daemon still runs with its old one, and can be asked.
    """
    found: Settings | None = getattr(arguments, "client_settings", None)
    if found is None:
        reading = read_settings(arguments)
        for error in reading.errors:
            print(f"{PROGRAM}: warning: {error}; the default is used", file=sys.stderr)
        # A command may ask several times, and warns once.
        arguments.client_settings = found = reading.settings
    return found


def endpoint_of(arguments: Namespace) -> str:
    """The path of the daemon's socket: `--endpoint`, or that of the configuration."""
    if arguments.endpoint is None:
        return client_settings(arguments).proxy.endpoint
    return _parsed("--endpoint", arguments.endpoint)


@contextlib.contextmanager
def reading(arguments: Namespace) -> Iterator[RuntimeProxyStub]:
    with _connected(endpoint_of(arguments)) as client:
        from cri_api.runtimeproxy.v1 import api_pb2

        yield client.stub(api_pb2.DESCRIPTOR.services_by_name["RuntimeProxy"])


@contextlib.contextmanager
def writing(arguments: Namespace) -> Iterator[AdminStub]:
    with _connected(admin_socket_of(arguments), _START_ADMIN) as client:
        from cri_api.runtimeproxy.v1 import api_pb2

        yield client.stub(api_pb2.DESCRIPTOR.services_by_name["Admin"])


@contextlib.contextmanager
def _connected(path: str, advice: str = _START) -> Iterator[BlockingClient]:
    _check_socket(path, advice)
    from runtimeproxy.http2.client import RpcError
    from runtimeproxy.stubs import BlockingClient

    with BlockingClient(path) as client:
        try:
            yield client
        except RpcError as error:
            raise explained(error.code.name, error.text, path, advice) from error


def admin_socket_of(arguments: Namespace) -> str:
    """The path of the socket of the service that writes: `--admin-socket`, or that of the configuration."""
    if arguments.admin_socket is not None:
        return _parsed("--admin-socket", arguments.admin_socket)
    settings = client_settings(arguments)
    if arguments.endpoint is not None:
        endpoint = _parsed("--endpoint", arguments.endpoint)
        settings = replace(settings, proxy=replace(settings.proxy, endpoint=endpoint))
    try:
        path = admin_socket(settings)
    except ValueError as error:
        raise CommandError(f"api.admin_socket: {error}", ExitCode.USAGE) from error
    if not path:
        raise CommandError("api.admin_socket is empty: the daemon takes no commands", ExitCode.NO_DAEMON)
    return path


def _parsed(option: str, text: str) -> str:
    try:
        return parse_endpoint(text)
    except ValueError as error:
        raise CommandError(f"{option}: {error}", ExitCode.USAGE) from error


def _check_socket(path: str, advice: str) -> None:
    """Says what is wrong with the socket before anything else is imported."""
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 - a file name of any form
    except PermissionError:
        is_socket = True  # which the next check finds out
    except OSError as error:
        reason = f"{path}: {error.strerror}: no daemon listens here; {advice}"
        raise CommandError(reason, ExitCode.NO_DAEMON) from error
    if not is_socket:
        raise CommandError(f"{path} is not a socket; {advice}", ExitCode.NO_DAEMON)
    if not os.access(path, os.W_OK):
        reason = f"{path}: user {os.geteuid()} may not connect to this socket; run the command as root"
        raise CommandError(reason, ExitCode.NO_DAEMON)


def explained(code: str, details: str, path: str, advice: str = _START) -> CommandError:
    """The error of a call, as a sentence that says what to do.

    `code`: name of the gRPC status. `advice`: what to do if no daemon listens there.
    """
    own, is_refusal = details.removeprefix(MESSAGE_PREFIX), details.startswith(MESSAGE_PREFIX)
    if code in _CODES:
        return CommandError(own, _CODES[code])
    if code == "UNIMPLEMENTED":
        text = f"{path}: {_API}"
    elif code == "UNAVAILABLE" and is_refusal:
        text = f"{path}: {own}"
    elif code == "UNAVAILABLE":
        text = f"{path}: {_disconnected(details, advice)}"
    elif code == "DEADLINE_EXCEEDED":
        text = f"{path}: the daemon did not answer in time; --timeout gives it more, {_STATUS} its state"
    elif code == "RESOURCE_EXHAUSTED":
        text = f"{path}: {own}"
    else:
        return CommandError(f"{path}: {code}: {own}")
    return CommandError(text, ExitCode.NO_DAEMON)


def _disconnected(details: str, advice: str) -> str:
    if "Connection refused" in details:
        return f"no daemon listens here; {advice}"
    if "Permission denied" in details:
        return f"user {os.geteuid()} may not connect to this socket; run the command as root"
    return (
        "the daemon ended the connection: it has stopped, or it does not let this user in (it lets in root, "
        f"its own user and those in proxy.allowed_uids); {_STATUS} more"
    )
