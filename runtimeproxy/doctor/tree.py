"""What the program reads of a node to decide which policies work there, in one file that people can read.

`doctor --record-tree` writes it; the tests of this repository make plain files of it again and run the
daemon's own code on them. It has no names of pods, images, hosts, users, volumes or mount points, no command
lines, no environments, no addresses; ids of pods and containers are replaced.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.documents.reading import InputError, parse_object
from runtimeproxy.fields.declaration import Kind
from runtimeproxy.fields.kernel_settings import KERNEL_SETTINGS, SCHED_FEATURE_FILES
from runtimeproxy.fields.tables import PARAMETERS
from runtimeproxy.node.machine import WithoutFiles

FORMAT: Final = 1
CGROUPS: Final = "sys/fs/cgroup"
MODE: Final = 0o600
"""Of the file: who sends it decides who reads it."""
_MAX_TEXT: Final = 65_536
"""Characters that are kept of one file."""
_MOST_BLOCK_DEVICES: Final = 64
_KUBEPODS: Final = ("kubepods", "kubepods.slice")
_KNOWN: Final = frozenset({*_KUBEPODS, "system.slice", "user.slice", "init.scope", "machine.slice"})
"""The names that cgroups below a root keep. Source: systemd.special(7); Koordinator
pkg/koordlet/util/system."""
_CLASSES: Final = ("besteffort", "burstable", "kubepods-besteffort.slice", "kubepods-burstable.slice")
_POD: Final = re.compile(r"(kubepods-(?:besteffort-|burstable-)?)?pod[0-9a-fA-F_-]+(\.slice)?")
"""Source: kubelet pkg/kubelet/cm, GetPodContainerName."""
_HARMLESS: Final = frozenset({"cgroup.controllers", "cgroup.subtree_control", "cgroup.type"}) | {
    form.file
    for each in PARAMETERS.values()
    if each.kind is not Kind.DEVICES and each.processes is None
    for form in (each.v1, each.v2)
    if form is not None
}
"""The cgroup files whose contents are kept: values of resources. Of all others the name and the mode are."""

_PLACES: Final = (
    "proc/filesystems",
    "proc/sys/kernel/sched_core",
    "proc/sys/kernel/sched_group_identity_enabled",
    "proc/sys/kernel/sched_idle_saver_wmark",
    "proc/sys/net/core/default_qdisc",
    "proc/sys/vm/min_free_kbytes",
    "proc/sys/vm/watermark_scale_factor",
    *(f"sys/devices/system/cpu/{name}" for name in ("online", "possible", "present", "smt/active")),
    "sys/devices/system/cpu/intel_pstate/no_turbo",
    "sys/devices/system/cpu/cpufreq/boost",
    "sys/devices/system/node/online",
    "sys/devices/system/node/has_memory",
    "sys/fs/resctrl/mode",
    "sys/fs/resctrl/schemata",
    "sys/fs/resctrl/size",
    *(f"sys/{each}" for each in SCHED_FEATURE_FILES),
    *(f"sys/{file}" for each in KERNEL_SETTINGS.values() for file in each.files),
)
_PATTERNS: Final = (
    *(f"sys/devices/system/cpu/cpu[0-9]*/topology/{each}" for each in ("core_id", "physical_package_id")),
    *(f"sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]*/{each}" for each in ("level", "id")),
    "sys/devices/system/node/node[0-9]*/cpulist",
    "sys/fs/resctrl/info/*",
    "sys/fs/resctrl/info/*/*",
    "sys/fs/resctrl/mon_data/*/*",
)
_LINES: Final = {
    "proc/cpuinfo": r"vendor_id|model name|flags|Features|CPU implementer|CPU part",
    "proc/meminfo": r"MemTotal",
    "sys/devices/system/node/node[0-9]*/meminfo": r".*MemTotal",
}
"""Files of which only lines that begin so are kept, each once."""
_CONFIG: Final = (
    *("CGROUPS", "MEMCG", "BLK_CGROUP", "BLK_DEV_THROTTLING", "BLK_CGROUP_IOCOST", "CGROUP_NET_CLASSID"),
    *(
        "CFS_BANDWIDTH",
        "FAIR_GROUP_SCHED",
        "CPUSETS",
        "PSI",
        "PSI_DEFAULT_DISABLED",
        "SCHED_CORE",
        "SCHED_DEBUG",
    ),
    *("X86_CPU_RESCTRL", "ARM64_MPAM", "RESCTRL_FS", "PROC_CPU_RESCTRL", "DEBUG_FS"),
    *("GROUP_IDENTITY", "SCHED_ACPU", "QOS_SCHED", "MEMCG_QOS", "PAGECACHE_LIMIT", "CGROUP_WRITEBACK"),
    *("NET_SCH_HTB", "NET_CLS_CGROUP", "NET_CLS_U32", "NET_ACT_MIRRED", "IFB", "NF_TABLES", "NF_TABLES_INET"),
    *("NFT_SOCKET", "NFT_LIMIT", "NETFILTER_XT_TARGET_CLASSIFY", "IP_SET"),
)
"""Options of the kernel, without `CONFIG_`, by which people tell why it lacks a file."""
_OS: Final = ("ID", "VERSION_ID", "PRETTY_NAME", "PLATFORM_ID")
_PROGRAMS: Final = ("nft", "tc")
_MOUNT_TYPES: Final = frozenset({"cgroup", "cgroup2", "resctrl", "debugfs"})


class RecordedFile(NamedTuple):
    """One file."""

    mode: int
    text: str | None
    """None: it was not kept, or could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What was recorded of one node."""

    machine: str
    """As `uname -m` says it, such as x86_64."""
    kernel: str
    """Its release."""
    about: Mapping[str, str] = field(default_factory=dict)
    """Lines of os-release."""
    runtime: str = ""
    """Name and version; empty if it did not answer."""
    user: str = "root"
    """Or `other`."""
    without_files: WithoutFiles = field(default_factory=WithoutFiles)
    programs: tuple[str, ...] = ()
    """Those of `nft` and `tc` that are installed."""
    mounts: tuple[str, ...] = ()
    """Type, place and options of the kernel's file systems below /sys."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Options of the kernel; empty if no file has them."""
    files: Mapping[str, RecordedFile] = field(default_factory=dict)
    """By path without the slash in front."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic links of block devices, relative."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """What could not be read, and why."""


class _Recorder:
    """Collects the files of a node whose root folder is given."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files: dict[str, RecordedFile] = {}
        self.links: dict[str, str] = {}
        self.unread: dict[str, str] = {}

    def record(self) -> None:
        for place in _PLACES:
            self._file(place)
        for pattern in _PATTERNS:
            for path in sorted(self._root.glob(pattern)):
                if os.path.isfile(path):  # noqa: PTH113 - no permission is no file
                    self._file(str(path.relative_to(self._root)))
        for pattern, lines in _LINES.items():
            begin = re.compile(rf"({lines})[ \t]*:")
            for path in sorted(self._root.glob(pattern)):
                self._file(str(path.relative_to(self._root)), keep=partial(_first, begin))
        self._block_devices()
        self._cgroups()

    def _file(self, place: str, name: str = "", keep: Callable[[str], str] = str) -> None:
        """Keeps a file, under another name if one is given."""
        try:
            with (self._root / place).open(encoding="utf-8", errors="replace") as file:
                text = keep(file.read(_MAX_TEXT))
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self.unread[f"/{name or place}"] = error.strerror or type(error).__name__
        else:
            self.files[name or place] = RecordedFile(mode, text)

    def _names(self, folder: Path, shown: str) -> list[str]:
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 - names are enough
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unread[f"/{shown}"] = error.strerror or type(error).__name__
            return []

    # Block devices

    def _block_devices(self) -> None:
        """Disks in folders of their own, partitions in their disk's: the real places tell of hardware."""
        folder, kept = self._root / "sys/class/block", "sys/devices/block"
        for index, name in enumerate(self._names(folder, "sys/class/block")[:_MOST_BLOCK_DEVICES]):
            of = f"sys/class/block/{name}"
            is_partition = os.path.exists(folder / name / "partition")  # noqa: PTH110 - as above
            disk = f"{(folder / name).resolve().parent.name}/{name}" if is_partition else name
            place = f"{kept}/{disk}"
            self.links[of] = os.path.relpath(place, "sys/class/block")
            self._file(f"{of}/dev", f"{place}/dev")
            self._file(f"{of}/partition", f"{place}/partition")
            self._file(f"{of}/dm/uuid", f"{place}/dm/uuid", _before_hyphen)
            self._file(f"{of}/dm/name", f"{place}/dm/name", partial(_instead, f"group{index}-volume\n"))
            for slave in self._names(folder / name / "slaves", f"{of}/slaves"):
                self.files[f"{place}/slaves/{slave}"] = RecordedFile(0o444, "")

    # Cgroups

    def _cgroups(self) -> None:
        root = self._root / CGROUPS
        folders = {mount.folder for mount in find_mounts(root).values()} | {root.resolve()}
        folders |= {path.resolve() for path in (root / "unified",) if path.is_dir()}
        for folder in sorted(folders):
            place = CGROUPS if folder == root.resolve() else f"{CGROUPS}/{folder.name}"
            self._cgroup(folder, place)
            if folder == root.resolve() and not (folder / "cgroup.controllers").exists():
                continue  # a folder with the hierarchies of version 1
            seen: set[tuple[tuple[str, int], ...]] = set()
            for name in self._folders(folder, place):
                if name in _KNOWN:
                    self._cgroup(folder / name, f"{place}/{name}")
                    if name in _KUBEPODS:
                        self._kubepods(folder / name, f"{place}/{name}")
                elif (files := self._modes(folder / name, f"{place}/other")) not in seen:
                    # Cgroups with the same files tell the same.
                    seen.add(files)
                    self._cgroup(folder / name, f"{place}/other-{len(seen)}")

    def _kubepods(self, folder: Path, place: str) -> None:
        names = self._folders(folder, place)
        for name in names:
            if name in _CLASSES:
                self._cgroup(folder / name, f"{place}/{name}")
                self._first_pod(folder / name, f"{place}/{name}", self._folders(folder / name, place))
        self._first_pod(folder, place, names)

    def _first_pod(self, folder: Path, place: str, names: Iterable[str]) -> None:
        """One pod and one of its containers: all others have the same files."""
        found = ((name, match) for name in names if (match := _POD.fullmatch(name)))
        for name, match in found:
            pod = f"{place}/{match[1] or ''}pod0{match[2] or ''}"
            self._cgroup(folder / name, pod)
            for container in self._folders(folder / name, pod)[:1]:
                self._cgroup(folder / name / container, f"{pod}/container0")
            return

    def _folders(self, folder: Path, shown: str) -> list[str]:
        return [
            name
            for name in self._names(folder, shown)
            if os.path.isdir(folder / name) and not os.path.islink(folder / name)  # noqa: PTH112, PTH114
        ]

    def _modes(self, folder: Path, shown: str) -> tuple[tuple[str, int], ...]:
        """The names and modes of a cgroup's files."""
        found: list[tuple[str, int]] = []
        for name in self._names(folder, shown):
            with suppress(OSError):  # gone with its cgroup
                status = (folder / name).lstat()
                if stat.S_ISREG(status.st_mode) and "." in name:
                    found.append((name, stat.S_IMODE(status.st_mode)))
        return tuple(found)

    def _cgroup(self, folder: Path, place: str) -> None:
        for name, mode in self._modes(folder, place):
            self.files[f"{place}/{name}"] = RecordedFile(mode, None)
            if name in _HARMLESS and mode & 0o444:
                source = str(folder.relative_to(self._root.resolve()) / name)
                self._file(source, f"{place}/{name}")


