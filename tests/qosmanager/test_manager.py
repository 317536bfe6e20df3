"""Rounds: samples, decisions, claims; modes, reloads, and what goes on when something fails."""

import argparse
import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.config.sources import read
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.qosmanager import manager as manager_module
from runtimeproxy.qosmanager.manager import (
    Configuration,
    QosManager,
    all_plugins,
    built_in_plugins,
    configured,
)
from runtimeproxy.qosmanager.plugin import (
    GUARD,
    AnyPlugin,
    Claim,
    Decision,
    Eviction,
    Mode,
    Need,
    NodeReport,
    Plugin,
    PluginContext,
    Role,
    Target,
)
from runtimeproxy.qosmanager.snapshot import (
    Container,
    ContainerState,
    HostApplication,
    Level,
    Metric,
    Node,
    NoMetrics,
    Snapshot,
    Strategies,
    sample_targets,
)
from runtimeproxy.vocabulary import MetricsSource
from tests.lab.notify_socket import NotifySocket
from tests.qosmanager.fake_daemon import WAIT_S, FakeDaemon, pod_message
from tests.qosmanager.snapshots import container_of, pod_of

BE = Target(Level.QOS_CLASS, "BestEffort")
USAGE = Need(Level.NODE, Metric.CPU_USAGE, 10.0)
THROTTLED = Need(Level.CONTAINER, Metric.CPU_THROTTLED, 3.0)


@dataclass(frozen=True)
class Options:
    """Of a plugin of these tests."""

    step_us: int = 1_000


class Rising(Plugin[int]):
    """Claims 1,000 more with each run, from what the daemon holds."""

    options_type = Options
    needs = frozenset({USAGE})
    interval_s = 0.05

    def __init__(self, name: str = "rising", fails: Callable[[], None] = lambda: None) -> None:
        self.name = name  # type: ignore[misc]  # of the class elsewhere
        self.fails = fails
        self.is_wanted = True
        self.evictions: tuple[Eviction, ...] = ()
        self.snapshots: list[Snapshot] = []
        self.begins: list[int] = []
        self._step_us = 0

    def setup(self, context: PluginContext) -> int:
        self._step_us = context.options.step_us
        self.begins.append(int(context.held[0].value) if context.held else 0)
        return self.begins[-1]

    def is_enabled(self, snapshot: Snapshot) -> bool:
        return self.is_wanted

    def run(self, snapshot: Snapshot, state: int) -> Decision[int]:
        self.fails()
        self.snapshots.append(snapshot)
        value = state + self._step_us
        claim = Claim(BE, "cpu.cfs_quota_us", Role.AT_MOST, value, reason="rises")
        evictions, self.evictions = self.evictions, ()
        return Decision(value, (claim,), evictions, "all is well")


class Reader(NoMetrics):
    """Notes what is to be read."""

    def __init__(self, fails: Callable[[], None] = lambda: None) -> None:
        self.fails = fails
        self.cycles_problem = ""
        self.metrics_source = MetricsSource.KERNEL, ""
        self.urls: list[str] = []
        self.threads: list[str] = []
        self.passes: list[tuple[Mapping[str, Level], frozenset[Need]]] = []

    def read(self, targets: Mapping[str, Level], needs: Iterable[Need]) -> object:
        self.passes.append((targets, frozenset(needs)))
        self.fails()
        return None

    def follow_threads(self, cgroups: Sequence[str]) -> None:
        self.threads = list(cgroups)

    def use_malachite(self, url: str) -> None:
        self.urls.append(url)

    def close(self) -> None:
        return


