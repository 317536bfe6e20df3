"""Start-up boosts on a real containerd: what they gain, how soon they end, and whether one is missed.

`python -m tests.bench.boost [PART ...] [--containerd 1.6] [--mode proxy]`, as root; the parts:

- `gain`: threads that need CPU time, with a limit of 500m: alone, and boosted to 2 CPUs, in turns;
- `ends`: from the event that ends a boost to the limit in the kernel's file, for each event;
- `crowd`: pods that all start at once, as after a reboot: all boosts are half of the idle CPUs at most;
- `restarts`: containers that start again and again: each has its boost, or `status` has the reason.

It ends with 1 if a figure is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final, get_args

from cri_api.runtime.v1 import api_pb2 as cri
from runtimeproxy.slo.names import STARTUP_BOOST
from tests.e2e.koordinator import qos
from tests.lab import cgroup_v1
from tests.lab.boosts import QUOTA, BoostNode, idle_procfs
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import Nri
from tests.lab.cri_client import CALL_TIMEOUT_S
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod, start_container
from tests.lab.pods import ContainerSpec, PodSpec, sandbox_config
from tests.lab.programs import REPOSITORY, ContainerdVersion, debian_program

PARTS: Final = ("gain", "ends", "crowd", "restarts")
LIMIT_US: Final = 50_000
LIMIT: Final = cri.LinuxContainerResources(cpu_shares=512, cpu_period=100_000, cpu_quota=LIMIT_US)
PERCENT: Final = 400
"""500m x 4 = 2 CPUs."""
GOALS: Final = {2: 0.40, 1: 0.55}
"""By threads: of the time without a boost."""
GOAL_END_S: Final = 1.0
BUSY: Final = ContainerSpec(resources=LIMIT, command=("/bin/sh", "-c", "while :; do :; done"))
QUIET: Final = "10 s of little use"
QUIET_S: Final = 15.0
"""From a start without any use on: 5 s that do not matter, and 10 s."""
SETTLE_S: Final = 12.0
"""Between two starts: the node's idle CPUs are those since the last look."""
LOOK_S: Final = 0.002
REAL_IDLE: Final = ("gain", "crowd")
"""Parts that measure how much is given; in the others CPUs are idle whatever else this machine does."""


class Bench(BoostNode):
    """With pods that have a limit.

    Attributes:
        folder: For all files.
    """

    def __init__(
        self, stack: ExitStack, version: ContainerdVersion, mode: str, *, has_real_idle: bool
    ) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="boost-", dir="/tmp")))
        runtime = stack.enter_context(Containerd(version, Nri() if mode == "nri" else None))
        procfs = Path("/proc") if has_real_idle else idle_procfs(self.folder)
        super().__init__(stack, self.folder, runtime, mode, procfs)

    def run(self, stack: ExitStack, spec: PodSpec) -> RunningPod:
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        return stack.enter_context(running_pod(self.client, spec, logs, {QUOTA: str(LIMIT_US)}))


def pod_of(
    name: str, *, is_boosted: bool = True, max_seconds: int = 600, container: ContainerSpec | None = None
) -> PodSpec:
    boost = {STARTUP_BOOST: json.dumps({"limitPercent": PERCENT, "maxSeconds": max_seconds})}
    made = container or ContainerSpec(resources=LIMIT)
    return PodSpec(name, "burstable", qos("LS"), boost if is_boosted else {}, (made,))


def working(threads: int, seconds: float, out: Path) -> ContainerSpec:
    """A container whose program needs CPU time, and then writes into `out`."""
    # The interpreter of this machine, as the image has none.
    mounts = {each: str(Path(each).resolve()) for each in ("/usr", "/lib", "/lib64") if Path(each).is_dir()}
    mounts |= {"/bench": str(REPOSITORY / "tests/bench"), "/out": str(out)}
    command = (str(debian_program("python3")), "/bench/cpu_seconds.py", str(threads), str(seconds))
    return ContainerSpec("main", LIMIT, (*command, "/out/done"), mounts=mounts)


# --- gain --------------------------------------------------------------------------------------------------


