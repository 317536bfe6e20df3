"""All registration files of a folder: what is registered now, and what is wrong; for a worker thread.

Nothing bad counts before it has lasted for GRACE_S, for files are written in place: until then an empty or
half-written file is not reported, and a file that is away for a moment stays registered.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtimeproxy.hooks.policy import FailurePolicy, Hook

ENDPOINT: Final = "remote-endpoint"
FAILURE_POLICY: Final = "failure-policy"
HOOKS: Final = "runtime-hooks"
TIMEOUT: Final = "timeout-seconds"
ANSWERS: Final = "answers"
KEYS: Final = (ENDPOINT, FAILURE_POLICY, HOOKS, TIMEOUT, ANSWERS)
"""The first three are Koordinator's, the others this proxy's own.

Source: Koordinator pkg/runtimeproxy/config/config.go."""

HOOK_NAMES: Final[Mapping[str, Hook]] = {
    "PreRunPodSandbox": Hook.PRE_RUN_POD_SANDBOX,
    "PostStopPodSandbox": Hook.POST_STOP_POD_SANDBOX,
    "PreCreateContainer": Hook.PRE_CREATE_CONTAINER,
    "PreStartContainer": Hook.PRE_START_CONTAINER,
    "PostStartContainer": Hook.POST_START_CONTAINER,
    "PreUpdateContainerResources": Hook.PRE_UPDATE_CONTAINER_RESOURCES,
    "PostStopContainer": Hook.POST_STOP_CONTAINER,
}
"""The hooks by their names in a file. Source: Koordinator pkg/runtimeproxy/config/config.go."""

NEVER_CALLED: Final = frozenset({"PreRemoveRunPodSandbox"})
"""Names that Koordinator has for NRI; its proxy takes them and never calls them. Source: as above."""

FAILURE_POLICIES: Final[Mapping[str, FailurePolicy]] = {
    "Fail": FailurePolicy.FAIL,
    "Ignore": FailurePolicy.IGNORE,
}
"""By their names in a file; absent and anything else means Ignore. Source: as above."""

MAX_TIMEOUT_S: Final = 120.0
"""The most that all policies of one call may have together (`hooks.budget_s`)."""
MAX_PATH_BYTES: Final = 107
"""Longest path of a Unix socket. Source: unix(7): sun_path has 108 bytes with its NUL."""

_SCHEME: Final = re.compile(r"unix:(//)?(?=/)")
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")
_MAX_SHOWN: Final = 60
_MAX_UNKNOWN: Final = 10


class Answers(StrEnum):
    """How a server's answers are to be read."""

    AUTO = "auto"
    """Complete if the answer repeats all that the server was shown, else partial."""
    COMPLETE = "complete"
    """What is empty or 0 in an answer counts, as with Koordinator's proxy."""
    PARTIAL = "partial"
    """What is empty or 0 in an answer stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A hook server as its file describes it."""

    name: str
    """The file's name, such as `koordlet.json`: servers are called in the order of these."""
    endpoint: str
    """The absolute path of the server's socket."""
    failure_policy: FailurePolicy
    hooks: frozenset[Hook]
    """What the server wants to be called for; may be empty."""
    timeout_s: float
    """Time for one call of the server: above 0, at most `MAX_TIMEOUT_S` or the default."""
    answers: Answers


class Parsed(NamedTuple):
    """What a file says."""

    registration: Registration | None
    """None when the file is bad."""
    problems: tuple[str, ...]
    """What is wrong, each as `key: reason`, or only a reason when the whole file is meant."""


class _BadFileError(ValueError):
    """The file is no registration; the text says why."""


def parse(name: str, data: bytes, default_timeout_s: float) -> Parsed:
    """Reads a registration file.

    A file is bad if it is no JSON object, has no usable endpoint, or a value of the wrong type. Unknown keys,
    hook names and values are problems that leave the rest of the file in force.

    Args:
        name: the file's name.
        data: its content, whatever that is.
        default_timeout_s: the time for one call where the file says nothing.
    """
    problems: list[str] = []
    try:
        values = _object(data)
        registration = Registration(
            name=name,
            endpoint=_endpoint(values),
            failure_policy=_failure_policy(values, problems),
            hooks=_hooks(values, problems),
            timeout_s=_timeout_s(values, default_timeout_s, problems),
            answers=_answers(values, problems),
        )
    except _BadFileError as error:
        return Parsed(None, (str(error),))
    unknown = [key for key in values if key not in KEYS]
    problems += (f"{_shown(key)}: unknown key{_suggestion(key, KEYS)}" for key in unknown[:_MAX_UNKNOWN])
    return Parsed(registration, tuple(problems))


