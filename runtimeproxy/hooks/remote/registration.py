"""One registration file of a hook server; pure: bytes in, a registration and what is wrong with it out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
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
