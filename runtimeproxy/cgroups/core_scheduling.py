"""Core scheduling: tasks with one cookie may run on the threads of one core at the same time, others may not.

The kernel has cookies and no names: a cookie is made for a task, handed from task to task, inherited by fork
and clone, and gone with its last task. So a group is found again by a task of it that lives.
Source: Linux Documentation/admin-guide/hw-vuln/core-scheduling.rst; kernel/sched/core_sched.c,
sched_core_share_pid.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from functools import cache
from threading import RLock, Thread
from typing import Any, Final, Protocol

FIELD: Final = "core_sched_group"
"""The field of a task's group, and the name by which its format finds `CoreGroups`."""
NO_COOKIE: Final = 0
"""Of tasks that are in no group: they share cores with each other."""
NO_GROUP: Final = "none"
"""The group of tasks without a cookie."""
UNKNOWN: Final = "cookie:"
"""Before the number of a cookie, in place of a group: a program has made it for itself, or what it was made
for is forgotten."""
UNREADABLE: Final = "unreadable"
"""In place of a group where this process may not read the cookie: only a write says why."""
MOST_HOLDERS: Final = 256
"""Tasks of one group that are remembered, the last ones that were seen: one that lives is enough."""

_PR_SCHED_CORE: Final = 62
"""Source: Linux include/uapi/linux/prctl.h, as all numbers here."""


class Command(IntEnum):
    """What `PR_SCHED_CORE` does."""

    GET = 0
    """Reads the cookie of one thread."""
    CREATE = 1
    """Gives a new cookie."""
    SHARE_TO = 2
    """Gives the calling thread's cookie to others; one without a cookie takes theirs away."""
    SHARE_FROM = 3
    """Gives the calling thread the cookie of another one."""


class Scope(IntEnum):
    """Which tasks a command is for: those of the thread, process or process group that a number is of."""

    THREAD = 0
    THREAD_GROUP = 1
    PROCESS_GROUP = 2


class CoreSchedulingCalls(Protocol):
    """The kernel's interface."""

    def __call__(self, command: Command, task: int, scope: Scope) -> int:
        """Carries a command out, as the calling thread.

        Args:
            command: What is done.
            task: The number of a thread or process in this process's pid namespace; 0: the calling thread.
            scope: Of CREATE and SHARE_TO; THREAD for the others.

        Returns:
            The cookie for GET, `NO_COOKIE` for none; else 0.

        Raises:
            OSError: EINVAL: a kernel without core scheduling. ENODEV: no core has more than one thread.
                ESRCH: no such task. EPERM: CAP_SYS_PTRACE is missing.
        """


def prctl(command: Command, task: int, scope: Scope) -> int:
    """Calls the kernel; see `CoreSchedulingCalls`."""
    import ctypes  # takes a MiB, and is wanted on few nodes

    cookie = ctypes.c_ulonglong(0)
    # Only GET takes an address.
    address = ctypes.addressof(cookie) if command is Command.GET else 0
    if _function()(_PR_SCHED_CORE, command, task, scope, address):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return cookie.value


@cache
def _function() -> Any:  # noqa: ANN401 - of ctypes
    import ctypes

    function = ctypes.CDLL(None, use_errno=True).prctl
    function.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    return function


def is_supported() -> bool:
    """Whether the kernel has cookies, and the machine cores with more than one thread."""
    try:
        prctl(Command.GET, 0, Scope.THREAD)
    except OSError:
        return False
    return True


def cookies_of_groups(
    found: Mapping[str, Iterable[Iterable[int]]], known: Mapping[str, int]
) -> dict[str, int]:
    """Tells the cookie of each group by what the tasks of its containers carry. Pure.

    A container may carry the cookie of another group, where a process was killed while it moved the
    container; a program may also make cookies of its own. No two groups get the same cookie.

    Args:
        found: The cookies that are found in each container, by group.
        known: The cookies of groups as far as they are known: these stay.

    Returns:
        The cookie by group, without groups that have none.
    """
    shares: dict[tuple[str, int], float] = {}
    for group, containers in found.items():
        for container in containers:
            cookies = set(container) - {NO_COOKIE}
            for cookie in cookies:
                # A container that has one cookie only says more than one with several.
                shares[group, cookie] = shares.get((group, cookie), 0) + 1 / len(cookies)
    result = dict(known)
    taken = set(known.values())
    for group, cookie in sorted(shares, key=lambda each: (-shares[each], each)):
        if group not in result and cookie not in taken:
            result[group] = cookie
            taken.add(cookie)
    return result