class Manager:
    """A manager in this process, whose configuration the test changes."""

    def __init__(
        self, daemon: FakeDaemon, folder: Path, plugins: Iterable[AnyPlugin], reader: Reader
    ) -> None:
        self.daemon = daemon
        self.config = folder / "config.toml"
        self.plugins = list(plugins)
        self.notify = NotifySocket(folder / "notify.sock")
        self.configure("")
        environ = {"NOTIFY_SOCKET": str(folder / "notify.sock"), "WATCHDOG_USEC": "1000000"}
        self.manager = QosManager(self.load(), self.load, self.plugins, reader, environ)

    def configure(self, text: str) -> None:
        """Writes the file, with a short interval and the socket of the daemon."""
        common = f"interval_s = 0.1\n[api]\nadmin_socket = '{self.daemon.path}'\n"
        keys, _, tables = f"\n{text}".partition("\n[")
        self.config.write_text(f"[qosmanager]\n{keys}\n{common}" + (f"[{tables}" if tables else ""))

    def load(self) -> Configuration:
        """Reads the file."""
        reading = read(argparse.Namespace(config=str(self.config)), {})
        return configured(reading, self.plugins)

    def reload(self, text: str) -> None:
        self.configure(text)
        self.manager.reload()

    def value(self, owner: str = "cpu-suppress") -> int:
        """The claimed value in the daemon; 0 for none."""
        values = self.daemon.values(owner)
        return int(values.get(("BestEffort", "cpu.cfs_quota_us"), "0"))

    async def wait_for_status(self, text: str) -> None:
        """Waits for the next line of `systemctl status` that begins so."""
        start = f"STATUS={text}"
        await asyncio.to_thread(self.notify.wait_for_start, start, lambda: True, WAIT_S)

    async def wait_for(self, is_true: Callable[[], object]) -> None:
        await self.daemon.wait_for(lambda: bool(is_true()))


class Attempts:
    """Takes the place of a daemon that is away, and counts who asks for it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def wait_for(self, count: int) -> None:
        """Waits for so many connections from now on, which end at once."""
        seen: asyncio.Queue[None] = asyncio.Queue()

        async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.put_nowait(None)
            writer.close()

        server = await asyncio.start_unix_server(end, self._path)
        async with asyncio.timeout(WAIT_S):
            for _ in range(count):
                await seen.get()
        server.close()
        await server.wait_closed()
        # From Python 3.13 on asyncio has removed it.
        self._path.unlink(missing_ok=True)


def fill(notify: NotifySocket) -> None:
    """Fills the queue of a service manager that does not read."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.sendto(b"EXTEND_TIMEOUT_USEC=1", str(notify.path))


Serve = Callable[..., Any]


@pytest.fixture
def serve(daemon: FakeDaemon, socket_folder: Path) -> Serve:
    """Runs a manager with these plugins, as a context manager."""

    @asynccontextmanager
    async def serving(*plugins: AnyPlugin, reader: Reader | None = None) -> AsyncIterator[Manager]:
        made = Manager(daemon, socket_folder, plugins, reader or Reader())
        task = asyncio.get_running_loop().create_task(made.manager.serve())
        try:
            yield made
        finally:
            made.manager.finish()
            await asyncio.wait_for(task, WAIT_S)
            made.notify.close()

    return serving


async def test_what_plugins_want_reaches_the_daemon(serve: Serve, daemon: FakeDaemon) -> None:
    daemon.add_pod(pod_message("web"))
    plugin, reader = Rising("cpu-suppress"), Reader()
    async with serve(plugin, reader=reader) as manager:
        await manager.wait_for(lambda: manager.value() >= 3_000)
        snapshot = plugin.snapshots[-1]
        assert [pod.full_name for pod in snapshot.pods] == ["shop/web"]
        assert snapshot.metrics is reader
        assert plugin.snapshots[0].now_s < snapshot.now_s
    targets, needs = reader.passes[-1]
    assert set(targets.values()) == {Level.POD, Level.CONTAINER}
    assert needs == {USAGE}
    # Nothing is released at the end of the process.
    assert manager.value() >= 3_000


async def test_a_new_process_goes_on_from_where_the_last_one_was(serve: Serve) -> None:
    async with serve(Rising("cpu-suppress")) as manager:
        await manager.wait_for(lambda: manager.value() >= 3_000)
    value = manager.value()
    plugin = Rising("cpu-suppress")
    async with serve(plugin) as manager:
        await manager.wait_for(lambda: manager.value() > value)
    assert plugin.begins == [value]


