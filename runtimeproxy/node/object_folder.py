"""The folder of Kubernetes objects: files of objects, or a mounted ConfigMap, or both, and its strategies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from runtimeproxy.cgroups.pace import rest
from runtimeproxy.documents.reading import InputError, parse_documents, printable, shortened
from runtimeproxy.node.input_file import ParsedInput, WatchedFile
from runtimeproxy.node.objects import (
    MAX_CONFIG_MAP_BYTES,
    ConfigMapObject,
    Kind,
    NodeObject,
    NodeSloObject,
    Object,
    ObjectKey,
    Reader,
    Rejected,
    TopologyFacts,
    config_map_data,
    has_incomplete,
)
from runtimeproxy.node.snapshot import EMPTY, NO_STRATEGIES
from runtimeproxy.slo.names import CONFIG_MAP, NODE_ANNOTATIONS, NODE_LABELS
from runtimeproxy.slo.object_names import NODE_NAMES
from runtimeproxy.slo.strategies import Strategies

if TYPE_CHECKING:
    from runtimeproxy.katalyst.targets import CustomConfig, Target
    from runtimeproxy.slo.loading import Loaded, NodeSlo, Text
    from runtimeproxy.slo.reading import Problem

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Of files with objects."""
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_FILES: Final = 256
_STRATEGY_KINDS: Final = frozenset({Kind.CONFIG_MAP, Kind.NODE_SLO})
"""Kinds of objects that strategies are read from."""
MAX_NOTES: Final = 16
"""Objects of one file, or files, that are named because they are not read."""
_UNUSED: Final = (
    f"is not read; files with objects end in {', '.join(SUFFIXES)}, a ConfigMap's keys have no dot"
)


_Kind = TypeVar("_Kind")


class FileObjects(NamedTuple):
    """The objects of one file."""

    objects: Mapping[ObjectKey, Object]
    rejected: frozenset[Kind] = frozenset()
    """Kinds of which the file has an object that cannot be used and has never been good."""
    of_other_nodes: frozenset[Kind] = frozenset()
    """Kinds of which the file has an object of another node."""
    lost: Mapping[ObjectKey, Object] = EMPTY
    """Previous objects that the file no longer has: it may be half written."""


class FolderObjects(NamedTuple):
    """The objects of all files together."""

    config: Mapping[str, Text] = EMPTY
    """By key; all that there is of `slo-controller-config`."""
    node: NodeObject | None = None
    topology: TopologyFacts | None = None
    node_slo: NodeSlo | None = None
    targets: tuple[Target, ...] = ()
    """Of Katalyst's dynamic configuration; by name."""
    gone_targets: frozenset[str] = frozenset()
    """Names of those that the files have no longer."""
    custom_configs: tuple[CustomConfig, ...] = ()
    unknown: frozenset[Kind] = frozenset()
    """Kinds that may be in a file that was never good."""


