"""Ports of 127.0.0.1 for servers that have to be told theirs before they start."""

from __future__ import annotations

import errno
import itertools
import os
import socket

_FIRST, _LAST = 10_000, 29_999
"""Below those that the kernel gives to clients and to servers that leave the choice to it."""
_numbers = itertools.count(os.getpid() * 61)


def free_port() -> int:
    """A port that no program uses, and that none gets by chance until it is used; another one each time.

    One that the kernel chooses may have gone to a client of another test before the server listens there.
    """
    for number in _numbers:
        port = _FIRST + number % (_LAST - _FIRST + 1)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError
