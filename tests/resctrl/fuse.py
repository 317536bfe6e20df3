"""A small file system of one thread, by the protocol of /dev/fuse.

It serves a tree of `Node`, whose files behave as those of kernfs: made anew for each reading from the start,
one command per write, none of it kept by the kernel's page cache.
Source: Linux, include/uapi/linux/fuse.h; fs/kernfs/file.c.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 4096
"""The longest command. Source: fs/resctrl/rdtgroup.c, atomic_write_len."""

_IN_HEADER: Final = struct.Struct("=IIQQIIIHH")
_OUT_HEADER: Final = struct.Struct("=IiQ")
_ATTRIBUTES: Final = struct.Struct("=6Q3I7I")
_READ: Final = struct.Struct("=QQIIQII")
_SETATTR: Final = struct.Struct("=IIQQQQQQIIIIIIII")
_BUFFER_BYTES: Final = (1 << 17) + PAGE_BYTES
_MNT_DETACH: Final = 2
_DIRECT_IO: Final = 1
_ROOT: Final = 1
_FATTR_MODE: Final = 1

_LOOKUP, _FORGET, _GETATTR, _SETATTR_OP = 1, 2, 3, 4
_MKNOD, _MKDIR, _UNLINK, _RMDIR, _RENAME = 8, 9, 10, 11, 12
_OPEN, _READ_OP, _WRITE, _STATFS, _RELEASE = 14, 15, 16, 17, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR = 25, 26, 27, 28, 29
_ACCESS, _CREATE, _INTERRUPT, _DESTROY = 34, 35, 36, 38
_BATCH_FORGET, _RENAME2 = 42, 45
_UNANSWERED: Final = frozenset({_FORGET, _INTERRUPT, _BATCH_FORGET})
_NOT_PERMITTED: Final = {
    _MKNOD: errno.EACCES,
    _CREATE: errno.EACCES,
    _UNLINK: errno.EPERM,
    _RENAME: errno.EPERM,
    _RENAME2: errno.EPERM,
}

_libc: Final = ctypes.CDLL(None, use_errno=True)
_ids: Final = itertools.count(_ROOT)


@dataclass(frozen=True)
class Caller:
    """The thread that has made a system call."""

    uid: int
    tid: int


@dataclass(eq=False)
class Node:
    """A file, or a folder if it has `children`."""

    mode: int
    show: Callable[[], str] | None = None
    """The text of a file; may raise OSError."""
    store: Callable[[bytes, Caller], None] | None = None
    """Takes what one write has; may raise OSError."""
    children: dict[str, Node] | None = None
    mkdir: Callable[[str, Caller], Node] | None = None
    """Makes a folder in this one and returns it; may raise OSError. None: EPERM."""
    rmdir: Callable[[Caller], None] | None = None
    """Called before this folder goes; may raise OSError. None: EPERM."""
    is_gone: bool = False
    id: int = field(default_factory=lambda: next(_ids))

    @property
    def is_folder(self) -> bool:
        return self.children is not None

    def below(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in (self.children or {}).values():
            yield from child.below()


@dataclass
class _Open:
    node: Node
    text: bytes = b""


class FileSystem:
    """One mount. The thread that calls `serve` does everything."""

    def __init__(self, root: Node, mount_point: Path) -> None:
        """Mounts it, as root.

        Args:
            root: Its top folder, made before any other node.
            mount_point: A folder.

        Raises:
            OSError: The kernel has refused it.
        """
        self._nodes = {_ROOT: root}
        self._open: dict[int, _Open] = {}
        self._handles = itertools.count(1)
        self._acts: dict[int, Callable[[Node, bytes, Caller], bytes]] = {
            _LOOKUP: self._lookup,
            _GETATTR: lambda node, *_: _attributes_out(node),
            _SETATTR_OP: self._setattr,
            _MKDIR: self._mkdir,
            _RMDIR: self._rmdir,
            _OPEN: self._opened,
            _OPENDIR: self._opened,
        }
        self._mount_point = mount_point
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        options = f"fd={self.device},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions"
        mounted = _libc.mount(b"resctrl", os.fsencode(mount_point), b"fuse.resctrl", 0, options.encode())
        if mounted != 0:
            code = ctypes.get_errno()
            os.close(self.device)
            raise OSError(code, os.strerror(code), str(mount_point))

    def close(self) -> None:
        """Takes the mount away, also where files are open."""
        unmount(self._mount_point)
        os.close(self.device)

    def serve(self) -> bool:
        """Answers one request, if there is one. False: the mount is gone."""
        try:
            request = os.read(self.device, _BUFFER_BYTES)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return False
            # ENOENT, EAGAIN: the caller has been killed before its request was read.
            if error.errno in {errno.ENOENT, errno.EINTR, errno.EAGAIN}:
                return True
            raise
        _, code, unique, node_id, uid, _, tid, _, _ = _IN_HEADER.unpack_from(request)
        if code in _UNANSWERED:
            return True
        body = request[_IN_HEADER.size :]
        try:
            answer, failure = self._answer(code, node_id, body, Caller(uid, tid)), 0
        except OSError as error:
            answer, failure = b"", error.errno or errno.EIO
        try:
            os.write(self.device, _OUT_HEADER.pack(_OUT_HEADER.size + len(answer), -failure, unique) + answer)
        except OSError as error:
            # ENOENT: the caller has been killed meanwhile.
            if error.errno != errno.ENOENT:
                raise
        return bool(code != _DESTROY)

    def _answer(self, code: int, node_id: int, body: bytes, caller: Caller) -> bytes:
        if code in {_INIT, _STATFS, _FLUSH, _ACCESS, _DESTROY}:
            return _constant(code)
        if code in {_READ_OP, _READDIR, _WRITE, _RELEASE, _RELEASEDIR}:
            return self._of_handle(code, body, caller)
        if (refused := _NOT_PERMITTED.get(code)) is not None:
            raise OSError(refused, "not permitted")
        node = self._nodes.get(node_id)
        if node is None or node.is_gone:
            raise FileNotFoundError(errno.ENOENT, "removed")
        act = self._acts.get(code)
        if act is None:
            raise OSError(errno.ENOSYS, "not built")
        return act(node, body, caller)

    def _of_handle(self, code: int, body: bytes, caller: Caller) -> bytes:
        handle, offset, size, *_ = (
            _READ.unpack_from(body) if len(body) >= _READ.size else (*struct.unpack_from("=Q", body), 0, 0)
        )
        if code in {_RELEASE, _RELEASEDIR}:
            self._open.pop(handle, None)
            return b""
        opened = self._open[handle]
        if opened.node.is_gone:
            raise OSError(errno.ENODEV, "removed")
        if code == _WRITE:
            if size > PAGE_BYTES:
                raise OSError(errno.E2BIG, "more than a page")
            if opened.node.store is None:
                raise OSError(errno.EINVAL, "not written")
            opened.node.store(body[_READ.size : _READ.size + size], caller)
            return struct.pack("=II", size, 0)
        if offset == 0:
            opened.text = _listing(opened.node) if code == _READDIR else (opened.node.show or str)().encode()
        if code == _READDIR:
            return _from_entry(opened.text, offset, size)
        return opened.text[offset : offset + size]

    def _entry(self, node: Node) -> bytes:
        self._nodes[node.id] = node
        return struct.pack("=QQQQII", node.id, 0, 0, 0, 0, 0) + _attributes(node)

    def _lookup(self, node: Node, body: bytes, _: Caller) -> bytes:
        return self._entry(_child(node, _name(body)))

    def _setattr(self, node: Node, body: bytes, _: Caller) -> bytes:
        setting = _SETATTR.unpack_from(body)
        if setting[0] & _FATTR_MODE:
            node.mode = stat.S_IMODE(setting[11])
        return _attributes_out(node)

    def _mkdir(self, node: Node, body: bytes, caller: Caller) -> bytes:
        name = _name(body[8:])
        if name in (node.children or {}):
            raise FileExistsError(errno.EEXIST, name)
        if node.mkdir is None or node.children is None:
            raise PermissionError(errno.EPERM, name)
        node.children[name] = child = node.mkdir(name, caller)
        return self._entry(child)

    def _rmdir(self, node: Node, body: bytes, caller: Caller) -> bytes:
        name = _name(body)
        child = _child(node, name)
        if not child.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, name)
        if child.rmdir is None or node.children is None:
            raise PermissionError(errno.EPERM, name)
        child.rmdir(caller)
        del node.children[name]
        for each in child.below():
            each.is_gone = True
            self._nodes.pop(each.id, None)
        return b""

    def _opened(self, node: Node, body: bytes, _: Caller) -> bytes:
        (flags,) = struct.unpack_from("=I", body)
        # KERNFS_ROOT_EXTRA_OPEN_PERM_CHECK: the mode holds for root, too.
        if flags & os.O_ACCMODE != os.O_RDONLY and not node.is_folder and not node.mode & 0o222:
            raise PermissionError(errno.EACCES, "read only")
        handle = next(self._handles)
        self._open[handle] = _Open(node)
        return struct.pack("=QII", handle, 0 if node.is_folder else _DIRECT_IO, 0)


def unmount(mount_point: Path) -> None:
    """Takes a mount away, also where files are open; nothing happens where there is none."""
    _libc.umount2(os.fsencode(mount_point), _MNT_DETACH)


def _constant(code: int) -> bytes:
    if code == _INIT:
        return struct.pack(
            "=IIIIHHIIHHI7I", 7, 31, 0, 0, 16, 12, _BUFFER_BYTES - PAGE_BYTES, 1, 32, 0, 0, *[0] * 7
        )
    if code == _STATFS:
        return struct.pack("=5Q4I6I", 0, 0, 0, 0, 0, PAGE_BYTES, 255, PAGE_BYTES, 0, *[0] * 6)
    return b""


def _name(body: bytes) -> str:
    return body.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _child(node: Node, name: str) -> Node:
    child = (node.children or {}).get(name)
    if child is None:
        raise FileNotFoundError(errno.ENOENT, name)
    return child


def _attributes(node: Node) -> bytes:
    kind, links = (stat.S_IFDIR, 2) if node.is_folder else (stat.S_IFREG, 1)
    return _ATTRIBUTES.pack(node.id, 0, 0, 0, 0, 0, 0, 0, 0, kind | node.mode, links, 0, 0, 0, PAGE_BYTES, 0)


def _attributes_out(node: Node) -> bytes:
    return struct.pack("=QII", 0, 0, 0) + _attributes(node)


def _listing(node: Node) -> bytes:
    entries = bytearray()
    for name, child in (node.children or {}).items():
        raw = name.encode("utf-8", "surrogateescape")
        kind = (stat.S_IFDIR if child.is_folder else stat.S_IFREG) >> 12
        padding = -len(raw) % 8
        end = len(entries) + 24 + len(raw) + padding
        entries += struct.pack("=QQII", child.id, end, len(raw), kind) + raw + bytes(padding)
    return bytes(entries)


def _from_entry(entries: bytes, offset: int, size: int) -> bytes:
    """Whole entries from an offset."""
    end = offset
    while (
        end < len(entries) and (following := struct.unpack_from("=Q", entries, end + 8)[0]) <= offset + size
    ):
        end = following
    return entries[offset:end]