class ObjectFolder:
    """A folder whose files are watched in one thread at a time; it may be missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, WatchedFile[FileObjects]] = {}
        self._reader = Reader("")
        self.found = FolderObjects()
        self.problems: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.wait_s: float | None = None
        """Time after which another look is due even without an event; None: none."""
        self.needs_polling = False

    def look(self, now_s: float, reader: Reader, *, is_first: bool = False) -> None:
        """Reads the files that have changed; with another reader all of them."""
        if reader != self._reader:
            self._reader = reader
            for file in self._files.values():
                if not is_first:
                    file.forget_stamp()
        names, problems, notes = self._names()
        for name, file in list(self._files.items()):
            self._look_at(name, file, now_s, is_first=is_first)
        # Those that are known stay, whatever comes beside them.
        new, room = [name for name in names if name not in self._files], MAX_FILES - len(self._files)
        for name in new[:room]:
            self._look_at(name, self._file(name), now_s, is_first=is_first)
        if len(new) > room:
            text = f"{printable(self.folder)}: has more than {MAX_FILES} files; the others are not read"
            problems.append(text)
        files = [self._files[name] for name in sorted(self._files)]
        self.found, doubles, counting = _joined(files)
        self.problems = (
            *problems,
            *(text for file in files for text in file.problems),
            # Of a file that was renamed everything is in another one.
            *(file.withdrawal for file in files if file.withdrawal and printable(file.path) in counting),
            *_first_of_many(doubles, "more objects and keys are there twice"),
            *self._foreign(files),
        )
        self.notes = (*notes, *(text for file in files for text in file.notes))
        self.wait_s = min((file.wait_s for file in files if file.wait_s is not None), default=None)
        is_linked = Path(os.path.realpath(self.folder)) != self.folder
        # That a folder comes is no event in it.
        is_here = os.path.isdir(self.folder)  # noqa: PTH112 - whatever cannot be told is not here
        self.needs_polling = is_linked or not is_here or not all(file.is_watchable for file in files)

    def _look_at(self, name: str, file: WatchedFile[FileObjects], now_s: float, *, is_first: bool) -> None:
        file.look(now_s, is_first=is_first)
        rest()
        if file.is_missing and file.value is None:
            self._files.pop(name, None)
        else:
            self._files[name] = file

    def _foreign(self, files: list[WatchedFile[FileObjects]]) -> Iterator[str]:
        """Kinds of which there are only objects of other nodes: the name may be wrong."""
        values = [file.value for file in files if file.value is not None]
        found = {kind for value in values for kind, _ in (*value.objects, *value.lost)}
        others = {kind for value in values for kind in value.of_other_nodes}
        for kind in sorted(others - found):
            name = self._reader.node_name
            yield f"{printable(self.folder)}: has no {kind} of this node, whose name is {name} (node.name)"

    def saved(self) -> dict[str, Any]:
        return {
            name: {"stamp": file.stamp, "objects": file.source}
            for name, file in self._files.items()
            if file.source is not None
        }

    def restore(self, saved: Mapping[str, Any], reader: Reader) -> None:
        """Sets what `saved` gave in a former process; what of it is not usable now is left out."""
        self._reader = reader
        for name, entry in saved.items():
            file = self._file(name)
            parsed = self._parse_documents(entry["objects"], None)
            if parsed.value.objects:
                stamp = entry["stamp"]
                file.restore(parsed, tuple(stamp) if stamp and not parsed.problems else None)
                self._files[name] = file
        self.found, _, _ = _joined([self._files[name] for name in sorted(self._files)])

    def _names(self) -> tuple[list[str], list[str], list[str]]:
        """Names of the files to read, problems and notes."""
        try:
            with os.scandir(self.folder) as entries:
                there = {entry.name: _is_folder(entry) for entry in entries if not entry.name.startswith(".")}
        except (FileNotFoundError, NotADirectoryError):
            return [], [], []
        except OSError as error:
            text = f"{printable(self.folder)}: cannot be read: {error.strerror}; all stays as it is"
            return [], [text], []
        names = sorted(name for name, is_folder in there.items() if not is_folder and _counts(name))
        others = sorted(there.keys() - names)
        notes = [f"{printable(self.folder / name)}: {_UNUSED}" for name in others[:MAX_NOTES]]
        if len(others) > MAX_NOTES:
            notes.append(f"{printable(self.folder)}: {len(others) - MAX_NOTES} more files are not read")
        return names, [], notes

    def _file(self, name: str) -> WatchedFile[FileObjects]:
        path = self.folder / name
        if name.endswith(SUFFIXES):
            return WatchedFile(path, MAX_FILE_BYTES, self._parse_objects)
        return WatchedFile(path, MAX_CONFIG_MAP_BYTES, lambda data, _: _parse_key(name, data))

    def _parse_objects(self, data: bytes, before: FileObjects | None) -> ParsedInput[FileObjects]:
        documents = parse_documents(data)
        if not documents:
            # A file that is being written is empty at first.
            raise InputError("is empty; delete the file to withdraw what was in it")
        parsed = self._parse_documents(documents, before)
        lost = parsed.value.lost
        if not lost:
            return parsed
        if has_incomplete(documents):
            raise InputError(
                f"has an object without kind or name, and {_no_longer(lost)}; is it half written?"
            )
        # It may be cut between two objects, or in a name: that cannot be told from another text.
        later = parsed._replace(value=parsed.value._replace(lost=EMPTY))
        source = [*parsed.source, *(each.source for each in lost.values())]
        return parsed._replace(source=source, later=later, lost=_no_longer(lost))

    def _parse_documents(self, documents: list[Any], before: FileObjects | None) -> ParsedInput[FileObjects]:
        objects: dict[ObjectKey, Object] = {}
        problems: list[str] = []
        notes: list[str] = []
        known = {**before.lost, **before.objects} if before is not None else {}
        rejected: set[Kind] = set()
        of_other_nodes: set[Kind] = set()
        for each in self._reader.read(documents):
            if isinstance(each, Object):
                if each.key in objects:
                    problems.append(f"{_shown(each.key)}: is there twice; the first one is used")
                objects.setdefault(each.key, each)
            elif isinstance(each, Rejected):
                old = known.get((each.kind, ""))
                if old is not None:
                    objects.setdefault(old.key, old)
                elif (each.kind, "") not in objects:
                    rejected.add(each.kind)
                kept = "; what was there before stays" if old is not None else ""
                problems.append(f"{each.kind}: {each.reason}{kept}")
            else:
                (problems if each.is_misspelled else notes).append(each.reason)
                if each.of_other_node is not None:
                    of_other_nodes.add(each.of_other_node)
        value = FileObjects(
            objects,
            rejected=frozenset(rejected - {kind for kind, name in objects if not name}),
            of_other_nodes=frozenset(of_other_nodes),
            lost={key: each for key, each in known.items() if key not in objects},
        )
        source = [each.source for each in objects.values()]
        notes = _first_of_many(list(dict.fromkeys(notes)), "more objects are not read")
        problems = _first_of_many(problems, "more problems")
        return ParsedInput(value, source, tuple(problems), tuple(notes))


def _first_of_many(texts: list[str], more: str) -> list[str]:
    rest = len(texts) - MAX_NOTES
    return texts if rest <= 0 else [*texts[:MAX_NOTES], f"{rest} {more}"]


def _no_longer(lost: Iterable[ObjectKey]) -> str:
    names = _first_of_many(list(map(_shown, lost)), "more")
    return f"holds no {', '.join(names)} any more"


def _shown(key: ObjectKey) -> str:
    kind, name = key
    return f"{kind} {shortened(name)}" if name else str(kind)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    rest()
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _counts(name: str) -> bool:
    return name.endswith(SUFFIXES) or ("." not in name and not name.endswith("~"))


def _parse_key(name: str, data: bytes) -> ParsedInput[FileObjects]:
    """A key of a mounted ConfigMap, as a ConfigMap that has it alone."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8") from None
    if not text.strip():
        raise InputError("is empty; delete the file to withdraw what was in it")
    value = ConfigMapObject(data=config_map_data({name: text}))
    document = {"kind": Kind.CONFIG_MAP.value, "metadata": {"name": CONFIG_MAP}, "data": {name: text}}
    found = Object(Kind.CONFIG_MAP, value, document)
    return ParsedInput(FileObjects({found.key: found}), [document])


