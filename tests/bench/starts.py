"""Starts of pods beside a bounded best-effort class, on a real containerd: are they starved.

`python -m tests.bench.starts [--rounds 100] [--openings best-effort] [--lever quota]`, as root. LS pods use
90 % of the CPUs; greedy BE pods use all of a small bound. A round has three starts, from RunPodSandbox to the
first command of the program: an LS pod while the BE pods are frozen, one beside them, and a BE pod. It ends
with 1 if a figure is not as it must be.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final, get_args

import grpc

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2 as api
from cri_api.runtimeproxy.v1 import api_pb2_grpc
from tests.e2e.koordinator import qos
from tests.effect.node import frozen
from tests.effect.results import percentile
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec
from tests.lab.programs import ContainerdVersion
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

CPUS: Final = os.cpu_count() or 1
BE_CLASS: Final = "/kubepods/besteffort"
SHARES: Final = {"/kubepods": 1024 * CPUS, "/kubepods/burstable": 1024 * CPUS, BE_CLASS: 2}
"""As the kubelet sets them."""
LS_PERCENT: Final = 90
GOAL_BE_S: Final = 10.0
GOAL_LS_RATIO: Final = 1.2
RENEW_S: Final = 5.0
LONGEST_S: Final = 120.0
BUSY: Final = "while :; do :; done"


class Bound(threading.Thread):
    """Claims a bound on the BE class, and renews it."""

    def __init__(self, daemon: ProxyProcess, field: str, value: str) -> None:
        super().__init__()
        self._socket = daemon.socket.parent / "admin" / "api.sock"
        key = api.ClaimKey(
            target=api.ClaimTarget(qos_class="BestEffort"), field=field, role=api.ExplainedClaim.ROLE_AT_MOST
        )
        self._claim = api.Claim(key=key, value=value)
        self._sequence = 0
        self.ended = threading.Event()
        self.claim()

    def claim(self) -> None:
        self._sequence += 1
        request = api.SetClaimsRequest(
            owner="cpu-suppress",
            session="bench",
            sequence=self._sequence,
            is_whole=True,
            claims=[self._claim],
        )
        with CriClient(self._socket) as client:
            answer = api_pb2_grpc.AdminStub(client.channel).SetClaims(request, timeout=CALL_TIMEOUT_S)
        assert answer.outcome == api.SetClaimsResponse.OUTCOME_TAKEN
        assert not answer.refused

    def run(self) -> None:
        while not self.ended.wait(RENEW_S):
            self.claim()


class Node:
    """containerd, the daemon, and the pods that use the CPUs."""

    def __init__(self, stack: ExitStack, version: ContainerdVersion, openings: str, be_pods: int) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="starts-", dir="/tmp")))
        (self.folder / "logs").mkdir()
        (self.folder / "marks").mkdir()
        runtime = stack.enter_context(Containerd(version))
        options = ProxyOptions(str(runtime.socket), config=f'[ledger]\nopenings = "{openings}"\n')
        self.daemon = stack.enter_context(ProxyProcess(self.folder, options))
        self.client = stack.enter_context(CriClient(self.daemon.socket))
        quota_us = CPUS * LS_PERCENT * 1_000
        limit = cri.LinuxContainerResources(cpu_shares=1024 * CPUS, cpu_period=100_000, cpu_quota=quota_us)
        loops = "; ".join([f"({BUSY}) &"] * CPUS).replace("&;", "&")
        busy = ContainerSpec("main", limit, ("/bin/sh", "-c", f"{loops} wait"))
        self._run(stack, PodSpec("busy", "burstable", qos("LS"), {}, (busy,)))
        for number in range(be_pods):
            greedy = ContainerSpec(command=("/bin/sh", "-c", BUSY))
            self._run(stack, PodSpec(f"greedy-{number}", "besteffort", qos("BE"), {}, (greedy,)))
        for cgroup, shares in SHARES.items():
            cgroup_v1.file("cpu", cgroup, "cpu.shares").write_text(str(shares))
        self._number = 0

    def _run(self, stack: ExitStack, spec: PodSpec) -> None:
        stack.enter_context(running_pod(self.client, spec, self.folder / "logs"))

    def start_s(self, kube_qos: KubeQos, koordinator_qos: str) -> float:
        """Runs a pod; returns how long it took until its program ran. The pod is removed again."""
        self._number += 1
        mark = self.folder / "marks" / str(self._number)
        command = ("/bin/sh", "-c", f": > /marks/{mark.name}; exec /bin/sleep 1000")
        shares = 2 if kube_qos == "besteffort" else 512
        limits = cri.LinuxContainerResources(cpu_shares=shares, cpu_period=100_000)
        container = ContainerSpec("main", limits, command, mounts={"/marks": str(mark.parent)})
        spec = PodSpec(f"new-{self._number}", kube_qos, qos(koordinator_qos), {}, (container,))
        began_s = time.time()
        with running_pod(self.client, spec, self.folder / "logs"):
            wait_until(mark.exists, "the program", timeout_s=LONGEST_S)
            return mark.stat().st_mtime - began_s

    def starts(self) -> api.StartsStatus:
        stub = api_pb2_grpc.RuntimeProxyStub(self.client.channel)
        return stub.GetStatus(api.GetStatusRequest(), timeout=CALL_TIMEOUT_S).ledger.starts


def measured(node: Node, rounds: int, every_s: float) -> dict[str, list[float]]:
    """The seconds of all starts, by kind; infinite for one that failed."""
    found: dict[str, list[float]] = {"LS alone": [], "LS beside": [], "BE": []}
    for number in range(rounds):
        due_s = time.monotonic() + every_s
        with frozen():
            found["LS alone"].append(_tried_s(node, "burstable", "LS"))
        found["LS beside"].append(_tried_s(node, "burstable", "LS"))
        found["BE"].append(_tried_s(node, "besteffort", "BE"))
        shown = ", ".join(f"{name} {each[-1]:.2f} s" for name, each in found.items())
        print(f"round {number + 1}: {shown}", flush=True)
        time.sleep(max(0.0, due_s - time.monotonic()))
    return found


def _tried_s(node: Node, kube_qos: KubeQos, koordinator_qos: str) -> float:
    try:
        return node.start_s(kube_qos, koordinator_qos)
    except (grpc.RpcError, TimeoutError) as error:
        print(f"{koordinator_qos} pod: {error}", flush=True)
        return float("inf")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.starts", description=__doc__)
    parser.add_argument("--containerd", choices=get_args(ContainerdVersion), default="1.6")
    parser.add_argument("--openings", choices=("off", "best-effort", "all"), default="best-effort")
    parser.add_argument("--lever", choices=("quota", "cpus"), default="quota")
    parser.add_argument("--bound-millicores", type=int, default=200, help="of the quota; of CPUs it is one")
    parser.add_argument("--be-pods", type=int, default=2 * CPUS)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--every-s", type=float, default=10.0, help="6 openings a minute are the most")
    chosen = parser.parse_args(arguments)
    with ExitStack() as stack:
        node = Node(stack, chosen.containerd, chosen.openings, chosen.be_pods)
        field, value = "cpu.cfs_quota_us", str(chosen.bound_millicores * 100)
        if chosen.lever == "cpus":
            field, value = "cpuset.cpus", "0"
        bound = Bound(node.daemon, field, value)
        stack.callback(bound.join)
        stack.callback(bound.ended.set)
        bound.start()
        found = measured(node, chosen.rounds, chosen.every_s)
        starts = node.starts()
    for name, each in found.items():
        each.sort()
        figures = ", ".join(f"p{percent} {percentile(each, percent):.2f} s" for percent in (50, 90, 99))
        print(f"{name}: {len(each)} starts, {figures}, longest {each[-1]:.2f} s")
    ratio = median(found["LS beside"]) / median(found["LS alone"])
    print(
        f"{field} {value}, openings {chosen.openings}: {starts.opened} openings, {starts.not_opened} missed; "
        f"LS pods start in {ratio:.2f} of the time alone (goal {GOAL_LS_RATIO:g}), BE pods' p99 is "
        f"{percentile(found['BE'], 99):.2f} s (goal {GOAL_BE_S:g})"
    )
    load = ", ".join(f"{each:.2f}" for each in os.getloadavg())
    print(f"{CPUS} CPUs; load average at the end {load}")
    return 0 if ratio <= GOAL_LS_RATIO and percentile(found["BE"], 99) <= GOAL_BE_S else 1


if __name__ == "__main__":
    sys.exit(main())
