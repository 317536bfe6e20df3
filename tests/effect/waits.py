"""Whom the LS pod's threads wait for: who has the CPU where they wait, and who the other CPUs meanwhile.

By the kernel's trace of its scheduler, which `perf` of Debian's package linux-perf records.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from tests.effect.node import BE_CLASS, BENCH, LS_CLASS, PRODUCT, SYSTEM
from tests.lab import cgroup_v1
from tests.lab.programs import debian_program

OWNERS: Final = {
    LS_CLASS: "LS pod",
    BE_CLASS: "BE pods",
    SYSTEM: "system",
    BENCH: "generator",
    PRODUCT: "product",
}
IDLE: Final = "idle"
OTHERS: Final = "others"
BOUNDS_MS: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Waits are counted from one of these to the next."""
_LINE: Final = re.compile(r"\[(\d+)\] +([\d.]+): +sched:(sched_switch|sched_waking): +(.*)")
# Names may have spaces, and look like the fields behind them: those are found from the end.
_SWITCH: Final = re.compile(
    r"prev_comm=.* prev_pid=(\d+) prev_prio=\d+ prev_state=(\S+) ==> .* next_pid=(\d+) "
)
_WAKING: Final = re.compile(r"comm=.* pid=(\d+) prio=\d+ target_cpu=\d+")


class Wait(NamedTuple):
    """A thread of the LS pod was runnable, and did not run."""

    seconds: float
    same: Mapping[str, float]
    """By owner: what ran on the CPU that it waited for at last, in seconds."""
    other: Mapping[str, float]
    """The same of all other CPUs."""


@dataclass
class _Cpu:
    owner: str = ""
    """Of what runs; empty: not known yet."""
    since_s: float = 0.0
    runs: list[tuple[float, float, str]] = field(default_factory=list)
    """From, to, owner; one after another."""


def waits(lines: Iterable[str], owners: Mapping[int, str]) -> list[Wait]:
    """Return the waits that a trace shows, as `perf script` prints it.

    Args:
        lines: Of events `sched_switch` and `sched_waking`; others are left out.
        owners: By thread; those that are not in it are `OTHERS`.
    """
    cpus: dict[int, _Cpu] = defaultdict(_Cpu)
    runnable_s: dict[int, float] = {}
    found: list[tuple[float, float, int]] = []

    def is_ls(thread: int) -> bool:
        return owners.get(thread) == OWNERS[LS_CLASS]

    for line in lines:
        if not (event := _LINE.search(line)):
            continue
        number, at_s, name, rest = int(event[1]), float(event[2]), event[3], event[4]
        if name == "sched_waking":
            if (woken := _WAKING.match(rest)) and is_ls(int(woken[1])):
                runnable_s.setdefault(int(woken[1]), at_s)
            continue
        if not (switch := _SWITCH.match(rest)):
            continue
        before, state, after = int(switch[1]), switch[2], int(switch[3])
        cpu = cpus[number]
        if cpu.owner:
            cpu.runs.append((cpu.since_s, at_s, cpu.owner))
        cpu.owner = owners.get(after, OTHERS) if after else IDLE
        cpu.since_s = at_s
        if (since_s := runnable_s.pop(after, None)) is not None:
            found.append((since_s, at_s, number))
        if is_ls(before) and state.startswith("R"):
            runnable_s[before] = at_s
    return [
        Wait(
            to_s - from_s,
            _ran([cpus[number]], from_s, to_s),
            _ran([each for other, each in cpus.items() if other != number], from_s, to_s),
        )
        for from_s, to_s, number in found
    ]


def _ran(cpus: Sequence[_Cpu], from_s: float, to_s: float) -> dict[str, float]:
    """How long each owner ran on these CPUs in between."""
    found: dict[str, float] = defaultdict(float)
    for cpu in cpus:
        # Each run begins where the one before it ends.
        first = bisect_right(cpu.runs, from_s, key=itemgetter(1))
        beyond = bisect_left(cpu.runs, to_s, lo=first, key=itemgetter(0))
        for begin_s, end_s, owner in cpu.runs[first:beyond]:
            found[owner] += min(end_s, to_s) - max(begin_s, from_s)
    return dict(found)


def table(found: Sequence[Wait], seconds: float) -> str:
    """In Markdown: by the length of the wait, with the shares of those that had the CPUs."""
    bounds = list(zip(BOUNDS_MS, (*BOUNDS_MS[1:], float("inf")), strict=True))
    of = [[each for each in found if low <= each.seconds * 1e3 < high] for low, high in bounds]
    owners = [*OWNERS.values(), OTHERS, IDLE]
    rows = {
        "waits a second": [f"{len(each) / seconds:.1f}" for each in of],
        "waited, ms/s": [f"{sum(wait.seconds for wait in each) * 1e3 / seconds:.1f}" for each in of],
    }
    for owner in owners[:-1]:
        rows[f"that CPU: {owner}"] = [_share([wait.same for wait in each], owner) for each in of]
    for owner in owners:
        rows[f"other CPUs: {owner}"] = [_share([wait.other for wait in each], owner) for each in of]
    names = [
        f"{low:g} to {high:g} ms" if high < float("inf") else f"{low:g} ms and more" for low, high in bounds
    ]
    lines = [f"| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def _share(found: Sequence[Mapping[str, float]], owner: str) -> str:
    whole = sum(sum(each.values()) for each in found)
    return f"{sum(each.get(owner, 0.0) for each in found) / whole:.0%}" if whole else "-"


def recorded(seconds: float) -> list[Wait]:
    """Records the scheduler for so long, beside all that runs. Raises CalledProcessError."""
    perf = str(debian_program("perf"))
    owners = {
        int(thread): owner
        for cgroup, owner in OWNERS.items()
        for file in cgroup_v1.file("cpu", cgroup, "").rglob("tasks")
        for thread in file.read_text().split()
    }
    with tempfile.TemporaryDirectory(prefix="effect-", dir="/dev/shm") as folder:
        trace = str(Path(folder) / "trace")
        # In memory: to write to a disk would be work of the kernel's that is not of the load.
        record = (perf, "record", "-q", "-a", "-m", "8192", "-e", "sched:sched_switch,sched:sched_waking")
        subprocess.run((*record, "-o", trace, "--", "sleep", str(seconds)), check=True, capture_output=True)
        command = (perf, "script", "-i", trace, "-F", "comm,tid,cpu,time,event,trace")
        script = subprocess.run(command, check=True, capture_output=True, text=True)
    return waits(script.stdout.splitlines(), owners)