def gain(bench: Bench, seconds: float, rounds: int) -> bool:
    """Each round: with two threads and with one, without a boost and with one."""
    took: dict[tuple[int, bool], list[float]] = {}
    for number in range(rounds):
        for threads in GOALS:
            ways = (False, True) if number % 2 == 0 else (True, False)
            for is_boosted in ways:
                time.sleep(SETTLE_S)
                found, given = worked_s(bench, f"gain-{number}", threads, seconds, is_boosted=is_boosted)
                took.setdefault((threads, is_boosted), []).append(found)
                way = f"boosted by {given} millicores" if is_boosted else "alone"
                print(f"round {number + 1}, {threads} threads, {way}: {found:.2f} s", flush=True)
    is_well = True
    for threads, goal in GOALS.items():
        alone, boosted = took[threads, False], took[threads, True]
        ratio = median(boosted) / median(alone)
        is_well &= ratio <= goal
        print(
            f"gain, {threads} threads that need {seconds:g} CPU seconds, limit 500m: alone "
            f"{median(alone):.2f} s, boosted {median(boosted):.2f} s: {ratio:.0%} (goal {goal:.0%})"
        )
    return is_well


def worked_s(bench: Bench, name: str, threads: int, seconds: float, *, is_boosted: bool) -> tuple[float, int]:
    """How long the program needs from the start of its container on, and its boost in millicores."""
    with ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=bench.folder)))
        spec = pod_of(name, is_boosted=is_boosted, container=working(threads, seconds, out))
        pod = bench.run(stack, spec)
        # What the runtime says, in nanoseconds.
        request = cri.ContainerStatusRequest(container_id=pod.container_id())
        status = bench.client.runtime.ContainerStatus(request, timeout=CALL_TIMEOUT_S).status
        given = 0
        # A machine that is not quiet may have no room for one.
        with suppress(TimeoutError):
            given = is_boosted and wait_until(
                lambda: sum(each.given_millicores for each in bench.starts.boosts), "a boost", timeout_s=5
            )
        done = out / "done"
        wait_until(done.exists, "the program's end", timeout_s=seconds * 10)
        return float(done.read_text()) - status.started_at / 1e9, given


# --- ends --------------------------------------------------------------------------------------------------


class Limits(threading.Thread):
    """Looks at the quotas of a pod and its container until both are the limit again."""

    def __init__(self, pod: RunningPod) -> None:
        super().__init__()
        self._files = [
            cgroup_v1.file("cpu", cgroup, QUOTA)
            for cgroup in (pod.container_cgroup(), pod.spec.cgroup_parent)
        ]
        self.at_s: float | None = None
        """When that was, by `time.monotonic`."""
        self.given_up = threading.Event()

    def run(self) -> None:
        while not self.given_up.wait(LOOK_S):
            if all(file.read_text().strip() == str(LIMIT_US) for file in self._files):
                self.at_s = time.monotonic()
                return


def ends(bench: Bench, rounds: int) -> bool:
    """For each event that ends a boost, and each with the daemon killed meanwhile."""
    found: dict[str, list[float]] = {}
    events: dict[str, tuple[int, Callable[[RunningPod, float], float]]] = {
        "ready, as the API server says": (600, lambda pod, _: _ready(bench, pod)),
        "maxSeconds": (3, lambda _, began_s: began_s + 3.0),
        QUIET: (600, lambda _, began_s: began_s + QUIET_S),
        "another pod waits": (600, lambda *_: _waiting(bench)),
        "maxSeconds after kill -9": (20, lambda _, began_s: _killed(bench, began_s + 20.0)),
    }
    for number in range(rounds):
        for name, (max_seconds, event) in events.items():
            container = ContainerSpec(resources=LIMIT) if name == QUIET else BUSY
            spec = pod_of(f"ends-{number}", max_seconds=max_seconds, container=container)
            found.setdefault(name, []).append(end_s(bench, spec, event))
    bench.report_waiting([])
    for name, delays in found.items():
        print(f"ends, {name}: limit after {median(delays):.2f} s, at most {max(delays):.2f} s")
    return all(max(each) <= GOAL_END_S for each in found.values())


def end_s(bench: Bench, spec: PodSpec, event: Callable[[RunningPod, float], float]) -> float:
    """From an event to the limit in the files."""
    bench.report_waiting([])
    with ExitStack() as stack:
        pod = bench.run(stack, spec)
        began_s = time.monotonic()
        bench.put_pod(pod, is_ready=False)
        file = cgroup_v1.file("cpu", pod.container_cgroup(), QUOTA)
        wait_until(lambda: int(file.read_text()) > LIMIT_US, "a boost")
        watch = Limits(pod)
        watch.start()
        stack.callback(watch.join)
        stack.callback(watch.given_up.set)
        event_s = event(pod, began_s)
        wait_until(lambda: watch.at_s is not None, "the limit", timeout_s=120)
        assert watch.at_s is not None
        return watch.at_s - event_s


def _ready(bench: Bench, pod: RunningPod) -> float:
    at_s = time.monotonic()
    bench.put_pod(pod, is_ready=True)
    return at_s


def _waiting(bench: Bench) -> float:
    at_s = time.monotonic()
    bench.report_waiting(["another"])
    return at_s


