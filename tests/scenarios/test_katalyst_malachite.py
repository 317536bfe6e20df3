"""Katalyst's evictions with Malachite's samples, which are up to 10 s old, and then older."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.qosmanager.plugin import AnyPlugin
from runtimeproxy.qosmanager.plugins.katalyst_memory_pressure import KatalystMemoryPressure
from runtimeproxy.qosmanager.plugins.katalyst_rss_overuse import KatalystRssOveruse
from runtimeproxy.qosmanager.samples.malachite import POLL_S
from runtimeproxy.qosmanager.samples.sampler import Sampler
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Metric
from runtimeproxy.testing.node.simulation import SimulatedNode
from tests.qosmanager.samples.malachite_server import (
    Document,
    Files,
    MalachiteServer,
    Output,
    of_documents,
)
from tests.scenarios.evictions import GIB, SHARED, STEP_S, add, node_with


class NodeFiles(Files):
    """Those of a simulated node: of its cgroups only memory."""

    def _v2(self, path: str, update_time: int) -> dict[str, tuple[str, Document]]:
        lines = self._file("memory", path, "memory.stat").read_text().splitlines()
        stats = {name: int(value) for name, value in map(str.split, lines)}
        usage = int(self._file("memory", path, "memory.current").read_text())
        memory = {"mem_stats": stats, "memory_usage_in_bytes": usage, "update_time": update_time}
        return {"Memory": ("Memory", memory)}

    def _pressure(self, file: Path) -> Document:
        return {"some": None, "full": None}


class Malachite:
    """Reads the node's files every 10 s, as long as it does, and is asked as the source's thread would."""

    def __init__(self, node: SimulatedNode, folder: Path, server: MalachiteServer) -> None:
        assert isinstance(node.sampler, Sampler)
        self._node = node
        self.sampler = node.sampler
        self._files = NodeFiles(find_mounts(folder / "sys/fs/cgroup"), folder / "proc")
        self._documents: dict[str, Document] = {}
        self.is_read = True
        server.answer = self._answer
        self._source = self.sampler.malachite_source(server.url)
        self._source._wall_clock = lambda: node.now_s
        self.sampler.take_from(self._source)
        self._read = node.sampler.read
        node.sampler.read = self.read  # type: ignore[method-assign, assignment]

    def _answer(self, output: Output, path: str) -> object:
        return of_documents(self._documents)(output, path)

    def read(self, *arguments: Any) -> Any:
        """A pass of the sampler, before it what Malachite and the source do meanwhile."""
        if self.is_read and self._node.now_s % POLL_S == 0:
            cgroups = [pod.cgroup for pod in self._node.pods]
            self._documents = self._files.documents(cgroups, int(self._node.now_s))
        for _ in range(20):
            self._source.poll()
        return self._read(*arguments)

    def close(self) -> None:
        self._source.close()


@contextmanager
def with_malachite(
    plugin: AnyPlugin, folder: Path, **pods: float
) -> Iterator[tuple[SimulatedNode, Malachite]]:
    """A node whose pods of `reclaimed_cores` use so many GiB each."""
    with MalachiteServer(lambda *_: False) as server, node_with(plugin, folder) as node:
        for name, gib in pods.items():
            add(node, name, gib=gib, memory=2 * GIB)
        malachite = Malachite(node, folder, server)
        try:
            yield node, malachite
        finally:
            malachite.close()


def evicted(node: SimulatedNode, seconds: float) -> list[tuple[float, str]]:
    node.advance(seconds, STEP_S)
    return [(each.at_s, each.pod) for each in node.evictions]


@pytest.mark.parametrize(("gib", "expected"), [(2.0, []), (2.2, ["batch"])])
def test_its_samples_evict_too(gib: float, expected: list[str], tmp_path: Path) -> None:
    with with_malachite(KatalystRssOveruse(), tmp_path, batch=gib) as (node, malachite):
        node.advance(10, STEP_S)
        found = (
            malachite.sampler.measured(node.pods[0].cgroup, Metric.MEMORY_USAGE, STEP_S)
            if node.pods
            else None
        )
        # What is not gone is seen by what Malachite has read.
        assert expected or (found is not None and found.at_s == 10.0)
        assert [pod for _, pod in evicted(node, 30)] == expected


def test_what_was_measured_before_a_pod_had_gone_evicts_no_other(tmp_path: Path) -> None:
    """One pod of two is enough; Malachite, which ends to read then, says for 25 s that memory is short."""
    with with_malachite(KatalystMemoryPressure(), tmp_path, a=3.0, b=3.0) as (node, malachite):
        node.kernel.watermark_scale = 500
        node.advance(20, STEP_S)
        add(node, "web", SHARED, gib=56.0)
        node.advance(10, STEP_S)
        malachite.is_read = False
        (first,) = evicted(node, 5)
        free = malachite.sampler.measured(NODE_CGROUP, Metric.MEMORY_FREE, STEP_S)
        assert free is not None
        assert free.at_s is not None
        # Without the pod that has gone 5 GiB are free, and 3.2 are wanted: Malachite does not know it yet.
        assert free.value < 3.2 * GIB
        assert free.at_s <= first[0]
        assert evicted(node, 60) == [first]


def test_a_pod_that_malachite_does_not_see_goes_by_the_kernels_files(tmp_path: Path) -> None:
    """It ends to read; within 30 s the files take over."""
    with with_malachite(KatalystRssOveruse(), tmp_path, batch=1.0) as (node, malachite):
        node.advance(20, STEP_S)
        malachite.is_read = False
        add(node, "late", gib=9.0, memory=2 * GIB)
        node.advance(5, STEP_S)
        # Malachite has never heard of the new one.
        assert evicted(node, 30)[0][1] == "late"
