"""Whether a QoS manager is missing: what strategies ask for, who else does it, and when it is said."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.config.settings import (
    CgroupsSettings,
    LedgerSettings,
    PluginSettings,
    QosManagerSettings,
    Settings,
)
from runtimeproxy.katalyst.dynamic_config import read_config
from runtimeproxy.ledger.leases import LEASE_S
from runtimeproxy.node.snapshot import Node
from runtimeproxy.pods.records import PodRecord
from runtimeproxy.qosmanager.from_api import report_message
from runtimeproxy.qosmanager.manager import built_in_plugins
from runtimeproxy.qosmanager.status import lines
from runtimeproxy.service.api.qos_manager import (
    node_resource,
    node_resource_of,
    pod_notes,
    qos_manager_status,
    report_of,
)
from runtimeproxy.service.qos_manager import (
    KOORDLET_S,
    START,
    ManagerReport,
    QosManagerWatch,
    Situation,
    State,
    left_plugins,
    verdict,
    wanted_plugins,
)
from runtimeproxy.slo.dynamic import GATES, asked_plugins
from runtimeproxy.slo.schema import CpuBurstPolicy, CpuBurstStrategy, Threshold
from runtimeproxy.slo.strategies import Strategies
from runtimeproxy.vocabulary import (
    MOST_POD_NOTE_BYTES,
    MOST_POD_NOTES,
    MetricsSource,
    Mode,
    PluginReport,
)

ALL_GATES = tuple(f"{gate}=true" for gates in GATES.values() for gate in gates)


def test_plugins_and_daemon_go_by_the_same_gates() -> None:
    plugins = {each.name: each for each in built_in_plugins()}
    assert {name: plugins[name].gates for name in GATES} == dict(GATES)


@pytest.mark.parametrize(
    ("threshold", "burst", "settings", "expected"),
    [
        pytest.param(False, CpuBurstPolicy.NONE, Settings(), set(), id="nothing"),
        pytest.param(True, CpuBurstPolicy.NONE, Settings(), {"cpu-suppress"}, id="evictions-are-gated-off"),
        pytest.param(False, CpuBurstPolicy.CPU_BURST_ONLY, Settings(), set(), id="burst-of-the-kernel"),
        pytest.param(False, CpuBurstPolicy.AUTO, Settings(), {"cpu-burst"}, id="burst-of-the-quota"),
        pytest.param(
            True,
            CpuBurstPolicy.CFS_QUOTA_BURST_ONLY,
            Settings(qosmanager=QosManagerSettings(feature_gates=ALL_GATES)),
            {"cpu-suppress", "cpu-burst", "cpu-evict", "memory-evict"},
            id="all",
        ),
        pytest.param(
            True,
            CpuBurstPolicy.NONE,
            Settings(qosmanager=QosManagerSettings(feature_gates=("BECPUSuppress=false",))),
            set(),
            id="its-gate-is-off",
        ),
        pytest.param(
            True,
            CpuBurstPolicy.AUTO,
            Settings(
                plugins={
                    "cpu-suppress": PluginSettings(mode="off"),
                    "cpu-burst": PluginSettings(mode="dry-run"),
                }
            ),
            {"cpu-burst"},
            id="switched-off",
        ),
        pytest.param(
            False,
            CpuBurstPolicy.NONE,
            Settings(
                plugins={
                    "katalyst-advisor": PluginSettings(mode="enforce"),
                    "katalyst-cpu-load": PluginSettings(mode="dry-run"),
                    "katalyst-rss-overuse": PluginSettings(mode="off"),
                    "katalyst-memory-pressure": PluginSettings(),
                    "own": PluginSettings(mode="enforce"),
                }
            ),
            {"katalyst-advisor", "katalyst-cpu-load"},
            id="switched-on",
        ),
    ],
)
def test_what_is_asked_for(
    threshold: bool,
    burst: CpuBurstPolicy,
    settings: Settings,
    expected: set[str],
) -> None:
    strategies = Strategies(threshold=Threshold(enable=threshold), cpu_burst=CpuBurstStrategy(policy=burst))
    pods = [PodRecord(id="a", name="web", namespace="shop")]
    assert wanted_plugins(settings, Node(strategies=strategies), pods) == expected


def evictions(**config: Any) -> Node:
    """A node with a target that says so."""
    found = read_config({"evictionConfig": config})
    return Node(katalyst=found.config)


def test_what_a_target_of_katalysts_asks_for_is_told() -> None:
    """It is missing where the plugin is on and no manager runs, and left where it is off."""
    node = evictions(memoryPressureEvictionConfig={"enableRSSOveruseEviction": True})
    (name,) = wanted_plugins(Settings(), node, [])
    assert name == "katalyst-rss-overuse"
    expected = {name: "[plugins.katalyst-rss-overuse] mode is off"}
    for own in ({}, {name: PluginSettings()}, {name: PluginSettings(mode="off")}):
        for has_koordlet in (False, True):
            assert left_plugins([name], Settings(plugins=own), has_koordlet=has_koordlet) == expected
    found = verdict(Situation(frozenset({name}), expected))
    assert found.state is State.LEFT
    assert "mode is off" in found.note
    # Koordlet does not do it.
    on = Settings(plugins={name: PluginSettings(mode="dry-run")})
    assert left_plugins([name], on, has_koordlet=True) == {}
    off = evictions(memoryPressureEvictionConfig={"enableRSSOveruseEviction": False})
    assert wanted_plugins(Settings(), off, []) == frozenset()


def test_a_burst_is_asked_for_by_pods_that_run() -> None:
    node = Node(strategies=Strategies(cpu_burst=CpuBurstStrategy(policy=CpuBurstPolicy.AUTO)))
    assert wanted_plugins(Settings(), node, []) == frozenset()
    assert asked_plugins(has_thresholds=False, bursts=()) == frozenset()


@pytest.mark.parametrize(
    ("settings", "has_koordlet", "expected"),
    [
        pytest.param(Settings(), False, {}, id="nobody"),
        pytest.param(
            Settings(qosmanager=QosManagerSettings(mode="none")),
            False,
            {"cpu-suppress": "none", "memory-evict": "none"},
            id="none",
        ),
        pytest.param(
            Settings(), True, {"cpu-suppress": "BECPUSuppress", "memory-evict": "koordlet"}, id="koordlet"
        ),
        pytest.param(
            Settings(ledger=LedgerSettings(take_from_koordlet=("cpu.cfs_quota_us", "cpuset.cpus"))),
            True,
            {"memory-evict": "koordlet"},
            id="taken-from-koordlet",
        ),
        pytest.param(
            Settings(cgroups=CgroupsSettings(enabled=False)),
            False,
            {"cpu-suppress": "cgroups.enabled", "memory-evict": "cgroups.enabled"},
            id="no-values-at-all",
        ),
    ],
)
def test_what_is_left_alone(settings: Settings, *, has_koordlet: bool, expected: Mapping[str, str]) -> None:
    found = left_plugins(("cpu-suppress", "memory-evict"), settings, has_koordlet=has_koordlet)
    assert found.keys() == expected.keys()
    assert all(part in found[name] for name, part in expected.items())


def test_koordlet_does_nothing_of_katalysts() -> None:
    assert left_plugins(("katalyst-advisor",), Settings(), has_koordlet=True) == {}


SUPPRESS = frozenset({"cpu-suppress"})
ADVISOR = frozenset({"katalyst-advisor"})


@pytest.mark.parametrize(
    ("situation", "state", "missing", "words"),
    [
        (Situation(), State.NOT_WANTED, (), ()),
        (Situation(SUPPRESS), State.MISSING, ("cpu-suppress",), ("cpu-suppress", "koord-qos-manager", START)),
        (Situation(SUPPRESS, is_new=True), State.STARTING, ("cpu-suppress",), ()),
        (Situation(SUPPRESS, is_heard=True, run=SUPPRESS), State.RUNNING, (), ()),
        (Situation(SUPPRESS, run=SUPPRESS), State.RUNNING, (), ()),
        (Situation(SUPPRESS | {"cpu-burst"}, run=SUPPRESS), State.RUNNING, (), ()),
        (Situation(SUPPRESS, run=frozenset({"own"})), State.MISSING, ("cpu-suppress",), (START,)),
        (Situation(is_heard=True), State.RUNNING, (), ()),
        (Situation(SUPPRESS, is_heard=True), State.MISSING, ("cpu-suppress",), ("runs without", "reload")),
        (Situation(ADVISOR), State.MISSING, ("katalyst-advisor",), ("The configuration asks for", START)),
        (
            Situation(ADVISOR | SUPPRESS),
            State.MISSING,
            ("cpu-suppress", "katalyst-advisor"),
            ("Strategies and configuration of this node ask for",),
        ),
        (
            Situation(ADVISOR, is_heard=True),
            State.MISSING,
            ("katalyst-advisor",),
            ("which the configuration asks for", "reload"),
        ),
        (Situation(SUPPRESS, {"cpu-suppress": "koordlet does it"}), State.LEFT, (), ("koordlet does it",)),
        (
            Situation(SUPPRESS | {"cpu-burst"}, {"cpu-suppress": "koordlet does it"}),
            State.MISSING,
            ("cpu-burst",),
            ("cpu-burst",),
        ),
    ],
)
def test_verdicts(
    situation: Situation, state: State, missing: tuple[str, ...], words: tuple[str, ...]
) -> None:
    found = verdict(situation)
    assert (found.state, found.missing) == (state, missing)
    assert all(word in found.note for word in words)
    assert bool(found.note) is bool(words)


class Scene:
    """A watch with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wanted = frozenset[str]()
        self.leased = frozenset[str]()
        self.has_koordlet = False
        self.scans = 0
        self.watch = QosManagerWatch(
            lambda: self.wanted, self._left, lambda: self.leased, self._find, lambda: self.now_s
        )

    def _left(self, wanted: Any, has_koordlet: bool) -> Mapping[str, str]:
        return left_plugins(wanted, Settings(), has_koordlet=has_koordlet)

    async def _find(self) -> bool:
        self.scans += 1
        return self.has_koordlet

    async def state_after(self, passed_s: float) -> State:
        self.now_s += passed_s
        await self.watch.check()
        return self.watch.last.state


