"""The demo, `make run`, from a checkout and its locked packages, as on a new machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path

from tests.lab.cri_client import CriClient
from tests.node.guest.machine import (
    CONTAINERD,
    PATIENCE_S,
    UnexpectedError,
    expect,
    expect_text,
    systemctl,
)
from tests.node.guest.node import Check, Node

_SHARED = Path("/mnt/share/source")
_LOCKED = Path("/mnt/share/locked")
_SOURCE = Path("/opt/source")
_LIMIT_S = 3000.0
"""Of one command, on an emulated CPU."""


def the_environment_is_made(_: Node) -> str:
    """`make .venv/.dependencies`, which `make run` does first, with packages from a folder."""
    shutil.copytree(_SHARED, _SOURCE)
    took_s = _make(".venv/.dependencies")[1]
    packages = len(list(_LOCKED.glob("*.whl")))
    return f"{platform.machine()}, Linux {platform.release()}: {packages} packages, {took_s:.0f} s"


def the_demo_runs(_: Node) -> str:
    """`make run`: a pod of each QoS class before the fake runtime, with their values."""
    systemctl("stop", "containerd.service")  # else the demo takes it in place of its own runtime
    try:
        printed, took_s = _make("run")
    finally:
        systemctl("start", "containerd.service")
        with CriClient(CONTAINERD) as client:
            client.wait_until_serving(PATIENCE_S)
    counts = expect_text(
        "make run", printed, r"^\d+ pods ran through the proxy: (\d+ changed, \d+ untouched)$"
    )
    expect("changed and untouched", counts, "5 changed, 2 untouched")
    values = re.findall(
        r"^ +\S+ +(cpu\S+|resources\.\S+|cgroup\S+) +(.* -> .*)$", printed, flags=re.MULTILINE
    )
    return f"{took_s:.1f} s: {counts}; {'; '.join(': '.join(each) for each in values)}"


def _make(target: str) -> tuple[str, float]:
    """Makes a target without the network; returns what it printed, and the time."""
    source = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(_LOCKED)}
    began = time.monotonic()
    done = subprocess.run(
        ("make", target),
        cwd=_SOURCE,
        env={**os.environ, **source},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    Path(f"/mnt/share/make-{target.rpartition('/')[2]}.txt").write_text(done.stdout)
    if done.returncode != 0:
        raise UnexpectedError(f"make {target}: exit code {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout, time.monotonic() - began


CHECKS = (
    Check("make run: the environment of a new machine", the_environment_is_made),
    Check("make run: a pod of each QoS class gets its values", the_demo_runs),
)
