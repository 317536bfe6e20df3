"""Katalyst's names of levels, resources and CPU pools, for the daemon and the QoS manager. Imports neither.

Source: katalyst-api pkg/consts (qos.go, resource.go); names of pools in katalyst-core
pkg/agent/qrm-plugins/commonstate/pool.go.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final


class QosLevel(StrEnum):
    """Katalyst's QoS level of a pod."""

    DEDICATED = "dedicated_cores"
    SHARED = "shared_cores"
    RECLAIMED = "reclaimed_cores"
    SYSTEM = "system_cores"


RECLAIMED_MILLICPU: Final = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
"""Extended resource of containers and nodes, in millicores."""
RECLAIMED_MEMORY: Final = "resource.katalyst.kubewharf.io/reclaimed_memory"
"""Likewise, in bytes."""

SHARE: Final = "share"
"""The pool of `shared_cores` without a name of its own."""
RECLAIM: Final = "reclaim"
"""The pool of `reclaimed_cores`; never empty, never removed."""
RESERVE: Final = "reserve"
"""The reserved CPUs; never removed."""
DEDICATED: Final = "dedicated"
"""The owner of CPUs that one pod has alone; no pool that is shared."""
FALLBACK: Final = "fallback"
"""What no pool takes while reclaim is off; pods that ramp up run there, too."""
INTERRUPT: Final = "interrupt"
"""Katalyst's pool for interrupts, which the daemon never makes."""
ISOLATION_PREFIX: Final = "isolation-"
"""Begins the pool of one pod that an advisor has split off its pool."""
SYSTEM_PREFIX: Final = "system-"
"""Begins the owner of a pod of `system_cores`; no pool of its own."""
NUMA_INFIX: Final = "-NUMA"
"""Between the name of a pool and the number of its NUMA node."""

_NOT_SHARED: Final = frozenset({RECLAIM, RESERVE, DEDICATED, FALLBACK, INTERRUPT, ""})
_NOT_SHARED_PREFIXES: Final = ("isolation", SYSTEM_PREFIX)
_OF_NUMA_NODE: Final = re.compile(rf"(.*){NUMA_INFIX}([0-9]{{1,60}})", re.DOTALL)
"""The longest number that a name of a pool, 63 characters, has room for."""


def numa_pool(pool: str, numa_node: int) -> str:
    """Return the name of a pool's part on one NUMA node, such as `share-NUMA0`."""
    return f"{pool}{NUMA_INFIX}{numa_node}"


def pool_and_numa_node(name: str) -> tuple[str, int | None]:
    """Return the name of a pool without its NUMA node, and that; None: it is not of one NUMA node."""
    match = _OF_NUMA_NODE.fullmatch(name)
    return (name, None) if match is None else (match[1], int(match[2]))


def is_shared_pool(name: str) -> bool:
    """Return whether a pool, or its part on a NUMA node, is one of `shared_cores`, and no pod's own one."""
    pool, _ = pool_and_numa_node(name)
    return pool not in _NOT_SHARED and not pool.startswith(_NOT_SHARED_PREFIXES)
