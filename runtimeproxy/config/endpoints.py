"""Endpoints of Unix sockets as users write them; pure."""

from __future__ import annotations

import os
import re
from typing import Final

MAX_SOCKET_PATH_BYTES: Final = 107
"""Longest path of a Unix socket. Source: unix(7): sun_path has 108 bytes with its NUL."""
TEMPORARY_SUFFIX_BYTES: Final = 4
"""The own socket is bound under a temporary name (`.new` behind its own), so its path may be that much
shorter. Source: runtimeproxy.relay.listener."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def parse_endpoint(text: str, *, spare_bytes: int = 0) -> str:
    """Returns the absolute path in `/path`, `unix:/path` or `unix:///path`.

    Args:
        text: the endpoint as given.
        spare_bytes: how much shorter than the longest socket path it has to be.

    Raises:
        ValueError: it is none of the three, or too long; says which.
    """
    path = text
    if text.startswith("unix://"):
        path = text.removeprefix("unix://")
    elif text.startswith("unix:"):
        path = text.removeprefix("unix:")
    elif _SCHEME.match(text):
        raise ValueError(f"{text!r} is no Unix socket: write /path, unix:/path or unix:///path")
    if not path.startswith("/"):
        raise ValueError(f"{text!r} has no absolute path: write /path, unix:/path or unix:///path")
    if path.endswith("/") or "\0" in path or any(0xD800 <= ord(letter) <= 0xDBFF for letter in path):
        raise ValueError(f"{text!r} does not name a file")
    path = "/" + path.lstrip("/")
    size, most = len(os.fsencode(path)), MAX_SOCKET_PATH_BYTES - spare_bytes
    if size > most:
        raise ValueError(f"the socket path has {size} bytes, at most {most} are possible: {path}")
    return path


def is_same_socket(one: str, other: str) -> bool:
    """Whether two paths lead to one socket, through links and hard links too."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)  # noqa: PTH121 - both are text here
    except OSError:
        return False