async def test_without_the_daemon_nothing_is_computed(serve: Serve, daemon: FakeDaemon) -> None:
    plugin, reader = Rising("cpu-suppress"), Reader()
    async with serve(plugin, reader=reader) as manager:
        await manager.wait_for(lambda: manager.value() >= 2_000)
        await daemon.stop()
        attempts = Attempts(daemon.path)
        # The manager has noticed, and a round that was begun before has ended.
        await attempts.wait_for(1)
        rounds = [entry.round for entry in manager.manager._entries]
        await asyncio.wait([each for each in rounds if each is not None])
        runs, passes = len(plugin.snapshots), len(reader.passes)
        await attempts.wait_for(6)
        assert (len(plugin.snapshots), len(reader.passes)) == (runs, passes)
        await daemon.start()
        await manager.wait_for(lambda: manager.value() > runs * 1_000)
    # It went on from its own state.
    assert len(plugin.begins) == 1


async def test_a_plugin_that_fails_does_not_stop_the_others(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait(WAIT_S)

    def fail() -> None:
        raise ValueError("oops")

    good = Rising("cpu-suppress")
    async with serve(Rising("cpu-burst", hang), good, Rising("cpu-evict", fail)) as manager:
        # The others are not hurried.
        for entry in manager.manager._entries:
            entry.runner._time_limit_s = 0.05 if entry.runner.plugin.name == "cpu-burst" else 30.0
        lines = (
            "cpu-burst: left out for 1 s: no decision within 0.05 s",
            "cpu-evict: left out for 1 s: ValueError: oops",
        )
        # On a busy machine one may begin later than the others.
        await manager.wait_for(
            lambda: manager.value() >= 5_000 and all(each in caplog.text for each in lines)
        )
        assert manager.value("cpu-burst") == manager.value("cpu-evict") == 0
        status = manager.manager._status_text()
        assert "; cpu-suppress: 1 claims, all is well; " in status
        assert "cpu-evict: ValueError: oops" in status
        # One that has never decided is reported as wanted: the daemon's status has its problem.
        reports = {entry.report.name: entry.report for entry in manager.manager._entries}
        assert [name for name, each in reports.items() if each.is_wanted and each.problem] == [
            "cpu-burst",
            "cpu-evict",
        ]
        release.set()


@pytest.mark.parametrize("text", ['mode = "dry-run"', '[plugins.cpu-suppress]\nmode = "dry-run"'])
async def test_in_dry_run_it_only_explains(serve: Serve, caplog: pytest.LogCaptureFixture, text: str) -> None:
    plugin = Rising("cpu-suppress")
    async with serve(plugin) as manager:
        await manager.wait_for(lambda: manager.value() >= 2_000)
        manager.reload(text)
        # What was claimed before is released.
        await manager.wait_for(lambda: "cpu-suppress" not in manager.daemon.owners)
        plugin.evictions = (Eviction("u", "too much"),)
        await manager.wait_for(lambda: manager.daemon.evictions)
        assert manager.daemon.evictions[0].is_dry_run
        assert manager.value() == 0
        assert "cpu-suppress: would claim cpu.cfs_quota_us at most" in caplog.text
        assert "of qos class BestEffort (rises): all is well" in caplog.text
        manager.reload("")
        await manager.wait_for(lambda: manager.value() > 0)


@pytest.mark.parametrize(
    "text", ['[plugins.cpu-suppress]\nmode = "off"', "feature_gates = ['BECPUSuppress=false']"]
)
async def test_a_plugin_that_is_switched_off_releases_its_claims(serve: Serve, text: str) -> None:
    plugin = Rising("cpu-suppress")
    plugin.gates = ("BECPUSuppress",)  # type: ignore[misc]  # of the class elsewhere
    async with serve(plugin) as manager:
        await manager.wait_for(lambda: manager.value() >= 2_000)
        manager.reload(text)
        await manager.wait_for(lambda: "cpu-suppress" not in manager.daemon.owners)
        assert manager.manager._status_text() == "cpu-suppress: off"
        manager.reload("")
        await manager.wait_for(lambda: manager.value() > 0)
    # It began anew.
    assert plugin.begins == [0, 0]


async def test_claims_of_a_plugin_that_is_off_from_the_start_are_released(serve: Serve) -> None:
    async with serve(Rising("cpu-suppress")) as manager:
        await manager.wait_for(lambda: manager.value() > 0)
    async with serve(Rising("cpu-suppress")) as manager:
        manager.reload('[plugins.cpu-suppress]\nmode = "off"')
        await manager.wait_for(lambda: manager.value() == 0)


async def test_what_the_strategies_do_not_want_is_released_and_not_sampled(serve: Serve) -> None:
    plugin, other, reader = Rising("cpu-suppress"), Rising("cpu-burst"), Reader()
    other.needs = frozenset({THROTTLED})  # type: ignore[misc]  # of the class elsewhere
    async with serve(plugin, other, reader=reader) as manager:
        await manager.wait_for(lambda: manager.value() and manager.value("cpu-burst"))
        plugin.is_wanted = False
        await manager.wait_for(lambda: manager.value() == 0)
        value = manager.value("cpu-burst")
        await manager.wait_for(lambda: manager.value("cpu-burst") >= value + 2_000)
        assert "cpu-suppress: not wanted by the strategies" in manager.manager._status_text()
    assert reader.passes[0][1] == {USAGE, THROTTLED}
    assert reader.passes[-1][1] == {THROTTLED}


async def test_evictions_are_proposed_and_their_results_come_back(serve: Serve) -> None:
    results: list[Any] = []

    class Evicting(Rising):
        def on_evictions(self, given: Any, snapshot: Snapshot, state: int) -> int:
            results.extend(given)
            return state

    plugin = Evicting("memory-evict")
    plugin.evictions = (Eviction("u", "7 of 8 GiB are used"),)
    async with serve(plugin) as manager:
        await manager.wait_for(lambda: manager.value("memory-evict") >= 3_000)
        (request,) = manager.daemon.evictions
    assert (request.pod_uid, request.owner, request.reason) == ("u", "memory-evict", "7 of 8 GiB are used")
    assert [each.outcome for each in results] == ["evicted"]


async def test_rounds_go_on_without_samples(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "SAMPLES_S", 0.02)
    release = threading.Event()

    def fail() -> None:
        if len(reader.passes) == 1:
            raise OSError("no such device")
        release.wait(WAIT_S)

    reader = Reader(fail)
    async with serve(Rising("cpu-suppress"), reader=reader) as manager:
        await manager.wait_for(lambda: manager.value() >= 5_000)
        release.set()
    assert len(reader.passes) == 2
    assert "samples: a pass failed: OSError: no such device" in caplog.text
    assert "samples: a pass has not ended yet" in caplog.text


async def test_why_there_are_no_cycles_per_instruction_is_logged_once(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader()
    reader.cycles_problem = "this machine does not count cycles"
    with caplog.at_level(logging.INFO, manager_module.__name__):
        async with serve(Rising("cpu-suppress"), reader=reader) as manager:
            await manager.wait_for(lambda: len(reader.passes) >= 3)
    text = "samples: no cycles per instruction: this machine does not count cycles"
    assert [each.getMessage() for each in caplog.records].count(text) == 1


async def test_malachite_is_asked_only_where_the_configuration_says_so(
    serve: Serve, daemon: FakeDaemon
) -> None:
    reader = Reader()
    async with serve(Rising("cpu-suppress"), reader=reader) as manager:
        await manager.wait_for_status("cpu-suppress: 1 claims, all is well")
        await manager.wait_for(lambda: daemon.reports)
        assert (daemon.reports[-1].metrics_source, daemon.reports[-1].metrics_problem) == ("kernel", "")
        manager.reload("metrics_source = 'malachite'\nmalachite_url = 'http://[::1]:9003/'")
        reader.metrics_source = MetricsSource.MALACHITE, ""
        await manager.wait_for_status("cpu-suppress: 1 claims, all is well; samples: malachite")
        reader.metrics_source = MetricsSource.KERNEL, "2 of 2 are read"
        await manager.wait_for_status("cpu-suppress: 1 claims, all is well; samples: 2 of 2 are read")
        manager.reload("metrics_source = 'malachite'\nmalachite_url = 'http://a b'")
        manager.reload("")
    assert reader.urls == ["", "http://[::1]:9003", ""]


async def test_a_plugin_without_claims_needs_no_owner(serve: Serve, daemon: FakeDaemon) -> None:
    class Looking(Rising):
        has_claims = False

    daemon.fail["GetClaims"] = (grpc.StatusCode.NOT_FOUND, "no owner is named profiling")
    plugin = Looking("profiling")
    async with serve(plugin) as manager:
        await manager.wait_for(lambda: len(plugin.snapshots) >= 2)
        await manager.wait_for_status("profiling: all is well")
    assert not daemon.values("profiling")


async def test_claims_that_the_daemon_does_not_take_are_reported(
    serve: Serve, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.fail["GetClaims"] = (grpc.StatusCode.FAILED_PRECONDITION, "cgroup values are switched off")
    async with serve(Rising("cpu-suppress")) as manager:
        await manager.wait_for_status("cpu-suppress: cgroup values are switched off")
    assert "cpu-suppress: claims nothing: cgroup values are switched off" in caplog.text


async def test_the_service_manager_is_told(serve: Serve, daemon: FakeDaemon) -> None:
    await daemon.stop()
    async with serve(Rising("cpu-suppress")) as manager:

        async def wait_for(start: str) -> None:
            await asyncio.to_thread(manager.notify.wait_for_start, start, lambda: True, WAIT_S)

        await wait_for("READY=1")
        await wait_for("STATUS=no daemon: ")
        await wait_for("WATCHDOG=1")
        await daemon.start()
        await manager.wait_for_status("cpu-suppress: 1 claims, all is well")
        # It takes ten datagrams; what does not fit is lost, but what is to be told last is told later.
        fill(manager.notify)
        manager.reload("mode = 'never'")
        await wait_for("READY=1")
        manager.reload("mode = 'never'")
        await wait_for("RELOADING=1")
        await wait_for("READY=1")
        value = manager.value()
        await manager.wait_for(lambda: manager.value() > value)
        manager.manager.finish()
        await wait_for("STOPPING=1")


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("[api]\nadmin_socket = ''", "api.admin_socket", "is empty: koord-qos-manager sets its values"),
        (
            "[plugins.cpu-suppress.options]\nstep = 1",
            "plugins.cpu-suppress.options.step",
            "unknown key; did you mean step_us?",
        ),
        (
            "[plugins.cpu-suppress.options]\nstep_us = 'x'",
            "plugins.cpu-suppress.options.step_us",
            "must be a valid integer",
        ),
        (
            "[plugins.cpu-burst.options]\na = 1",
            "plugins.cpu-burst.options.a",
            "unknown key; this plugin has no options",
        ),
        ("[qosmanager]\nmode = 'x'", "qosmanager.mode", "must be 'enforce', 'dry-run' or 'none'"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, text: str, key: str, reason: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    without_options = Rising("cpu-burst")
    without_options.options_type = None  # type: ignore[misc, assignment]  # of the class elsewhere
    plugins = [Rising("cpu-suppress"), without_options]
    with pytest.raises(CombinedConfigError) as raised:
        configured(read(argparse.Namespace(config=str(file)), {}), plugins)
    (error,) = raised.value.errors
    assert (error.source, error.key) == (str(file), key)
    assert error.reason.startswith(reason)


@pytest.mark.parametrize(
    ("default", "own", "overall", "expected"),
    [
        ("enforce", "", "", "enforce"),
        ("dry-run", "", "", "dry-run"),
        ("dry-run", "enforce", "", "enforce"),
        ("enforce", "off", "", "off"),
        ("enforce", "", "dry-run", "dry-run"),
        ("enforce", "enforce", "dry-run", "dry-run"),
        ("enforce", "off", "dry-run", "off"),
    ],
)
def test_the_mode_of_a_plugin(tmp_path: Path, default: str, own: str, overall: str, expected: str) -> None:
    file = tmp_path / "config.toml"
    lines = [f"[qosmanager]\nmode = '{overall}'" if overall else ""]
    lines.append(f"[plugins.cpu-evict]\nmode = '{own}'" if own else "")
    file.write_text("\n".join(lines))
    plugin = Rising("cpu-evict")
    plugin.default_mode = Mode(default)  # type: ignore[misc]  # of the class elsewhere
    made = configured(read(argparse.Namespace(config=str(file)), {}), [plugin])
    assert made.plugins["cpu-evict"] == (Mode(expected), Options())


PACKAGE = """
from dataclasses import dataclass
from runtimeproxy.qosmanager.plugin import Plugin

@dataclass(frozen=True)
class Options:
    step_us: int = 1

class Own(Plugin[int]):
    name = "own"
    options_type = Options

class Other:
    pass
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module as another distribution installs it."""
    name = f"plugins_of_others_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(("own", "expected"), [("", "dry-run"), ("mode = 'enforce'\n", "enforce")])
def test_a_plugin_of_another_package(tmp_path: Path, package: str, own: str, expected: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[plugins.own]\nreference = '{package}:Own'\n{own}options = {{ step_us = 2 }}\n")
    reading = read(argparse.Namespace(config=str(file)), {})
    plugins = all_plugins(reading)
    assert [each.name for each in plugins] == [*manager_module.BUILT_IN, "own"]
    mode, options = configured(reading, plugins).plugins["own"]
    assert (mode, options.step_us) == (Mode(expected), 2)


@pytest.mark.parametrize(
    ("name", "place", "reason"),
    [
        ("own", "{}_2:Own", "ModuleNotFoundError: No module named"),
        ("own", "{}:Missing", "AttributeError: module"),
        ("own", "{}:Other", "TypeError: {}:Other is not a subclass of runtimeproxy.qosmanager.plugin.Plugin"),
        ("mine", "{}:Own", "ValueError: the name of {}:Own is 'own'"),
    ],
)
def test_a_wrong_reference_ends_the_start(
    tmp_path: Path, package: str, name: str, place: str, reason: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[plugins.{name}]\nreference = '{place.format(package)}'\n[qosmanager]\nmode = 'x'\n")
    with pytest.raises(CombinedConfigError) as raised:
        all_plugins(read(argparse.Namespace(config=str(file)), {}))
    assert [each.key for each in raised.value.errors] == ["qosmanager.mode", f"plugins.{name}.reference"]
    assert raised.value.errors[1].reason.startswith(reason.format(package))


def test_the_plugins_of_this_package_have_their_names() -> None:
    assert [each.name for each in built_in_plugins()] == list(manager_module.BUILT_IN)


def test_the_cgroups_of_all_that_is_known_are_sampled() -> None:
    running = container_of("web", "/kubepods/burstable/podweb")
    stopped = Container(id="old", name="old", cgroup="/x", state=ContainerState.STOPPED)
    pods = (pod_of("web", containers=(running, stopped)), replace(pod_of("new"), cgroup="", containers=()))
    node = Node(qos_cgroups={KubeQoSClass.BEST_EFFORT: "/kubepods/besteffort"})
    strategies = Strategies(host_applications=(HostApplication("nginx", cgroup="/nginx"),))
    assert sample_targets(pods, node, strategies) == {
        "/kubepods/besteffort": Level.QOS_CLASS,
        "/nginx": Level.HOST_APPLICATION,
        "/kubepods/burstable/podweb": Level.POD,
        "/kubepods/burstable/podweb/c-web": Level.CONTAINER,
    }


class Reporting(Rising):
    """Reports of the node what the test says."""

    has_claims = False

    def __init__(self, fails: Callable[[], None] = lambda: None) -> None:
        super().__init__("katalyst-reporter", fails)
        self.report: NodeReport | None = NodeReport("{}", ("no GPUs",))

    def run(self, snapshot: Snapshot, state: int) -> Decision[int]:
        return super().run(snapshot, state)._replace(node_report=self.report)


REPORTS = '[plugins.katalyst-reporter]\nmode = "enforce"'


async def test_what_is_reported_of_the_node_is_sent_when_it_has_changed(serve: Serve) -> None:
    plugin = Reporting()
    async with serve(plugin) as manager:
        daemon = manager.daemon
        manager.reload(REPORTS)
        await manager.wait_for(lambda: daemon.node_resources)
        # Before the plugin was on there may have been an empty one.
        await manager.wait_for(lambda: daemon.node_resources[-1].json == "{}")
        assert list(daemon.node_resources[-1].problems) == ["no GPUs"]
        reports = len(daemon.reports)
        await manager.wait_for(lambda: len(daemon.reports) > reports + 1)
        assert all(one != other for one, other in pairwise(daemon.node_resources))
        plugin.report = NodeReport('{"a":1}')
        await manager.wait_for(lambda: daemon.node_resources[-1].json == '{"a":1}')
        # Another daemon knows nothing of it.
        await daemon.stop()
        daemon.node_resources.clear()
        await daemon.start()
        await manager.wait_for(lambda: any(each.json == '{"a":1}' for each in daemon.node_resources))
        manager.reload('[plugins.katalyst-reporter]\nmode = "off"')
        await manager.wait_for(lambda: not daemon.node_resources[-1].json)


async def test_a_reporter_that_fails_leaves_nothing_old_behind(serve: Serve) -> None:
    def fail() -> None:
        if is_failing.is_set():
            raise ValueError("oops")

    is_failing = threading.Event()
    async with serve(Reporting(fail)) as manager:
        manager.reload(REPORTS)
        await manager.wait_for(lambda: any(each.json for each in manager.daemon.node_resources))
        is_failing.set()
        failed = api_pb2.NodeResourceReport(problems=["ValueError: oops"])
        await manager.wait_for(lambda: manager.daemon.node_resources[-1] == failed)


async def test_a_report_of_the_node_that_is_too_large_is_not_sent(serve: Serve) -> None:
    plugin = Reporting()
    plugin.report = NodeReport("x" * (manager_module.MOST_NODE_REPORT_BYTES + 1), ("no GPUs",))
    async with serve(plugin) as manager:
        manager.reload(REPORTS)
        await manager.wait_for(lambda: any(each.problems for each in manager.daemon.node_resources))
    last = manager.daemon.node_resources[-1]
    assert not last.json
    assert list(last.problems) == ["it has 786433 bytes, and the daemon takes at most 786432", "no GPUs"]


class Guarding(Rising):
    """Bounds BE pods by what others feel, as far as a test says so."""

    is_guarding = True
    problem = ""

    def run(self, snapshot: Snapshot, state: int) -> Decision[int]:
        decision = super().run(snapshot, state)
        return decision._replace(
            is_guarding=self.is_guarding, problem=self.problem, threads_of=("/kubepods/podweb",)
        )


class Watching(Rising):
    """Claims nothing."""

    has_claims = False


async def test_others_know_that_the_guard_bounds_be_pods(serve: Serve) -> None:
    guard, other, reader = Guarding(GUARD), Watching("cpu-evict"), Reader()
    async with serve(guard, other, reader=reader) as manager:
        await manager.wait_for(lambda: other.snapshots and other.snapshots[-1].is_guarded)
        # The guard's own bound is none to those that evict for a lack of CPU.
        await manager.wait_for(lambda: manager.daemon.values(GUARD))
        before = len(other.snapshots)
        await manager.wait_for(lambda: len(other.snapshots) > before + 1)
        assert {each.be_limit_cores for each in other.snapshots} <= {None}
        await manager.wait_for(lambda: reader.threads == ["/kubepods/podweb"])
        guard.is_guarding = False
        await manager.wait_for(lambda: not other.snapshots[-1].is_guarded)
        guard.is_guarding = True
        await manager.wait_for(lambda: other.snapshots[-1].is_guarded)
        manager.configure(f'[plugins.{GUARD}]\nmode = "dry-run"\n')
        manager.manager.reload()
        await manager.wait_for(lambda: not other.snapshots[-1].is_guarded)
        manager.configure(f'[plugins.{GUARD}]\nmode = "off"\n')
        manager.manager.reload()
        await manager.wait_for(lambda: reader.threads == [])


async def test_what_a_plugin_cannot_do_is_reported_until_it_can(serve: Serve) -> None:
    guard = Guarding(GUARD)
    guard.is_guarding, guard.problem = False, "PSI is off"
    async with serve(guard) as manager:
        # It does not wait for the next report that is due.
        manager.daemon.report_interval_s = 600

        def reported() -> list[str]:
            reports = manager.daemon.reports
            return [each.problem for each in reports[-1].plugins] if reports else []

        await manager.wait_for(lambda: reported() == ["PSI is off"])
        # What it claims beside that stays.
        await manager.wait_for(lambda: manager.daemon.values(GUARD))
        guard.problem = ""
        await manager.wait_for(lambda: reported() == [""])


async def test_a_guard_that_fails_guards_nothing(serve: Serve) -> None:
    failures: list[Exception] = []

    def fails() -> None:
        if failures:
            raise failures[0]

    guard, other = Guarding(GUARD, fails), Watching("cpu-evict")
    async with serve(guard, other) as manager:
        await manager.wait_for(lambda: other.snapshots and other.snapshots[-1].is_guarded)
        failures.append(ValueError("no"))
        await manager.wait_for(lambda: not other.snapshots[-1].is_guarded)
