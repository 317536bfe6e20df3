"""The simulated kernel: how long tasks wait for CPUs, and the files that show it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.cgroups.order import Key
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.samples.kernel_files import (
    decode_cpu_stat_v1,
    decode_cpu_stat_v2,
    decode_pressure,
)
from runtimeproxy.qosmanager.samples.reader import PassReader
from runtimeproxy.qosmanager.samples.sampler import PassReport, Sampler
from runtimeproxy.qosmanager.snapshot import Level, Metric
from runtimeproxy.testing.node.kernel import (
    CPUS,
    IDLE,
    QUOTA,
    SHARES,
    Cgroup,
    CgroupPath,
    Kernel,
    Workload,
    constant,
)
from runtimeproxy.testing.node.simulation import SimulatedContainer, SimulatedNode, SimulatedPod

WEB: CgroupPath = ("pods", "burstable", "web")
BATCH: CgroupPath = ("pods", "besteffort", "batch")
VERSIONS: tuple[Literal[1, 2], ...] = (1, 2)


def service(cores: float, workers: float = 16.0) -> Workload:
    return Workload(cores=constant(cores), threads=workers, request_s=0.002, backlog_s=1.0)


def spinning(threads: int) -> Workload:
    return Workload(cores=constant(float(threads)), threads=threads)


def node_with(web: Workload, batch: Workload | None = None, cpus: int = 4, be_shares: int = 2) -> Kernel:
    kernel = Kernel(range(cpus), waits=True)
    kernel.make(WEB, web)
    kernel.make(BATCH, batch)
    kernel.write(WEB[:2], SHARES, 1_024)
    kernel.write(BATCH[:2], SHARES, be_shares)
    return kernel


def run_delay(cgroup: Cgroup) -> float:
    """Of run delay and run time."""
    return cgroup.delay_us / (cgroup.delay_us + cgroup.usage_us)


def full(cgroup: Cgroup, seconds: float) -> float:
    return cgroup.pressure.totals_us[1] / (seconds * 1_000_000)


def felt(kernel: Kernel, seconds: int = 10) -> tuple[float, float, float]:
    """Run delay of the service as a share, `full` as a share, and p99 in ms, on the average of seconds."""
    kernel.advance(1)
    web = kernel.cgroups[WEB]
    before = web.delay_us, web.usage_us, web.pressure.totals_us[1]
    p99_ms = 0.0
    for _ in range(seconds):
        kernel.advance(1)
        p99_ms += web.response_s(0.99) * 1_000 / seconds
    delay_us, used_us = web.delay_us - before[0], web.usage_us - before[1]
    full_us = web.pressure.totals_us[1] - before[2]
    return delay_us / (delay_us + used_us), full_us / (seconds * 1e6), p99_ms


def test_who_weighs_more_waits_less() -> None:
    shares = (2, 64, 256, 1_024)
    waits = [felt(node_with(service(1.6), spinning(8), be_shares=each)) for each in shares]
    assert waits == sorted(waits)
    assert waits[0][1] < 0.01
    assert waits[-1][1] > 0.15
    alone = felt(node_with(service(1.6)))
    assert alone < waits[0]
    assert alone[1] == 0.0


def test_more_load_waits_longer() -> None:
    waits = [felt(node_with(service(cores), spinning(8))) for cores in (0.8, 1.6, 2.4, 3.2)]
    assert waits == sorted(waits)


def test_nothing_waits_for_idle_cgroups() -> None:
    """They run on CPUs that are free; a weight is refused while they are idle."""
    kernel = node_with(service(1.6), spinning(8), be_shares=1_024)
    kernel.write(BATCH[:2], IDLE, 1)
    assert felt(kernel) == pytest.approx(felt(node_with(service(1.6))), rel=0.2)
    assert kernel.cgroups[BATCH].used_cores == pytest.approx(2.4)
    assert not kernel.violations
    kernel.write(BATCH[:2], SHARES, 2)
    assert "weight written to an idle cgroup" in kernel.violations[0]


def test_a_tighter_bound_of_the_others_waits_less() -> None:
    waits, stops_us, periods = [], [], 0.0
    for quota in (-1, 200_000, 100_000, 50_000):
        kernel = node_with(service(1.6), spinning(8), be_shares=1_024)
        kernel.write(BATCH[:2], QUOTA, quota)
        waits.append(felt(kernel))
        stops_us.append(kernel.cgroups[BATCH[:2]].throttled_us)
        periods = kernel.cgroups[BATCH[:2]].throttled_periods
    assert periods == pytest.approx(110)
    assert stops_us == sorted(stops_us)
    assert stops_us[0] == 0
    assert waits == sorted(waits, reverse=True)


def test_fewer_cpus_of_the_others_wait_less() -> None:
    waits = []
    for cpus in ("", "2-3", "3"):
        kernel = node_with(service(1.6), spinning(8), be_shares=1_024)
        kernel.write(BATCH[:2], CPUS, cpus)
        waits.append(felt(kernel))
    assert waits == sorted(waits, reverse=True)


def test_an_own_limit_throttles_its_service_alone() -> None:
    kernel = node_with(service(1.6), spinning(8))
    unlimited = felt(kernel)
    kernel.write(WEB, QUOTA, 170_000)
    limited = felt(kernel)
    web, batch = kernel.cgroups[WEB], kernel.cgroups[BATCH]
    assert 0 < web.throttled_periods < web.periods == 110
    assert 0 < web.throttled_us < 11_000_000
    assert limited > unlimited
    assert limited[2] > 2 * unlimited[2]
    assert batch.throttled_periods == 0
    kernel.write(WEB, QUOTA, 400_000)
    assert felt(kernel)[2] == pytest.approx(unlimited[2], rel=0.2)


def test_many_threads_wait_for_each_other_and_not_for_others() -> None:
    """Run delay shows it, `full` does not."""
    wait, stalled, _ = felt(node_with(spinning(40), spinning(4)))
    assert wait == pytest.approx(0.9, abs=0.01)
    assert stalled < 0.01
    batch = node_with(spinning(40), spinning(4))
    batch.advance(1)
    assert full(batch.cgroups[BATCH], 1) > 0.5


def test_more_work_than_cpus_waits_in_the_queue() -> None:
    kernel = node_with(service(6.0))
    for _ in range(5):
        kernel.advance(1)
    web = kernel.cgroups[WEB]
    assert web.response_s(0.5) > web.waiting_s > 0.5
    # 16 tasks on 4 CPUs.
    assert run_delay(web) == pytest.approx(0.75)


def test_a_run_is_the_same_each_time() -> None:
    assert felt(node_with(service(1.6), spinning(8))) == felt(node_with(service(1.6), spinning(8)))


def test_without_waits_nothing_waits() -> None:
    kernel = Kernel(range(2))
    kernel.make(WEB, spinning(8))
    kernel.advance(1)
    assert (kernel.cgroups[WEB].delay_us, kernel.cgroups[WEB].wait) == (0.0, None)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_waits_are_within_what_can_be(data: st.DataObject) -> None:
    """Of any tree with any limits: shares are shares, and who waits is a task."""
    cpus = data.draw(st.integers(1, 16))
    kernel = Kernel(range(cpus), waits=True)
    kernel.system_cores = constant(data.draw(st.floats(0, cpus)))
    for number in range(data.draw(st.integers(1, 5))):
        path: CgroupPath = (
            data.draw(st.sampled_from("ab")),
            data.draw(st.sampled_from("cd")),
            f"{number}",
        )
        kernel.make(
            path,
            Workload(
                cores=constant(data.draw(st.floats(0, 32))),
                threads=data.draw(st.sampled_from((1, 3, 64, math.inf))),
                request_s=data.draw(st.floats(1e-5, 1.0)),
                backlog_s=data.draw(st.floats(0, 2)),
            ),
        )
        changed = path[: data.draw(st.integers(1, 3))]
        kernel.write(changed, QUOTA, data.draw(st.sampled_from((-1, 1_000, 50_000, 400_000))))
        kernel.write(changed, CPUS, data.draw(st.sampled_from(("", "0", f"0-{cpus - 1}"))))
        if data.draw(st.booleans()):
            kernel.write(changed, IDLE, 1)
        elif not kernel.value(changed, IDLE):
            kernel.write(changed, SHARES, data.draw(st.integers(2, 262_144)))
    for _ in range(3):
        before = {path: (each.delay_us, *each.pressure.totals_us) for path, each in kernel.cgroups.items()}
        kernel.advance(1)
        for path, cgroup in kernel.cgroups.items():
            delay_us, some_us, full_us = (
                now - then
                for now, then in zip((cgroup.delay_us, *cgroup.pressure.totals_us), before[path], strict=True)
            )
            assert -1e-3 <= full_us <= some_us + 1e-3 <= 1_000_000 + 1
            assert 0 <= delay_us < math.inf
            assert 0 <= cgroup.throttled_us <= kernel.now_s * 1_000_000 + 1
            assert cgroup.throttled_periods <= cgroup.periods + 1e-6
            if cgroup.workload is not None:
                assert delay_us <= max(cgroup.workload.threads - cgroup.used_cores, 0) * 1_000_000 + 1
                assert 0 <= cgroup.response_s(0.5) <= cgroup.response_s(0.99) < math.inf


PRESSURE_SHAPE = re.compile(
    r"(some|full) avg10=\d+\.\d\d avg60=\d+\.\d\d avg300=\d+\.\d\d total=\d+\n", re.ASCII
)


@pytest.mark.parametrize("version", VERSIONS)
def test_files_are_like_the_kernels(version: Literal[1, 2], tmp_path: Path) -> None:
    kernel = Kernel(range(2), version=version, folder=tmp_path, waits=True)
    kernel.make(WEB, service(0.8, workers=3))
    kernel.make(BATCH, spinning(4))
    for path in kernel.cgroups:
        kernel.write(path, CPUS, "0-1")
    kernel.write(BATCH[:2], QUOTA, 50_000)
    kernel.advance(1)
    kernel.advance(1)
    hierarchy = tmp_path / "sys/fs/cgroup" / ("cpu" if version == 1 else "")
    pressures = tmp_path / "sys/fs/cgroup" / ("unified" if version == 1 else "")
    for path in (WEB, WEB[:1], BATCH, ()):
        content = (pressures.joinpath(*path) / "cpu.pressure").read_text(encoding="ascii")
        assert [found[1] for found in PRESSURE_SHAPE.finditer(content)] == ["some", "full"]
        assert PRESSURE_SHAPE.sub("", content) == ""
        some_us, full_us = decode_pressure([content.encode()])
        assert 2_000_000 >= some_us >= full_us
    assert (tmp_path / "proc/pressure/cpu").read_text(encoding="ascii").endswith("total=0\n")
    # The threads of a process, each with what it ran and waited.
    pid = hierarchy.joinpath(*WEB, "cgroup.procs").read_text(encoding="ascii").strip()
    tasks = hierarchy.joinpath(*WEB, "tasks" if version == 1 else "cgroup.threads")
    tids = tasks.read_text(encoding="ascii").split()
    assert len(tids) == 3
    schedstats = [tmp_path.joinpath("proc", pid, "task", tid, "schedstat") for tid in tids]
    ran_ns, waited_ns, turns = (
        sum(column)
        for column in zip(*(map(int, each.read_text().split()) for each in schedstats), strict=True)
    )
    assert ran_ns == pytest.approx(1_600_000_000, rel=1e-6)
    assert waited_ns == pytest.approx(kernel.cgroups[WEB].delay_us * 1_000, rel=1e-3)
    assert turns >= 800
    stat = hierarchy.joinpath(*BATCH[:2], "cpu.stat").read_bytes()
    throttled = dict(line.split() for line in stat.decode().splitlines())
    if version == 1:
        assert decode_cpu_stat_v1([stat]) == (20, 20)
        assert int(throttled["throttled_time"]) == pytest.approx(
            kernel.cgroups[BATCH[:2]].throttled_us * 1e3, rel=1e-3
        )
    else:
        assert decode_cpu_stat_v2([stat])[1:] == (20, 20)
        assert int(throttled["throttled_usec"]) == int(kernel.cgroups[BATCH[:2]].throttled_us)
    kernel.remove(WEB)
    assert not (tmp_path / "proc" / pid).exists()
    assert not pressures.joinpath(*WEB).exists()


def test_a_kernel_without_psi_has_no_pressure_files(tmp_path: Path) -> None:
    kernel = Kernel(range(2), folder=tmp_path, waits=True, has_pressure=False)
    kernel.make(WEB, service(0.8))
    kernel.advance(1)
    assert not list(tmp_path.rglob("*pressure*"))
    assert list(tmp_path.glob("proc/*/task/*/schedstat"))


def add_pods(node: SimulatedNode) -> None:
    web = SimulatedContainer(workload=service(1.2), requests={"cpu": 2_000})
    node.add_pod(SimulatedPod(name="web", containers=[web]))
    node.add_pod(
        SimulatedPod(name="batch", qos=QoSClass.BE, containers=[SimulatedContainer(workload=spinning(8))])
    )


PRESSURES = (Metric.CPU_PRESSURE, Metric.CPU_PRESSURE_FULL)


class PressureSampler(Sampler):
    """The product's, for a plugin that needs pressure."""

    def read(self, targets: Mapping[str, Level], needs: Iterable[Need]) -> PassReport:
        return super().read(targets, [Need(Level.POD, each, 10.0) for each in PRESSURES])