class CoreGroups:
    """The groups of tasks and their cookies. Safe for all threads; for worker threads.

    Reads and writes the group of one task, as `cgroups/processes.py:ProcessAccess` says. Nothing is saved:
    which containers are in which group is in the books, and a group's cookie is found in their tasks again.

    Args:
        calls: The kernel's interface; None for `prctl`.

    Attributes:
        booked: The texts of each container's tasks, as `read` reads them, by the group that was written to
            them: of one group, or of all for the empty one. Asked for what is not known, as after a start.
    """

    def __init__(self, calls: CoreSchedulingCalls | None = None) -> None:
        self._calls = calls or prctl
        # Two threads that look for the cookie of a new group would make two. Held by `booked`, too.
        self._lock = RLock()
        self._cookies: dict[str, int] = {}
        self._groups: dict[int, str] = {NO_COOKIE: NO_GROUP}
        self._holders: dict[int, dict[int, None]] = {}
        self._has_recalled = self._is_recalling = False
        self.booked: Callable[[str], Mapping[str, Iterable[str]]] = lambda _: {}

    def refresh(self) -> None:
        return

    def read(self, pid: int, folder: int) -> str:
        """The group of a task; see `ProcessAccess.read`. This process's own tasks are never in one.

        Returns:
            Or `UNKNOWN` with the number, or `UNREADABLE`.
        """
        del folder
        if pid == os.getpid() or os.path.exists(f"/proc/self/task/{pid}"):  # noqa: PTH110 - for each task
            raise ProcessLookupError(errno.ESRCH, "it is a thread of this process")
        try:
            cookie = self._calls(Command.GET, pid, Scope.THREAD)
        except PermissionError:
            return UNREADABLE
        with self._lock:
            if cookie not in self._groups and not self._is_recalling:
                self._recall_all()
            if cookie != NO_COOKIE and (cookie in self._groups or self._is_recalling):
                self._note_holder(cookie, pid)
            return self._groups.get(cookie) or f"{UNKNOWN}{cookie}"

    def write(self, pid: int, folder: int, text: str) -> None:
        """Puts the process of a task into a group, all of its threads; see `ProcessAccess.write`.

        Raises:
            OSError: The kernel's error. EPERM: CAP_SYS_PTRACE is missing.
        """
        del folder
        failed: list[BaseException] = []

        def work() -> None:
            try:
                with self._lock:
                    self._hand_on(pid, text)
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                failed.append(error)

        # A thread that hands a cookie on carries it meanwhile, and what it starts would inherit it. So it
        # is one that does nothing else, and ends.
        thread = Thread(target=work, name="core-scheduling", daemon=True)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]

    def _hand_on(self, task: int, group: str) -> None:
        if group == NO_GROUP:
            if self._own() != NO_COOKIE:
                raise OSError(errno.EINVAL, "this process was started with a cookie of its own")
        else:
            cookie = self._take(group)
            if self._calls(Command.GET, task, Scope.THREAD) == cookie:
                return
            self._note_holder(cookie, task)
        self._calls(Command.SHARE_TO, task, Scope.THREAD_GROUP)

    def _take(self, group: str) -> int:
        """Gives the calling thread the group's cookie, or a new one if no task of the group lives."""
        if group not in self._cookies:
            self._recall_all()
        if group not in self._cookies:
            self._recall(group)
        wanted = self._cookies.get(group, NO_COOKIE)
        for holder in reversed(list(self._holders.get(wanted, ()))):
            with suppress(ProcessLookupError):
                self._calls(Command.SHARE_FROM, holder, Scope.THREAD)
                if self._own() == wanted:
                    return wanted
            del self._holders[wanted][holder]
        self._calls(Command.CREATE, 0, Scope.THREAD)
        for cookie in [each for each in self._holders if not self._lives(each)]:
            self._forget(cookie)
        self._forget(wanted)
        cookie = self._own()
        self._know(group, cookie)
        return cookie

    def _lives(self, cookie: int) -> bool:
        """Whether some task is known to have the cookie; a number without any may come again."""
        for holder in reversed(list(self._holders[cookie])):
            with suppress(OSError):
                if self._calls(Command.GET, holder, Scope.THREAD) == cookie:
                    return True
        return False

    def _recall_all(self) -> None:
        # Once, but as soon as there are books.
        if not self._has_recalled:
            self._has_recalled = self._recall("")

    def _recall(self, group: str) -> bool:
        """Finds the cookie of a group, or of all for the empty one, where it is not known.

        Returns:
            Whether any container is booked for it.
        """
        self._is_recalling = True
        try:
            found = {name: [_numbers(text) for text in texts] for name, texts in self.booked(group).items()}
        finally:
            self._is_recalling = False
        for name, cookie in cookies_of_groups(found, self._cookies).items():
            self._know(name, cookie)
        # A program may make as many of its own as it likes.
        for cookie in self._holders.keys() - self._groups.keys():
            del self._holders[cookie]
        return bool(found)

    def _know(self, group: str, cookie: int) -> None:
        self._cookies[group] = cookie
        self._groups[cookie] = group

    def _forget(self, cookie: int) -> None:
        self._holders.pop(cookie, None)
        if cookie != NO_COOKIE:
            self._cookies.pop(self._groups.pop(cookie, ""), None)

    def _note_holder(self, cookie: int, task: int) -> None:
        holders = self._holders.setdefault(cookie, {})
        holders.pop(task, None)
        holders[task] = None
        if len(holders) > MOST_HOLDERS:
            del holders[next(iter(holders))]

    def _own(self) -> int:
        return self._calls(Command.GET, 0, Scope.THREAD)


def _numbers(text: str) -> list[int]:
    return [int(each.removeprefix(UNKNOWN)) for each in text.split() if each.startswith(UNKNOWN)]
