"""Which pods have a level of Katalyst's: those that the policy `katalyst-qos` is enforced for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.selector import PodSelector, PodTraits
from runtimeproxy.katalyst.levels import KatalystQos, LevelRules, katalyst_qos
from runtimeproxy.node.snapshot import Node
from runtimeproxy.vocabulary import Mode

LEVELS_POLICY: Final = "katalyst-qos"
"""Without it no pod has a level."""


class PodLevels(NamedTuple):
    """How pods get their levels."""

    rules: LevelRules
    selectors: tuple[PodSelector, ...]
    """A pod that none of them matches has no level."""

    def of(self, pod: PodTraits) -> KatalystQos | None:
        """The level of a pod by its annotations; None: it has none."""
        if not any(each.matches(pod) for each in self.selectors):
            return None
        return katalyst_qos(pod.annotations, self.rules)


def levels_in_force(policies: Iterable[LoadedPolicy], node: Node) -> PodLevels | None:
    """The levels of pods while these policies are in use; None: no pod has one."""
    enforced = [each for each in policies if each.name == LEVELS_POLICY and each.mode is Mode.ENFORCE]
    if not enforced or node.levels is None:
        return None
    return PodLevels(node.levels, tuple(each.selector for each in enforced))
