"""Registration files of hook servers: one file parsed, a folder of them followed; for a worker thread.

A bad or missing file has no effect for `GRACE_S`, because files are written in place: until then an empty or
half-written file is not reported, and a file that is away for a moment stays registered.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtimeproxy.documents.files import Stamp, is_watchable, read_file, stamp_of
from runtimeproxy.documents.reading import InputError, json_value, printable, shortened
from runtimeproxy.hooks.policy import FailurePolicy, Hook
from runtimeproxy.spelling import did_you_mean, nearest

ENDPOINT: Final = "remote-endpoint"
FAILURE_POLICY: Final = "failure-policy"
HOOKS: Final = "runtime-hooks"
TIMEOUT: Final = "timeout-seconds"
ANSWERS: Final = "answers"
KEYS: Final = (ENDPOINT, FAILURE_POLICY, HOOKS, TIMEOUT, ANSWERS)
"""The first three are Koordinator's, the others are extensions.

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

GRACE_S: Final = 0.3
"""How long a bad file may be one that is just being written, and a missing one just being replaced."""
MAX_FILE_BYTES: Final = 1024 * 1024
"""Largest registration file; Koordinator's have some hundred bytes."""
SUFFIX: Final = ".json"

_SCHEME: Final = re.compile(r"unix:(//)?(?=/)")
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")
_MAX_UNKNOWN: Final = 10
_SETTLED_NS: Final = 100_000_000
"""A file that changed this short before it was read may change again under the same times: the kernel's clock
of files has ticks of up to 10 ms. Source: current_time() in Linux fs/inode.c takes the coarse clock."""


class ResponseMode(StrEnum):
    """How a server's responses are to be read."""

    AUTO = "auto"
    """Complete if the response repeats all that was in the request, else partial."""
    COMPLETE = "complete"
    """Empty fields and zeros of a response are values, as for Koordinator's proxy."""
    PARTIAL = "partial"
    """Empty fields and zeros of a response mean "unchanged"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A hook server as its file describes it."""

    name: str
    """The file's name, such as `koordlet.json`: servers are called in the order of these."""
    endpoint: str
    """The absolute path of the server's socket."""
    failure_policy: FailurePolicy
    hooks: frozenset[Hook]
    """The hooks that the server wants to be called for; may be empty."""
    timeout_s: float
    """Time for one call of the server: above 0, at most `MAX_TIMEOUT_S` or the default."""
    answers: ResponseMode


class ParsedRegistration(NamedTuple):
    """The content of a file."""

    registration: Registration | None
    """None when the file is bad."""
    problems: tuple[str, ...]
    """Each as `key: reason`, or only a reason when the whole file is meant."""


class Content(NamedTuple):
    """The bytes of a file."""

    data: bytes
    stamp: Stamp | None
    """None when the file may have changed meanwhile: read it again next time."""


class FolderReading(NamedTuple):
    """The result of one look at the folder."""

    registrations: tuple[Registration, ...]
    """By file name."""
    problems: tuple[str, ...]
    """New ones, with the path."""
    again_s: float | None
    """Seconds until a file comes into effect that does not yet; None for none."""
    needs_polling: bool
    """Whether a file may change without an event in the folder: it is reached by a link, has another name
    elsewhere, or cannot be read."""
    present: tuple[str, ...] = ()
    """All present problems, with the path, for the status."""


class _BadFileError(ValueError):
    """The file is not a registration; the text says why."""


