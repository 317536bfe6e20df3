"""What is measured, as lines of JSON: a run that was broken off goes on from its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
_STEPS: Final = 61
CURVE: Final = tuple(100 * (1 - 10 ** -(step / 20)) for step in range(_STEPS))
"""Percentiles of a curve: 20 for each further nine, up to 99.9."""


class Second(NamedTuple):
    """One second of a measurement."""

    at_s: float
    quota_us: int
    """Of the BE class, in the kernel; -1: none."""
    idle_pods: int
    """BE pods with `cpu.idle`."""
    full_ms: float
    """Growth of `full` of the LS pod's `cpu.pressure`."""
    ls_cores: float
    be_cores: float
    guard: dict[str, float] | None = None
    """The guard's own numbers (`blind`, `rule`, `error`, `pod_wait_ratio`, `pod_target_ratio`); None: it does
    not run."""


class Cores(NamedTuple):
    """CPU time per second."""

    ls: float
    be: float
    system: float
    """The work outside the pods, without that of this program."""
    bench: float
    """This program and its load generator."""
    product: float
    """Both processes of the product."""
    others: float
    """All else: containerd, the kernel's own threads, and what does not belong here."""
    idle: float
    steal: float
    """Taken by the hypervisor."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One load in one way, once."""

    load: str
    way: str
    round: int
    seconds: float
    requests: int
    curve_ms: Sequence[float]
    """By the percentiles of `CURVE`."""
    percentiles_ms: Sequence[float]
    """By `PERCENTILES`."""
    late_ms: float
    """How late the load generator was at most."""
    be_per_s: float
    """Units of work, or frames, of all BE pods."""
    cores: Cores
    per_second: Sequence[Second] = ()
    problems: Sequence[str] = ()
    """Why it was not in this way, or disturbed."""

    def percentile_ms(self, percent: float) -> float:
        """One of `PERCENTILES`."""
        return self.percentiles_ms[PERCENTILES.index(percent)]


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The value that so many percent of the values do not exceed."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * percent / 100))]


@dataclass
class Results:
    """A file of results; without one nothing is kept."""

    file: Path | None = None
    measurements: list[Measurement] = field(default_factory=list)
    setups: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By load: what was chosen before its first round, such as the rate."""

    @classmethod
    def read(cls, file: Path) -> Results:
        """What a file has; nothing if there is none. A last line that is cut off is left out."""
        found = cls(file)
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            file.write_text(whole, encoding="utf-8")
        for line in whole.splitlines():
            each: dict[str, Any] = json.loads(line)
            if "setup" in each:
                found.setups[each["setup"]] = each
                continue
            each["cores"] = Cores(*each["cores"])
            each["per_second"] = [Second(*second) for second in each["per_second"]]
            found.measurements.append(Measurement(**each))
        return found

    def has(self, load: str, way: str, number: int) -> bool:
        """Whether this has been measured."""
        return any((each.load, each.way, each.round) == (load, way, number) for each in self.measurements)

    def set_up(self, load: str, **values: object) -> None:
        """Keeps what was chosen for a load."""
        self.setups[load] = {"setup": load, **values}
        self._write(self.setups[load])

    def add(self, measurement: Measurement) -> None:
        """Keeps one measurement."""
        self.measurements.append(measurement)
        self._write(asdict(measurement))

    def _write(self, line: dict[str, Any]) -> None:
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps(_rounded(line), separators=(",", ":")) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
