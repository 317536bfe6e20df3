"""h2spec, a public conformance suite for HTTP/2 servers, pointed at a Unix socket."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.deadline import wait_until
from tests.lab.ports import free_port
from tests.lab.programs import debian_program, go_tool, run

VERSION = "/runtime.v1.RuntimeService/Version"
ALL_SECTIONS = ("generic", "http2", "hpack")

_CASE_TIMEOUT_S = 1


@dataclass(frozen=True)
class Report:
    """Which cases passed, failed, or were skipped by h2spec, as `section: description`."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]


def report_for(endpoint: Path, method: str = VERSION, sections: Sequence[str] = ALL_SECTIONS) -> Report:
    """Runs the sections against the socket, over a TCP bridge, with `method` as the path."""
    with tempfile.TemporaryDirectory() as folder, _bridge(endpoint) as port:
        junit = Path(folder) / "report.xml"
        target = ["-h", "127.0.0.1", "-p", str(port), "-P", method]
        limits = ["-o", str(_CASE_TIMEOUT_S), "-j", str(junit)]
        ended = run([str(go_tool("h2spec")), *target, *limits, *sections], timeout_s=280.0)
        if not junit.exists():
            raise RuntimeError(f"h2spec wrote no report: {ended.stdout} {ended.stderr}")
        return _parse(junit)


def section_of(case: str) -> str:
    """The section of a case, as h2spec takes it on its command line."""
    return case.partition(":")[0]


def _parse(junit: Path) -> Report:
    outcomes: dict[str, set[str]] = {"passed": set(), "error": set(), "skipped": set()}
    # The report comes from a program that this test has started itself.
    for case in ElementTree.parse(junit).getroot().iter("testcase"):  # noqa: S314
        name = f"{case.get('package')}: {case.get('classname')}"
        kinds = [child.tag.replace("failure", "error") for child in case]
        outcomes[kinds[0] if kinds else "passed"].add(name)
    return Report(*(frozenset(outcomes[kind]) for kind in ("passed", "error", "skipped")))


@contextmanager
def _bridge(endpoint: Path) -> Iterator[int]:
    port = free_port()
    listen = f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr"
    command = [str(debian_program("socat")), listen, f"UNIX-CONNECT:{endpoint}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as bridge:
        try:
            wait_until(lambda: _accepts(port), "the TCP bridge listens")
            yield port
        finally:
            bridge.terminate()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
