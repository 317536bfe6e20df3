"""OOM scores below the kubelet's, by the unit with its drop-in: only a real root may lower a score."""

from __future__ import annotations

from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import qos
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.pods import ContainerSpec, PodSpec
from tests.node.guest.cgroup_v2 import make_pod_cgroup, processes
from tests.node.guest.kubelet import remove_pod, run_pod
from tests.node.guest.machine import (
    CONFIG,
    ENDPOINT,
    PATIENCE_S,
    PATIENTLY,
    PROGRAM,
    SERVICE,
    SHARED_UNITS,
    expect_text,
    run,
    systemctl,
    with_drop_ins,
)
from tests.node.guest.node import Check, Node

_DROP_IN = SHARED_UNITS / "koord-runtime-proxy.service.d/60-oom-score.conf"
_ASKED, _WANTED = 500, -500
_SPEC = PodSpec(
    "scored",
    "burstable",
    qos("LS"),
    {"koordinator.sh/oom-score-adj": str(_WANTED)},
    (ContainerSpec(resources=api_pb2.LinuxContainerResources(cpu_shares=100, oom_score_adj=_ASKED)),),
)


def scores_are_lowered(node: Node) -> str:
    """Refused by the unit as it is, which says why; with the drop-in they are lowered, and given back."""
    before = CONFIG.read_text() if CONFIG.exists() else ""
    cgroup, logs = make_pod_cgroup(_SPEC.cgroup_parent, {}), node.logs / _SPEC.uid
    logs.mkdir()
    with CriClient(ENDPOINT) as client:
        sandbox, container = run_pod(client, _SPEC, str(logs), "runc")

    def has(score: int) -> bool:
        pids = processes(cgroup / container)
        return {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in pids} == {f"{score}\n"}

    wait_until(lambda: has(_ASKED), "the kubelet's score", PATIENCE_S)
    CONFIG.write_text(f"{before}\n[policies.oom-score]\nenabled = true\n")
    systemctl("reload", SERVICE)
    refused = wait_until(_refusal, "the refusal", PATIENCE_S)
    expect_text("explain", refused, "needs CAP_SYS_RESOURCE")
    with with_drop_ins(_DROP_IN):
        systemctl("restart", SERVICE)
        wait_until(lambda: has(_WANTED), "the lower score", PATIENCE_S)
        CONFIG.write_text(before)
        systemctl("reload", SERVICE)
        wait_until(lambda: has(_ASKED), "the kubelet's score again", PATIENCE_S)
    systemctl("restart", SERVICE)
    with CriClient(ENDPOINT) as client:
        remove_pod(client, sandbox)
    cgroup.rmdir()
    return f"{refused}; with {_DROP_IN.name} {_ASKED}, {_WANTED}, {_ASKED}"


def _refusal() -> str:
    shown = run(PROGRAM, "explain", *PATIENTLY, _SPEC.name, code=None)
    return next((line.strip() for line in shown.splitlines() if "EACCES" in line), "")


CHECKS = (Check("OOM score: lowered with the drop-in, and given back", scores_are_lowered),)
