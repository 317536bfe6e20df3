"""The commands and a real containerd: its cgroup driver, and the explanation of a pod's values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from runtimeproxy.doctor.gather import ask_runtime
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.node import running_pod
from tests.lab.pods import PodSpec
from tests.lab.proxy_process import ProxyProcess


def test_the_doctor_knows_the_cgroup_driver(containerd: Containerd) -> None:
    found = ask_runtime(str(containerd.socket))
    assert found.name.startswith("containerd ")
    assert (found.cgroup_driver, found.error) == ("cgroupfs", "")


def command(proxy: ProxyProcess, *words: str) -> Any:
    environ = {**os.environ, "KOORD_RUNTIMEPROXY_PROXY_ENDPOINT": str(proxy.socket)}
    line = [sys.executable, "-m", "runtimeproxy", *words, "--output", "json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environ)
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_what_is_explained_is_what_the_kernel_has(
    proxy: ProxyProcess, through: CriClient, logs: Path
) -> None:
    annotations = extended_resources({"main": BATCH_500})
    with running_pod(through, PodSpec("explained", "besteffort", qos("BE"), annotations), logs) as pod:
        found = command(proxy, "explain", pod.spec.uid)
    (target,) = [each for each in found["targets"] if each.get("container") == "main"]
    fields = {each["name"]: each for each in target["fields"]}
    for name in ("cpu.shares", "cpu.cfs_quota_us"):
        field = fields[name]
        assert field["claims"][0]["owner"] == "batch-resource"
        assert field["resolved"] == field["applied"] == field["observedValue"]
        assert not field["isDifferent"]