def report(pid: int = 7, problem: str = "") -> ManagerReport:
    return ManagerReport("1", pid, 0.0, (PluginReport("cpu-suppress", Mode.ENFORCE, True, 1, problem),))


async def test_what_plugins_say_of_a_pod() -> None:
    scene = Scene()
    assert list(pod_notes(scene.watch, "a")) == []
    guard = PluginReport(
        "cpu-guard",
        Mode.DRY_RUN,
        True,
        0,
        left_out={"no requests are known": ("a",)},
        pod_notes={"w 1.0": ("a", "b"), "BE pods together: blind": ("c",), "é" * 400: ("d",)},
    )
    message = report_message(7, 0.0, [guard], (MetricsSource.KERNEL, ""))
    scene.watch.take(report_of(message))
    assert list(pod_notes(scene.watch, "a")) == [
        "koord-qos-manager: cpu-guard leaves this pod out: no requests are known",
        "koord-qos-manager: cpu-guard in dry-run: w 1.0",
    ]
    assert [len(list(pod_notes(scene.watch, uid))) for uid in "bcde"] == [1, 1, 1, 0]
    (plugin,) = qos_manager_status(scene.watch).report.plugins
    assert (list(plugin.left_out), list(plugin.pod_notes)) == ([], [])
    # What it said before it ended is no more so.
    scene.now_s += LEASE_S
    assert list(pod_notes(scene.watch, "a")) == []


