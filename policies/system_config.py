"""System configuration: memory watermarks, scheduler features and switches of the node's kernel.

By `system-config` of the ConfigMap, NodeSLO's `systemStrategy`. A field that no strategy sets has
Koordinator's default, or leaves the kernel's value alone if it has none. What is no longer wanted goes back
to the value of before, which Koordinator leaves. Source: Koordinator
pkg/koordlet/qosmanager/plugins/sysreconcile/system_config.go, pkg/util/sloconfig/nodeslo_config.go.

The switch of group identity belongs to the node's CPU mode: `group-identity` and `core-sched`, which have a
higher priority, decide it where they do anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

from runtimeproxy.fields.anolis import only_anolis
from runtimeproxy.fields.kernel_settings import SCHED_FEATURES
from runtimeproxy.hooks import NodeChange, PodSelector, Policy, Reason
from runtimeproxy.hooks.reasons import Part, Source
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node

MIN_FREE_KBYTES: Final = "vm.min_free_kbytes"
WATERMARK_SCALE_FACTOR: Final = "vm.watermark_scale_factor"
GROUP_IDENTITY: Final = "kernel.sched_group_identity_enabled"
IDLE_SAVER_WMARK: Final = "kernel.sched_idle_saver_wmark"
REAP_BACKGROUND: Final = "mm.memcg_reaper.reap_background"
PAGE_CACHE_LIMIT: Final = "mm.pagecache_limit.enabled"
CORE_SCHED: Final = "CORE_SCHED"
"""The feature that is core scheduling on kernels without a sysctl for it."""

MIN_FREE_RANGE_KBYTES: Final = (10_240, 10_485_760)
WATERMARK_SCALE_RANGE: Final = (10, 400)
"""Source: Koordinator pkg/koordlet/util/system, MinFreeKbytes, WatermarkScaleFactor."""
_REASON: Final = "system configuration of the node"


def min_free_kbytes(capacity_bytes: int, factor: int) -> int:
    """Return `vm.min_free_kbytes`: `factor` ten thousandths of the memory. Source: caculateMemoryConfig."""
    return capacity_bytes // 1024 * factor // 10_000


class SystemConfig(Policy):
    """Sets sysctls and other settings of the kernel by `system-config`."""

    name: ClassVar[str] = "system-config"
    selector: ClassVar[PodSelector] = PodSelector(namespaces=frozenset())
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})
    optional_inputs: ClassVar[frozenset[Input]] = frozenset({Input.NODE_OBJECT, Input.MEMORY, Input.CGROUPS})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"system"})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {"node": frozenset({"sysctl", "kernel_settings"})}
    priority: ClassVar[int] = 35
    is_default: ClassVar[bool] = False

    def node(self, node: Node) -> NodeChange | None:
        """Return the settings; None where no strategy is configured at all."""
        if node.state_of(Input.STRATEGIES) is not InputState.KNOWN:
            return None
        found = _Settings({}, {}, {}, [])
        _memory(node, found)
        _scheduler(node, found)
        return NodeChange(
            sysctl=found.sysctl,
            kernel_settings=found.others,
            reason=_REASON,
            reasons=found.reasons,
            problems=tuple(found.problems),
        )


class _Settings(NamedTuple):
    sysctl: dict[str, int | str]
    others: dict[str, int | str]
    reasons: dict[str, str | Reason]
    problems: list[str]


def _memory(node: Node, found: _Settings) -> None:
    system = node.strategies.system
    capacity, what = _capacity_bytes(node)
    if capacity:
        value = min_free_kbytes(capacity, system.min_free_kbytes_factor)
        source = _source(node, "min_free_kbytes_factor")
        reason = Reason(what, capacity, " / 1024 x ", system.min_free_kbytes_factor, " / 10000 ", *source)
        _put(found, MIN_FREE_KBYTES, value, MIN_FREE_RANGE_KBYTES, reason.then(" = ", value))
    else:
        found.problems.append(f"{MIN_FREE_KBYTES} is left alone: the node's memory is not known")
    value = system.watermark_scale_factor
    reason = _strategy_reason(node, "watermark_scale_factor", value)
    _put(found, WATERMARK_SCALE_FACTOR, value, WATERMARK_SCALE_RANGE, reason)
    for name, attribute in (
        (REAP_BACKGROUND, "memcg_reap_back_ground"),
        (PAGE_CACHE_LIMIT, "page_cache_limit_enabled"),
    ):
        switch: int | None = getattr(system, attribute)
        if switch is not None:
            found.others[name] = switch
            found.reasons[name] = _strategy_reason(node, attribute, switch)


def _scheduler(node: Node, found: _Settings) -> None:
    system = node.strategies.system
    enabled = system.sched_group_identity_enabled
    if enabled is not None:
        if Feature.GROUP_IDENTITY_SYSCTL in node.features:
            found.sysctl[GROUP_IDENTITY] = enabled
            found.reasons[GROUP_IDENTITY] = _strategy_reason(node, "sched_group_identity_enabled", enabled)
        elif enabled and (node.features or node.state_of(Input.CGROUPS) is InputState.KNOWN):
            found.problems.append(f"{GROUP_IDENTITY} cannot be set: {only_anolis(GROUP_IDENTITY)}")
    if (wmark := system.sched_idle_saver_wmark) is not None:
        found.sysctl[IDLE_SAVER_WMARK] = wmark
        found.reasons[IDLE_SAVER_WMARK] = _strategy_reason(node, "sched_idle_saver_wmark", wmark)
    for feature, is_on in sorted(system.sched_features.items()):
        if feature == CORE_SCHED:
            # The kernel may hang with both core scheduling and group identity.
            found.problems.append(
                f"scheduler feature {CORE_SCHED} is left to cpuPolicy in resource-qos-config"
            )
            continue
        name = f"{SCHED_FEATURES}{feature}"
        found.others[name] = int(is_on)
        found.reasons[name] = _strategy_reason(node, "sched_features", int(is_on))


def _capacity_bytes(node: Node) -> tuple[int, str]:
    """Return the memory, 0 if it is not known, and whose word it is."""
    if capacity := (node.capacity or {}).get("memory"):
        return capacity, "memory capacity "
    return sum(node.memory_bytes.values()), "memory "


def _put(found: _Settings, name: str, value: int, bounds: tuple[int, int], reason: Reason) -> None:
    least, most = bounds
    if least <= value <= most:
        found.sysctl[name], found.reasons[name] = value, reason
    else:
        found.problems.append(f"{name} is left alone: {value} is not in {least} to {most}")


def _strategy_reason(node: Node, attribute: str, value: int) -> Reason:
    return Reason("strategy's value ", *_source(node, attribute), " = ", value)


def _source(node: Node, attribute: str) -> tuple[Part, ...]:
    path = f"system.{attribute}"
    return (Source(path, node.strategies.provenance_of(path)),)
