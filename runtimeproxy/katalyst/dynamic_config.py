"""Katalyst's dynamic configuration: the fields of an AdminQoSConfiguration that are used here. Pure.

Source: katalyst-api pkg/apis/config/v1alpha1/adminqos.go, AdminQoSConfig; `runtimeProxyConfig` is this
program's own, and can be in a file only: an API server drops what a CustomResourceDefinition does not name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final, NamedTuple, get_type_hints

from runtimeproxy.katalyst.levels import LevelRules, OnError
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.slo.reading import MAX_PROBLEMS, Problem, Report, build, child, read_overlay
from runtimeproxy.slo.schema import Quantity, Range

MAX_CPUS: Final = 1 << 16
"""Many times those of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KatalystConfig:
    """What the target that applies to this node sets; None: nothing, and the daemon's setting applies."""

    enable_reclaim: bool | None = None
    """Whether `shared_cores` have what they request, and `reclaimed_cores` all else."""
    overlap: bool | None = None
    """Whether `reclaimed_cores` share the CPUs of `shared_cores`."""
    reclaim_reserve: int | None = None
    """The least size of the pool `reclaim` in CPUs."""
    snb_ratio: float | None = None
    """What the requests of bound pods of `shared_cores` are multiplied with, 1 and more."""
    cpu_burst_enable: bool | None = None
    """Whether `dedicated_cores` pods whose burst policy is `default` have a burst."""
    cpu_burst_percent: float | None = None
    """The burst of pods that name none, in percent of their quota, 0 to 100."""
    default_level: QosLevel | None = None
    """The level of pods without an annotation."""
    on_error: OnError | None = None
    target: str = ""
    """Which target: its kind, namespace and name; empty: none."""
    version: str = ""
    """The hash of the target's `spec.config`, 12 characters."""

    def pool_settings(self) -> dict[str, Any]:
        """Return those that are set, by the names that the settings of pools have."""
        found = {name: getattr(self, name) for name in _OF_POOLS}
        return {name: value for name, value in found.items() if value is not None}

    def level_rules(self, configured: LevelRules) -> LevelRules:
        """Return the rules of levels with those that are set."""
        return replace(
            configured,
            default_level=self.default_level or configured.default_level,
            on_error=self.on_error or configured.on_error,
        )

    def fields(self) -> Iterator[tuple[str, object]]:
        """The fields that are set, by their path in `spec.config`."""
        for name, path in PATHS.items():
            value = getattr(self, name)
            if value is not None:
                yield path, value


NO_CONFIG: Final = KatalystConfig()
_OF_POOLS: Final = ("enable_reclaim", "overlap", "reclaim_reserve", "snb_ratio")
PATHS: Final[Mapping[str, str]] = {
    "enable_reclaim": "reclaimedResourceConfig.enableReclaim",
    "overlap": "advisorConfig.cpuAdvisorConfig.allowSharedCoresOverlapReclaimedCores",
    "reclaim_reserve": "reclaimedResourceConfig.minReclaimedResourceForAllocate.cpu",
    "snb_ratio": "runtimeProxyConfig.snbRatio",
    "cpu_burst_enable": "fineGrainedResourceConfig.cpuBurstConfig.enableDedicatedCoresDefaultCPUBurst",
    "cpu_burst_percent": "fineGrainedResourceConfig.cpuBurstConfig.defaultCPUBurstPercent",
    "default_level": "runtimeProxyConfig.defaultLevel",
    "on_error": "runtimeProxyConfig.onError",
}
"""Where the fields of `KatalystConfig` are in `spec.config`."""


# The shape of `spec.config`. `unused`: fields that Katalyst has and that do nothing here, in lower case.


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReclaimedResources:
    unused: ClassVar[frozenset[str]] = frozenset(
        {
            "disablereclaimsharepools",
            "reservedresourceforreport",
            "minreclaimedresourceforreport",
            "minignoredreclaimedresourceforreport",
            "reservedresourceforallocate",
            "numaminreclaimedresourceratioforallocate",
            "numaminreclaimedresourceforallocate",
            "maxnodeutilizationpercent",
            "cpuheadroomconfig",
            "memoryheadroomconfig",
        }
    )

    enable_reclaim: bool | None = None
    min_reclaimed_resource_for_allocate: Mapping[str, Annotated[int, Quantity(), Range(0)]] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CpuAdvisor:
    unused: ClassVar[frozenset[str]] = frozenset({"cpuprovisionconfig"})

    allow_shared_cores_overlap_reclaimed_cores: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Advisor:
    unused: ClassVar[frozenset[str]] = frozenset({"memoryadvisorconfig"})

    cpu_advisor_config: _CpuAdvisor = _CpuAdvisor()