def test_a_report_takes_bounded_notes() -> None:
    notes = {f"{'é' * 400}{number}": (f"long-{number}",) for number in range(2)}
    notes |= {f"w {number}": (f"uid-{number}",) for number in range(MOST_POD_NOTES)}
    guard = PluginReport("cpu-guard", Mode.ENFORCE, True, 0, pod_notes=notes)
    (plugin,) = report_message(7, 0.0, [guard], (MetricsSource.KERNEL, "")).plugins
    assert len(plugin.pod_notes) == MOST_POD_NOTES - 1
    # Alike when they are cut.
    assert list(plugin.pod_notes[0].pod_uids) == ["long-0", "long-1"]
    assert max(len(each.text.encode()) for each in plugin.pod_notes) <= MOST_POD_NOTE_BYTES


async def test_it_is_said_until_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    assert await scene.state_after(100.0) is State.NOT_WANTED
    scene.wanted = SUPPRESS
    assert await scene.state_after(1.0) is State.STARTING
    assert await scene.state_after(LEASE_S - 1) is State.STARTING
    assert await scene.state_after(1.0) is State.MISSING
    # Long after the hold of a dead manager's claims has ended.
    for _ in range(3):
        assert await scene.state_after(1000.0) is State.MISSING
    scene.watch.take(report())
    assert await scene.state_after(1.0) is State.RUNNING
    assert scene.watch.failing() == ()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert START in lines[0]