def _killed(bench: Bench, end_s: float) -> float:
    """Kills the daemon, and starts it; returns when a boost is to end: at its time, or when it can."""
    bench.daemon.kill()
    bench.daemon.start()
    bench.wait_until_ready()
    return max(end_s, time.monotonic())


# --- crowd -------------------------------------------------------------------------------------------------


def crowd(bench: Bench, pods: int) -> bool:
    """All pods run, then all containers start; returns whether boosts were bounded all the time."""
    most_cpus, seen, is_well = (os.cpu_count() or 1) / 2, dict[str, int](), True
    time.sleep(SETTLE_S)
    with ExitStack() as stack:
        for number in range(pods):
            bench.run(stack, pod_of(f"crowd-{number}", max_seconds=60))
            found = bench.starts
            given = sum(each.given_millicores for each in found.boosts)
            is_well &= given <= most_cpus * 1_000
            seen["most millicores"] = max(seen.get("most millicores", 0), given)
        wait_until(lambda: not bench.starts.boosts, "the end of all boosts", timeout_s=180)
        found = bench.starts
    has_all = found.boosted + found.not_boosted == pods
    print(
        f"crowd: {pods} pods, at most {seen['most millicores']} millicores together (half of all CPUs: "
        f"{most_cpus * 1_000:g}); {found.boosted} had a boost, {found.not_boosted} none, with a reason"
    )
    return is_well and has_all


# --- restarts ----------------------------------------------------------------------------------------------


def restarts(bench: Bench, count: int) -> bool:
    """Containers of some pods start again and again; returns whether each start is accounted for."""
    before, missed = bench.starts, list[str]()
    done = 0
    while done < count:
        with ExitStack() as stack:
            spec = pod_of(f"again-{done}", max_seconds=30)
            pod = bench.run(stack, spec)
            config = sandbox_config(spec, str(pod.log_directory))
            identity = pod.container_id()
            for attempt in range(min(5, count - done)):
                if attempt:
                    identity = start_container(bench.client, pod.sandbox_id, config, spec, spec.containers[0])
                done += 1
                reason = reason_of(bench, f"{spec.cgroup_parent}/{identity}", identity)
                missed += [] if reason else [f"{spec.name}, start {attempt}"]
                stop = cri.StopContainerRequest(container_id=identity)
                bench.client.runtime.StopContainer(stop, timeout=CALL_TIMEOUT_S)
                remove = cri.RemoveContainerRequest(container_id=identity)
                bench.client.runtime.RemoveContainer(remove, timeout=CALL_TIMEOUT_S)
        print(f"{done} starts, {len(missed)} missed", flush=True)
    wait_until(lambda: not bench.starts.boosts, "the end of all boosts", timeout_s=180)
    after = bench.starts
    given, denied = after.boosted - before.boosted, after.not_boosted - before.not_boosted
    print(
        f"restarts: {count} starts, {given} had a boost, {denied} none, with a reason; missed {len(missed)}"
    )
    print(*missed[:5], sep="\n", end="\n" if missed else "")
    return not missed and given + denied == count


def reason_of(bench: Bench, cgroup: str, identity: str, within_s: float = 10.0) -> str:
    """What a start has: `boost` when the file has it, or why it waits; empty if neither comes in time."""
    file = cgroup_v1.file("cpu", cgroup, QUOTA)
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if int(file.read_text()) > LIMIT_US:
            return "boost"
        for each in bench.starts.boosts:
            if each.container_id == identity and each.waits:
                return each.waits
        time.sleep(LOOK_S)
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.boost", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--containerd", choices=get_args(ContainerdVersion), default="1.6")
    parser.add_argument("--mode", choices=("proxy", "nri", "standalone"), default="proxy")
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds of `gain`")
    parser.add_argument("--rounds", type=int, default=5, help="of `gain` and `ends`")
    parser.add_argument("--pods", type=int, default=100, help="of `crowd`")
    parser.add_argument("--restarts", type=int, default=1000)
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    run: dict[str, Callable[[Bench], Any]] = {
        "gain": lambda bench: gain(bench, chosen.seconds, chosen.rounds),
        "ends": lambda bench: ends(bench, chosen.rounds),
        "crowd": lambda bench: crowd(bench, chosen.pods),
        "restarts": lambda bench: restarts(bench, chosen.restarts),
    }
    results = []
    for part in chosen.parts or PARTS:
        with ExitStack() as stack:
            bench = Bench(stack, chosen.containerd, chosen.mode, has_real_idle=part in REAL_IDLE)
            results.append(run[part](bench))
    load = ", ".join(f"{each:.2f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} CPUs; load average at the end {load}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