class _ObjectPart(NamedTuple):
    """An object, or a key of the ConfigMap, and the path of the file that gives it."""

    path: str
    value: Any
    is_present: bool


def _joined(files: list[WatchedFile[FileObjects]]) -> tuple[FolderObjects, list[str], set[str]]:
    """The content of the files together, problems, and the paths of files that provide what is gone."""
    if not files:
        return FolderObjects(), [], set()
    from runtimeproxy.slo.loading import NodeSlo, Text  # only where there is something to read

    parts: dict[tuple[Kind, str], _ObjectPart] = {}
    problems: list[str] = []
    # The first object wins; those that are gone come last.
    for path, objects, is_present in _by_presence(files):
        for (kind, key), value in _parts_of(objects):
            first = parts.get((kind, key))
            if first is None:
                parts[kind, key] = _ObjectPart(path, value, is_present)
            elif is_present:
                what = shortened(key) if kind is Kind.CONFIG_MAP else _shown((kind, key))
                problems.append(f"{path}: {what} is in {first.path}, too, which is used")
    values = [part.value for part in parts.values()]
    slo = first_of(NodeSloObject, values)
    joined = FolderObjects(
        config={
            key: Text(part.path, str(part.value))
            for (kind, key), part in parts.items()
            if kind is Kind.CONFIG_MAP
        },
        node=first_of(NodeObject, values),
        topology=first_of(TopologyFacts, values),
        node_slo=NodeSlo(parts[Kind.NODE_SLO, ""].path, slo.spec) if slo is not None else None,
        targets=_of_kind(Kind.TARGET, parts),
        gone_targets=frozenset(
            name for (kind, name), part in parts.items() if kind is Kind.TARGET and not part.is_present
        ),
        custom_configs=_of_kind(Kind.CUSTOM_CONFIG, parts),
        unknown=_unknown(files) - {kind for kind, _ in parts},
    )
    return joined, problems, {part.path for part in parts.values() if not part.is_present}


