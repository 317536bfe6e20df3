"""Measures the effect on a real containerd: `python -m tests.effect`, or `make effect`; as root.

A latency-sensitive server gets requests at a fixed rate, beside greedy best-effort pods and the work of the
system on the same CPUs. Pods are made once for each load; each round has all ways, another one first in each.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

from tests.effect import waits
from tests.effect.measure import UNIFIED, cost_of_requests, measured, sending
from tests.effect.node import CPUS, Load, Node, frozen, own_cgroups
from tests.effect.product import LEARNING_S, NAMES, Product, Way, way
from tests.effect.report import draw, report
from tests.effect.results import Measurement, Results
from tests.lab.ports import free_port

SETTLE_S: Final = {"suppress": 10.0, "feedback": 20.0}
"""From the first moment that a way acts to the measurement: bounds change in steps."""
_OTHER_SETTLE_S: Final = 5.0
LONGEST_S: Final = 300.0
"""Of all before a measurement; requests are sent meanwhile, too."""
_TRIAL_RATE: Final = 200.0
_TRIAL_S: Final = 3.0
_B_RATE: Final = 500.0


@dataclass(frozen=True)
class Options:
    """What is measured."""

    loads: Sequence[Load]
    ways: Sequence[Way]
    rounds: int
    seconds: float
    learns: bool
    settle: float
    traced_s: float
    """In the first round of each way: how long the scheduler is recorded before the measurement."""
    output: Path


def run(options: Options, results: Results) -> None:
    """All rounds that the results lack."""
    for load in options.loads:
        missing = [
            (number, each)
            for number in range(options.rounds)
            for each in turned(options.ways, number)
            if not results.has(load.name, each.text, number)
        ]
        if missing:
            with ExitStack() as stack:
                _run_load(stack, options, results, load, missing)


def turned(ways: Sequence[Way], number: int) -> Sequence[Way]:
    """The ways of one round: each is the first as often as the others, and has each before it."""
    first = number % len(ways)
    found = (*ways[first:], *ways[:first])
    # In every other cycle backwards, so that none always follows the same.
    return found[::-1] if number // len(ways) % 2 else found


def _run_load(
    stack: ExitStack, options: Options, results: Results, load: Load, missing: Sequence[tuple[int, Way]]
) -> None:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="effect-", dir="/tmp")))
    node = Node(stack, folder, load, free_port())
    stack.enter_context(own_cgroups(load.times))
    own = folder / "product"
    own.mkdir()
    product = Product(own, node)
    stack.callback(product.close)
    rate = _prepared(node, results)
    learns = options.learns and any(each.name == "feedback" for _, each in missing)
    if learns:
        print(f"load {load.name}: the guard learns what is usual for {LEARNING_S:g} s", flush=True)
        with frozen(), sending(node, rate, LONGEST_S), product.running(way("feedback")):
            time.sleep(LEARNING_S)
        if not product.has_history:
            raise RuntimeError("the guard has saved nothing of what it has learnt")
    for number, each in missing:
        with ExitStack() as running:
            with sending(node, rate, LONGEST_S):
                running.enter_context(product.running(each))
                time.sleep(SETTLE_S.get(each.name, _OTHER_SETTLE_S) * options.settle)
                if options.traced_s and number == 0:
                    _trace(options, load, each)
            found = measured(node, product, each, number, rate, options.seconds)
        found = replace(found, problems=[*found.problems, *product.problems])
        results.add(found)
        print(_line(found), flush=True)


def _trace(options: Options, load: Load, each: Way) -> None:
    found = waits.table(waits.recorded(options.traced_s), options.traced_s)
    text = f"Waits of the LS pod's threads, load {load.name}, {each.text}:\n\n{found}\n"
    with (options.output / "waits.md").open("a") as file:
        print(text, file=file)
    print(text, flush=True)


def _prepared(node: Node, results: Results) -> float:
    """Chooses the rate, unless an earlier run has, and starts the system's work; returns the rate."""
    load = node.load
    if load.name not in results.setups:
        with frozen():
            rate = load.rate or _TRIAL_RATE
            cost = cost_of_requests(node, rate, _TRIAL_S)
            if not load.rate:
                # Twice: a request costs less where there are more.
                for _ in range(2):
                    rate = load.ls_percent / 100 * CPUS / cost.server_s
                    cost = cost_of_requests(node, rate, _TRIAL_S)
        own = rate * cost.generator_s / CPUS * 100
        # What this program needs is a part of the system's work.
        system = load.system_percent if load.system_percent >= 100 else max(load.system_percent - own, 1.0)
        results.set_up(
            load.name,
            rate=round(rate, 1),
            system_percent=system,
            own_percent=own,
            request_us=cost.server_s * 1e6,
            cpus=CPUS,
        )
    setup = results.setups[load.name]
    print(
        f"load {load.name}: {setup['rate']:g} requests/s of {setup['request_us']:.0f} us each; system "
        f"{setup['system_percent']:.1f} %, load generator {setup['own_percent']:.1f} % of the CPUs",
        flush=True,
    )
    node.start_system(setup["system_percent"])
    return float(setup["rate"])


