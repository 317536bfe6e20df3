"""Targets of Katalyst's dynamic configuration: which ones are valid, and which one applies to a node. Pure.

A target is an AdminQoSConfiguration; the KatalystCustomConfig of that kind says by which labels targets may
select nodes. One target applies to a node, or none.

Source: katalyst-core pkg/controller/kcc, kcc.go and kcct.go, and pkg/util/kcct.go; katalyst-api
pkg/apis/config/v1alpha1/generic.go and types.go.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from runtimeproxy.cgroups.pace import rest
from runtimeproxy.documents.reading import (
    InputError,
    kind_of,
    list_of,
    mapping_of,
    shortened,
    text_of,
    within,
)
from runtimeproxy.katalyst.dynamic_config import NO_CONFIG, KatalystConfig, read_config
from runtimeproxy.katalyst.selectors import ComparedSelector, Selector, parse_selector
from runtimeproxy.labels import node_name_problem
from runtimeproxy.slo.reading import Problem

TARGET_KIND: Final = "AdminQoSConfiguration"
CUSTOM_CONFIG_KIND: Final = "KatalystCustomConfig"
GROUP: Final = "config.katalyst.kubewharf.io"
RESOURCE: Final = "adminqosconfigurations"

MAX_TARGETS: Final = 512
"""Each is compared with each; a cluster has a handful."""
MAX_NODE_NAMES: Final = 10_000
"""Of one target. Source: Kubernetes, twice the nodes of the largest cluster."""
MAX_CONFIG_CHARS: Final = 256 * 1024
"""Of a `spec.config` as JSON; all fields that Katalyst has take less than a tenth of that."""
HASH_CHARS: Final = 12
"""Source: pkg/util/kcct.go, kccConfigHashLength."""
_MAX_CONDITIONS: Final = 4_096
"""Priorities and keys in an allowed list."""
_MAX_PRIORITY: Final = 2**31 - 1
_ALL_NODES: Final = frozenset({"", "100%"})

_DURATION_PART: Final = re.compile(
    r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|\u00b5s|\u03bcs|ms|s|m|h)"
)
_UNIT_S: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
"""Source: Go time.ParseDuration."""


class ChoiceStep(StrEnum):
    """How a target names its nodes; the first step at which one applies decides."""

    NODE_NAMES = "nodeNames"
    SELECTOR = "nodeLabelSelector"
    GLOBAL = "global"
    """Neither: all nodes."""


class Target(NamedTuple):
    """A target, whatever is wrong with it."""

    name: str
    """`namespace/name`."""
    file: str = ""
    """Where it comes from."""
    selector_text: str = ""
    selector: Selector | None = None
    """None: it has none, or one that cannot be read."""
    priority: int = 0
    """Of those that select by labels the largest is taken."""
    node_names: frozenset[str] = frozenset()
    last_duration_s: float | None = None
    """How long it lasts from its creation on; None: for ever."""
    created_s: float | None = None
    """In seconds since the epoch; None: not known."""
    is_paused: bool = False
    canary: str = ""
    """On how many nodes a change is to be tried first; empty or 100 %: all at once."""
    config: Any = None
    """`spec.config` as it is."""
    problem: str = ""
    """Why it cannot be used, from its own fields; empty: no reason."""
    source: Any = None
    """The used parts of its object, of which `read_target` makes the same again."""

    @property
    def step(self) -> ChoiceStep:
        if self.node_names:
            return ChoiceStep.NODE_NAMES
        return ChoiceStep.SELECTOR if self.selector_text else ChoiceStep.GLOBAL

    @property
    def end_s(self) -> float | None:
        """When it ends; None: never, or not known."""
        if self.created_s is None or self.last_duration_s is None:
            return None
        return self.created_s + self.last_duration_s

    def matches(self, node_name: str, labels: Mapping[str, str]) -> bool:
        if self.node_names:
            return node_name in self.node_names
        # A selector that cannot be read is one that may match.
        return self.selector is None or self.selector.matches(labels)


class CustomConfig(NamedTuple):
    """A KatalystCustomConfig that is about targets."""

    name: str
    file: str = ""
    allowed: Mapping[int, frozenset[str]] = MappingProxyType({})
    """Labels by which targets may select, by their priority."""
    problem: str = ""
    """Why it cannot be used; empty if it can."""
    source: Any = None
    """As that of a target."""


# Reading


def read_target(document: Mapping[str, Any], file: str = "") -> Target:
    """Return the target of an object; what is wrong with it is in it.

    Raises:
        InputError: It has no name.
    """
    found = Target(object_name(document), file, source=_source(TARGET_KIND, document))
    try:
        found = found._replace(created_s=_created_s(document))
        with within("spec"):
            return _with_spec(found, mapping_of(document.get("spec")))
    except InputError as error:
        return found._replace(problem=str(error))


def read_custom_config(document: Mapping[str, Any], file: str = "") -> CustomConfig | None:
    """Return a KatalystCustomConfig; None for one about objects of another kind.

    Raises:
        InputError: It has no name.
    """
    found = CustomConfig(object_name(document), file, source=_source(CUSTOM_CONFIG_KIND, document))
    try:
        with within("spec"):
            spec = mapping_of(document.get("spec"))
            with within("targetType"):
                kind = mapping_of(spec.get("targetType"))
                names = [text_of(kind.get(key)) for key in ("group", "resource")]
            if names != [GROUP, RESOURCE]:
                return None
            with within("nodeLabelSelectorAllowedKeyList"):
                return found._replace(allowed=_allowed(spec.get("nodeLabelSelectorAllowedKeyList")))
    except InputError as error:
        return found._replace(problem=str(error))


def _source(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    metadata = document["metadata"]
    used = {key: metadata[key] for key in ("namespace", "name", "creationTimestamp") if metadata.get(key)}
    return {"kind": kind, "metadata": used, "spec": document.get("spec")}


def object_name(document: Mapping[str, Any]) -> str:
    """`namespace/name` of an object, or its name without a namespace. Raises InputError."""
    with within("metadata"):
        metadata = mapping_of(document.get("metadata"))
        parts = {}
        for key in ("namespace", "name"):
            with within(key):
                parts[key] = text_of(metadata.get(key))
                # The longest name of a Kubernetes object.
                if len(parts[key]) > 253:
                    raise InputError("is longer than 253 characters")
        if not parts["name"]:
            raise InputError("is missing", "name")
    return "/".join(part for part in parts.values() if part)


def _with_spec(found: Target, spec: Mapping[str, Any]) -> Target:
    with within("priority"):
        priority = _whole(spec.get("priority"))
    with within("paused"):
        is_paused = spec.get("paused")
        if not isinstance(is_paused, bool | None):
            raise InputError("is neither true nor false")
    config = spec.get("config")
    found = found._replace(priority=priority, is_paused=bool(is_paused), canary=_canary(spec), config=config)
    with within("nodeLabelSelector"):
        text = text_of(spec.get("nodeLabelSelector")).strip()
        found = found._replace(selector_text=text)
    with within("ephemeralSelector"):
        ephemeral = mapping_of(spec.get("ephemeralSelector"))
        with within("nodeNames"):
            found = found._replace(node_names=_node_names(ephemeral.get("nodeNames")))
        with within("lastDuration"):
            found = found._replace(last_duration_s=_duration_s(ephemeral.get("lastDuration")))
    try:
        size = len(json.dumps(config))
    except (TypeError, ValueError, RecursionError):
        raise InputError("cannot be read", "config") from None
    if size > MAX_CONFIG_CHARS:
        raise InputError(f"is longer than {MAX_CONFIG_CHARS} characters", "config")
    if text:
        try:
            with within("spec.nodeLabelSelector"):
                return found._replace(selector=parse_selector(text))
        except InputError as error:
            return found._replace(problem=str(error))
    return found


def _canary(spec: Mapping[str, Any]) -> str:
    with within("updateStrategy"):
        strategy = mapping_of(spec.get("updateStrategy"))
        with within("rollingUpdate"):
            value = mapping_of(strategy.get("rollingUpdate")).get("canary")
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError("is neither a number nor a percentage", "updateStrategy.rollingUpdate.canary")
    return shortened(str(value))


def _node_names(value: object) -> frozenset[str]:
    names = list_of(value)
    if len(names) > MAX_NODE_NAMES:
        raise InputError(f"has {len(names)} names, more than {MAX_NODE_NAMES}")
    for index, name in enumerate(names):
        reason = node_name_problem(name) if isinstance(name, str) else f"is {kind_of(name)}, not a text"
        if reason:
            raise InputError(reason, f"[{index}]")
    return frozenset(names)


def _whole(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MAX_PRIORITY:
        raise InputError("is not a whole number of 32 bits")
    return value


def _duration_s(value: object) -> float | None:
    text = text_of(value)
    if not text:
        return None
    if text == "0":
        return 0.0
    parts = _DURATION_PART.findall(text) if len(text) <= 64 else []
    if not parts or "".join(map("".join, parts)) != text:
        raise InputError(f"is {shortened(repr(text))}, not a duration such as 24h")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def _created_s(document: Mapping[str, Any]) -> float | None:
    with within("metadata.creationTimestamp"):
        text = text_of(mapping_of(document.get("metadata")).get("creationTimestamp"))
        if not text:
            return None
        try:
            time = datetime.fromisoformat(text)
            if time.tzinfo is not None:
                return time.timestamp()
        except (ValueError, OverflowError):
            pass
        raise InputError(f"is {shortened(repr(text))}, not a time such as 2026-01-31T12:00:00Z")


def _allowed(value: object) -> Mapping[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    count = 0
    for index, item in enumerate(list_of(value)):
        with within(f"[{index}]"):
            entry = mapping_of(item)
            with within("priority"):
                priority = _whole(entry.get("priority"))
            with within("keyList"):
                keys = list_of(entry.get("keyList"))
                count += 1 + len(keys)
                if count > _MAX_CONDITIONS:
                    raise InputError(f"and the others have more than {_MAX_CONDITIONS} keys")
                found[priority] = found.get(priority, frozenset()) | {text_of(key) for key in keys}
    return found


# Validity


def invalid_reasons(targets: Iterable[Target], custom_configs: Collection[CustomConfig]) -> dict[str, str]:
    """Why targets are not valid, by name; those that are valid are not in it.

    If any is not, none of the present ones applies: nodes keep the last ones of which all were valid. A
    target that has ended is none, and is to be left out before.

    Source: pkg/controller/kcc, validation of targets; differs: without a KatalystCustomConfig targets that
    select by no label are valid, as a folder of files needs none.
    """
    there = list(targets)
    found: dict[str, str] = {}
    general = _general_problem(there, custom_configs)
    if general:
        return dict.fromkeys((each.name for each in there), general)
    allowed = next((each.allowed for each in custom_configs), None)
    for each in there:
        rest()
        reason = _own_problem(each, allowed)
        if reason:
            found[each.name] = reason
    usable = [each for each in there if each.name not in found]
    for name, reason in _clashes(usable, allowed or {}):
        found.setdefault(name, reason)
    return found


def _general_problem(targets: Collection[Target], custom_configs: Collection[CustomConfig]) -> str:
    if len(targets) > MAX_TARGETS:
        return f"is one of {len(targets)} targets, more than {MAX_TARGETS}"
    if len(custom_configs) > 1:
        names = ", ".join(sorted(shortened(each.name) for each in custom_configs)[:4])
        return f"there are {len(custom_configs)} {CUSTOM_CONFIG_KIND}s of {RESOURCE}, not one: {names}"
    bad = next((each for each in custom_configs if each.problem), None)
    return f"{CUSTOM_CONFIG_KIND} {bad.name}: {bad.problem}" if bad is not None else ""


def _own_problem(target: Target, allowed: Mapping[int, frozenset[str]] | None) -> str:
    if target.problem:
        return target.problem
    has_duration = target.last_duration_s is not None
    if target.node_names and target.selector_text:
        return "has both nodeLabelSelector and ephemeralSelector.nodeNames"
    if target.node_names:
        if not has_duration:
            return "has ephemeralSelector.nodeNames without lastDuration"
        if target.created_s is None:
            return "has a lastDuration, but no metadata.creationTimestamp from which it lasts"
    elif has_duration:
        return "has ephemeralSelector.lastDuration without nodeNames"
    if target.selector is not None:
        if allowed is None:
            return f"has a nodeLabelSelector, but there is no {CUSTOM_CONFIG_KIND} of {RESOURCE}"
        keys = allowed.get(target.priority, frozenset())
        if other := sorted(target.selector.keys - keys):
            those = ", ".join(sorted(keys)[:8]) if keys else "none"
            what = shortened(other[0])
            return f"selects by {what}, but the allowed keys of priority {target.priority} are {those}"
    return read_config(target.config, most_guesses=0).error


def _clashes(targets: list[Target], allowed: Mapping[int, frozenset[str]]) -> Iterator[tuple[str, str]]:
    by_node: dict[str, str] = {}
    for each in targets:
        rest()
        shared = next((name for name in sorted(each.node_names) if name in by_node), None)
        if shared is not None:
            first = by_node[shared]
            yield each.name, f"names the node {shared}, as {first} does"
            yield first, f"names the node {shared}, as {each.name} does"
        by_node |= dict.fromkeys(each.node_names, each.name)
    general = [each.name for each in targets if each.step is ChoiceStep.GLOBAL]
    for name in general if len(general) > 1 else ():
        other = next(each for each in general if each != name)
        yield name, f"is for all nodes, as {other} is"
    by_priority: dict[int, list[tuple[str, ComparedSelector]]] = {}
    for each in targets:
        rest()
        if each.step is ChoiceStep.SELECTOR and each.selector is not None:
            compared = ComparedSelector(each.selector, allowed.get(each.priority, frozenset()))
            same = by_priority.setdefault(each.priority, [])
            for name, other_selector in same:
                if compared.overlaps(other_selector):
                    yield each.name, f"may select the same nodes as {name}, of the same priority"
                    yield name, f"may select the same nodes as {each.name}, of the same priority"
            same.append((each.name, compared))


# Choice


class Choice(NamedTuple):
    """Which target applies to a node."""

    target: Target | None
    """None: none does, or which one cannot be said."""
    step: ChoiceStep | None
    """At which step it was decided; None: no target applies."""
    reasons: Mapping[str, str]
    """Why the others do not apply, by name."""
    conflict: str = ""
    """More than one applies at the step, and the node keeps what it has; empty: there is no conflict."""

    @property
    def is_ambiguous(self) -> bool:
        return bool(self.conflict)


def choose(targets: Iterable[Target], node_name: str, labels: Mapping[str, str]) -> Choice:
    """Return which of these applies: by the node's name, else by its labels, else the one for all nodes."""
    reasons: dict[str, str] = {}
    matching: list[Target] = []
    for each in targets:
        if each.matches(node_name, labels):
            matching.append(each)
        elif each.node_names:
            reasons[each.name] = f"ephemeralSelector.nodeNames has no {node_name}"
        else:
            text = shortened(each.selector_text)
            reasons[each.name] = f"the node's labels do not match nodeLabelSelector {text}"
    for step in ChoiceStep:
        there = [each for each in matching if each.step is step]
        if not there:
            continue
        highest = max(each.priority for each in there) if step is ChoiceStep.SELECTOR else None
        winners = [each for each in there if highest is None or each.priority == highest]
        names = ", ".join(sorted(shortened(each.name) for each in winners)[:4])
        for each in matching:
            if each.step is not step:
                reasons[each.name] = f"{names} applies by {step}, which goes before {each.step}"
            elif each not in winners:
                reasons[each.name] = f"{names} has the higher priority {highest}, not {each.priority}"
        if len(winners) > 1:
            text = f"more than one applies by {step} ({names}): the node keeps what it has"
            return Choice(None, step, reasons | {each.name: text for each in winners}, text)
        return Choice(winners[0], step, reasons)
    return Choice(None, None, reasons)


