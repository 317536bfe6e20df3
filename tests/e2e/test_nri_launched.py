"""NRI: a daemon that containerd starts itself, and that ends with it."""

from __future__ import annotations

import shlex
import tempfile
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, HALF_A_CORE, as_resources, on_this_machine
from tests.lab import procfs
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.programs import REPOSITORY
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

pytestmark = pytest.mark.golang

POD = PodSpec(
    "launched",
    "besteffort",
    qos("BE"),
    extended_resources({"main": BATCH_500}),
    (ContainerSpec("main", as_resources(BEST_EFFORT)),),
)
SCRIPT = """#!/bin/sh
cd {folder}
echo $$ >>{pids}
exec {command} >>{log} 2>&1
"""


def test_a_daemon_that_the_runtime_starts(folder: Path, tmp_path: Path) -> None:
    own = Path(tempfile.mkdtemp(dir=folder))
    pids, log = own / "pids", own / "daemon.log"
    runtime = Containerd("2.2", PATIENT)
    config = f'[daemon]\nmode = "nri"\nlock = "{own}/front-end.lock"\n'
    daemon = ProxyProcess(own, ProxyOptions(str(runtime.socket), config=config))
    command = daemon.command()
    daemon.close()
    script = runtime.nri_plugins / "50-koord-runtime-proxy"
    script.parent.mkdir()
    script.write_text(SCRIPT.format(folder=REPOSITORY, pids=pids, log=log, command=shlex.join(command)))
    script.chmod(0o755)

    def running() -> list[int]:
        return [pid for pid in map(int, pids.read_text().split()) if procfs.runs(pid)]

    def has_registered() -> bool:
        return log.exists() and "registered with the runtime" in log.read_text()

    with runtime:
        for logs in (tmp_path / "first", tmp_path / "second"):
            logs.mkdir()
            wait_until(has_registered, "the registration")
            (first,) = running()
            with CriClient(runtime.socket) as client, running_pod(client, POD, logs) as pod:
                assert pod.values() == on_this_machine(HALF_A_CORE)
            runtime.kill()
            wait_until(partial(_has_ended, first), "the daemon's end")
            log.unlink()
            runtime.start()
        wait_until(has_registered, "the registration")
        (last,) = running()
    wait_until(partial(_has_ended, last), "the daemon's end")


def _has_ended(pid: int) -> bool:
    return not procfs.runs(pid)