def _of_kind(kind: Kind, parts: Mapping[tuple[Kind, str], _ObjectPart]) -> Any:  # noqa: ANN401 - two kinds
    """The objects of one of `KATALYST_KINDS`, by name, each with its file."""
    found = sorted((name, part) for (of, name), part in parts.items() if of is kind)
    return tuple(part.value._replace(file=part.path) for _, part in found)


def first_of(kind: type[_Kind], values: Iterable[object]) -> _Kind | None:
    return next((each for each in values if isinstance(each, kind)), None)


def _parts_of(objects: Mapping[ObjectKey, Object]) -> Iterator[tuple[tuple[Kind, str], object]]:
    # In place of the ConfigMap its keys.
    for key, each in objects.items():
        if isinstance(each.value, ConfigMapObject):
            yield from (((each.kind, name), text) for name, text in each.value.data.items())
        else:
            yield key, each.value


def _unknown(files: list[WatchedFile[FileObjects]]) -> frozenset[Kind]:
    """Kinds of which there may be an object that was never good."""
    if any(file.is_unknown for file in files):
        return frozenset(Kind)
    return frozenset(kind for file in files if file.value is not None for kind in file.value.rejected)


def _by_presence(
    files: list[WatchedFile[FileObjects]],
) -> Iterator[tuple[str, Mapping[ObjectKey, Object], bool]]:
    # First those that are there, then those that are gone.
    for is_present in (True, False):
        for file in files:
            if file.value is not None:
                if file.is_missing is not is_present:
                    yield printable(file.path), file.value.objects, is_present
                if not is_present:
                    yield printable(file.path), file.value.lost, False


def texts_of(saved: Mapping[str, Any]) -> tuple[dict[str, Text], NodeSlo | None]:
    """The result of `StrategyTexts.saved` in a former process; raises anything if it is not usable."""
    from runtimeproxy.slo.loading import NodeSlo, Text

    texts = {str(key): Text(str(file), str(text)) for key, (file, text) in saved["texts"].items()}
    sections = {str(key): (str(file), raw) for key, (file, raw) in saved["sections"].items()}
    spec = {key: raw for key, (_, raw) in sections.items()}
    return texts, NodeSlo(next(file for file, _ in sections.values()), spec) if sections else None


class StrategyTexts:
    """Makes strategies of texts."""

    def __init__(self) -> None:
        self._basis: object = None
        self._clear()

    def _clear(self) -> None:
        self.problems: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.found_problems: tuple[Problem, ...] = ()
        """`problems` with their parts."""
        self.is_unknown = False
        """Whether there is something that was never good, and nothing that is good."""
        self._loaded: Loaded | None = None
        self._good: dict[str, Text] = {}
        self._good_sections: dict[str, NodeSlo] = {}
        """By section of the NodeSLO, each with the spec that it is of."""

    def update(self, found: FolderObjects, node: NodeObject) -> Strategies:
        """The strategies by the objects, and by the node's own labels and annotations."""
        # Most annotations and the capacity change often, and concern no strategy.
        own = dict.fromkeys(NODE_NAMES.unknown(node.annotations), "")
        own |= {key: text for key, text in node.annotations.items() if key in NODE_ANNOTATIONS}
        is_named = bool(own) or not NODE_LABELS.isdisjoint(node.labels)
        is_named = is_named or any(NODE_NAMES.unknown(node.labels))
        basis = (found.config, found.node_slo, node.labels, own)
        if basis != self._basis:
            self._basis = basis
            if found.config or found.node_slo is not None or is_named:
                self._load(found.config, found.node_slo, node.labels, own)
            else:
                self._clear()
        loaded = self._loaded
        if loaded is None:
            return NO_STRATEGIES
        is_unknown = self.is_unknown or not _STRATEGY_KINDS.isdisjoint(found.unknown)
        says_something = bool(loaded.strategies.provenance) and not is_unknown
        return loaded.strategies if loaded.good or says_something else NO_STRATEGIES

    def saved(self) -> dict[str, Any]:
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
        self.found_problems = tuple(problem for problem in loaded.problems if problem.needs_attention)
        self.problems = tuple(map(str, self.found_problems))
        self.notes = tuple(str(problem) for problem in loaded.problems if not problem.needs_attention)
