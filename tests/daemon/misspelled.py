"""A policy that must not be loaded."""

from __future__ import annotations

from typing import ClassVar

from runtimeproxy.hooks import ContainerView, Policy


class Misspelled(Policy):
    """Means another method."""

    name: ClassVar[str] = "misspelled"

    def containr(self, container: ContainerView) -> None:
        """Is no method of the contract."""
