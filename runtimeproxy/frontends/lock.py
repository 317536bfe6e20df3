"""One front end on a host: a lock at a fixed place, which the kernel drops with the process."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runtimeproxy.config.parsing import socket_mode_bits
from runtimeproxy.config.validation import owner_ids
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.listener import Listener, inherited, listen
from runtimeproxy.sdnotify import listen_sockets

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings

logger = logging.getLogger(__name__)


class OtherFrontEndError(RuntimeProxyError):
    """Another front end runs on this host."""


def lock_host(path: str, *, alone: bool) -> int:
    """Takes the lock; returns its descriptor, -1 if it could not be taken.

    Proxies share it: the lock of their socket keeps a second one out, and one that takes over runs beside its
    predecessor. All other front ends want to be alone.

    Raises:
        OtherFrontEndError: Another front end has it, or it cannot be taken by one that has to be alone.
    """
    descriptor = -1
    try:
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise OtherFrontEndError(f"{path}: another front end of this host holds the lock") from error
    except OSError as error:
        if alone:
            raise OtherFrontEndError(f"{path}: the lock cannot be taken: {error.strerror}") from error
        # The kubelet's calls must not depend on a folder that is not theirs.
        logger.info("%s: the lock of this host's front end is not taken: %s", path, error.strerror)
        return -1
    return descriptor


def unlock_host(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def take_host(settings: Settings, environ: Mapping[str, str]) -> tuple[int, Listener]:
    """Takes the lock for a front end without a socket of the kubelet, and the socket of the API.

    Raises:
        RuntimeProxyError: Another front end runs, or the socket cannot be used.
    """
    descriptor = lock_host(settings.daemon.lock, alone=True)
    # The API is served on the listener itself: no other socket is needed.
    passed, proxy = listen_sockets(environ), settings.proxy
    for surplus in passed[1:]:
        surplus.close()
    if passed:
        return descriptor, inherited(passed[0])
    uid, gid = owner_ids(proxy)
    return descriptor, listen(proxy.endpoint, mode=socket_mode_bits(proxy.socket_mode), uid=uid, gid=gid)
