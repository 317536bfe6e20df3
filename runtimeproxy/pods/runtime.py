"""What the records need from a runtime: lists and status answers, already as records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.pods.records import ContainerRecord, PodRecord


class RuntimeUnavailableError(RuntimeProxyError):
    """The runtime did not answer: it is not there, too slow, or ended the call with an error."""


class RuntimeClient(Protocol):
    """Asks the runtime, on a connection of its own. All methods raise RuntimeUnavailableError."""

    async def list_pods(self, labels: Mapping[str, str] | None = None) -> dict[str, PodRecord]:
        """All sandboxes by id, or those with all of the given labels."""

    async def list_containers(self, pod_id: str = "") -> dict[str, ContainerRecord]:
        """All containers by id, or those of one sandbox."""

    async def pod(self, identity: str) -> PodRecord | None:
        """One sandbox with cgroup parent and resources; None if the runtime does not know it."""

    async def container(self, identity: str, *, with_pod: bool = False) -> ContainerRecord | None:
        """One container with its resources; None if the runtime does not know it.

        Args:
            identity: Its id or a unique prefix.
            with_pod: Whether the sandbox's id is needed: that answer costs the runtime more.
        """
