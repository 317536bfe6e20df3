"""Policies in the files of a folder, such as `/etc/koord-runtime-proxy/policies.d/quiet.py`.

Anyone who can write or replace such a file has all privileges of the proxy. So each file, the folder, and all
folders and links on the path must belong to root or to the proxy's own user, and must not be writable by
others; sshd requires the same of its key files (StrictModes). Each file is run as a module of its own, under
a name that no import statement can spell.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple, Protocol, TypeVar

from runtimeproxy.documents.files import read_file
from runtimeproxy.documents.reading import InputError
from runtimeproxy.errors import PolicyLoadError, described
from runtimeproxy.hooks.loaded import FILE_MODULE_PREFIX, origin_of
from runtimeproxy.hooks.policy import Policy
from runtimeproxy.hooks.policy_checks import check_policy_class

MAX_FILE_BYTES: Final = 1024 * 1024
"""Upper bound of a file; a policy is a few kilobytes of code."""

_MAX_LINKS: Final = 40
"""Source: path_resolution(7): the kernel follows at most 40 symbolic links."""

_T = TypeVar("_T")


class Run(Protocol):
    """Runs third-party code with a time limit; raises PolicyLoadError if it fails."""

    def __call__(self, origin: str, version: object, work: Callable[[], _T]) -> _T:
        """Return the result of the work."""


class FilePolicies(NamedTuple):
    """The result of loading one file."""

    name: str
    """The file's name without its suffix, in kebab-case: probably the policy's."""
    policies: tuple[type[Policy], ...]
    """From the last good version, if there is a problem."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A version of a file."""

    digest: str
    module: str
    policies: tuple[type[Policy], ...]


class PolicyFiles:
    """Loads the files of a folder, and keeps the last good version of each."""

    def __init__(self) -> None:
        self._good: dict[str, _Loaded] = {}
        self._numbers = itertools.count(1)

    def load(self, directory: str, run: Run) -> Iterator[FilePolicies]:
        """Load the new and changed files, and drop the removed ones."""
        try:
            paths = _paths(directory)
        except PolicyLoadError as error:
            yield FilePolicies(directory, (), str(error))
            # Policies that were loaded while the folder was valid stay valid.
            yield from (
                FilePolicies(file_policy_name(path), each.policies) for path, each in self._good.items()
            )
            return
        for path in [path for path in self._good if path not in paths]:
            sys.modules.pop(self._good.pop(path).module, None)
        for path in paths:
            yield self._one(path, run)

    def _one(self, path: str, run: Run) -> FilePolicies:
        before = self._good.get(path)
        try:
            source = read_trusted(path)
            digest = hashlib.sha256(source).hexdigest()
            if before is None or before.digest != digest:
                loaded = run(path, digest, lambda: self._execute(path, source, digest))
                if before is not None:
                    sys.modules.pop(before.module, None)
                self._good[path] = before = loaded
        except PolicyLoadError as error:
            problem = str(error) if path in str(error) else f"{path}: {error}"
            return FilePolicies(
                file_policy_name(path), before.policies if before is not None else (), problem
            )
        return FilePolicies(file_policy_name(path), before.policies)

    def _execute(self, path: str, source: bytes, digest: str) -> _Loaded:
        # Dataclasses, type hints and pickle look a class's module up by its name; a name without a dot needs
        # no parent, and one with a hyphen is hidden from import statements.
        stem = re.sub(r"\W", "_", Path(path).stem)
        module = ModuleType(f"{FILE_MODULE_PREFIX}{stem}-{next(self._numbers)}")
        module.__file__ = path
        sys.modules[module.__name__] = module
        try:
            exec(compile(source, path, "exec", dont_inherit=True), vars(module))  # noqa: S102 - its purpose
            policies = _policies_of(module, path, source)
        except BaseException as error:
            sys.modules.pop(module.__name__, None)
            if isinstance(error, PolicyLoadError):
                raise
            line = _line_of(error, path)
            place = f"{path}:{line}" if line else path
            raise PolicyLoadError(f"{place}: {described(error)}") from error
        return _Loaded(digest, module.__name__, policies)


