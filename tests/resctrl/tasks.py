"""In which group each task of this machine is, followed by the kernel's own reports of forks and exits.

The kernel sends a message at each fork, clone and exit, before the new task runs (the proc connector);
`Tasks.follow` is called before anything else is done, so that a child has the group that its parent had when
it was forked. How near this comes to the kernel is in the README.
Source: Linux, drivers/connector/cn_proc.c; include/uapi/linux/cn_proc.h; kernel/fork.c, copy_process.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Generic, TypeVar

_CONNECTOR: Final = 11
_CN_IDX_PROC, _CN_VAL_PROC = 1, 1
_LISTEN: Final = 1
_FORK: Final = 0x1
_EXIT: Final = 0x80000000
_EVENT: Final = struct.Struct("=IIQIIII")
_EVENT_OFFSET: Final = 16 + 20
"""After the headers of netlink and of the connector."""
_MESSAGE_BYTES: Final = 4096
_RECEIVED_BYTES: Final = 64 << 20
_SO_RCVBUFFORCE: Final = 33

Group = TypeVar("Group")


class Tasks(Generic[Group]):
    """The tasks that are not in the default group."""

    def __init__(self) -> None:
        """Starts to follow forks.

        Raises:
            OSError: The kernel has no proc connector for this process.
        """
        self._groups: dict[int, Group] = {}
        self._ended: set[int] = set()
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _CONNECTOR)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVED_BYTES)
        self.socket.bind((0, _CN_IDX_PROC))
        message = struct.pack("=IIIIHHI", _CN_IDX_PROC, _CN_VAL_PROC, 0, 0, 4, 0, _LISTEN)
        self.socket.send(struct.pack("=IHHII", 16 + len(message), 3, 0, 0, 0) + message)
        self.socket.settimeout(5)
        # The answer: an event that is none. Without rights there is none at all.
        self.socket.recv(_MESSAGE_BYTES)
        self.socket.setblocking(False)

    def follow(self) -> None:
        """Takes in all that has happened until now."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._take(self.socket.recv(_MESSAGE_BYTES))

    def _take(self, message: bytes) -> None:
        what, _, _, first, _, child, process = _EVENT.unpack_from(
            message.ljust(_EVENT_OFFSET + _EVENT.size, b"\0"), _EVENT_OFFSET
        )
        if what == _FORK:
            # `first` is the forking thread, but of a new thread the parent of its process.
            self._groups.pop(child, None)
            self._ended.discard(child)
            if (group := self._groups.get(first if child == process else process)) is not None:
                self._groups[child] = group
        elif what == _EXIT and first in self._groups:
            self._ended.add(first)

    def of(self, tid: int) -> Group | None:
        """The group of a task; None: the default one."""
        return self._groups.get(tid)

    def move(self, tid: int, group: Group | None) -> None:
        """Puts a task into a group, None being the default one."""
        self._groups.pop(tid, None)
        if group is not None:
            self._groups[tid] = group

    def members(self) -> dict[int, Group]:
        """All tasks with a group, but those that are gone. A zombie is a task until it is waited for."""
        for tid in [each for each in self._ended if not _exists(each)]:
            self._ended.discard(tid)
            self._groups.pop(tid, None)
        return self._groups


def owner_of(tid: int) -> int | None:
    """The user of a task; None: there is no such task."""
    try:
        return Path(f"/proc/{tid}").stat().st_uid
    except FileNotFoundError:
        return None


def process_of(tid: int) -> int:
    """The process of a thread; the thread itself if it is gone."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Tgid:\s*(\d+)", Path(f"/proc/{tid}/status").read_text(), re.MULTILINE)
        return int(found[1]) if found else tid
    return tid


def all_tasks() -> Iterator[int]:
    """Every thread of this machine."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield from sorted(int(each.name) for each in (process / "task").iterdir())


def _exists(tid: int) -> bool:
    return Path(f"/proc/{tid}").exists()
