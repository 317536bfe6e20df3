"""The texts that a node's strategies are of, with the last good one of each key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runtimeproxy.node.object_folder import FolderObjects
from runtimeproxy.node.objects import NodeObject
from runtimeproxy.node.snapshot import NO_STRATEGIES
from runtimeproxy.slo.strategies import Strategies

if TYPE_CHECKING:
    from runtimeproxy.slo.loading import Loaded, NodeSlo, Text


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
        is_unknown: Whether there is something that was never good, and nothing else.
    """

    def __init__(self) -> None:
        self.problems: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.is_unknown = False
        self._basis: tuple[Mapping[str, Text], NodeSlo | None, NodeObject] | None = None
        self._loaded: Loaded | None = None
        self._good: dict[str, Text] = {}
        self._good_sections: dict[str, NodeSlo] = {}
        """By section of the NodeSLO, each with the spec that it is of."""

    def update(self, found: FolderObjects, node: NodeObject) -> Strategies:
        """The strategies of what was found."""
        basis = (found.config, found.node_slo, node)
        if basis != self._basis:
            self._basis = basis
            if found.config or found.node_slo is not None:
                self._load(found.config, found.node_slo, node)
            else:
                self._clear()
        if self._loaded is None or not self._loaded.good:
            return NO_STRATEGIES
        return self._loaded.strategies

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
        self._load(texts, slo, NodeObject())

    def _clear(self) -> None:
        self._loaded, self._good, self._good_sections = None, {}, {}
        self.problems, self.notes, self.is_unknown = (), (), False

    def _load(self, texts: Mapping[str, Text], slo: NodeSlo | None, node: NodeObject) -> None:
        from runtimeproxy.slo.loading import load  # only where there is something to read

        loaded = load(
            texts, node_slo=slo, labels=node.labels, annotations=node.annotations, previous=self._loaded
        )
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
