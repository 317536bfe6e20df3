"""All checks, in the order in which they are made."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.node.guest import (
    advisor,
    arm64,
    block_io,
    claims,
    core_sched,
    devices,
    guard,
    hook_servers,
    installation,
    kubelets,
    modes,
    network,
    packages,
    pods,
    pools,
    qos_manager,
    removal,
    scores,
    service,
    strategies,
    tree,
)
from tests.node.guest.node import Check

ARM64 = "arm64"
CORE_SCHED = "core-sched"
GUARD = "guard"
KUBELETS = "kubelets"
MODES = "modes"
POOLS = "pools"
BOOTS: Mapping[str, tuple[Check, ...]] = {
    "cgroup-v2": (
        *installation.CHECKS,
        *pods.CHECKS,
        *tree.CHECKS,
        *hook_servers.CHECKS,
        *scores.CHECKS,
        *qos_manager.CHECKS,
        *service.CHECKS,
        *qos_manager.OUTLIVED,
        *claims.CHECKS,
        claims.STARTED_AGAIN,
        *qos_manager.AFTERWARDS,
        *service.OUTLIVED,
        *pods.IN_SLICES,
        *devices.CHECKS,
        *strategies.CHECKS,
        *block_io.CHECKS,
        *network.CHECKS,
        *removal.CHECKS,
        *packages.CHECKS,
        *removal.LAST,
        *qos_manager.LAST,
    ),
    "cgroup-v1": (
        *installation.CHECKS,
        *pods.ON_VERSION_1,
        *tree.CHECKS,
        *qos_manager.INSTALLED,
        claims.BOUND_FIRST,
        *claims.CHECKS,
        qos_manager.TAKEN_OUT,
        *packages.CHECKS_ON_VERSION_1,
        *removal.LAST,
        *qos_manager.LAST,
    ),
    MODES: (modes.RUNTIME, *installation.CHECKS, *modes.CHECKS, *removal.LAST),
    POOLS: (modes.RUNTIME, *installation.CHECKS, *pools.CHECKS, *advisor.CHECKS, *removal.LAST),
    CORE_SCHED: (*installation.CHECKS, *core_sched.CHECKS, *removal.LAST),
    KUBELETS: (*installation.CHECKS, *kubelets.CHECKS),
    GUARD: (*installation.CHECKS, *guard.CHECKS),
    ARM64: (*installation.CHECKS, *arm64.CHECKS, *pods.CHECKS, *tree.CHECKS),
}
"""By boot of the node. What is no matter of cgroup files is checked on version 2 alone; the modes have
a boot of their own, with a containerd that has NRI, and whole kubelets, as they take pods for theirs that
other checks have made. Core scheduling needs a kernel of its own, and the other architecture an image of its
own."""


def selected(pattern: str, boot: str) -> list[str]:
    """The names of the checks of a boot that match, and of the installation, which all need."""
    needed = {modes.RUNTIME, *installation.CHECKS}
    return [check.name for check in BOOTS[boot] if re.search(pattern, check.name) or check in needed]