def _policies_of(module: ModuleType, path: str, source: bytes) -> tuple[type[Policy], ...]:
    """Return the policy classes that a file defines; names of base classes start with an underscore."""
    found = [
        value
        for value in dict.fromkeys(each for each in vars(module).values() if isinstance(each, type))
        if issubclass(value, Policy)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
    ]
    if not found:
        raise PolicyLoadError(f"{path}: defines no class derived from {origin_of(Policy)}")
    for policy in found:
        try:
            check_policy_class(policy)
        except PolicyLoadError as error:
            classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
            line = next((node.lineno for node in classes if node.name == policy.__name__), 1)
            raise PolicyLoadError(f"{path}:{line}: {policy.__name__}: {error.reason}") from error
    return tuple(found)


def _line_of(error: BaseException, path: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    line, traceback = None, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == path:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def file_policy_name(path: str) -> str:
    return Path(path).stem.replace("_", "-")


def _paths(directory: str) -> list[str]:
    """Return the files of a folder that only root, or this process's own user, can write to."""
    if not directory:
        return []
    try:
        folder = _followed(directory)
        about = folder.stat()
        if not stat.S_ISDIR(about.st_mode):
            raise PolicyLoadError(f"{directory}: is not a folder")
        _check_writers(directory, about, may_be_sticky=False)
        names = sorted(each.name for each in folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PolicyLoadError(f"{directory}: cannot be read: {error.strerror}") from error
    return [str(Path(directory, name)) for name in names if name.endswith(".py") and name[0] != "."]


def read_trusted(path: str) -> bytes:
    """Return the content of a file that only root, or this process's own user, can have written.

    Raises:
        PolicyLoadError: others can write to it, or it cannot be read.
    """
    try:
        # No other user can change the path between this check and the reading.
        real = _followed(path)
        _check_writers(str(real), real.stat(), may_be_sticky=False)
        return read_file(real, MAX_FILE_BYTES)[0]
    except OSError as error:
        raise PolicyLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except InputError as error:
        raise PolicyLoadError(f"{path}: {error}") from error


def _followed(path: str) -> Path:
    """Return the path with all symbolic links resolved.

    Raises:
        PolicyLoadError: others can change a folder or link on the path.
        OSError: it does not exist or cannot be read.
    """
    parts = deque(path.split("/"))
    place, links = Path("/"), 0
    _check_writers("/", place.lstat())
    while parts:
        part = parts.popleft()
        if part in ("", "."):
            continue
        step = place.parent if part == ".." else place / part
        about = step.lstat()
        if stat.S_ISLNK(about.st_mode):
            _check_owner(str(step), about)
            links += 1
            if links > _MAX_LINKS:
                raise PolicyLoadError(f"{path}: too many symbolic links")
            target = os.fspath(step.readlink())
            place = Path("/") if target.startswith("/") else place
            parts.extendleft(reversed(target.split("/")))
            continue
        _check_writers(str(step), about)
        place = step
    return place


def _check_writers(path: str, about: os.stat_result, *, may_be_sticky: bool = True) -> None:
    """Refuse a path that others can write to. In a sticky folder users can only replace their own files."""
    _check_owner(path, about)
    is_sticky = may_be_sticky and stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky:
        mode = stat.S_IMODE(about.st_mode)
        raise PolicyLoadError(f"{path}: refused: group or others may write to it (mode {mode:04o})")


def _check_owner(path: str, about: os.stat_result) -> None:
    own = os.geteuid()
    if about.st_uid not in (0, own):
        wanted = "root" if own == 0 else f"root or user {own}"
        raise PolicyLoadError(f"{path}: refused: belongs to user {about.st_uid}, not to {wanted}")