class TargetState(NamedTuple):
    """A target, and whether it applies."""

    name: str
    file: str
    is_applied: bool
    version: str
    reason: str
    """Why it applies, or why not."""


class ResolvedConfig(NamedTuple):
    """What applies to a node now."""

    config: KatalystConfig
    raw: Any
    """`spec.config` behind it, to be saved."""
    targets: tuple[TargetState, ...]
    """By name."""
    good: tuple[tuple[Target, ...], tuple[CustomConfig, ...]]
    """The last targets of which all were valid, to be passed again."""
    problems: tuple[str, ...] = ()
    """Why the node has not what the targets say."""
    notes: tuple[str, ...] = ()
    """The same where the target itself says so."""
    config_problems: tuple[Problem, ...] = ()
    """Of the configuration that applies."""
    end_s: float | None = None
    """When the next target ends, in seconds since the epoch."""


NOTHING: Final = ResolvedConfig(NO_CONFIG, None, (), ((), ()))


class NodeTraits(NamedTuple):
    """By what targets select a node."""

    name: str
    labels: Mapping[str, str]


def resolve(
    targets: Collection[Target],
    custom_configs: Collection[CustomConfig],
    node: NodeTraits,
    now_s: float,
    before: ResolvedConfig = NOTHING,
) -> ResolvedConfig:
    """Return what applies to a node.

    `now_s`: in seconds since the epoch. `before`: the last result, of which the node keeps the configuration
    where the targets do not say which one applies.
    """
    present = tuple(each for each in targets if not _has_ended(each, now_s))
    invalid = invalid_reasons(present, custom_configs)
    good = before.good if invalid else (present, tuple(custom_configs))
    usable = [each for each in good[0] if not _has_ended(each, now_s)]
    choice = choose(usable, node.name, node.labels)
    winner, held = choice.target, ""
    config_problems: tuple[Problem, ...] = ()
    config, raw = before.config, before.raw
    if winner is not None:
        version = config_hash(winner.config)
        held = _held(winner, config, version)
        if not held:
            name = f"{TARGET_KIND} {winner.name}"
            found = read_config(winner.config, file=winner.file, target=name, version=version)
            config, raw, config_problems = found.config, winner.config, found.problems
    elif not choice.is_ambiguous and (usable or not invalid):
        config, raw = NO_CONFIG, None
    applied = config.target.removeprefix(f"{TARGET_KIND} ")
    reasons = {**choice.reasons, **invalid}
    if winner is not None:
        reasons[winner.name] = held or _BY_STEP[winner.step]
    states = [
        TargetState(
            name=each.name,
            file=each.file,
            is_applied=each.name == applied,
            version=config.version if each.name == applied else config_hash(each.config),
            reason=_ended(each) if _has_ended(each, now_s) else reasons.get(each.name, _OTHERS_INVALID),
        )
        for each in sorted({each.name: each for each in (*usable, *targets)}.values(), key=_name_of)
    ]
    ends = [each.end_s for each in (*usable, *present) if each.end_s is not None]
    return ResolvedConfig(
        config=config,
        raw=raw,
        targets=tuple(states),
        good=good,
        problems=tuple(_problems(invalid, choice)),
        notes=(f"{TARGET_KIND} {shortened(winner.name)}: {held}",) if winner is not None and held else (),
        config_problems=config_problems,
        end_s=min(ends, default=None),
    )