def _line(each: Measurement) -> str:
    p50, _, p99, p999 = each.percentiles_ms
    cores = ", ".join(f"{name} {value:.2f}" for name, value in each.cores._asdict().items())
    quotas = sorted(second.quota_us for second in each.per_second)
    bound = quotas[len(quotas) // 2] if quotas else 0
    text = (
        f"round {each.round + 1} {each.load} {each.way}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, p99.9 "
        f"{p999:.2f} ms; BE {each.be_per_s:.1f}/s; quota {bound} us; CPUs: {cores}; generator at most "
        f"{each.late_ms:.2f} ms late"
    )
    return "; ".join((text, *each.problems))


def load_of(text: str, arguments: argparse.Namespace) -> Load:
    """A load by its name: `A` or `B`; `A:50@1024` with LS percent and BE shares. Raises ValueError."""
    name, _, shares = text.partition("@")
    kind, _, percent = name.partition(":")
    be_shares = int(shares or arguments.be_shares)
    if kind == "A":
        return Load(
            text,
            is_nginx=True,
            ls_percent=int(percent or arguments.ls_percent),
            rate=arguments.rate,
            system_percent=arguments.system_percent,
            be_pods=arguments.be_pods or CPUS,
            be_shares=be_shares,
            times=arguments.shares_times,
        )
    if name != "B":
        raise ValueError(text)
    rate = arguments.rate or _B_RATE
    pods = arguments.be_pods or 2 * CPUS
    return Load(
        text,
        is_nginx=False,
        ls_percent=0,
        rate=rate,
        system_percent=100,
        be_pods=pods,
        be_shares=be_shares,
        times=arguments.shares_times,
    )


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end this program like Ctrl-C: it cleans up."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def main() -> None:
    """Measures, and writes report and plot."""
    parser = argparse.ArgumentParser(prog="python -m tests.effect", description=__doc__)
    parser.add_argument(
        "--loads", default="A,B", help="A: nginx, ffmpeg; B: greedy system; A:50@1024: LS percent, BE shares"
    )
    parser.add_argument(
        "--ways",
        default=",".join(NAMES),
        help="others: suppress:THRESHOLD-PERCENT, feedback:TARGET-MS; watch; bound:MILLICORES, cpus:NUMBER, "
        "idle, idle-pods",
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    parser.add_argument("--settle", type=float, default=1.0, help="times the usual time before a measurement")
    parser.add_argument("--short", action="store_true", help="5 rounds of 25 s: both loads in 40 minutes")
    parser.add_argument("--ls-percent", type=int, default=40, help="of the CPUs, for the LS pod of load A")
    parser.add_argument(
        "--system-percent", type=int, default=20, help="of the CPUs, for the system of load A"
    )
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second; by default by the load")
    parser.add_argument("--be-pods", type=int, default=0)
    parser.add_argument("--be-shares", type=int, default=2, help="of the BE class; the kubelet's by default")
    parser.add_argument(
        "--shares-times",
        type=int,
        default=1,
        help="CPU shares of all of this: 30 for trials on a machine that is not quiet",
    )
    parser.add_argument("--no-learning", action="store_true", help="the guard has no quiet history")
    parser.add_argument(
        "--trace",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="before each way's first measurement: record whom the LS pod's threads wait for, by perf",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="forget earlier results; else they are continued"
    )
    parser.add_argument("--report-only", action="store_true", help="report and plot of earlier results")
    parser.add_argument("--output", type=Path, default=Path("dist/effect"))
    arguments = parser.parse_args()
    if arguments.short:
        arguments.rounds, arguments.seconds, arguments.settle = 5, 25.0, 0.7
    try:
        loads = [load_of(text, arguments) for text in arguments.loads.split(",")]
        ways = [way(text) for text in arguments.ways.split(",")]
    except ValueError as error:
        parser.error(f"no such load or way: {error}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    file = arguments.output / "effect.jsonl"
    if arguments.fresh:
        for each in (file, arguments.output / "waits.md"):
            each.unlink(missing_ok=True)
    results = Results.read(file)
    options = Options(
        loads,
        ways,
        arguments.rounds,
        arguments.seconds,
        not arguments.no_learning,
        arguments.settle,
        arguments.trace,
        arguments.output,
    )
    if not arguments.report_only:
        if not (UNIFIED / "cpu.pressure").exists():
            sys.exit(
                f"{UNIFIED} is no hierarchy of cgroup version 2 with PSI: the guard would see run delays only"
            )
        with _ended_by_signals():
            run(options, results)
    written = report(results.measurements)
    (arguments.output / "effect.md").write_text(written + "\n")
    draw(results.measurements, arguments.output / "effect.png")
    print(written)


if __name__ == "__main__":
    main()