def assert_samples_are_of(node: SimulatedNode, seconds: int) -> None:
    metrics = node.snapshot().metrics
    for pod in node.pods:
        totals_us = node.cgroup(pod.name).pressure.totals_us
        for metric, total_us in zip(PRESSURES, totals_us, strict=True):
            window = metrics.window(pod.cgroup, metric, 10.0)
            assert window is not None
            assert window.avg == pytest.approx(total_us / (seconds * 1e6), rel=0.3, abs=2e-3)


def test_samples_have_pressure() -> None:
    node = SimulatedNode(4, waits=True)
    add_pods(node)
    node.advance(5)
    assert_samples_are_of(node, 5)


def test_the_products_sampler_reads_pressure(tmp_path: Path) -> None:
    node = SimulatedNode(4, waits=True, folder=tmp_path)
    add_pods(node)
    node.sampler = sampler = PressureSampler(
        find_mounts(tmp_path / "sys/fs/cgroup"),
        most_cpus=4,
        procfs=tmp_path / "proc",
        sysfs=tmp_path / "sys",
        reader=PassReader(clock=lambda: node.now_s),
    )
    try:
        node.advance(5)
        assert_samples_are_of(node, 5)
    finally:
        sampler.close()


def test_claims_make_pods_idle() -> None:
    node = SimulatedNode(4, waits=True)
    add_pods(node)
    path = node.cgroup("batch").path
    node.policies = {Key(path, IDLE): (Claim(Claimant("guard"), Role.SET, 1),)}
    node.advance(1)
    assert node.value(IDLE, "batch") == 1
    node.policies = {}
    node.advance(1)
    assert node.value(IDLE, "batch") == 0
    assert not node.kernel.violations