_MAX_NAMED: Final = 8
"""Targets that are named in problems; all are in the status."""
_OTHERS_INVALID: Final = "another target is not valid, and the last valid ones are used"
_BY_STEP: Final = {
    ChoiceStep.NODE_NAMES: "names the node",
    ChoiceStep.SELECTOR: "selects the node by its labels",
    ChoiceStep.GLOBAL: "is for all nodes",
}


def config_hash(config: object) -> str:
    """The version of a `spec.config`: equal for equal ones. Katalyst's own hash is another one."""
    try:
        text = json.dumps(config or {}, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARS]


def _name_of(target: Target) -> str:
    return target.name


def _has_ended(target: Target, now_s: float) -> bool:
    return target.end_s is not None and target.end_s < now_s


def _ended(target: Target) -> str:
    return f"has ended: lastDuration was over at {format_time(target.end_s or 0.0)}"


def format_time(time_s: float) -> str:
    """A time in seconds since the epoch as Kubernetes writes it."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "a time that no calendar has"


def _held(target: Target, present: KatalystConfig, version: str) -> str:
    """Why a target does not apply yet though it was chosen; empty if it applies."""
    if present.version == version and present.target == f"{TARGET_KIND} {target.name}":
        return ""
    if target.is_paused:
        return "is paused: the node keeps what it has"
    if target.canary not in _ALL_NODES:
        # On which nodes a change is tried first is known to who sees all of them.
        return (
            f"updateStrategy.rollingUpdate.canary is {target.canary}, which no single node can tell: the node"
            " keeps what it has until it is 100%"
        )
    return ""


def _problems(invalid: Mapping[str, str], choice: Choice) -> Iterator[str]:
    for name, reason in sorted(invalid.items())[:_MAX_NAMED]:
        yield f"{TARGET_KIND} {shortened(name)}: {reason}"
    if invalid:
        more = f"{len(invalid)} of them are not valid" if len(invalid) > 1 else "one of them is not valid"
        yield f"{TARGET_KIND}: {more}; the node goes by the last ones that all were"
    if choice.is_ambiguous:
        yield f"{TARGET_KIND}: {choice.conflict}"