@dataclass(frozen=True, slots=True, kw_only=True)
class _CpuBurst:
    enable_dedicated_cores_default_cpu_burst: bool | None = None
    default_cpu_burst_percent: Annotated[float, Range(0, 100)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _FineGrained:
    cpu_burst_config: _CpuBurst = _CpuBurst()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RuntimeProxy:
    unused: ClassVar[frozenset[str]] = frozenset({"reservedcpus"})
    unused_reason: ClassVar[str] = "needs a restart: it is a setting of the daemon only"

    snb_ratio: Annotated[float, Range(1, 100)] | None = None
    default_level: QosLevel | None = None
    on_error: OnError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    unused: ClassVar[frozenset[str]] = frozenset({"evictionconfig", "qrmpluginconfig"})

    reclaimed_resource_config: _ReclaimedResources = _ReclaimedResources()
    advisor_config: _Advisor = _Advisor()
    fine_grained_resource_config: _FineGrained = _FineGrained()
    runtime_proxy_config: _RuntimeProxy = _RuntimeProxy()


_HINTS: Final[Mapping[type, Mapping[str, Any]]] = {
    kind: get_type_hints(kind)
    for kind in (_Config, _ReclaimedResources, _Advisor, _CpuAdvisor, _FineGrained, _CpuBurst, _RuntimeProxy)
}


class ReadConfig(NamedTuple):
    """A `spec.config` and what is wrong with it."""

    config: KatalystConfig
    problems: tuple[Problem, ...] = ()
    """One that is no warning: the configuration cannot be used."""

    @property
    def error(self) -> str:
        """Why it cannot be used; empty if it can."""
        found = next((each for each in self.problems if not each.is_warning), None)
        return f"{found.path} {found.reason}" if found is not None else ""


def read_config(
    raw: object, *, file: str = "", target: str = "", version: str = "", most_guesses: int = MAX_PROBLEMS
) -> ReadConfig:
    """Return what a `spec.config` sets of the fields that are supported, and the others by name.

    `file`, `target`: where it is, for problems. `most_guesses`: see `Report`. None and an empty object set
    nothing.
    """
    report = Report(file, target, most_guesses)
    path = "spec.config"
    overlay = read_overlay(_Config, raw, report, path)
    _report_unused(_Config, raw, report, path)
    if report.has_errors:
        return ReadConfig(KatalystConfig(target=target, version=version), report.all_problems())
    found = build(_Config(), overlay)
    reclaimed, burst = found.reclaimed_resource_config, found.fine_grained_resource_config.cpu_burst_config
    least = reclaimed.min_reclaimed_resource_for_allocate
    for resource in sorted(least.keys() - {"cpu"}):
        place = child(f"{path}.reclaimedResourceConfig.minReclaimedResourceForAllocate", resource)
        report.warn(place, "is not supported, and is not used")
    if least.get("cpu", 0) > MAX_CPUS:
        place = f"{path}.{PATHS['reclaim_reserve']}"
        report.error(place, f"is {least['cpu']}, which is above {MAX_CPUS}")
    own = found.runtime_proxy_config
    config = KatalystConfig(
        enable_reclaim=reclaimed.enable_reclaim,
        overlap=found.advisor_config.cpu_advisor_config.allow_shared_cores_overlap_reclaimed_cores,
        reclaim_reserve=least.get("cpu"),
        snb_ratio=own.snb_ratio,
        cpu_burst_enable=burst.enable_dedicated_cores_default_cpu_burst,
        cpu_burst_percent=burst.default_cpu_burst_percent,
        default_level=own.default_level,
        on_error=own.on_error,
        target=target,
        version=version,
    )
    return ReadConfig(config, report.all_problems())


def _report_unused(kind: type, raw: object, report: Report, path: str) -> None:
    if not isinstance(raw, Mapping):
        return
    unused: frozenset[str] = getattr(kind, "unused", frozenset())
    reason = getattr(kind, "unused_reason", "is not supported, and is not used")
    below = {name.replace("_", ""): hint for name, hint in _HINTS[kind].items()}
    for key, value in raw.items():
        folded = str(key).lower()
        if folded in unused:
            report.warn(child(path, key), reason)
        elif (hint := below.get(folded)) is not None and hint in _HINTS:
            _report_unused(hint, value, report, child(path, key))
