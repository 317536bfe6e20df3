"""Katalyst's dynamic configuration of this node: what its targets say, and what it keeps meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.documents.reading import printable
from runtimeproxy.katalyst.dynamic_config import NO_CONFIG, KatalystConfig
from runtimeproxy.node.object_folder import FolderObjects
from runtimeproxy.node.objects import KATALYST_KINDS, Kind

if TYPE_CHECKING:
    from runtimeproxy.katalyst.targets import ResolvedConfig, TargetState
    from runtimeproxy.slo.reading import Problem

LONGEST_WAIT_S: Final = 60.0
"""Between two looks while a target is to end: the clock may be set."""
_WAITS: Final = "waits until it is known which labels targets may select by"


class DynamicConfig:
    """Chooses among the targets that were found. Used in the node's thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.targets: tuple[TargetState, ...] = ()
        """All targets, each with why it applies or not."""
        self.problems: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.found_problems: tuple[Problem, ...] = ()
        """Problems of the configuration that applies, with their parts; `problems` has them, too."""
        self.is_unknown = False
        """Whether there may be targets that are not known yet."""
        self.wait_s: float | None = None
        """Time after which another target may apply even without an event; None: none."""
        self._clock = clock
        self._basis: object = None
        self._resolved: ResolvedConfig | None = None
        """The last result; None: there has never been a target."""

    @property
    def config(self) -> KatalystConfig:
        return self._resolved.config if self._resolved is not None else NO_CONFIG

    def update(self, found: FolderObjects, node_name: str, labels: Mapping[str, str]) -> KatalystConfig:
        """Return what applies now; what applied before as long as the targets are not known."""
        self.is_unknown = self._may_miss_some(found)
        if not found.targets and (self.is_unknown or self._resolved is None):
            return self.config
        now_s = self._clock()
        basis = (self.is_unknown, found.targets, found.custom_configs, found.gone_targets, node_name, labels)
        end_s = self._resolved.end_s if self._resolved is not None else None
        if basis != self._basis or (end_s is not None and end_s < now_s):
            self._basis = basis
            self._resolve(found, node_name, labels, now_s)
            end_s = self._resolved.end_s if self._resolved is not None else None
        self.wait_s = None if end_s is None else min(max(end_s - now_s, 0.0) + 0.001, LONGEST_WAIT_S)
        return self.config

    def saved(self) -> dict[str, Any] | None:
        """What a next process needs to keep what the node has; None: nothing."""
        resolved = self._resolved
        if resolved is None or not (resolved.config.target or any(resolved.good)):
            return None
        targets, custom_configs = resolved.good
        config = resolved.config
        return {
            "targets": [[each.file, each.source] for each in targets],
            "custom_configs": [[each.file, each.source] for each in custom_configs],
            "applied": {"target": config.target, "version": config.version, "config": resolved.raw},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Set what `saved` gave in a former process; raises anything if that is no such thing."""
        from runtimeproxy.katalyst.dynamic_config import read_config
        from runtimeproxy.katalyst.targets import NOTHING, invalid_reasons, read_custom_config, read_target

        targets = [read_target(source, str(file)) for file, source in saved["targets"]]
        read = [read_custom_config(source, str(file)) for file, source in saved["custom_configs"]]
        custom_configs = [each for each in read if each is not None]
        resolved = NOTHING
        if not invalid_reasons(targets, custom_configs):
            resolved = resolved._replace(good=(tuple(targets), tuple(custom_configs)))
        applied = saved["applied"]
        found = read_config(
            applied["config"], target=str(applied["target"]), version=str(applied["version"]), most_guesses=0
        )
        if found.config.target and not found.error:
            resolved = resolved._replace(config=found.config, raw=applied["config"])
        self._resolved = resolved

    def _may_miss_some(self, found: FolderObjects) -> bool:
        unknown = KATALYST_KINDS & found.unknown
        if not found.targets:
            return bool(unknown)
        # Without the labels that targets may select by it cannot be said which ones are valid.
        return Kind.CUSTOM_CONFIG in unknown and any(each.selector_text for each in found.targets)

    def _resolve(self, found: FolderObjects, node_name: str, labels: Mapping[str, str], now_s: float) -> None:
        from runtimeproxy.katalyst import targets

        before = self._resolved or targets.NOTHING
        if self.is_unknown:
            states = (targets.TargetState(each.name, each.file, False, "", _WAITS) for each in found.targets)
            self.targets, self.problems, self.notes, self.found_problems = tuple(states), (), (), ()
            return
        there = list(found.targets)
        if found.gone_targets:
            # One that a file has no longer stays for a while, but does not stand in the way of another one.
            present = [each for each in there if each.name not in found.gone_targets]
            if targets.invalid_reasons(there, found.custom_configs) and not targets.invalid_reasons(
                present, found.custom_configs
            ):
                there = present
        node = targets.NodeTraits(node_name, labels)
        resolved = targets.resolve(there, found.custom_configs, node, now_s, before)
        self._resolved = resolved
        self.targets = resolved.targets
        self.found_problems = tuple(each for each in resolved.config_problems if each.needs_attention)
        self.problems = (*map(printable, resolved.problems), *map(str, self.found_problems))
        others = (str(each) for each in resolved.config_problems if not each.needs_attention)
        self.notes = (*map(printable, resolved.notes), *others)