def _object(data: bytes) -> dict[str, Any]:
    """The file's keys in lower case and values; null is as good as absent, as it is for Koordinator's proxy.

    Source: Go's encoding/json, which takes keys in any case, and null for no value.
    """
    if not data.strip():
        raise _BadFileError("the file is empty")
    try:
        values = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _BadFileError(f"no JSON: {_reason(error)}") from None
    if not isinstance(values, dict):
        raise _BadFileError("no JSON object")
    return {key.lower(): value for key, value in values.items() if value is not None}


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} column {error.colno}: {error.msg}"
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else _shortened(str(error))


def _endpoint(values: Mapping[str, Any]) -> str:
    text = _text(values, ENDPOINT)
    if not text:
        raise _BadFileError(f"{ENDPOINT}: is missing or empty")
    path = _SCHEME.sub("", text, count=1)
    if not path.startswith("/"):
        raise _BadFileError(f"{ENDPOINT}: {_shown(text)} is no absolute path of a socket")
    # What stands behind two slashes is a host to gRPC.
    path = "/" + path.lstrip("/")
    if path.endswith("/") or _UNUSABLE.search(path):
        raise _BadFileError(f"{ENDPOINT}: {_shown(text)} does not name a file")
    size = len(os.fsencode(path))
    if size > MAX_PATH_BYTES:
        raise _BadFileError(f"{ENDPOINT}: the path has {size} bytes, at most {MAX_PATH_BYTES} are possible")
    return path


def _failure_policy(values: Mapping[str, Any], problems: list[str]) -> FailurePolicy:
    text = _text(values, FAILURE_POLICY)
    if text and text not in FAILURE_POLICIES:
        guess = _suggestion(text, FAILURE_POLICIES)
        problems.append(f"{FAILURE_POLICY}: {_shown(text)} is unknown, so Ignore counts{guess}")
    return FAILURE_POLICIES.get(text, FailurePolicy.IGNORE)


