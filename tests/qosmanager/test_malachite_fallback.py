"""The whole manager with Malachite as its source: all that can go wrong with that, at once and in real time.

Each manager has a daemon and a Malachite of its own. What Malachite says of the node's memory also says when
it was read, so that the age of what plugins decide by is known, however slow the machine is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.config.sources import read
from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU
from runtimeproxy.qosmanager import client as client_module
from runtimeproxy.qosmanager.manager import QosManager, configured
from runtimeproxy.qosmanager.plugin import AnyPlugin, Decision, Need, Plugin, PluginContext
from runtimeproxy.qosmanager.plugins.katalyst_advisor import KatalystAdvisor
from runtimeproxy.qosmanager.plugins.katalyst_reporter import KatalystReporter
from runtimeproxy.qosmanager.plugins.memory_evict import MemoryEvict
from runtimeproxy.qosmanager.samples.malachite import STALE_S
from runtimeproxy.qosmanager.samples.sampler import Sampler
from runtimeproxy.qosmanager.snapshot import LOOK_BACK_S, NODE_CGROUP, Level, Metric, Snapshot
from runtimeproxy.vocabulary import MetricsSource, PoolField
from tests.lab.procfs import rss_bytes
from tests.qosmanager.fake_daemon import FakeDaemon, pod_message
from tests.qosmanager.samples.malachite_faults import FAULTS
from tests.qosmanager.samples.malachite_server import (
    Document,
    Files,
    MalachiteServer,
    Output,
    of_documents,
    port_without_a_server,
)
from tests.qosmanager.samples.trees import Tree

PATIENT_S: Final = 110.0
"""Longer than any machine takes for one step; a step takes half a minute."""
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TOTAL: Final = 1 << 40
"""The memory of `Tree`."""
BY_FILES: Final = 100 * GIB
"""What the node uses in truth, half of it page cache."""
SAID: Final = 200 * GIB
FULL: Final = 900 * GIB
"""What Malachite says; from 70 % of the node's memory on pods are evicted."""
MOST_GROWTH: Final = 20 * MIB
NO_NODE: Final = api_pb2.GetNodeResponse()


class Watching(Plugin[None]):
    """Notes the node's memory, and when it looked."""

    name = "watching"
    needs = frozenset({Need(Level.NODE, Metric.MEMORY_USAGE, LOOK_BACK_S)})
    has_claims = False

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def setup(self, context: PluginContext) -> None:
        return

    def is_enabled(self, snapshot: Snapshot) -> bool:
        return True

    def run(self, snapshot: Snapshot, state: None) -> Decision[None]:
        wall_s = time.time()
        used = snapshot.metrics.last(NODE_CGROUP, Metric.MEMORY_USAGE, LOOK_BACK_S)
        if used is not None:
            self.seen.append((wall_s, used))
        return Decision(None)


@dataclass
class Site:
    """A manager, its daemon and its Malachite."""

    url: str
    files: Files
    daemon: FakeDaemon
    plugin: Watching = field(default_factory=Watching)
    cgroup: str = ""
    used: int = SAID
    """What Malachite says that the node uses, before the time of it is added."""
    age_s: int = 0
    """How old what Malachite says is."""
    began_s: int = field(default_factory=lambda: int(time.time()))
    ended: threading.Event = field(default_factory=threading.Event)

    def documents(self) -> dict[str, Document]:
        update_time = int(time.time()) - self.age_s
        found = self.files.documents([self.cgroup], update_time)
        used = self.used // 1024 + update_time - self.began_s
        found["memory"]["system"]["mem_available"] = TOTAL // 1024 - used
        memory = found[self.cgroup]["sub_system_groups"]["Memory"]["Memory"]["V2"]
        memory["mem_stats"]["inactive_anon"] = 5 * GIB
        return found

    def answer(self, output: Output, path: str) -> object:
        return of_documents(self.documents())(output, path)

    @property
    def source(self) -> tuple[str, str]:
        """By the last report."""
        if not self.daemon.reports:
            return "", ""
        report = self.daemon.reports[-1]
        return report.metrics_source, report.metrics_problem

    def ages_s(self) -> list[float]:
        """How old the values of Malachite were, when they were looked at."""
        return [
            wall_s - (self.began_s + (used - base) / 1024)
            for wall_s, used in self.plugin.seen
            for base in (SAID, FULL)
            if base <= used < base + GIB
        ]

    async def wait_for(self, what: str, is_true: Callable[[], bool]) -> None:
        """Waits until something is so that a call has changed; the manager reports every second."""
        try:
            async with asyncio.timeout(PATIENT_S), self.daemon.changed:
                await self.daemon.changed.wait_for(is_true)
        except TimeoutError:
            pytest.fail(f"{self.url}: not {what}: {self.source}, {self.plugin.seen[-3:]}")


