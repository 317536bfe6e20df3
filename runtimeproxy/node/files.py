"""Reads files that other programs write, whatever lies under their names."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.units import parse_cpu_list, quantity_bytes, quantity_millicores

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size and times: another one after each change."""

MAX_SHOWN: Final = 128
"""Longest part of a file's content in a reason."""


class InputError(RuntimeProxyError):
    """Input that cannot be used: its place in the file, and the reason."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason = reason
        self.place = place


@contextmanager
def within(place: str) -> Iterator[None]:
    """Errors of the block are about this place, or one within it."""
    try:
        yield
    except InputError as error:
        inner = error.place if error.place.startswith("[") or not error.place else f".{error.place}"
        raise InputError(error.reason, place + inner) from None


def read_file(path: Path, max_bytes: int) -> tuple[bytes, Stamp]:
    """The content of a file.

    Raises:
        FileNotFoundError: There is no such file.
        InputError: It cannot be read, is not a regular file, or has more than `max_bytes`.
    """
    try:
        # A FIFO must not hang.
        with open(path, "rb", opener=_open) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise InputError("is not a regular file")
            data = file.read(max_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise InputError(f"has more than {max_bytes} bytes")
    return data, _stamp(about)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file as a whole, readable for its owner only; makes its folder if there is none.

    Raises:
        OSError: It cannot be written; the old one stays.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    with open(new, "wb", opener=_open_private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def stamp_of(path: Path) -> Stamp | None:
    """The file's present stamp; None if there is none or it cannot be told."""
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def parse_json(data: bytes | str) -> Any:  # noqa: ANN401 - JSON
    """The JSON value of a text.

    Raises:
        InputError: It is not JSON.
    """
    text = data.decode("utf-8-sig", "surrogateescape") if isinstance(data, bytes) else data
    if not text.strip():
        raise InputError("is empty")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno} column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON: {shortened(str(error))}") from None


def mapping_of(value: object) -> Mapping[str, Any]:
    """The value as a mapping; None is an empty one.

    Raises:
        InputError: It is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"is {kind_of(value)}, not a mapping")
    return value


def list_of(value: object) -> list[Any]:
    """The value as a list; None is an empty one.

    Raises:
        InputError: It is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError(f"is {kind_of(value)}, not a list")
    return value


def text_of(value: object) -> str:
    """The value as a text; None is an empty one.

    Raises:
        InputError: It is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"is {kind_of(value)}, not a text")
    return value


def cpus_of(value: object) -> frozenset[int]:
    """The CPUs of a list such as `0-3,8`; None is an empty one.

    Raises:
        InputError: It is no such list.
    """
    # YAML reads a single CPU without quotes as a number.
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise InputError(f"is {kind_of(value)}, not a CPU list")
    try:
        return parse_cpu_list("" if value is None else str(value))
    except ValueError as error:
        raise InputError(shortened(str(error))) from None


def quantity_of(resource: str, value: object) -> int:
    """A quantity as Kubernetes objects have it, a text or a number; of `cpu` in millicores.

    Raises:
        InputError: It is not a quantity.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"is {kind_of(value)}, not a quantity")
    parse = quantity_millicores if resource == "cpu" else quantity_bytes
    try:
        amount = parse(str(value).strip())
    except ValueError:
        raise InputError(f"is not a quantity: {shortened(repr(value))}") from None
    if amount < 0:
        raise InputError(f"is below 0: {shortened(repr(value))}")
    return amount


def quantities_of(values: object) -> dict[str, int]:
    """Quantities by resource; None is an empty mapping.

    Raises:
        InputError: One of them is not a quantity.
    """
    found: dict[str, int] = {}
    for name, value in mapping_of(values).items():
        with within(shortened(str(name))):
            found[str(name)] = quantity_of(name, value)
    return found


def member(values: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - JSON
    """A member of a struct as Go's JSON reads it: its key in any case, the last one wins; None if absent."""
    found = values.get(name)
    lowered = name.lower()
    for key, value in values.items():
        if key.lower() == lowered:
            found = value
    return found


def shortened(text: str) -> str:
    """The text, cut when it is long; what is not UTF-8 is escaped."""
    text = printable(text)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def printable(path: Path | str) -> str:
    """A path for logs: bytes that are not UTF-8 are escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def kind_of(value: object) -> str:
    """What a JSON or YAML value is, for a reason."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return f"a {type(value).__name__}"


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _stamp(about: os.stat_result) -> Stamp:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
