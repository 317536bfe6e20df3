"""Records a terminal session with a real daemon as an image for the README.

`python -m tests.demo.session` writes it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.demo.live import write_strategy
from runtimeproxy.demo.main import DEMO_PODS, LIVE_POD, DemoRuntime, _daemon, _run_pod
from runtimeproxy.stubs import BlockingClient
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, PodCgroups, RuntimeState
from tests.lab.deadline import wait_until

IMAGE: Final = Path(__file__).with_name("session.svg")
WIDTH: Final = 112
COMMANDS: Final = (
    "status",
    "pods",
    "explain demo/spark",
    "explain demo/shop/main",
    "policy batch-resource dry-run --namespace canary --for 30m",
)


def main() -> None:
    """Writes the image."""
    console = Console(record=True, width=WIDTH, file=Path(os.devnull).open("w"), force_terminal=True)  # noqa: SIM115
    with tempfile.TemporaryDirectory(prefix="session-") as name:
        for command, output in outputs(Path(name)):
            console.print(Text.assemble(("$ ", "bold green"), (f"{PROGRAM} {command}", "bold")))
            console.print(Text.from_ansi(output))
            console.print()
    # Without the fonts, which a browser would have to load from elsewhere.
    svg = re.sub(
        r"@font-face \{.*?\}\s*", "", console.export_svg(title=PROGRAM, unique_id="session"), flags=re.S
    )
    IMAGE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


def outputs(folder: Path) -> list[tuple[str, str]]:
    """Runs the commands for a daemon with the demo's pods; returns each with its output."""
    cgroups = CgroupFiles(folder / "cgroup", version=2)
    state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, cgroups))
    write_strategy(folder, is_set=True)
    with FakeRuntime(folder / "fake.sock", state=state) as fake:
        runtime = DemoRuntime(str(fake.socket_path), "fake-runtime", "busybox", CgroupDriver.CGROUPFS)
        log = folder / "proxy.log"
        with _daemon(folder, log, runtime, cgroups.root) as path, BlockingClient(str(path)) as client:
            calls = client.stub(api_pb2.DESCRIPTOR.services_by_name["RuntimeService"])
            for pod in (*DEMO_PODS, LIVE_POD):
                _run_pod(calls, pod, runtime, cgroups, folder.name)
            wait_until(lambda: "policies loaded" in log.read_text(), "the policies to be loaded")
            return [(command, output(command, path, folder)) for command in COMMANDS]


def output(command: str, path: Path, folder: Path) -> str:
    """The output of a command on a terminal, with plain paths in place of the session's own."""
    environ = {
        **os.environ,
        "KOORD_RUNTIMEPROXY_PROXY_ENDPOINT": str(path),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH),
    }
    environ.pop("NO_COLOR", None)
    done = subprocess.run(
        [sys.executable, "-m", "runtimeproxy", *command.split()],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )
    if done.stderr:
        raise RuntimeError(done.stderr)
    return re.sub(re.escape(str(folder)), "/run/demo", done.stdout).rstrip()


if __name__ == "__main__":
    main()