def parse_registration(name: str, data: bytes, default_timeout_s: float) -> ParsedRegistration:
    """Parses a registration file; pure.

    A file is bad if it is not a JSON object, has no usable endpoint, or a value of the wrong type. Unknown
    keys, hook names and values are problems that leave the rest of the file in effect.

    `data`: its content; any bytes. `default_timeout_s`: the time for one call if the file has none.
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
            answers=_response_mode(values, problems),
        )
    except _BadFileError as error:
        return ParsedRegistration(None, (str(error),))
    unknown = [key for key in values if key not in KEYS]
    problems += (f"{_shown(key)}: unknown key{_suggestion(key, KEYS)}" for key in unknown[:_MAX_UNKNOWN])
    return ParsedRegistration(registration, tuple(problems))


def registration_names(folder: Path) -> list[str]:
    """The names of the registration files in a folder, sorted.

    Raises:
        OSError: The folder cannot be read.
    """
    names = (path.name for path in folder.iterdir())
    return sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith("."))


def read_registration(path: Path) -> Content:
    """The file's content; never waits for the other end of a FIFO.

    Raises:
        FileNotFoundError: The name does not exist any more.
        InputError: Not a regular file, too large, or out of reach.
    """
    now_ns = time.time_ns()
    try:
        data, stamp = read_file(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        if path.is_symlink():
            raise InputError("is a dangling symbolic link") from None
        raise
    is_settled = stamp == stamp_of(path) and stamp[-1] + _SETTLED_NS < now_ns
    return Content(data, stamp if is_settled else None)


_UNPARSED: Final = ParsedRegistration(None, ())


@dataclass(slots=True)
class _File:
    """The state of one file name."""

    grace_s: float
    stamp: Stamp | None = None
    content: int | str | None = None
    """A hash of the content, or the reason why it cannot be read."""
    since_s: float = 0.0
    """Time at which this content was seen first."""
    parsed: ParsedRegistration = _UNPARSED
    good: Registration | None = None
    """The last good one."""
    reported: int | str | None = None
    """The content whose problems have been reported."""
    missing_since_s: float | None = None
    is_watchable: bool = True

    def update(self, content: int | str, parsed: ParsedRegistration, now_s: float) -> None:
        if content != self.content:
            self.content, self.since_s = content, now_s
        self.parsed = parsed
        self.good = parsed.registration or self.good
        self.missing_since_s = None
        if not parsed.problems:
            self.reported = None

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the present state comes into effect; None when it is in effect."""
        since_s = self.missing_since_s
        if since_s is None:
            if self.parsed.registration is not None or self.reported == self.content:
                return None
            since_s = self.since_s
        wait_s = since_s + self.grace_s - now_s
        return wait_s if wait_s > 0 else None

    def new_problems(self, now_s: float) -> tuple[str, ...]:
        """The problems to report now: once per content."""
        is_reported = self.reported == self.content
        if self.missing_since_s is not None or is_reported or self.wait_s(now_s) is not None:
            return ()
        self.reported = self.content
        return self.present_problems

    @property
    def present_problems(self) -> tuple[str, ...]:
        if self.parsed.registration is not None or self.good is None:
            return self.parsed.problems
        return tuple(
            f"{each}; the last good registration of this name stays" for each in self.parsed.problems
        )