@contextmanager
def urls(count: int) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(port_without_a_server()) for _ in range(count)]


@asynccontextmanager
async def managed(
    folder: Path, name: str, url: str, tree: Tree, *more: AnyPlugin, node: api_pb2.GetNodeResponse = NO_NODE
) -> AsyncIterator[Site]:
    """Runs a manager, with more plugins and more of the node."""
    pod = pod_message("batch", qos_class="BE", kube_qos_class="BestEffort", priority=5_500)
    async with FakeDaemon(folder / f"{name}.sock") as daemon:
        daemon.add_pod(pod)
        daemon.node.MergeFrom(node)
        daemon.node.capacity.update({"memory": TOTAL})
        daemon.node.plugin_strategies.extend(
            api_pb2.StrategyField(path=f"threshold.{path}", value=value)
            for path, value in (("enable", "true"), ("memory_evict_threshold_percent", "70"))
        )
        site = Site(url, Files(tree.mounts, tree.root / "proc"), daemon)
        site.cgroup = pod.containers[0].cgroup.rpartition("/")[0]
        config = folder / f"{name}.toml"
        config.write_text(
            f"[api]\nadmin_socket = '{daemon.path}'\n"
            f"[qosmanager]\nmetrics_source = 'malachite'\nmalachite_url = '{url}'\n"
            "feature_gates = ['BEMemoryEvict=true']\n"
            "[plugins.memory-evict]\nmode = 'enforce'\n"
            "[plugins.watching]\nreference = 'of:Watching'\nmode = 'enforce'\n"
            + "".join(f"[plugins.{each.name}]\nmode = 'enforce'\n" for each in more)
        )
        plugins: list[AnyPlugin] = [MemoryEvict(), site.plugin, *more]
        reading = read(argparse.Namespace(config=str(config)), {})
        configuration = configured(reading, plugins)
        sampler = Sampler(tree.mounts, most_cpus=4, procfs=tree.root / "proc", sysfs=tree.root / "sys")
        manager = QosManager(configuration, lambda: configuration, plugins, sampler, {})
        task = asyncio.get_running_loop().create_task(manager.serve())
        try:
            yield site
        finally:
            site.ended.set()
            manager.finish()
            await asyncio.wait_for(task, PATIENT_S)
            sampler.close()


async def is_in_use(site: Site) -> None:
    await site.wait_for("in use", lambda: site.source == (MetricsSource.MALACHITE, ""))


