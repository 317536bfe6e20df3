"""What all rows share: the stands, the options of the run, the results."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench.results import Results
from tests.bench.stands import ContainerdBackend, FakeBackend, Stand


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How thorough a run is."""

    rounds: int = 7
    beside_rounds: int = 15
    """Rounds of the rows of two loads beside each other, whose p99 moves most."""
    storm_pods: int = 250
    """Running pods whose values a strategy changes, with two containers each."""
    seconds: float = 0.5
    """How long each way is loaded in each round of a row."""
    containers: int = 1000
    cycles: int = 10_000
    """Containers created and removed between two looks at the memory."""
    containerd: bool = False
    """Whether `Version` is measured before containerd; else before the fake runtime."""
    h2load: bool = True
    """Whether h2load loads where it can; else the bench's own generator, which takes more CPU time itself."""
    proxy_command: str | None = None
    """Another command in the proxy's place, with `{listen}` and `{upstream}`."""
    earlier_python: str | None = None
    """The interpreter in whose environment another version is installed; None to measure none."""


@dataclass
class Bench:
    """One run."""

    options: Options
    folder: Path
    results: Results = field(default_factory=Results)
    rates: dict[tuple[str, str], float] = field(default_factory=dict)
    """Calls per second that a way managed in a row, for the next round's number of calls."""

    def __post_init__(self) -> None:
        self.stack = ExitStack()
        options = self.options
        self.empty = Stand("empty", self.folder, options.proxy_command, options.earlier_python)
        self.full = Stand("full", self.folder, options.proxy_command, options.earlier_python)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            empty = stack.enter_context(self.empty)
            empty.start(ContainerdBackend() if self.options.containerd else FakeBackend(empty.folder, 0))
            full = stack.enter_context(self.full)
            full.start(FakeBackend(full.folder, self.options.containers))
            self.stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    def count(self, row: str, way: str, *, first: int, most: int = 40_000) -> int:
        """How many calls fill the time of a round; `first` as long as the rate is not known."""
        rate = self.rates.get((row, way))
        if rate is None:
            return first
        return max(min(first, 50), min(most, int(rate * self.options.seconds)))
