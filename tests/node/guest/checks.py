"""All checks, in the order in which they are made."""

from __future__ import annotations

import re

from tests.node.guest import hook_servers, installation, packages, pods, removal, service, strategies
from tests.node.guest.node import Check

CHECKS: tuple[Check, ...] = (
    *installation.CHECKS,
    *pods.CHECKS,
    *hook_servers.CHECKS,
    *strategies.CHECKS,
    *service.CHECKS,
    *removal.CHECKS,
    *packages.CHECKS,
    *removal.LAST,
)


def selected(pattern: str) -> list[str]:
    """The names of the checks that match, and of the installation, which all need."""
    return [check.name for check in CHECKS if re.search(pattern, check.name) or check in installation.CHECKS]
