"""The command `check-slo`: the strategies in files, the origin of each value, and problems."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtimeproxy.commands.simulate import level_lines
from runtimeproxy.config.validation import level_rules, places_of
from runtimeproxy.documents.reading import InputError, parse_documents, printable
from runtimeproxy.hooks.levels import LEVELS_POLICY, levels_in_force
from runtimeproxy.hooks.views import PodView
from runtimeproxy.katalyst.levels import class_of
from runtimeproxy.katalyst.targets import CustomConfig, NodeTraits, ResolvedConfig, Target, resolve
from runtimeproxy.node.derived import normalization_ratio
from runtimeproxy.node.inputs import state_file
from runtimeproxy.node.machine import read_processor
from runtimeproxy.node.object_folder import SUFFIXES, texts_of
from runtimeproxy.node.objects import (
    ConfigMapObject,
    Ignored,
    NodeObject,
    NodeSloObject,
    Object,
    Reader,
    Rejected,
    has_incomplete,
)
from runtimeproxy.node.snapshot import Input, InputState, Node
from runtimeproxy.offline import Offline
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.checkpoint.file import CheckpointError, CheckpointFile
from runtimeproxy.pods.record_views import recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle
from runtimeproxy.qos import qos_class
from runtimeproxy.simulate.files import UnusableInputError, content, node_name, object_files, pairs
from runtimeproxy.simulate.levels import LevelVerdict, level_verdict
from runtimeproxy.simulate.manifests import read_pods
from runtimeproxy.simulate.result import level_as_json
from runtimeproxy.simulate.running import RunningPod, WantedValues, differing_policies, wanted_values
from runtimeproxy.slo.keys import SECTIONS
from runtimeproxy.slo.loading import Loaded, NodeSlo, Text, load
from runtimeproxy.slo.names import CONFIG_MAP
from runtimeproxy.slo.object_names import POD_NAMES, name_problems
from runtimeproxy.slo.reading import Problem, json_key
from runtimeproxy.slo.strategies import BY_DEFAULT, Layer, PodStrategy, Provenance, Strategies

if TYPE_CHECKING:
    from argparse import Namespace

    from runtimeproxy.config.settings import Settings

_NO_LABELS: Final = (
    "no labels of a node are known, so no node strategy applies: give its Node object, or --node-labels"
)
_PARTS: Final = (
    *("cpu_burst", "cpu_qos", "memory_qos", "resctrl_qos", "network_qos", "blkio_qos", "eviction"),
    "startup_boost",
)


class Row(NamedTuple):
    """One field of a strategy."""

    path: str
    """In Koordinator's words, such as `lsClass.cpuQOS.enable`."""
    value: object
    provenance: Provenance


class Running(NamedTuple):
    """The effect of the strategies on the pods of this node, as numbers of pods."""

    checkpoint: str
    """Path of the file that has the pods."""
    pods: int
    touched: int
    """To which policies give other values than without any strategy."""
    changed: int | None
    """To which policies give other values than by the strategies that the instance here saved last; None: it
    saved none."""
    skipped: int
    """With the label of pods that are left alone."""
    by_policy: Mapping[str, int]
    """The touched ones by policy."""
    by_part: Mapping[str, int]
    """The touched ones by a part of `PodStrategy` in Koordinator's words."""
    by_pod_strategy: Mapping[str, int]
    """The touched ones by pod strategy."""


@dataclass(slots=True)
class _Input:
    """The content of the files."""

    texts: dict[str, Text] = field(default_factory=dict)
    node: NodeObject = field(default_factory=NodeObject)
    node_slo: NodeSlo | None = None
    node_name: str = ""
    targets: list[Target] = field(default_factory=list)
    custom_configs: list[CustomConfig] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(arguments: Namespace, settings: Settings) -> tuple[str, bool]:
    """Returns what to print, and whether the strategies are good. Raises UsageError."""
    found = _read_files(arguments.files)
    labels = {**found.node.labels, **pairs(arguments.node_labels, "--node-labels")}
    annotations = {**found.node.annotations, **pairs(arguments.node_annotations, "--node-annotations")}
    loaded = load(found.texts, node_slo=found.node_slo, labels=labels, annotations=annotations)
    targets = _targets(found, arguments.node_name or found.node_name, labels)
    if not found.texts and found.node_slo is None and not found.targets:
        found.notes.append(f"no strategies are in the files, neither a ConfigMap {CONFIG_MAP} nor a NodeSLO")
    pod = verdict = None
    if arguments.pod:
        pod, verdict = _read_pod(Path(arguments.pod), settings)
    strategy = Node(strategies=loaded.strategies).strategy_for(pod) if pod is not None else None
    if not labels and any(config.nodes for config in loaded.good.values()):
        found.notes.append(_NO_LABELS)
    if pod is not None and _is_skipped(settings, pod.labels):
        key = settings.hooks.skip_label_key
        found.notes.append(f"the pod's label {key} says that it is left alone")
    present = _present(Path(settings.state.dir), labels, annotations)
    running = _running(settings, loaded.strategies, present, annotations)
    report = _Report(
        found, labels, loaded, pod, arguments.pod or "", strategy, running, arguments.strict, verdict, targets
    )
    if arguments.output == "json":
        return report.as_json(), report.is_good
    return "\n".join(map(printable, report.as_text())), report.is_good


