"""Endpoints, addresses, modes and owners as settings give them: text to values."""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

MAX_SOCKET_PATH_BYTES: Final = 107
"""Longest path of a Unix socket. Source: unix(7): sun_path has 108 bytes with its NUL."""
TEMPORARY_SUFFIX_BYTES: Final = 4
"""The proxy's own socket is bound under a temporary name (`.new` is appended), so its path must be that much
shorter. Source: runtimeproxy.listener."""
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MAX_ID: Final = 2**32 - 2
"""Source: chown(2): ids have 32 bits, and -1 among them means to leave the owner as it is."""
_MODE: Final = re.compile(r"0?[0-7]{3}")
_HTTP_URL: Final = re.compile(r"http://(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?/?")
_COLLECTOR: Final = re.compile(r"(https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]))(?::([0-9]{1,5}))?/?")
_OTLP_PORT: Final = 4317
"""Source: the OTLP specification, "OTLP/gRPC Default Port"."""
_OTLP_MODULES: Final = ("opentelemetry.exporter.otlp.proto.common", "opentelemetry.sdk.trace")


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
        raise ValueError(f"{text!r} is not a Unix socket: write /path, unix:/path or unix:///path")
    if not path.startswith("/"):
        raise ValueError(f"{text!r} has no absolute path: write /path, unix:/path or unix:///path")
    if path.endswith("/") or "\0" in path or any(0xD800 <= ord(letter) <= 0xDBFF for letter in path):
        raise ValueError(f"{text!r} does not name a file")
    path = "/" + path.lstrip("/")
    size, most = len(os.fsencode(path)), MAX_SOCKET_PATH_BYTES - spare_bytes
    if size > most:
        raise ValueError(f"the socket path has {size} bytes, at most {most} are possible: {path}")
    return path


class TcpAddress(NamedTuple):
    """An address to listen on."""

    host: str
    """An IP address."""
    port: int


def parse_listen(text: str) -> TcpAddress | str | None:
    """Returns the address in a port, `address:port`, or the path in `/path`, `unix:///path`; None for none.

    Raises:
        ValueError: it is none of them; says which.
    """
    if not text:
        return None
    if text.startswith(("/", "unix:")):
        return parse_endpoint(text, spare_bytes=TEMPORARY_SUFFIX_BYTES)
    host, has_host, digits = text.rpartition(":")
    if not digits.isascii() or not digits.isdecimal() or not 0 < int(digits) < 65536:
        raise ValueError(f"{text!r} is not a port, an address with a port, or a path")
    if not has_host:
        return TcpAddress("127.0.0.1", int(digits))
    if host == "localhost":
        host = "127.0.0.1"
    import ipaddress

    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError(f"{host!r} is not an IP address") from None
    if (address.version == 6) is not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, and no other one")
    return TcpAddress(str(address), int(digits))


def parse_collector(text: str) -> str:
    """Returns the endpoint `http://host:port` or `https://host:port`, or a socket's path; empty for none.

    Raises:
        ValueError: it is none of them, or OpenTelemetry is not installed; says which.
    """
    if not text:
        return ""
    if text.startswith(("/", "unix:")):
        endpoint = parse_endpoint(text)
    elif match := _COLLECTOR.fullmatch(text):
        endpoint = f"{match[1]}:{match[2] or _OTLP_PORT}"
        if int(match[2] or _OTLP_PORT) not in range(1, 65536):
            raise ValueError(f"{match[2]} is not a port")
    else:
        raise ValueError(f"{text!r} is not a collector: write http://host:port, https://host:port or /path")
    if not all(map(is_installed, _OTLP_MODULES)):
        raise ValueError("needs the extra otel: pip install 'koord-runtime-proxy[otel]'")
    return endpoint


def parse_http_url(text: str) -> str:
    """Returns the URL `http://host` or `http://host:port` without a slash at its end. Raises ValueError."""
    match = _HTTP_URL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not http://host:port")
    if match[1] is not None and int(match[1]) not in range(1, 65536):
        raise ValueError(f"{match[1]} is not a port")
    return text.removesuffix("/")


def is_same_socket(one: str, other: str) -> bool:
    """Whether two paths lead to one socket, through links and hard links too."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)  # noqa: PTH121 - both are text here
    except OSError:
        return False


def socket_mode_bits(text: str) -> int:
    """The permissions in `0660` or `660`. Raises ValueError if the text is not such a number."""
    if not _MODE.fullmatch(text):
        raise ValueError(f"{text!r} is not an octal mode such as 0660")
    return int(text, 8)


def is_installed(module: str) -> bool:
    """Whether a module can be found; the packages around it are imported."""
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def user_id(name: str) -> int:
    import pwd

    if not name or name.isdecimal():
        return _id(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ValueError(f"there is no user {name!r}") from None


def group_id(name: str) -> int:
    import grp

    if not name or name.isdecimal():
        return _id(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"there is no group {name!r}") from None


def _id(digits: str) -> int:
    number = int(digits or -1)
    if number > _MAX_ID:
        raise ValueError(f"{digits} is not a valid id: the largest is {_MAX_ID}")
    return number
