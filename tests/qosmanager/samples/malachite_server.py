"""A server that plays Malachite: it makes documents of files as Malachite does, or fails in some way."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qs, urlsplit

from runtimeproxy.cgroups.mounts import Mount

Document: TypeAlias = dict[str, Any]


class Output(Protocol):
    """Where an answer goes."""

    def write(self, data: bytes, /) -> object: ...


Answer: TypeAlias = Callable[[Output, str], object]
"""Writes an answer to the path of a request; False ends the connection."""

_IO: Document = {"disk_io": [], "disk_usage": []}


class MalachiteServer:
    """Serves on a port of 127.0.0.1 while the `with` block runs; `answer` may be replaced at any time."""

    def __init__(self, answer: Answer, url: str = "") -> None:
        """Binds a port of its own, or that of a URL of `port_without_a_server`."""
        self.answer = answer
        self.paths: list[str] = []
        self.connections = 0
        port = urlsplit(url).port or 0
        self._server = _Server(("127.0.0.1", port), _Handler, bind_and_activate=True)
        self._server.malachite = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> MalachiteServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    malachite: MalachiteServer

    def handle_error(self, *_: object) -> None:
        """The client has had enough."""


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        malachite = self.server.malachite
        malachite.connections += 1
        while line := self.rfile.readline():
            path = line.split()[1].decode()
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            malachite.paths.append(path)
            if malachite.answer(self.wfile, path) is False:
                return


def http_answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


def as_json(document: object, status: object = 0) -> bytes:
    return http_answer(json.dumps({"status": status, "data": document}).encode())


def of_documents(documents: Mapping[str, Document]) -> Answer:
    """Answers with documents by endpoint, such as `compute`, and by cgroup; without one with 404."""

    def answer(output: Output, path: str) -> None:
        url = urlsplit(path)
        query = parse_qs(url.query).get("cgroup_user_path")
        document = documents.get(query[0] if query else url.path.rpartition("/")[2])
        output.write(http_answer(b"", "404 Not Found") if document is None else as_json(document))

    return answer


class Files:
    """Makes documents of files of procfs, sysfs and cgroups; it has read them at `update_time`.

    Source: Malachite lib/src/cgroup/{cpu_cg,memory_cg,utils}.rs, lib/src/system/{memory,numa_node}.rs,
    lib/src/psi.rs, server/src/system/response_mod.rs.
    """

    def __init__(self, mounts: Mapping[str, Mount], procfs: Path = Path("/proc")) -> None:
        self._mounts = mounts
        self._procfs = procfs
        self._node_ticks: tuple[int, int] | None = None

    def documents(self, cgroups: Iterator[str] | list[str], update_time: int) -> dict[str, Document]:
        return {
            **{each: self.cgroup(each, update_time) for each in cgroups},
            "memory": self.memory(update_time),
            "io": _IO
            | {"pressure": self._pressure(self._procfs / "pressure/io"), "update_time": update_time},
        }

    def cgroup(self, path: str, update_time: int) -> Document:
        version = self._mounts["memory"].version
        parts = self._v1(path, update_time) if version == 1 else self._v2(path, update_time)
        groups = {
            name: {key: {f"V{version}": {"full_path": path, **part}}} for name, (key, part) in parts.items()
        }
        return {
            "mount_point": "/sys/fs/cgroup",
            "user_path": path,
            "cgroup_type": f"V{version}",
            "sub_system_groups": groups,
        }

    def memory(self, update_time: int) -> Document:
        found = _fields(self._procfs / "meminfo")
        kib = {key.rstrip(":"): value for key, value in found.items()}
        system = {
            "mem_total": kib["MemTotal"],
            "mem_free": kib["MemFree"],
            "mem_available": kib["MemAvailable"],
            "mem_inactive_file": kib["Inactive(file)"],
            "mem_util": 0.0,
            "vm_watermark_scale_factor": int((self._procfs / "sys/vm/watermark_scale_factor").read_text()),
            "vmstat_pgsteal_kswapd": _fields(self._procfs / "vmstat")["pgsteal_kswapd"],
        }
        folder = self._procfs.parent / "sys/devices/system/node"
        numa = [
            {"id": int(each.name.removeprefix("node")), "mem_used": _numa_used(each / "meminfo")}
            for each in folder.glob("node[0-9]*")
        ]
        pressure = self._pressure(self._procfs / "pressure/memory")
        return {"system": system, "numa": numa, "pressure": pressure, "update_time": update_time}

    def _v1(self, path: str, update_time: int) -> dict[str, tuple[str, Document]]:
        cpu = _fields(self._file("cpu", path, "cpu.stat"))
        usage = int(self._file("cpuacct", path, "cpuacct.usage").read_text())
        memory = _fields(self._file("memory", path, "memory.stat"))
        # Trees of tests have no rss and shmem.
        anonymous = memory["total_inactive_anon"] + memory["total_active_anon"]
        pages = _by_numa_node(self._file("memory", path, "memory.numa_stat"))
        info = {"cpu_user_time": 0, "cpu_sys_time": 0}
        return {
            "Cpuacct": (
                "Cpu",
                {
                    "cfs_quota_us": -1,
                    "old_cpu_basic_info": {"cpu_usage": 0, "update_time": 0, **info},
                    "new_cpu_basic_info": {"cpu_usage": usage, "update_time": update_time, **info},
                    "cpu_usage_ratio": 0.0,
                    "cpu_nr_throttled": cpu["nr_throttled"],
                    "cpu_nr_periods": cpu["nr_periods"],
                    "update_time": update_time,
                },
            ),
            "Memory": (
                "Memory",
                {
                    "memory_usage_in_bytes": int(
                        self._file("memory", path, "memory.usage_in_bytes").read_text()
                    ),
                    "total_rss": memory.get("total_rss", anonymous),
                    "total_shmem": memory.get("total_shmem", 0),
                    "total_inactive_file": memory["total_inactive_file"],
                    "numa_stat": [{"numa_name": name, **each} for name, each in pages.items()],
                    "update_time": update_time,
                },
            ),
        }

    def _v2(self, path: str, update_time: int) -> dict[str, tuple[str, Document]]:
        def pressure(name: str) -> Document:
            return self._pressure(self._file("cpu", path, name))

        current = int(self._file("memory", path, "memory.current").read_text())
        stats = _fields(self._file("cpu", path, "cpu.stat"))
        return {
            "Cpuacct": (
                "Cpu",
                {
                    "cpu_stats": {**stats, "update_time": update_time},
                    "cpu_pressure": pressure("cpu.pressure"),
                    "max": 2**64 - 1,
                    "update_time": 0,
                },
            ),
            "Memory": (
                "Memory",
                {
                    "mem_stats": _fields(self._file("memory", path, "memory.stat")),
                    "mem_numa_stats": _by_numa_node(self._file("memory", path, "memory.numa_stat")),
                    "mem_pressure": pressure("memory.pressure"),
                    "memory_usage_in_bytes": current,
                    "max": 2**64 - 1,
                    "update_time": update_time,
                },
            ),
            "Blkio": ("BlkIO", {"io_pressure": pressure("io.pressure"), "update_time": update_time}),
        }

    def _file(self, controller: str, path: str, name: str) -> Path:
        return self._mounts[controller].folder / path.strip("/") / name

    def _pressure(self, file: Path) -> Document:
        found: Document = {"some": None, "full": None}
        for line in file.read_text().splitlines():
            kind, *pairs = line.split()
            found[kind] = {key: float(value) for key, _, value in (each.partition("=") for each in pairs)}
        return found


def compute(cores: float, cpus: int, update_time: int, load: float = 0.1) -> Document:
    """The node's CPU, which is used so much, and its load of a minute."""
    each = {"cpu_sys_usage": 0.0, "cpu_iowait_ratio": 0.0, "cpi_data": None}
    usage = 100 * cores / cpus
    return {
        "load": {"one": load, "five": 0.1, "fifteen": 0.1},
        "cpu": [{"name": f"cpu{cpu}", "cpu_usage": usage, **each} for cpu in range(cpus)],
        "global_cpu": {"name": "cpu", "cpu_usage": usage, **each},
        "pressure": {"some": {"total": 0.0}, "full": None},
        "update_time": update_time,
    }


def _fields(file: Path) -> dict[str, int]:
    return {key: int(value) for key, value, *_ in (line.split() for line in file.read_text().splitlines())}


def _by_numa_node(file: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for line in file.read_text().splitlines():
        name, *nodes = line.split()
        for each in nodes:
            node, _, value = each.partition("=")
            if node.startswith("N"):
                found.setdefault(node, {})[name.partition("=")[0]] = int(value)
    return found


def _numa_used(file: Path) -> int:
    return next(int(line.split()[3]) for line in file.read_text().splitlines() if "MemUsed" in line)


@contextmanager
def port_without_a_server() -> Iterator[str]:
    """A port at which nothing listens, and nothing else will but a `MalachiteServer` of this URL."""
    with socket.socket() as bound:
        # A second socket may have it as long as the first one does not listen. Source: Linux socket(7).
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
