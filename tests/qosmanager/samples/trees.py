"""Folders of plain files that look like a node: cgroups of version 1 or 2, procfs, sysfs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from runtimeproxy.cgroups.mounts import Mount
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.samples.reader import PassReader
from runtimeproxy.qosmanager.samples.sampler import PassReport, Sampler
from runtimeproxy.qosmanager.snapshot import Level

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KIB = 1024


class Cgroup:
    """The files of one cgroup, rewritten in place as the kernel changes them."""

    def __init__(self, tree: Tree, path: str) -> None:
        self._tree = tree
        self._path = path.strip("/")
        for controller in tree.mounts:
            self.folder(controller).mkdir(parents=True, exist_ok=True)
        self.set_cpu(0.0)
        self.set_memory(0)
        self.set_pressure()

    def folder(self, controller: str) -> Path:
        return self._tree.mounts[controller].folder / self._path

    def file(self, controller: str, name: str) -> Path:
        return self.folder(controller) / name

    def set_cpu(self, used_s: float, periods: int = 0, throttled: int = 0) -> None:
        throttling = f"nr_periods {periods}\nnr_throttled {throttled}\n"
        if self._tree.version == 1:
            self.file("cpuacct", "cpuacct.usage").write_text(f"{round(used_s * 1e9)}\n")
            self.file("cpu", "cpu.stat").write_text(f"{throttling}throttled_time 0\n")
            return
        usage = f"usage_usec {round(used_s * 1e6)}\nuser_usec 0\nsystem_usec 0\n"
        self.file("cpu", "cpu.stat").write_text(f"{usage}{throttling}throttled_usec 0\n")

    def set_memory(self, anonymous: int, inactive_file: int = 0, active_file: int = 0) -> None:
        """In bytes; all on NUMA node 1."""
        usage = anonymous + inactive_file + active_file
        v1 = self._tree.version == 1
        prefix = "total_" if v1 else ""
        stat = "".join(
            f"{prefix}{key} {value}\n"
            for key, value in (
                ("first", 0),
                ("inactive_anon", anonymous),
                ("active_anon", 0),
                ("inactive_file", inactive_file),
                ("active_file", active_file),
                ("unevictable", 0),
            )
        )
        pages = usage // PAGE_BYTES
        numa = (
            f"hierarchical_total={pages} N0=0 N1={pages}\n"
            if v1
            else f"anon N0=0 N1={usage}\nfile N0=0 N1=0\n"
        )
        self.file("memory", "memory.usage_in_bytes" if v1 else "memory.current").write_text(f"{usage}\n")
        self.file("memory", "memory.stat").write_text(stat)
        self.file("memory", "memory.numa_stat").write_text(numa)

    def set_pressure(self, some_us: int = 0, full_us: int = 0) -> None:
        for resource in ("cpu", "memory", "io"):
            controller = "cpuacct" if self._tree.version == 1 else "cpu"
            self.file(controller, f"{resource}.pressure").write_text(pressure(some_us, full_us))

    def remove(self) -> None:
        for controller in self._tree.mounts:
            folder = self.folder(controller)
            for each in folder.glob("*"):
                each.unlink()
            if folder.exists():
                folder.rmdir()


class Tree:
    """A node, its clock, and a sampler of it."""

    def __init__(self, root: Path, version: int) -> None:
        self.version = version
        self.root = root
        names = ("cpu", "cpuacct", "memory") if version == 1 else ("cpu", "memory")
        self.mounts: Mapping[str, Mount] = {
            name: Mount(version, root / "cgroup" / (name if version == 1 else "")) for name in names
        }
        self.now_s = 1_000.0
        for each in (
            "proc/pressure",
            "proc/sys/vm",
            "sys/devices/system/node/node0",
            "sys/devices/system/node/node1",
        ):
            (root / each).mkdir(parents=True)
        self.set_node(0.0, 0)
        self.reader = PassReader(clock=lambda: self.now_s, stuck_after_s=30)
        self.sampler = Sampler(
            self.mounts, most_cpus=4, procfs=root / "proc", sysfs=root / "sys", reader=self.reader
        )
        self.targets: dict[str, Level] = {}

    def set_node(self, used_s: float, used_bytes: int, some_us: int = 0, steal_s: float = 0.0) -> None:
        """Of 1 TiB; half of what is used is page cache that can be dropped."""
        ticks, steal = round(used_s * TICKS_PER_S), round(steal_s * TICKS_PER_S)
        total, cache = 1 << 30, used_bytes // 2 // _KIB
        free = total - used_bytes // _KIB
        (self.root / "proc/stat").write_text(f"cpu  {ticks} 0 0 5 5 0 0 {steal} 0 0\ncpu0 0\n")
        (self.root / "proc/meminfo").write_text(
            f"MemTotal: {total} kB\nMemFree: {free} kB\nMemAvailable: {free + cache} kB\n"
            f"Inactive(file): {cache} kB\n"
        )
        (self.root / "proc/loadavg").write_text(f"{used_s:.2f} 0.00 0.00 1/80 11206\n")
        (self.root / "proc/sys/vm/watermark_scale_factor").write_text("10\n")
        (self.root / "proc/vmstat").write_text(f"pgscan_kswapd 7\npgsteal_kswapd {round(used_s * 100)}\n")
        for resource in ("cpu", "memory", "io"):
            (self.root / "proc/pressure" / resource).write_text(pressure(some_us, 0))
        for node in (0, 1):
            used = used_bytes // _KIB if node else 0
            file = self.root / f"sys/devices/system/node/node{node}/meminfo"
            file.write_text(f"Node {node} MemTotal: {total} kB\nNode {node} MemUsed: {used} kB\n")

    def cgroup(self, path: str, level: Level = Level.POD) -> Cgroup:
        self.targets[path] = level
        return Cgroup(self, path)

    def tick(self, *needs: Need, passes: int = 1, after_s: float = 1.0) -> PassReport:
        """Time passes, and a pass is made, as often as said."""
        report = None
        for _ in range(passes):
            self.now_s += after_s
            report = self.sampler.read(self.targets, needs)
        assert report is not None
        return report


def pressure(some_us: int, full_us: int) -> str:
    return "".join(
        f"{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n"
        for kind, total in (("some", some_us), ("full", full_us))
    )


@contextmanager
def hanging_reads(monkeypatch: pytest.MonkeyPatch, is_hanging: Callable[[str], bool]) -> Iterator[Event]:
    """Reads of some paths hang until the event is set, which the end does."""
    released = Event()
    real = os.pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        if is_hanging(str(Path(f"/proc/self/fd/{descriptor}").readlink())):
            released.wait()
        return real(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    try:
        yield released
    finally:
        released.set()