async def fall_back(site: Site, reason: str) -> None:
    """Waits until all comes from the files, and the report says why."""

    def is_told() -> bool:
        source, problem = site.source
        return source == MetricsSource.KERNEL and reason in problem and site.url in problem

    await site.wait_for(reason, is_told)
    await site.wait_for("by the files", lambda: site.plugin.seen[-1][1] == BY_FILES // 2)


async def note_memory(peak: list[int]) -> None:
    while True:
        peak[0] = max(peak[0], rss_bytes(os.getpid()))
        await asyncio.sleep(0.2)


async def test_headroom_without_malachite(tmp_path: Path, socket_folder: Path) -> None:
    """Complaint of Katalyst's users, issue 240: without it the headroom fails for ever."""
    tree = Tree(tmp_path, 2)
    tree.set_node(0.0, BY_FILES)
    node = api_pb2.GetNodeResponse(
        cpus=[api_pb2.Cpu(id=each, core=each, is_online=True) for each in range(8)],
        memory_bytes={0: TOTAL},
        katalyst_pools=[
            api_pb2.KatalystPool(name="share", cpus="1-3"),
            api_pb2.KatalystPool(name="reclaim", cpus="4-7"),
        ],
        katalyst_pool_settings=api_pb2.KatalystPoolSettings(enable_reclaim=True, least_reclaim_cpus=4),
        katalyst_advice=[api_pb2.AdvisedPool(pool="reclaim", headroom_millicpu=3_000, headroom_bytes=GIB)],
    )
    advisor, reporter = KatalystAdvisor(), KatalystReporter()
    with port_without_a_server() as url:
        async with managed(socket_folder, "away", url, tree, advisor, reporter, node=node) as site:
            tree.cgroup(site.cgroup)
            daemon = site.daemon
            headroom = ("reclaim", PoolField.HEADROOM_MILLICPU)
            await site.wait_for("headroom", lambda: headroom in daemon.values(advisor.name))

            def is_reported() -> bool:
                return bool(daemon.node_resources) and not daemon.node_resources[-1].problems

            await site.wait_for("a report of the node", is_reported)
            assert int(daemon.values(advisor.name)[headroom]) > 0
            status = json.loads(daemon.node_resources[-1].json)["status"]["resources"]
            assert status["allocatable"][RECLAIMED_MILLICPU] == "3k"
            assert status["capacity"][RECLAIMED_MILLICPU] == "8k"
            await site.wait_for("a reason", lambda: "ConnectionRefusedError" in site.source[1])


@pytest.mark.slow
async def test_whatever_is_wrong_with_malachite(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing changes in the daemons.
    monkeypatch.setattr(client_module, "POLL_S", 5.0)
    tree = Tree(tmp_path, 2)
    tree.set_node(0.0, BY_FILES)
    names = ["away-at-first", "dies", "full", *FAULTS]
    async with AsyncExitStack() as stack:
        found = stack.enter_context(urls(len(names)))
        sites: dict[str, Site] = {}
        for name, url in zip(names, found, strict=True):
            site = await stack.enter_async_context(managed(socket_folder, name, url, tree))
            sites[name] = site
            tree.cgroup(site.cgroup).set_memory(GIB)
        servers = {
            name: stack.enter_context(MalachiteServer(site.answer, site.url))
            for name, site in sites.items()
            if name not in {"away-at-first", "dies"}
        }
        first = MalachiteServer(sites["dies"].answer, sites["dies"].url)
        with first:
            in_use = (is_in_use(site) for name, site in sites.items() if name != "away-at-first")
            refused = fall_back(sites["away-at-first"], "ConnectionRefusedError")
            await asyncio.gather(*in_use, refused)
            # Connections that are open end, too.
            first.answer = lambda *_: False
        peak = [rss_bytes(os.getpid())]
        before = peak[0]
        noting = asyncio.get_running_loop().create_task(note_memory(peak))
        reasons = {name: reason for name, (_, reason) in FAULTS.items()} | {"dies": "ConnectionRefusedError"}
        for name, site in sites.items():
            # All of them now have a node that is full, if they were believed.
            site.used = FULL
            if name in FAULTS:
                servers[name].answer = FAULTS[name][0](site)
        full = sites["full"].wait_for("evicting", lambda: bool(sites["full"].daemon.evictions))
        await asyncio.gather(full, *(fall_back(sites[name], reason) for name, reason in reasons.items()))
        noting.cancel()
        assert peak[0] - before < MOST_GROWTH
        for name, site in sites.items():
            site.used, site.age_s = SAID, 0
            if name in servers:
                servers[name].answer = site.answer
        for name in ("away-at-first", "dies"):
            stack.enter_context(MalachiteServer(sites[name].answer, sites[name].url))
        await asyncio.gather(*map(is_in_use, sites.values()))
        for name, site in sites.items():
            ages_s = site.ages_s()
            # No decision was by older data.
            assert 0 <= max(ages_s) <= STALE_S, name
            # By what was wrong nothing was decided; by what was fresh, pods were evicted.
            assert bool(site.daemon.evictions) is (name == "full"), name
            assert all(used < FULL for _, used in site.plugin.seen) is (name != "full"), name