async def test_a_manager_that_has_died_is_missing() -> None:
    scene = Scene()
    scene.wanted = SUPPRESS
    scene.watch.take(report())
    assert await scene.state_after(LEASE_S - 1) is State.RUNNING
    assert await scene.state_after(2.0) is State.STARTING
    assert await scene.state_after(LEASE_S) is State.MISSING


async def test_another_program_that_renews_the_claims_counts() -> None:
    scene = Scene()
    scene.wanted = scene.leased = SUPPRESS
    assert await scene.state_after(100.0) is State.RUNNING
    scene.leased = frozenset()
    await scene.state_after(1.0)
    assert await scene.state_after(LEASE_S) is State.MISSING


async def test_a_koordlet_is_looked_for_before_one_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    assert await scene.state_after(1.0) is State.NOT_WANTED
    assert scene.scans == 0, "nothing asks for it"
    scene.wanted, scene.has_koordlet = SUPPRESS, True
    with caplog.at_level(logging.INFO):
        assert await scene.state_after(1.0) is State.LEFT
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert await scene.state_after(LEASE_S) is State.LEFT
    assert scene.scans == 1
    scene.has_koordlet = False
    await scene.state_after(KOORDLET_S)
    assert await scene.state_after(LEASE_S) is State.MISSING


async def test_two_managers_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    for pid in (7, 8) * 50:
        scene.watch.take(report(pid))
    (line,) = caplog.messages
    assert line.endswith("two QoS managers report: process 7 and process 8")


async def test_what_is_reported_of_the_node_is_told_with_its_age_and_truth() -> None:
    def told(text: str | None, *problems: str) -> None:
        """The manager reports; None: as before."""
        request = api_pb2.ReportQosManagerRequest()
        if text is not None:
            request.node_resource.CopyFrom(api_pb2.NodeResourceReport(json=text, problems=problems))
        scene.watch.take(report(), node_resource_of(request))

    def found() -> tuple[str, bool, str]:
        response = node_resource(scene.watch)
        return response.report.json, response.is_current, response.reason

    scene = Scene()
    assert found() == ("", False, "koord-qos-manager does not run")
    assert not node_resource(scene.watch).HasField("reported_at")
    told(None)
    off = "koord-qos-manager reports none: its plugin katalyst-reporter is off"
    assert found() == ("", False, off)
    told("{}", "no\nGPUs")
    assert found() == ("{}", True, "")
    assert list(node_resource(scene.watch).report.problems) == ["no GPUs"]
    came = node_resource(scene.watch).reported_at
    told(None)
    assert found() == ("{}", True, "")
    assert node_resource(scene.watch).reported_at == came
    scene.now_s += LEASE_S
    assert found() == ("{}", False, "koord-qos-manager does not run")
    told("", "ValueError: oops")
    assert found() == ("", False, "ValueError: oops")


@pytest.mark.parametrize("started_s", [1 << 62, -(1 << 62), 253_402_300_799])
def test_whatever_is_reported_can_be_shown(started_s: int) -> None:
    message = api_pb2.QosManagerReport(
        version="\x1b[2J\n" + "1" * 100_000,
        started_at=Timestamp(seconds=started_s),
        plugins=[
            api_pb2.QosPluginStatus(name="\x1b[2J\n" + "x" * 100_000, mode=cast("Any", 77), problem="\x9b2J")
        ],
        metrics_source="\x1b[2J" * 1_000,
        metrics_problem="\x1b[2J\n" + "x" * 100_000,
    )
    scene = Scene()
    scene.watch.take(report_of(message))
    status = qos_manager_status(scene.watch)
    json_format.MessageToJson(status)
    shown = list(lines(status, datetime.now(UTC)))
    assert shown[0].startswith("koord-qos-manager: running")
    assert all(line.isprintable() for line in shown)
    assert max(map(len, shown)) < 4_000


async def test_a_plugin_that_cannot_do_its_work() -> None:
    scene = Scene()
    scene.wanted = SUPPRESS
    scene.watch.take(report(problem="it still hangs"))
    assert await scene.state_after(1.0) is State.RUNNING
    assert [each.problem for each in scene.watch.failing()] == ["it still hangs"]
    scene.now_s += LEASE_S
    assert scene.watch.failing() == ()
