"""The texts that a node's strategies are of, with the last good one of each key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.node.object_folder import FolderObjects
from runtimeproxy.node.objects import Kind, NodeObject
from runtimeproxy.node.snapshot import NO_STRATEGIES
from runtimeproxy.slo.names import NODE_ANNOTATIONS, NODE_LABELS
from runtimeproxy.slo.strategies import Strategies

if TYPE_CHECKING:
    from runtimeproxy.slo.loading import Loaded, NodeSlo, Text

_KINDS: Final = frozenset({Kind.CONFIG_MAP, Kind.NODE_SLO})
"""Kinds of objects that strategies are read from."""


def texts_of(saved: Mapping[str, Any]) -> tuple[dict[str, Text], NodeSlo | None]:
    """What `StrategyTexts.saved` gave in a former process.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: It gave something else.
    """
    from runtimeproxy.slo.loading import NodeSlo, Text

    texts = {str(key): Text(str(file), str(text)) for key, (file, text) in saved["texts"].items()}
    sections = {str(key): (str(file), raw) for key, (file, raw) in saved["sections"].items()}
    spec = {key: raw for key, (_, raw) in sections.items()}
    return texts, NodeSlo(next(file for file, _ in sections.values()), spec) if sections else None


class StrategyTexts:
    """Makes strategies of texts.

    Attributes:
        problems: What cannot be used.
        notes: What is not used.
        is_unknown: Whether there is something that was never good, and nothing that is good.
    """

    def __init__(self) -> None:
        self.problems: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.is_unknown = False
        self._basis: (
            tuple[Mapping[str, Text], NodeSlo | None, Mapping[str, str], Mapping[str, str]] | None
        ) = None
        self._loaded: Loaded | None = None
        self._good: dict[str, Text] = {}
        self._good_sections: dict[str, NodeSlo] = {}
        """By section of the NodeSLO, each with the spec that it is of."""

    def update(self, found: FolderObjects, node: NodeObject) -> Strategies:
        """The strategies of what was found, and of what the node's own labels and annotations say."""
        # Most annotations and the capacity change often, and count for no strategy.
        own = {key: text for key, text in node.annotations.items() if key in NODE_ANNOTATIONS}
        basis = (found.config, found.node_slo, node.labels, own)
        if basis != self._basis:
            self._basis = basis
            if found.config or found.node_slo is not None or own or not NODE_LABELS.isdisjoint(node.labels):
                self._load(found.config, found.node_slo, node.labels, own)
            else:
                self._clear()
        loaded = self._loaded
        if loaded is None:
            return NO_STRATEGIES
        is_unknown = self.is_unknown or not _KINDS.isdisjoint(found.unknown)
        says_something = bool(loaded.strategies.provenance) and not is_unknown
        return loaded.strategies if loaded.good or says_something else NO_STRATEGIES

    def saved(self) -> dict[str, Any]:
        """The last good texts as JSON can hold them."""
        return {
            "texts": {key: list(text) for key, text in self._good.items()},
            "sections": {key: [slo.file, slo.spec.get(key)] for key, slo in self._good_sections.items()},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Sets what `saved` gave in a former process."""
        if not saved["texts"] and not saved["sections"]:
            return
        texts, slo = texts_of(saved)
        self._load(texts, slo, {}, {})

    def _clear(self) -> None:
        self._loaded, self._good, self._good_sections = None, {}, {}
        self.problems, self.notes, self.is_unknown = (), (), False

    def _load(
        self,
        texts: Mapping[str, Text],
        slo: NodeSlo | None,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
    ) -> None:
        from runtimeproxy.slo.loading import load  # only where there is something to read

        loaded = load(texts, node_slo=slo, labels=labels, annotations=annotations, previous=self._loaded)
        bad = {problem.key for problem in loaded.problems if not problem.is_warning}
        self._good = {
            key: text if key not in bad else self._good[key]
            for key, text in texts.items()
            if key in loaded.good and (key not in bad or key in self._good)
        }
        self._good_sections = {
            key: slo if key not in bad else self._good_sections[key]
            for key in (slo.spec if slo is not None else ())
            if slo is not None and key in loaded.good and (key not in bad or key in self._good_sections)
        }
        self._loaded = loaded
        self.is_unknown = bool(bad) and not loaded.good
        self.problems = tuple(str(problem) for problem in loaded.problems if not problem.is_warning)
        self.notes = tuple(str(problem) for problem in loaded.problems if problem.is_warning)