def _hooks(values: Mapping[str, Any], problems: list[str]) -> frozenset[Hook]:
    names = values.get(HOOKS, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _BadFileError(f"{HOOKS}: must be a list of texts")
    problems += (
        f"{HOOKS}: no hook is named {_shown(name)}{_suggestion(name, HOOK_NAMES)}"
        for name in _unknown_hooks(names)[:_MAX_UNKNOWN]
    )
    if not names:
        problems.append(f"{HOOKS}: names no hook, so the server is never called")
    return frozenset(HOOK_NAMES[name] for name in names if name in HOOK_NAMES)


def _unknown_hooks(names: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name not in HOOK_NAMES and name not in NEVER_CALLED]


def _timeout_s(values: Mapping[str, Any], default_s: float, problems: list[str]) -> float:
    seconds = values.get(TIMEOUT)
    if seconds is None:
        return default_s
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _BadFileError(f"{TIMEOUT}: must be a number")
    if not 0 < seconds <= MAX_TIMEOUT_S:
        problems.append(f"{TIMEOUT}: must be above 0 and at most {MAX_TIMEOUT_S:g}, so {default_s:g} counts")
        return default_s
    return float(seconds)


def _answers(values: Mapping[str, Any], problems: list[str]) -> Answers:
    text = _text(values, ANSWERS) or Answers.AUTO
    try:
        return Answers(text)
    except ValueError:
        known = ", ".join(Answers)
        problems.append(f"{ANSWERS}: {_shown(text)} is none of {known}, so {Answers.AUTO} counts")
        return Answers.AUTO


def _text(values: Mapping[str, Any], key: str) -> str:
    text = values.get(key, "")
    if not isinstance(text, str):
        raise _BadFileError(f"{key}: must be a text")
    return text


def _suggestion(word: str, known: Iterable[str]) -> str:
    import difflib  # only where a file has a mistake

    there = tuple(known)
    lowered = {each.lower(): each for each in there}
    guess = difflib.get_close_matches(word.lower()[:_MAX_SHOWN], lowered, n=1)
    return f"; did you mean {lowered[guess[0]]}?" if guess else f"; there are: {', '.join(there)}"


def _shown(value: str) -> str:
    return _shortened(repr(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


MAX_FILE_BYTES: Final = 1024 * 1024
"""Largest registration file; Koordinator's have some hundred bytes."""
SUFFIX: Final = ".json"

_SETTLED_NS: Final = 100_000_000
"""A file that changed this short before it was read may change again under the same times: the kernel's clock
of files has ticks of up to 10 ms. Source: current_time() in Linux fs/inode.c takes the coarse clock."""


class Stamp(NamedTuple):
    """What changes with a file's content."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


class UnreadableFileError(Exception):
    """There is a file of this name, but not one to read; the text says why."""


class Content(NamedTuple):
    """What was read."""

    data: bytes
    stamp: Stamp | None
    """None when the file may have changed meanwhile: read it again next time."""


def names_in(folder: Path) -> list[str]:
    """Returns the names of the registration files in a folder, sorted.

    Raises:
        OSError: the folder cannot be read.
    """
    names = (path.name for path in folder.iterdir())
    return sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith("."))


def stamp_of(path: Path) -> Stamp | None:
    """Returns the stamp of the file that a path leads to; None when there is none."""
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def is_watchable(path: Path) -> bool:
    """Returns whether each change of a file is one in its folder: it is no link, and has no other name."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def read(path: Path) -> Content:
    """Returns the file's content; never waits for the other end of a FIFO.

    Raises:
        FileNotFoundError: there is nothing of this name any more.
        UnreadableFileError: what is there is no regular file, too large, or out of reach.
    """
    now_ns = time.time_ns()
    try:
        # Opening a device may have effects of its own, so what is no file is not opened at all.
        _check_regular(path.stat())
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as file:
            before = os.fstat(fd)
            _check_regular(before)
            data = _all_of(file)
            after = os.fstat(fd)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableFileError(f"has more than {MAX_FILE_BYTES} bytes")
    is_settled = _stamp(before) == _stamp(after) and after.st_ctime_ns + _SETTLED_NS < now_ns
    return Content(data, _stamp(after) if is_settled else None)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFileError("is no regular file")


def _all_of(file: FileIO) -> bytes:
    data = bytearray()
    while len(data) <= MAX_FILE_BYTES and (piece := file.read(MAX_FILE_BYTES + 1 - len(data))):
        data += piece
    return bytes(data)


def _unreadable(path: Path, error: OSError) -> UnreadableFileError | FileNotFoundError:
    if isinstance(error, FileNotFoundError):
        return UnreadableFileError("is a link that leads nowhere") if path.is_symlink() else error
    return UnreadableFileError(f"cannot be read: {error.strerror}")


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


GRACE_S: Final = 0.3
"""How long a bad file may be one that is just being written, and a missing one just being replaced."""


_NOTHING: Final = Parsed(None, ())


class Look(NamedTuple):
    """What one look at the folder found."""

    registrations: tuple[Registration, ...]
    """What is registered, by file name."""
    problems: tuple[str, ...]
    """What has not been told before, with the path."""
    again_s: float | None
    """In how many seconds something may count that does not yet; None for nothing."""
    needs_polling: bool
    """Whether a file may change without an event in the folder: what is reached by a link, has another name
    elsewhere, or cannot be read."""


@dataclass(slots=True)
class _File:
    """What is known of one name."""

    stamp: Stamp | None = None
    content: int | str | None = None
    """Stands for the content, or is the reason why there is none."""
    since_s: float = 0.0
    """When this content was seen first."""
    parsed: Parsed = _NOTHING
    good: Registration | None = None
    """The last good one."""
    told: int | str | None = None
    """The content whose problems have been told."""
    missing_since_s: float | None = None
    is_watchable: bool = True

    def saw(self, content: int | str, parsed: Parsed, now_s: float) -> None:
        """Takes what the file says now."""
        if content != self.content:
            self.content, self.since_s = content, now_s
        self.parsed = parsed
        self.good = parsed.registration or self.good
        if not parsed.problems:
            self.told = None

    def wait_s(self, now_s: float) -> float | None:
        """In how many seconds the present state counts; None when it does already."""
        since_s = self.missing_since_s
        if since_s is None:
            if self.parsed.registration is not None or self.told == self.content:
                return None
            since_s = self.since_s
        wait_s = since_s + GRACE_S - now_s
        return wait_s if wait_s > 0 else None

    def untold(self, now_s: float) -> tuple[str, ...]:
        """The problems that are to be told now; they are told once per content."""
        if self.missing_since_s is not None or self.told == self.content or self.wait_s(now_s) is not None:
            return ()
        self.told = self.content
        if self.parsed.registration is not None:
            return self.parsed.problems
        kept = "; the last good registration of this name stays" if self.good is not None else ""
        return tuple(f"{problem}{kept}" for problem in self.parsed.problems)


class Registrations:
    """The registration files of one folder. Used by one thread at a time.

    Args:
        folder: where the files are.
        clock: seconds that only grow.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._files: dict[str, _File] = {}
        self._default_timeout_s: float | None = None
        self._folder_problem = ""

    def look(self, default_timeout_s: float) -> Look:
        """Reads what is new or has changed, and returns what counts now; never raises for what it finds.

        Args:
            default_timeout_s: the time for one call of a server whose file says nothing of it.
        """
        if default_timeout_s != self._default_timeout_s:
            self._default_timeout_s = default_timeout_s
            for file in self._files.values():
                file.stamp = None
        now_s = self._clock()
        problems = list(self._visit(now_s))
        for name, file in self._files.items():
            problems += (f"{printable(self._folder / name)}: {text}" for text in file.untold(now_s))
        waits_s = [wait_s for file in self._files.values() if (wait_s := file.wait_s(now_s)) is not None]
        good = (file.good for _, file in sorted(self._files.items()))
        return Look(
            registrations=tuple(registration for registration in good if registration is not None),
            problems=tuple(problems),
            again_s=min(waits_s, default=None),
            needs_polling=self._is_linked() or not all(file.is_watchable for file in self._files.values()),
        )

    def _is_linked(self) -> bool:
        """Whether a link leads to the folder: it may come to lead to another without an event in either."""
        return Path(os.path.realpath(self._folder)) != self._folder

    def _visit(self, now_s: float) -> Iterator[str]:
        """Looks at every file; yields what is wrong with the folder, if that is new."""
        problem = ""
        names: list[str] = []
        try:
            names = names_in(self._folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = f"{error.strerror}; hook servers can register once there is such a folder"
        except OSError as error:
            problem = f"cannot be read: {error.strerror}; hook servers stay as they are"
            names = list(self._files)
        for name in names:
            self._visit_file(name, now_s)
        self._miss(self._files.keys() - names, now_s)
        if problem and problem != self._folder_problem:
            yield f"{printable(self._folder)}: {problem}"
        self._folder_problem = problem

    def _visit_file(self, name: str, now_s: float) -> None:
        path = self._folder / name
        file = self._files.setdefault(name, _File())
        stamp = stamp_of(path)
        if stamp is None or stamp != file.stamp:
            self._read(path, file, now_s)
        else:
            file.missing_since_s = None

    def _read(self, path: Path, file: _File, now_s: float) -> None:
        try:
            data, stamp = read(path)
        except FileNotFoundError:
            self._miss({path.name}, now_s)
            return
        except UnreadableFileError as error:
            file.stamp, file.is_watchable = None, False
            file.saw(str(error), Parsed(None, (str(error),)), now_s)
        else:
            file.stamp, file.is_watchable = stamp, is_watchable(path)
            file.saw(hash(data), parse(printable(path.name), data, self._timeout_s), now_s)
        file.missing_since_s = None

    @property
    def _timeout_s(self) -> float:
        return self._default_timeout_s or 0.0

    def _miss(self, names: set[str], now_s: float) -> None:
        """Forgets files that are no longer there, after a time; at once those that have another name now."""
        for name in names:
            file = self._files[name]
            file.missing_since_s = now_s if file.missing_since_s is None else file.missing_since_s
        there = {
            file.good.endpoint
            for file in self._files.values()
            if file.good is not None and file.missing_since_s is None
        }
        for name in names:
            file = self._files[name]
            if file.good is None or file.good.endpoint in there or file.wait_s(now_s) is None:
                del self._files[name]


def printable(path: Path | str) -> str:
    """A path for logs: what is no UTF-8 in it is escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode()
