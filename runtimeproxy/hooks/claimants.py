"""Who makes a claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class ClaimantKind(StrEnum):
    """What makes a claim."""

    POLICY = "policy"
    SERVER = "server"
    """A hook server: its claims stay until its container goes or it is deregistered."""
    PLUGIN = "plugin"
    """An owner outside of this process, such as a plugin of a QoS manager: its claims have a lease."""


class Claimant(NamedTuple):
    """A policy, hook server or plugin that makes a claim.

    Its text, in files, API and log, is `server:NAME`, `plugin:NAME`, or the name of a policy.
    """

    name: str
    kind: ClaimantKind = ClaimantKind.POLICY

    def __str__(self) -> str:
        return self.name if self.kind is ClaimantKind.POLICY else f"{self.kind}:{self.name}"

    @property
    def label(self) -> str:
        # A hook server by its name alone.
        return self.name if self.kind is ClaimantKind.SERVER else str(self)


Owners: TypeAlias = Mapping[str, tuple[Claimant, ...]]
"""The owners of values, by names of fields such as `resources.cpu_shares`."""


def parse_claimant(text: str) -> Claimant:
    for kind in (ClaimantKind.SERVER, ClaimantKind.PLUGIN):
        if text.startswith(f"{kind}:"):
            return Claimant(text.partition(":")[2], kind)
    return Claimant(text)


def labels_of(claimants: Iterable[Claimant]) -> str:
    return "+".join(dict.fromkeys(each.label for each in claimants))


def texts_of(claimants: Iterable[Claimant]) -> str:
    return "+".join(dict.fromkeys(map(str, claimants)))