def record_tree(root: Path = Path("/"), runtime: str = "", unread: Mapping[str, str] | None = None) -> Tree:
    """Records this node.

    Args:
        root: the folder that has `proc`, `sys` and `etc`.
        runtime: name and version of the container runtime.
        unread: what is known not to be readable, with the reason.
    """
    recorder = _Recorder(root)
    recorder.record()
    system = os.uname()
    return Tree(
        machine=system.machine,
        kernel=system.release,
        about=dict(_os_release(root)),
        runtime=runtime,
        user="root" if os.geteuid() == 0 else "other",
        without_files=WithoutFiles.of_this_node(),
        programs=tuple(name for name in _PROGRAMS if shutil.which(name)),
        mounts=tuple(_mounts(root)),
        config=_kernel_config(root, system.release),
        files=recorder.files,
        links=recorder.links,
        unread={**recorder.unread, **(unread or {})},
    )


def tree_text(tree: Tree, program: str) -> str:
    """Return the JSON of a tree, with a line for each file, as people review it before they send it."""
    head = {
        "format": FORMAT,
        "program": program,
        "machine": tree.machine,
        "kernel": tree.kernel,
        "os": dict(tree.about),
        "runtime": tree.runtime,
        "user": tree.user,
        "core_scheduling": tree.without_files.has_cookies,
        "slices": tree.without_files.has_slices,
        "systemd": tree.without_files.systemd,
        "programs": list(tree.programs),
    }
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    parts.append(f'"mounts": [{_lines(json.dumps(each) for each in tree.mounts)}]')
    files = {
        f"/{path}": [f"{each.mode:04o}"] if each.text is None else [f"{each.mode:04o}", each.text]
        for path, each in tree.files.items()
    }
    tables: dict[str, Mapping[str, Any]] = {
        "kernel_config": tree.config,
        "unread": tree.unread,
        "links": {f"/{path}": target for path, target in tree.links.items()},
        "files": files,
    }
    for name, table in tables.items():
        rows = (f"{json.dumps(path)}: {json.dumps(value)}" for path, value in sorted(table.items()))
        parts.append(f"{json.dumps(name)}: {{{_lines(rows)}}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(rows: Iterable[str]) -> str:
    text = ",\n".join(rows)
    return f"\n{text}\n" if text else ""


def parse_tree(text: str) -> Tree:
    """Return the tree of a JSON text.

    Raises:
        ValueError: It is no such text, or of another format.
    """
    try:
        read = parse_object(text)
        if read["format"] != FORMAT:
            raise ValueError(f"the format is {read['format']}, not {FORMAT}")
        return Tree(
            machine=read["machine"],
            kernel=read["kernel"],
            about=read["os"],
            runtime=read["runtime"],
            user=read["user"],
            without_files=WithoutFiles(
                # Reports of older versions lack the last two.
                read["core_scheduling"],
                read.get("slices", False),
                read.get("systemd", 0),
            ),
            programs=tuple(read["programs"]),
            mounts=tuple(read["mounts"]),
            config=read["kernel_config"],
            files={
                _inside(path): RecordedFile(int(mode, 8), rest[0] if rest else None)
                for path, (mode, *rest) in read["files"].items()
            },
            links={_inside(path): target for path, target in read["links"].items()},
            unread=read["unread"],
        )
    except (InputError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a recorded tree: {type(error).__name__}: {error}") from None


def _inside(path: str) -> str:
    """Return a path without the slash in front; whoever sent the tree may not name a place outside of it."""
    parts = path.removeprefix("/").split("/")
    if not path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"not a path of a tree: {path!r}")
    return "/".join(parts)


def _first(begin: re.Pattern[str], text: str) -> str:
    """Return the lines that begin so, each beginning once."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if match := begin.match(line):
            found.setdefault(match[1], line)
    return "".join(f"{line}\n" for line in found.values())


def _instead(text: str, _: str) -> str:
    """Return another text than the file's, which people have chosen."""
    return text


def _before_hyphen(text: str) -> str:
    """Return the kind of a device mapper's UUID, which tells LVM's; the rest is an id."""
    kind, hyphen, _ = text.partition("-")
    return f"{kind}{hyphen}\n" if kind == "LVM" else "\n"


def _os_release(root: Path) -> Iterator[tuple[str, str]]:
    """Source: os-release(5)."""
    for line in _text(root / "etc/os-release").splitlines():
        name, equals, value = line.partition("=")
        if equals and name in _OS:
            yield name, value.strip().strip("\"'")


def _mounts(root: Path) -> Iterator[str]:
    """Mount points elsewhere may be named by people."""
    for line in _text(root / "proc/self/mounts").splitlines():
        parts = line.split(" ")
        if len(parts) > 3 and parts[2] in _MOUNT_TYPES and parts[1].startswith("/sys/"):
            yield " ".join((parts[2], parts[1], parts[3]))


def _kernel_config(root: Path, release: str) -> dict[str, str]:
    """Options of the kernel, by the file that it or its package has; empty without one."""
    try:
        text = gzip.decompress((root / "proc/config.gz").read_bytes()).decode(errors="replace")
    except (OSError, EOFError):
        text = _text(root / f"boot/config-{release}") or _text(root / f"lib/modules/{release}/config")
    values = dict(re.findall(r"^CONFIG_(\w+)=(.*)$", text, flags=re.MULTILINE))
    return {f"CONFIG_{name}": values.get(name, "n") for name in _CONFIG} if values else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