class Registrations:
    """The registration files of one folder. Used by one thread at a time.

    Args:
        clock: Seconds that only grow.
        grace_s: See `GRACE_S`.
    """

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, grace_s: float = GRACE_S
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._grace_s = grace_s
        self._files: dict[str, _File] = {}
        self._default_timeout_s = 0.0
        self._folder_problem = ""

    def look(self, default_timeout_s: float) -> FolderReading:
        """Reads new and changed files; never raises for the state of the folder.

        Args:
            default_timeout_s: The time for one call of a server whose file has none.
        """
        if default_timeout_s != self._default_timeout_s:
            self._default_timeout_s = default_timeout_s
            for file in self._files.values():
                file.stamp = None
        now_s = self._clock()
        problems = list(self._read_folder(now_s))
        for name, file in self._files.items():
            problems += (f"{printable(self._folder / name)}: {text}" for text in file.new_problems(now_s))
        waits_s = [wait_s for file in self._files.values() if (wait_s := file.wait_s(now_s)) is not None]
        good = (file.good for _, file in sorted(self._files.items()))
        # A link to the folder may come to lead to another one without an event in either.
        is_linked = Path(os.path.realpath(self._folder)) != self._folder
        return FolderReading(
            registrations=tuple(registration for registration in good if registration is not None),
            problems=tuple(problems),
            again_s=min(waits_s, default=None),
            needs_polling=is_linked or not all(file.is_watchable for file in self._files.values()),
            present=self._present_problems(),
        )

    def _present_problems(self) -> tuple[str, ...]:
        of_folder = (f"{printable(self._folder)}: {self._folder_problem}",) if self._folder_problem else ()
        of_files = (
            f"{printable(self._folder / name)}: {text}"
            for name, file in sorted(self._files.items())
            if file.missing_since_s is None
            for text in file.present_problems
        )
        return (*of_folder, *of_files)

    def _read_folder(self, now_s: float) -> Iterator[str]:
        """Looks at every file; yields the problem of the folder if it is new."""
        problem = ""
        names: list[str] = []
        try:
            names = registration_names(self._folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = f"{error.strerror}; hook servers can register once there is such a folder"
        except OSError as error:
            problem = f"cannot be read: {error.strerror}; hook servers stay as they are"
            names = list(self._files)
        for name in names:
            file = self._files.setdefault(name, _File(self._grace_s))
            stamp = stamp_of(self._folder / name)
            if stamp is None or stamp != file.stamp:
                self._read_file(self._folder / name, file, now_s)
            else:
                file.missing_since_s = None
        self._forget(self._files.keys() - names, now_s)
        if problem and problem != self._folder_problem:
            yield f"{printable(self._folder)}: {problem}"
        self._folder_problem = problem

    def _read_file(self, path: Path, file: _File, now_s: float) -> None:
        try:
            data, stamp = read_registration(path)
        except FileNotFoundError:
            self._forget({path.name}, now_s)
        except InputError as error:
            file.stamp, file.is_watchable = None, False
            file.update(str(error), ParsedRegistration(None, (str(error),)), now_s)
        else:
            file.stamp, file.is_watchable = stamp, is_watchable(path)
            parsed = parse_registration(printable(path.name), data, self._default_timeout_s)
            file.update(hash(data), parsed, now_s)

    def _forget(self, names: set[str], now_s: float) -> None:
        """Forgets missing files after `GRACE_S`; at once those whose server has another file now."""
        for name in names:
            if self._files[name].missing_since_s is None:
                self._files[name].missing_since_s = now_s
        present = {
            file.good.endpoint
            for file in self._files.values()
            if file.good is not None and file.missing_since_s is None
        }
        for name in names:
            file = self._files[name]
            if file.good is None or file.good.endpoint in present or file.wait_s(now_s) is None:
                del self._files[name]


def _object(data: bytes) -> dict[str, Any]:
    """The file's values by their keys in lower case, without null.

    Source: Go's encoding/json, which takes keys in any case, and null for no value.
    """
    if not data.strip():
        raise _BadFileError("the file is empty")
    try:
        values = json_value(data.decode("utf-8-sig"), takes_nan=True)
    except UnicodeDecodeError:
        raise _BadFileError("not valid JSON: not UTF-8") from None
    except InputError as error:
        raise _BadFileError(f"not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise _BadFileError("not a JSON object")
    return {key.lower(): value for key, value in values.items() if value is not None}


def _endpoint(values: Mapping[str, Any]) -> str:
    text = _text(values, ENDPOINT)
    if not text:
        raise _BadFileError(f"{ENDPOINT}: is missing or empty")
    path = _SCHEME.sub("", text, count=1)
    if not path.startswith("/"):
        raise _BadFileError(f"{ENDPOINT}: {_shown(text)} is not an absolute path of a socket")
    # After two slashes gRPC expects a host.
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
        problems.append(f"{FAILURE_POLICY}: {_shown(text)} is unknown, Ignore is used{guess}")
    return FAILURE_POLICIES.get(text, FailurePolicy.IGNORE)


def _hooks(values: Mapping[str, Any], problems: list[str]) -> frozenset[Hook]:
    names = values.get(HOOKS, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _BadFileError(f"{HOOKS}: must be a list of strings")
    unknown = [name for name in dict.fromkeys(names) if name not in HOOK_NAMES and name not in NEVER_CALLED]
    problems += (
        f"{HOOKS}: no hook is named {_shown(name)}{_suggestion(name, HOOK_NAMES)}"
        for name in unknown[:_MAX_UNKNOWN]
    )
    if not names:
        problems.append(f"{HOOKS}: names no hook, so the server is never called")
    return frozenset(HOOK_NAMES[name] for name in names if name in HOOK_NAMES)


def _timeout_s(values: Mapping[str, Any], default_s: float, problems: list[str]) -> float:
    seconds = values.get(TIMEOUT)
    if seconds is None:
        return default_s
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _BadFileError(f"{TIMEOUT}: must be a number")
    if not 0 < seconds <= MAX_TIMEOUT_S:
        limits = f"above 0 and at most {MAX_TIMEOUT_S:g}"
        problems.append(f"{TIMEOUT}: must be {limits}, {default_s:g} is used")
        return default_s
    return float(seconds)


def _response_mode(values: Mapping[str, Any], problems: list[str]) -> ResponseMode:
    text = _text(values, ANSWERS) or ResponseMode.AUTO
    try:
        return ResponseMode(text)
    except ValueError:
        known = ", ".join(ResponseMode)
        problems.append(f"{ANSWERS}: {_shown(text)} is none of {known}; {ResponseMode.AUTO} is used")
        return ResponseMode.AUTO


def _text(values: Mapping[str, Any], key: str) -> str:
    text = values.get(key, "")
    if not isinstance(text, str):
        raise _BadFileError(f"{key}: must be a string")
    return text


def _suggestion(word: str, known: Iterable[str]) -> str:
    there = tuple(known)
    return did_you_mean(nearest(word, there)) or f"; there are: {', '.join(there)}"


def _shown(value: str) -> str:
    return shortened(repr(value))
