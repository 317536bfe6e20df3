"""A policy that must not be loaded."""

from __future__ import annotations

from typing import ClassVar

from runtimeproxy.hooks import ContainerView, Policy


class Misspelled(Policy):
    """Means another hook."""

    name: ClassVar[str] = "misspelled"

    def pre_creat_container(self, container: ContainerView) -> None:
        """Is no hook."""
