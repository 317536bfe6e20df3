"""All checks, in the order in which they are made."""

from __future__ import annotations

import re

from tests.node.guest import (
    hook_servers,
    installation,
    packages,
    pods,
    qos_manager,
    removal,
    service,
    strategies,
)
from tests.node.guest.node import Check

CHECKS: tuple[Check, ...] = (
    *installation.CHECKS,
    *pods.CHECKS,
    *hook_servers.CHECKS,
    *qos_manager.CHECKS,
    *service.CHECKS,
    *qos_manager.AFTERWARDS,
    *service.OUTLIVED,
    *pods.IN_SLICES,
    *strategies.CHECKS,
    *removal.CHECKS,
    *packages.CHECKS,
    *removal.LAST,
    *qos_manager.LAST,
)


def selected(pattern: str) -> list[str]:
    """The names of the checks that match, and of the installation, which all need."""
    return [check.name for check in CHECKS if re.search(pattern, check.name) or check in installation.CHECKS]
