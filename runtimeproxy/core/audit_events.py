"""Audit entries about modes of policies and strategies of the node. Used in the event loop's thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from runtimeproxy.core.audit import NODE
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.node.snapshot import NO_STRATEGIES
from runtimeproxy.slo.values import as_json, given_values, value_at

if TYPE_CHECKING:
    from runtimeproxy.core.audit import AuditQueues
    from runtimeproxy.hooks.modes import Override
    from runtimeproxy.hooks.selector import PodSelector
    from runtimeproxy.node.snapshot import Input, Node
    from runtimeproxy.node.sources import NodeSources, OnChange
    from runtimeproxy.slo.strategies import Strategies
    from runtimeproxy.vocabulary import Mode

MOST_FIELDS: Final = 50
"""Of one change of strategies; the others are counted."""
_MOST_LENGTH: Final = 256
BY_COMMAND: Final = "by command"
TIME_IS_OVER: Final = "its time is over"
BY_CONFIGURATION: Final = "by the configuration"


def audit_modes(
    audit: AuditQueues,
    before: Iterable[Override],
    after: Iterable[Override],
    configured: Mapping[str, Mode],
    why: str,
) -> None:
    """Audits modes that operators have set, or that have ended.

    Args:
        audit: Takes the entries.
        before: The overrides before, the oldest first.
        after: Those from now on.
        configured: By policy, the mode of the configuration; others have one that is not known.
        why: For those that have ended; those that are set have their own reason, too.
    """
    old, new = list(before), list(after)
    for each in new:
        if each not in old:
            until = "" if each.until_s is None else f"until {_time(each.until_s)}"
            reason = "; ".join(filter(None, (BY_COMMAND, pods_text(each.selector), until, each.reason)))
            _add_mode(audit, each.policy, _mode(old, each, configured), str(each.mode), reason)
    for each in old:
        if not _mode(new, each, {}):
            ended = each.until_s if why == TIME_IS_OVER else None
            at = "" if ended is None else f": it ended at {_time(ended)}"
            reason = "; ".join(filter(None, (why + at, pods_text(each.selector))))
            _add_mode(audit, each.policy, str(each.mode), _mode([], each, configured), reason)


def _mode(overrides: Iterable[Override], like: Override, configured: Mapping[str, Mode]) -> str:
    """The mode of the same policy for the same pods: that of an override, else the configured one."""
    found = [each for each in overrides if (each.policy, each.selector) == (like.policy, like.selector)]
    return str(found[-1].mode) if found else str(configured.get(like.policy, ""))


def audit_configured_modes(audit: AuditQueues, before: Mapping[str, Mode], after: Mapping[str, Mode]) -> None:
    """Audits modes that the configuration has changed, of policies or owners that are in both."""
    for name, mode in after.items():
        if (old := before.get(name)) not in (None, mode):
            _add_mode(audit, name, str(old), str(mode), BY_CONFIGURATION)


def _add_mode(audit: AuditQueues, policy: str, old: str, new: str, reason: str) -> None:
    audit.add_event(AuditKind.MODE, reason, target=NODE, policy=policy, field="mode", old=old, new=new)


def pods_text(selector: PodSelector) -> str:
    """The pods of an override for people; empty for all."""
    parts = [f"namespace {', '.join(sorted(selector.namespaces))}"] if selector.namespaces else []
    labels = [f"{key}={value}" for key, value in sorted(selector.labels.match_labels.items())]
    for each in selector.labels.match_expressions:
        values = f" ({', '.join(each.values)})" if each.values else ""
        labels.append(f"{each.key} {each.operator}{values}")
    text = " and ".join([*parts, ",".join(labels)] if labels else parts)
    return f"for pods of {text}" if text else ""


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


class StrategyAudit:
    """Audits changes of the node's strategies; called with each new snapshot and the changed inputs.

    Args:
        audit: Takes the entries.
        node: Where snapshots come from.
        then: Called next, with the same arguments.
    """

    def __init__(self, audit: AuditQueues, node: NodeSources, then: OnChange) -> None:
        self._audit = audit
        self._sources = node
        self._then = then
        self._last = node.latest.strategies

    def __call__(self, node: Node, inputs: frozenset[Input]) -> None:
        # What is read first after a start without saved inputs is no change.
        if self._sources.settled.is_set() or self._last is not NO_STRATEGIES:
            audit_strategies(self._audit, self._last, node.strategies)
        self._last = node.strategies
        self._then(node, inputs)


def audit_strategies(audit: AuditQueues, before: Strategies, after: Strategies) -> None:
    """Audits each value of the node's strategies that has changed, with its source."""
    if before == after:
        return
    paths = {path for each in (before, after) for path, _, _ in given_values(each, each.provenance)}
    changed = [path for path in sorted(paths) if value_at(before, path) != value_at(after, path)]
    for path in changed[:MOST_FIELDS]:
        old, new = _short(value_at(before, path)), _short(value_at(after, path))
        reason = str(after.provenance_of(path))
        audit.add_event(AuditKind.STRATEGY, reason, target=NODE, field=path, old=old, new=new)
    if len(changed) > MOST_FIELDS:
        reason = f"{len(changed) - MOST_FIELDS} more values have changed"
        audit.add_event(AuditKind.STRATEGY, reason, target=NODE)
    if before.pod_basis != after.pod_basis and not changed:
        audit.add_event(AuditKind.STRATEGY, "strategies for single pods have changed", target=NODE)


def _short(value: object) -> str:
    text = as_json(value)
    return text if len(text) <= _MOST_LENGTH else text[:_MOST_LENGTH] + "..."
