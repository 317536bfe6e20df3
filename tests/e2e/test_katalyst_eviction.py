"""Katalyst's evictions on a real containerd: at its threshold each plugin stops one container, below it none.

One daemon and one manager for all of them. What a plugin says of its look shows that it has seen the pods.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU, QosLevel
from tests.e2e.katalyst_site import KatalystSite, katalyst_site, of_level, using_mib
from tests.e2e.values import GUARANTEED, as_resources
from tests.lab.containerd import Containerd
from tests.lab.programs import CONTAINERD_WITHOUT_EVENTS

pytestmark = pytest.mark.parametrize("containerd_version", [CONTAINERD_WITHOUT_EVENTS], indirect=True)

SUPPRESSION: Final = "katalyst-cpu-suppression"
LOAD: Final = "katalyst-cpu-load"
PRESSURE: Final = "katalyst-reclaimed-pressure"
MEMORY: Final = "katalyst-memory-pressure"
RSS: Final = "katalyst-rss-overuse"
NO_KSWAPD: Final = {"kswapd_pages_per_second": 1e9}
"""This machine may do much else."""
HAS_SCHEDSTAT: Final = Path("/proc/schedstat").exists()


@pytest.fixture(scope="module")
def site(
    containerd: Containerd, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KatalystSite]:
    own = Path(tempfile.mkdtemp(dir=folder))
    with katalyst_site(containerd, own, tmp_path_factory.mktemp("logs")) as running:
        yield running


def expect_eviction(site: KatalystSite, plugin: str, pod: str, *texts: str) -> None:
    """It is the only one of the plugin."""
    (found,) = site.evictions_by(plugin)
    assert (found.pod, found.after) == (pod, "evicted")
    assert all(text in found.reason for text in texts), found.reason


def test_cpu_suppression(site: KatalystSite) -> None:
    """Two pods request 1.5 times the pool, which they tolerate, and then 1 millicore more."""
    supply = 1_000 * site.reclaim_size()
    requests = {"large": supply, "small": supply // 2}
    specs = [
        of_level(name, QosLevel.RECLAIMED, requests={RECLAIMED_MILLICPU: str(amount)}, tolerance_rate=1.5)
        for name, amount in requests.items()
    ]
    site.configure({SUPPRESSION: {"hold_seconds": 0.0}})
    with site.pods(*specs) as pods:
        figures = f"reclaimed_cores request {supply * 3 // 2}m of {supply}m"
        said = site.wait_for(SUPPRESSION, figures)
        assert "tolerate" not in said
        assert site.running(pods) == {"large", "small"}
        one_more = of_level("patient", QosLevel.RECLAIMED, requests={RECLAIMED_MILLICPU: "1"})
        with site.pods(one_more) as more:
            site.wait_for_eviction({**pods, **more}, "large")
        expect_eviction(site, SUPPRESSION, "large", "above its tolerance 1.5")


def test_reclaimed_pressure(site: KatalystSite) -> None:
    """5,000 millicores are requested: 5 times what the Node object has, and then of 1 millicore less."""
    specs = [
        of_level(name, QosLevel.RECLAIMED, requests={RECLAIMED_MILLICPU: amount})
        for name, amount in (("large", "3000"), ("small", "2000"))
    ]
    site.objects.node(capacity={RECLAIMED_MILLICPU: "1000"})
    site.configure({PRESSURE: {"hold_seconds": 0.0}})
    with site.pods(*specs) as pods:
        said = site.wait_for(PRESSURE, "5000m requested of 1000m")
        assert "soft threshold, nothing is evicted" in said
        assert site.running(pods) == {"large", "small"}
        site.objects.node(capacity={RECLAIMED_MILLICPU: "999"})
        site.wait_for_eviction(pods, "large")
        expect_eviction(site, PRESSURE, "large", "5000m requested of 999m", "above 5 times")


def test_memory_pressure_and_load(site: KatalystSite) -> None:
    """Free memory is above the kernel's own watermark, and then below one that no machine has.

    The node's NUMA nodes are looked at, too; the load of a pool only where the kernel tells it.
    """
    specs = [
        of_level("web", QosLevel.SHARED, kube_qos="guaranteed", resources=as_resources(GUARANTEED)),
        of_level("batch", QosLevel.RECLAIMED, command=using_mib(16)),
    ]
    site.configure({MEMORY: NO_KSWAPD, LOAD: {}})
    with site.pods(*specs) as pods:
        # Of the node, of its NUMA nodes and of kswapd.
        site.wait_until(lambda: "no fresh sample" not in site.wait_for(MEMORY, "MiB free of"), "all samples")
        assert not site.evictions_by(MEMORY)
        load = site.wait_for(LOAD, "load")
        assert HAS_SCHEDSTAT or "the load of share is not known" in load
        assert HAS_SCHEDSTAT or "the kernel has no /proc/schedstat" in load
        assert site.running(pods) == {"web", "batch"}
        site.configure({MEMORY: {**NO_KSWAPD, "least_free_bytes": 1 << 50}})
        site.wait_for_eviction(pods, "batch")
        expect_eviction(site, MEMORY, "batch", f"watermark {1 << 30}")


def test_rss_overuse(site: KatalystSite) -> None:
    """Two pods use the same, and one of them requests more."""
    requests = {"hog": "32Mi", "modest": "256Mi"}
    specs = [
        of_level(name, QosLevel.RECLAIMED, requests={"memory": amount}, command=using_mib(48))
        for name, amount in requests.items()
    ]
    site.configure({RSS: {"threshold": 100.0}})
    with site.pods(*specs) as pods:
        site.wait_until(lambda: site.explanation(RSS) == "no threshold is met", "a look")
        assert site.running(pods) == {"hog", "modest"}
        site.configure({RSS: {}})
        site.wait_for_eviction(pods, "hog")
        expect_eviction(site, RSS, "hog", "MiB used, above 1.05 times 32 requested")
