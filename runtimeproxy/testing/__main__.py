"""Starts the fake runtime by hand: ``python -m runtimeproxy.testing --socket PATH``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from runtimeproxy.testing.builders import preload
from runtimeproxy.testing.cgroups import CgroupDriver, CgroupFiles, PodCgroups
from runtimeproxy.testing.nri_runtime import NriAdaptation
from runtimeproxy.testing.nri_state import NriRuntimeState
from runtimeproxy.testing.server import FakeRuntime
from runtimeproxy.testing.state import RuntimeState

_DESCRIPTION = "A container runtime that runs nothing, on a Unix socket. Ends on SIGTERM or SIGINT."


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a signal comes; ``None`` takes the process's arguments."""
    options = _parser().parse_args(arguments)
    ends = {signal.SIGTERM, signal.SIGINT}
    # Blocked before the threads of gRPC exist, so that the signal is delivered here.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    files = None
    if options.cgroup_root is not None:
        files = CgroupFiles(options.cgroup_root, options.cgroup_version)
    cgroups = PodCgroups(options.cgroup_driver, files)
    state = RuntimeState(cgroups)
    if options.nri_socket is not None:
        state = NriRuntimeState(NriAdaptation(options.nri_socket, record=False), cgroups)
    preload(state, options.pods, options.containers)
    with FakeRuntime(options.socket, state=state, record=False) as runtime:
        sys.stdout.write(f"serving on {runtime.endpoint}\n")
        sys.stdout.flush()
        signal.sigwait(ends)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runtimeproxy.testing", description=_DESCRIPTION)
    parser.add_argument("--socket", type=Path, required=True, help="where to serve")
    parser.add_argument("--nri-socket", type=Path, help="where NRI plugins connect (none)")
    parser.add_argument("--pods", type=int, default=0, help="ready pods to begin with (0)")
    parser.add_argument(
        "--containers",
        type=int,
        default=0,
        help="running containers to begin with, spread over the pods (0)",
    )
    parser.add_argument("--cgroup-root", type=Path, help="folder for files that look like cgroups (none)")
    parser.add_argument("--cgroup-version", type=int, choices=(1, 2), default=2, help="their layout (2)")
    parser.add_argument(
        "--cgroup-driver",
        type=CgroupDriver,
        choices=tuple(CgroupDriver),
        default=CgroupDriver.CGROUPFS,
        help="how cgroup parents are written (cgroupfs)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