class _Report(NamedTuple):
    found: _Input
    labels: Mapping[str, str]
    loaded: Loaded
    pod: PodView | None
    pod_file: str
    strategy: PodStrategy | None
    running: Running | str
    """Or why it is not known."""
    is_strict: bool
    verdict: LevelVerdict | None
    """Of the pod; None: it has no level of Katalyst's."""
    targets: ResolvedConfig
    """Katalyst's dynamic configuration."""

    @property
    def is_good(self) -> bool:
        return not (
            self.found.problems
            or any(map(self._is_error, self._problems()))
            or (self.verdict is not None and self.verdict.is_refused)
        )

    def _is_error(self, problem: Problem) -> bool:
        return not problem.is_warning or (self.is_strict and problem.is_unknown_name)

    def _problems(self) -> list[Problem]:
        of_pod = self.strategy.problems if self.strategy else ()
        if self.pod is not None:
            of_pod = (*of_pod, *name_problems(POD_NAMES, self.pod.labels, self.pod.annotations))
        of_targets = self.targets.config_problems
        return [*self.loaded.problems, *of_targets, *(each._replace(file=self.pod_file) for each in of_pod)]

    def as_text(self) -> Iterator[str]:
        yield from (f"note: {each}" for each in self.found.notes)
        yield from (f"error: {each}" for each in self.found.problems)
        for each in self._problems():
            yield f"{'error' if self._is_error(each) else 'warning'}: {each}"
        for title, rows in self._sections():
            yield from _table(title, _configured(rows))
        for target in self.targets.targets:
            applies = "applies" if target.is_applied else "does not apply"
            yield f"target {target.name}: {applies}: {target.reason}"
        for path, value in self.targets.config.fields():
            yield f"  {path}  {_shown(value)}"
        if self.pod is not None and self.strategy is not None:
            qos = self.pod.qos or "no QoS class"
            title = f"pod {self.pod.namespace}/{self.pod.name} ({qos}, {self.pod.kube_qos})"
            yield from _table(title, _configured(_rows(self.strategy, self.strategy.provenance)))
        if self.verdict is not None:
            yield from (text for _, text in level_lines(self.verdict))
        if unused := dict.fromkeys(each.key for each in self.loaded.problems if not each.is_warning):
            yield f"keys of which a running instance keeps the last good values: {', '.join(unused)}"
        yield from self._running_text()
        count = sum(map(self._is_error, self._problems())) + len(self.found.problems)
        count += self.verdict is not None and self.verdict.is_refused
        if count:
            yield f"not valid: {count} error{'s' if count > 1 else ''}"
        else:
            is_any = self.found.texts or self.found.node_slo is not None or self.found.targets
            yield "valid" if is_any else "nothing to check"

    def _running_text(self) -> Iterator[str]:
        running = self.running
        if isinstance(running, str):
            yield f"running pods: {running}"
            return
        yield f"running pods: {running.touched} of {running.pods} get other values than without strategies"
        yield from (f"  policy {name}: {count}" for name, count in running.by_policy.items())
        yield from (f"  {part}: {count}" for part, count in running.by_part.items())
        yield from (f"  pod strategy {name}: {count}" for name, count in running.by_pod_strategy.items())
        if running.changed is not None:
            yield f"  other values than by the present strategies: {running.changed}"
        if running.skipped:
            yield f"  left alone by their label: {running.skipped}"

    def as_json(self) -> str:
        problems = [*(Problem("", "", "", each) for each in self.found.problems), *self._problems()]
        report: dict[str, object] = {
            "valid": self.is_good,
            "problems": [_problem_as_json(each, is_error=self._is_error(each)) for each in problems],
            "notes": self.found.notes,
            "nodeLabels": self.labels,
            "strategies": {title: [_as_json(row) for row in rows] for title, rows in self._sections()},
        }
        if self.targets.targets:
            report["katalystTargets"] = [
                {
                    "name": each.name,
                    "file": each.file,
                    "isApplied": each.is_applied,
                    "version": each.version,
                    "reason": each.reason,
                }
                for each in self.targets.targets
            ]
            report["katalystConfig"] = {path: _plain(value) for path, value in self.targets.config.fields()}
        if self.pod is not None and self.strategy is not None:
            report["pod"] = {
                "namespace": self.pod.namespace,
                "name": self.pod.name,
                "qosClass": self.pod.qos,
                "kubeQOSClass": self.pod.kube_qos,
                "strategy": [_as_json(row) for row in _rows(self.strategy, self.strategy.provenance)],
                "katalyst": level_as_json(self.verdict) if self.verdict is not None else None,
            }
        if isinstance(self.running, str):
            report["runningPods"] = {"unknown": self.running}
        else:
            report["runningPods"] = {json_key(name): each for name, each in self.running._asdict().items()}
        text = json.dumps(report, indent=2, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair, as JSON escapes it

    def _sections(self) -> Iterator[tuple[str, list[Row]]]:
        strategies = self.loaded.strategies
        for section in SECTIONS:
            value = getattr(strategies, section.attribute)
            provenance = {
                path.removeprefix(f"{section.attribute}."): each
                for path, each in strategies.provenance.items()
                if path.split(".")[0] == section.attribute
            }
            if section.attribute == "host_applications":
                yield section.key, [Row("applications", value, provenance.get(section.attribute, BY_DEFAULT))]
            else:
                yield section.key, list(_rows(value, provenance))


# Input


def _read_files(names: Sequence[str]) -> _Input:
    found = _Input()
    files: dict[str, list[Any]] = {}
    for path in object_files(names):
        data = content(path)
        if path.name.endswith(SUFFIXES):
            try:
                files[str(path)] = parse_documents(data)
            except InputError as error:
                found.problems.append(f"{path}: {error}")
        else:
            try:
                found.texts.setdefault(path.name, Text(str(path), data.decode("utf-8-sig")))
            except UnicodeDecodeError:
                found.problems.append(f"{path}: is not UTF-8")
    found.node_name = node_name(document for documents in files.values() for document in documents)
    reader = Reader(found.node_name)
    for file, documents in files.items():
        if not documents:
            found.problems.append(f"{file}: is empty")
        if has_incomplete(documents):
            found.problems.append(f"{file}: has an object without kind or name; is it half written?")
        objects = reader.read(documents)
        # Beside an object that is read, one that is not may be what else a list holds.
        is_other = all(isinstance(each, Ignored) and each.of_other_node is None for each in objects)
        for each in objects:
            _take(each, file, found, is_other=is_other)
    return found


def _take(each: Object | Rejected | Ignored, file: str, found: _Input, *, is_other: bool) -> None:
    # `is_other`: its file holds nothing that is read.
    if isinstance(each, Rejected):
        found.problems.append(f"{file}: {each.kind}: {each.reason}")
    elif isinstance(each, Ignored):
        kind = found.problems if is_other or each.is_misspelled else found.notes
        kind.append(f"{file}: {each.reason}")
    elif isinstance(each.value, ConfigMapObject):
        if not each.value.data:
            found.problems.append(f"{file}: {each.kind}: has no data; is it half written?")
        for key, text in each.value.data.items():
            if key in found.texts:
                found.problems.append(f"{file}: {key}: is in {found.texts[key].file}, too, which is used")
            found.texts.setdefault(key, Text(file, text))
    elif isinstance(each.value, Target | CustomConfig):
        _take_target(each.value, file, found)
    elif isinstance(each.value, NodeObject):
        found.node = each.value
    elif isinstance(each.value, NodeSloObject):
        found.node_slo = NodeSlo(file, each.value.spec)


def _take_target(value: Target | CustomConfig, file: str, found: _Input) -> None:
    of_kind: list[Any] = found.targets if isinstance(value, Target) else found.custom_configs
    if any(other.name == value.name for other in of_kind):
        found.problems.append(f"{file}: {value.name}: is there twice; the first one is used")
    else:
        of_kind.append(value._replace(file=file))


def _targets(found: _Input, name: str, labels: Mapping[str, str]) -> ResolvedConfig:
    """What a node with this name and these labels gets of the targets; problems go to `found`."""
    resolved = resolve(found.targets, found.custom_configs, NodeTraits(name, labels), time.time())
    found.problems += resolved.problems
    found.notes += resolved.notes
    if not name and any(each.node_names for each in found.targets):
        found.notes.append("no name of a node is known, so no target by nodeNames applies: give --node-name")
    return resolved


def _read_pod(path: Path, settings: Settings) -> tuple[PodView, LevelVerdict | None]:
    try:
        pods = read_pods(parse_documents(content(path)))
    except InputError as error:
        raise UnusableInputError(f"{path}: {error}") from None
    if len(pods) != 1:
        raise UnusableInputError(f"{path}: has {len(pods)} pods, not one")
    pod = pods[0]
    view = PodView(
        namespace=pod.namespace,
        name=pod.name,
        labels=pod.labels,
        annotations=pod.annotations,
        qos=qos_class(pod.labels),
        kube_qos=pod.qos,
    )
    if LEVELS_POLICY in settings.policies and not _is_skipped(settings, pod.labels):
        node = Node(levels=level_rules(settings.katalyst))
        levels = levels_in_force(Offline(settings).policies.policies, node)
        if levels is not None and (qos := levels.of(view)) is not None:
            view = replace(view, katalyst=qos, qos=class_of(pod.labels, qos))
    return view, level_verdict(view, {each.name: each.requests for each in pod.containers})


# Running pods


def _present(state_dir: Path, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Strategies | None:
    """The strategies that the instance with this state folder used last; None if they are not known."""
    saved = state_file(state_dir).load(lambda saved: texts_of(saved["strategies"]))
    if saved is None:
        return None
    texts, node_slo = saved
    return load(texts, node_slo=node_slo, labels=labels, annotations=annotations).strategies


def _is_skipped(settings: Settings, labels: Mapping[str, str]) -> bool:
    key = settings.hooks.skip_label_key
    return bool(key) and labels.get(key) == settings.hooks.skip_label_value


def _running(
    settings: Settings, strategies: Strategies, present: Strategies | None, annotations: Mapping[str, str]
) -> Running | str:
    """Asks the policies about the pods of the checkpoint, with these strategies and with others."""
    checkpoint = CheckpointFile(Path(settings.state.dir), read_only=True)
    try:
        if not checkpoint.path.exists():
            return f"not known, there is no checkpoint {checkpoint.path}"
        saved = checkpoint.load()
    except OSError as error:
        return f"not known, the checkpoint {checkpoint.path} cannot be read: {error.strerror}"
    except CheckpointError as error:
        return f"not known: {error}"
    finally:
        checkpoint.close()
    running = list(_running_pods(saved))
    pods = [each for each in running if not _is_skipped(settings, each.record.labels)]
    offline = Offline(settings)
    wanted = _wanted_by(offline, pods, annotations)
    by_these, without = wanted(strategies), Strategies()
    touched = list(map(differing_policies, by_these, wanted(without)))

    def read_by(names: Collection[str]) -> set[str]:
        found = (each.policy for each in offline.policies.policies if each.name in names)
        return {part for policy in found for part in policy.strategy_parts}

    by_policy: Counter[str] = Counter()
    by_part: Counter[str] = Counter()
    by_strategy: Counter[str] = Counter()
    for pod, names in zip(pods, touched, strict=True):
        if names:
            view = recorded_pod(pod.record)
            strategy = strategies.for_pod(view)
            parts = _differences(strategy, without.for_pod(view), within=read_by(names))
            by_policy.update(names)
            by_part.update(map(json_key, parts))
            by_strategy.update(_pod_strategies(strategy, parts))
    changed = None
    if present is not None:
        changed = sum(map(bool, map(differing_policies, by_these, wanted(present))))
    return Running(
        checkpoint=str(checkpoint.path),
        pods=len(running),
        touched=sum(map(bool, touched)),
        changed=changed,
        skipped=len(running) - len(pods),
        by_policy=by_policy,
        by_part=by_part,
        by_pod_strategy=by_strategy,
    )


def _running_pods(saved: Saved) -> Iterator[RunningPod]:
    containers: dict[str, list[ContainerRecord]] = {}
    for container in saved.containers:
        if container.state is Lifecycle.RUNNING and container.detailed:
            containers.setdefault(container.pod_id, []).append(container)
    for pod in saved.pods:
        if pod.state is Lifecycle.RUNNING:
            yield RunningPod(pod, tuple(containers.get(pod.id, ())))


def _wanted_by(
    offline: Offline, pods: Sequence[RunningPod], annotations: Mapping[str, str]
) -> Callable[[Strategies], list[WantedValues]]:
    """Returns what says for strategies which values the policies want of each pod, on this node."""
    places = places_of(offline.settings)
    processor = read_processor(places.sysfs, places.procfs)

    def wanted(strategies: Strategies) -> list[WantedValues]:
        if not pods:
            return []
        node = offline.inputs.node
        ratio, path = node.normalization_ratio, node.normalization_path
        with contextlib.suppress(InputError):
            ratio, path = normalization_ratio(annotations, strategies.cpu_normalization, processor) or (
                None,
                "",
            )
        known = dict.fromkeys((Input.STRATEGIES, Input.NORMALIZATION), InputState.KNOWN)
        if ratio is None:
            known[Input.NORMALIZATION] = InputState.WITHDRAWN
        states = {**node.states, **known}
        node = replace(
            node, strategies=strategies, normalization_ratio=ratio, normalization_path=path, states=states
        )
        return wanted_values(pods, offline.policies.policies, offline.settings.hooks.rules, node)

    return wanted


def _differences(one: PodStrategy, other: PodStrategy, *, within: Collection[str]) -> list[str]:
    return [part for part in _PARTS if part in within and getattr(one, part) != getattr(other, part)]


def _pod_strategies(strategy: PodStrategy, parts: Collection[str]) -> set[str]:
    """The names of the pod strategies behind these parts."""
    return {
        each.strategy
        for path, each in strategy.provenance.items()
        if each.source is Layer.POD and path.split(".")[0] in parts
    }


# Output


def _rows(
    value: object, provenance: Mapping[str, Provenance], path: str = "", name: str = ""
) -> Iterator[Row]:
    """The fields of a strategy; those of a QoS that is off are one row."""
    fields = dataclasses.fields(value)  # type: ignore[arg-type]
    for each in sorted(fields, key=lambda each: each.name != "enable"):
        if each.name in ("problems", "provenance"):
            continue
        below = getattr(value, each.name)
        key, attribute = f"{path}{json_key(each.name)}", f"{name}{each.name}"
        if dataclasses.is_dataclass(below) and not isinstance(below, type):
            off = {by for at, by in provenance.items() if at.startswith(f"{attribute}.") and by.is_off}
            if off and not getattr(below, "enable", True):
                yield Row(key, "off", off.pop())
            else:
                yield from _rows(below, provenance, f"{key}.", f"{attribute}.")
        elif isinstance(below, Mapping) and below:
            for entry, inner in below.items():
                yield Row(f"{key}.{entry}", inner, provenance.get(f"{attribute}.{entry}", BY_DEFAULT))
        else:
            yield Row(key, below, provenance.get(attribute, BY_DEFAULT))


def _configured(rows: Iterable[Row]) -> list[Row]:
    """The rows of those parts of a strategy about which some layer says something."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.path.rpartition(".")[0], []).append(row)
    return [
        row
        for part in parts.values()
        if any(each.provenance != BY_DEFAULT for each in part)
        for row in part
        if row.value is not None or row.provenance != BY_DEFAULT
    ]


def _table(title: str, rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    yield f"{title}:"
    cells = [(row.path, _shown(row.value), str(row.provenance)) for row in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(2)]
    for path, value, by in cells:
        yield f"  {path.ljust(widths[0])}  {value.ljust(widths[1])}  {by}"


def _shown(value: object) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, StrEnum):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            json_key(each.name): _plain(inner)
            for each in dataclasses.fields(value)
            if (inner := getattr(value, each.name)) is not None
        }
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return value


def _problem_as_json(problem: Problem, *, is_error: bool) -> dict[str, object]:
    places = (("file", problem.file), ("key", problem.key), ("path", problem.path))
    found: dict[str, object] = {name: text for name, text in places if text}
    return found | {"reason": problem.reason, "severity": "error" if is_error else "warning"}


def _as_json(row: Row) -> dict[str, object]:
    by = row.provenance
    parts = {"source": str(by.source), "file": by.file, "key": by.key, "strategy": by.strategy}
    found: dict[str, object] = {"path": row.path, "value": _plain(row.value)}
    found |= {name: text for name, text in parts.items() if text}
    return found | {"disabled": True} if by.is_off else found
