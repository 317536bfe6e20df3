"""One front end on a host: a lock at a fixed place, which the kernel drops with the process."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from runtimeproxy.errors import RuntimeProxyError

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
