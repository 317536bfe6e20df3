"""The proxy leaves the node again: containers and their values stay."""

from __future__ import annotations

import os
from dataclasses import replace

from cri_api.runtime.v1 import api_pb2
from tests.e2e.values import BEST_EFFORT, GUARANTEED
from tests.lab.cri_client import CriClient
from tests.node.guest.cgroup_v2 import CgroupValues
from tests.node.guest.kubelet import remove_pod
from tests.node.guest.machine import (
    CONTAINERD,
    ENDPOINT,
    PATIENCE_S,
    PROGRAM,
    SERVICE,
    SOCKET_UNIT,
    UnexpectedError,
    expect,
    run,
    shown,
    systemctl,
    whole_journal,
)
from tests.node.guest.node import Check, Node
from tests.node.guest.pods import MOVED_TO, RESIZED, as_v2


def stop_touches_no_container(node: Node) -> str:
    """`systemctl disable --now`: no process and no value changes, but for slices.

    `disable` reloads the units, and systemd sets the values of its slices again: those that the kubelet gave.
    """
    before = {title: (pod.process(), pod.values()) for title, pod in node.pods.items()}
    systemctl("disable", "--now", SERVICE, SOCKET_UNIT)
    expect("service", shown("ActiveState"), "inactive")
    expect("result", shown("Result"), "success")
    expect("socket", shown("ActiveState", SOCKET_UNIT), "inactive")
    expect("the socket is there", ENDPOINT.exists(), False)
    after = {title: (pod.process(), pod.values()) for title, pod in node.pods.items()}
    process, (container, pod) = before["BE in slices"]
    before["BE in slices"] = (process, (container, _of_systemd(after["BE in slices"][1][1], pod)))
    expect("processes and values", after, before)
    return f"{len(after)} containers run on with their values"


def restore_gives_back_what_the_kubelet_wanted(node: Node) -> str:
    """`restore --dry-run` shows the values and changes none; `restore` puts them there."""
    before = {title: pod.values() for title, pod in node.pods.items()}
    planned = run(PROGRAM, "restore", "--dry-run").splitlines()
    expect("values after the dry run", {title: pod.values() for title, pod in node.pods.items()}, before)
    run(PROGRAM, "restore")
    pod_of_guaranteed = as_v2(replace(GUARANTEED, memory_limit_bytes=None))
    best_effort = as_v2(BEST_EFFORT)
    # The CRI cannot take a set of CPUs away again: all of them are the same.
    unpinned = replace(as_v2(GUARANTEED), cpuset_cpus=f"0-{len(os.sched_getaffinity(0)) - 1}")
    resized = as_v2(replace(RESIZED, cpuset_cpus=MOVED_TO))
    expect("LSE", node.pods["LSE"].values(), (unpinned, pod_of_guaranteed))
    expect("LSR", node.pods["LSR"].values(), (resized, pod_of_guaranteed))
    expect("BE", node.pods["BE"].values(), (best_effort, best_effort))
    in_slices = node.pods["BE in slices"].values()
    expect("BE in slices", in_slices, (best_effort, _of_systemd(in_slices[1], best_effort)))
    return f"{len(planned) - 1} lines planned; BE: {node.pods['BE'].values()[0]}"


def _of_systemd(found: CgroupValues, otherwise: CgroupValues) -> CgroupValues:
    """The values of the slice's unit, which an earlier check has made, if systemd has set them again."""
    return found if found == CgroupValues(100, "max 100000", "max") else otherwise


def the_runtime_serves_alone(node: Node) -> str:
    """The kubelet's endpoint is the runtime's again: it has all pods, and removes one."""
    with CriClient(CONTAINERD) as client:
        listed = client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(), timeout=PATIENCE_S).items
        expect("sandboxes", {pod.id for pod in listed}, {pod.sandbox_id for pod in node.pods.values()})
        remove_pod(client, node.pods.pop("BE").sandbox_id)
    return f"{len(listed)} pods listed, one removed"


def nothing_went_wrong_unseen(_: Node) -> str:
    """The journal of the whole run has no traceback and no warning that no check has asked for."""
    bad = [line for line in whole_journal() if "Traceback" in line or '"exception"' in line]
    if bad:
        raise UnexpectedError(f"{len(bad)} lines of the journal: {bad[0][:1000]}")
    return f"{len(whole_journal())} lines"


CHECKS = (
    Check("systemctl disable --now touches no container", stop_touches_no_container),
    Check("restore gives back what the kubelet asked for", restore_gives_back_what_the_kubelet_wanted),
    Check("rollback: the runtime serves alone", the_runtime_serves_alone),
)
LAST = (Check("no traceback in the journal", nothing_went_wrong_unseen),)
"""When all others have been made."""
