"""The plugin profiling: from samples to the file, the metrics and the saved models."""

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.config.sources import read
from runtimeproxy.config.validation import CombinedConfigError
from runtimeproxy.qos import KubeQoSClass, PriorityClass, QoSClass
from runtimeproxy.qosmanager.manager import configured
from runtimeproxy.qosmanager.plugin import Need, PluginContext
from runtimeproxy.qosmanager.plugins.profiling import (
    SAVING_S,
    TRAINING_S,
    Profiling,
    ProfilingOptions,
    ProfilingState,
    node_use,
)
from runtimeproxy.qosmanager.profiling.prediction import COLD_START_S, pod_key
from runtimeproxy.qosmanager.profiling.reclaimable import NOTHING, ResourceAmounts
from runtimeproxy.qosmanager.snapshot import (
    NODE_CGROUP,
    HostApplication,
    Level,
    Metric,
    Snapshot,
    Strategies,
    Window,
)
from runtimeproxy.slo.schema import Colocation, MemoryCollectPolicy
from tests.lab.ports import free_port
from tests.qosmanager.snapshots import FixedMetrics, container_of, node_of, pod_of

GIB = 1 << 30
WALL_S = 1_700_000_000.0
WEB, JOB = "/kubepods/burstable/podweb", "/kubepods/besteffort/podjob"
APPLICATION = HostApplication("nginx", QoSClass.LS, PriorityClass.PROD, "/host/nginx")
USAGE: Mapping[tuple[str, Metric], float | Window] = {
    (NODE_CGROUP, Metric.CPU_USAGE): 6.0,
    (NODE_CGROUP, Metric.MEMORY_USAGE): 8.0 * GIB,
    (WEB, Metric.CPU_USAGE): 2.0,
    (WEB, Metric.MEMORY_USAGE): 2.0 * GIB,
    (WEB, Metric.MEMORY_WITH_CACHE): 3.0 * GIB,
    (WEB, Metric.CPU_PRESSURE): 0.01,
    (JOB, Metric.CPU_USAGE): 1.0,
    (JOB, Metric.MEMORY_USAGE): 1.0 * GIB,
    ("/host/nginx", Metric.CPU_USAGE): 1.0,
    ("/host/nginx", Metric.MEMORY_USAGE): 1.0 * GIB,
}


def snapshot_of(minute: float = 0, changes: Mapping[tuple[str, Metric], float] | None = None) -> Snapshot:
    web = pod_of(
        "web",
        QoSClass.LS,
        containers=(container_of("web", requests={"cpu": 4_000, "memory": 4 * GIB}),),
        created_s=WALL_S - 2 * COLD_START_S,
    )
    job = pod_of("job", QoSClass.BE, created_s=WALL_S)
    return Snapshot(
        now_s=minute * 60,
        wall_s=WALL_S + minute * 60,
        pods=(web, job),
        node=node_of(
            16,
            capacity={"cpu": 16_000, "memory": 32 * GIB},
            allocatable={"cpu": 15_000, "memory": 30 * GIB},
            reserved={"cpu": 1_000, "memory": 2 * GIB},
            labels={"kubernetes.io/hostname": "node-1"},
        ),
        strategies=Strategies(host_applications=(APPLICATION,)),
        metrics=FixedMetrics({**USAGE, **(changes or {})}),
    )


def started(options: ProfilingOptions) -> tuple[Profiling, ProfilingState]:
    plugin = Profiling()
    return plugin, plugin.setup(PluginContext(gates={}, options=options))


def test_it_says_what_it_reads() -> None:
    class Declared(FixedMetrics):
        def window(self, cgroup: str, metric: Metric, length_s: float) -> Window | None:
            level = {NODE_CGROUP: Level.NODE, "/host/nginx": Level.HOST_APPLICATION}.get(cgroup, Level.POD)
            asked.append(Need(level, metric, length_s))
            return super().window(cgroup, metric, length_s)

    asked: list[Need] = []
    plugin, state = started(ProfilingOptions())
    for policy in MemoryCollectPolicy:
        strategies = Strategies(
            colocation=Colocation(metric_memory_collect_policy=policy), host_applications=(APPLICATION,)
        )
        plugin.run(replace(snapshot_of(), metrics=Declared(USAGE), strategies=strategies), state)
    assert {each.level for each in asked} == {Level.NODE, Level.POD, Level.HOST_APPLICATION}
    longest_s = {each[:2]: each.longest_s for each in sorted(plugin.needs)}
    # Another plugin may need the same for a few seconds only: of that nothing longer is kept.
    assert [each for each in asked if each.longest_s > longest_s.get(each[:2], 0)] == []


def test_the_node_as_input() -> None:
    use = node_use(snapshot_of(), TRAINING_S)
    assert use is not None
    assert use.usage == ResourceAmounts(6_000, 8 * GIB)
    assert use.system_usage == ResourceAmounts(2_000, 4 * GIB)
    assert use.system_used == ResourceAmounts(3_000, 5 * GIB)
    assert [(pod.uid, pod.priority_class, pod.usage) for pod in use.pods] == [
        ("web", PriorityClass.PROD, ResourceAmounts(2_000, 2 * GIB)),
        ("job", PriorityClass.BATCH, ResourceAmounts(1_000, GIB)),
    ]
    assert use.pods[0].request == ResourceAmounts(4_000, 4 * GIB)


def test_memory_by_the_policy_of_the_strategy() -> None:
    policy = MemoryCollectPolicy.WITH_PAGE_CACHE
    colocation = Colocation(metric_memory_collect_policy=policy)
    snapshot = replace(
        snapshot_of(changes={(NODE_CGROUP, Metric.MEMORY_WITH_CACHE): 9.0 * GIB}),
        strategies=Strategies(colocation=colocation),
    )
    use = node_use(snapshot, TRAINING_S)
    assert use is not None
    assert use.pods[0].usage == ResourceAmounts(2_000, 3 * GIB)
    assert use.pods[1].usage is None


def test_the_file_in_the_shape_of_nodemetric(tmp_path: Path) -> None:
    plugin, state = started(ProfilingOptions(folder=str(tmp_path)))
    for minute in range(40):
        decision = plugin.run(snapshot_of(minute), state)
        assert not decision.claims
        assert not decision.evictions
    plugin.run(snapshot_of(40, {(WEB, Metric.CPU_PRESSURE): 0.4}), state)
    written: dict[str, Any] = json.loads((tmp_path / "node-metric.json").read_text())
    assert (written["apiVersion"], written["kind"]) == ("slo.koordinator.sh/v1alpha1", "NodeMetric")
    assert written["metadata"]["name"] == "node-1"
    status = written["status"]
    assert status["updateTime"] == "2023-11-14T22:53:20Z"
    assert status["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "6000m", "memory": str(8 * GIB)}}
    assert status["nodeMetric"]["systemUsage"]["resources"]["cpu"] == "2000m"
    aggregated = status["nodeMetric"]["aggregatedNodeUsages"]
    assert [each["duration"] for each in aggregated] == ["5m0s", "10m0s", "30m0s"]
    assert aggregated[0]["usage"]["p95"]["resources"] == {"cpu": "6000m", "memory": str(8 * GIB)}
    web, job = status["podsMetric"]
    assert (web["name"], web["namespace"], web["priority"], web["qos"]) == (
        "web",
        "default",
        "koord-prod",
        "LS",
    )
    assert web["podUsage"]["resources"] == {"cpu": "2000m", "memory": str(2 * GIB)}
    assert [each["signal"] for each in web["extensions"]["interference"]["signals"]] == ["cpu_pressure"]
    assert 0 < web["extensions"]["interference"]["confidence"] < 1
    assert job["priority"] == "koord-batch"
    assert "interference" not in job["extensions"]
    assert status["hostApplicationMetric"][0]["name"] == "nginx"
    # 4 CPUs less 1.1 * 2, and 1.1 * (2 + 3) of class and system is more than is requested.
    assert status["prodReclaimableMetric"]["resource"]["resources"]["cpu"] == "0m"
    # 60 % of 16 CPUs less 3 of the system and 2 of prod; 65 % of 32 GiB less 5 and 2.
    reclaimable = json.loads(written["metadata"]["annotations"]["koord-runtime-proxy.io/reclaimable"])
    assert reclaimable["kubernetes.io/batch-cpu"] == "4600"
    assert reclaimable["kubernetes.io/batch-memory"] == str(int(13.8 * GIB))
    assert {path.name for path in tmp_path.iterdir()} == {"node-metric.json", "prediction.json"}


def test_models_are_saved_now_and_then_and_restored(tmp_path: Path) -> None:
    plugin, state = started(ProfilingOptions(folder=str(tmp_path)))
    saved = tmp_path / "prediction.json"
    plugin.run(replace(snapshot_of(), wall_s=time.time()), state)
    first = saved.read_text()
    plugin.run(replace(snapshot_of(1), wall_s=time.time()), state)
    assert saved.read_text() == first
    plugin.run(replace(snapshot_of(1 + SAVING_S / 60), wall_s=time.time()), state)
    assert saved.read_text() != first
    _, restored = started(ProfilingOptions(folder=str(tmp_path)))
    assert restored.models.percentiles(pod_key("web")) == state.models.percentiles(pod_key("web"))
    assert restored.models.percentiles(pod_key("web")) is not None
    assert restored.problem == ""


@pytest.mark.parametrize("text", ["", "{", "null", "[" * 100_000, '{"format": 2}'])
def test_saved_models_that_cannot_be_used_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "prediction.json").write_text(text)
    plugin, state = started(ProfilingOptions(folder=str(tmp_path)))
    explanation = plugin.run(snapshot_of(), state).explanation
    assert "predictions begin anew" in explanation
    assert "prediction.json" in explanation
    assert (tmp_path / "prediction.json").read_text() != text


def test_a_folder_that_is_not_there_is_told_and_costs_nothing_else(tmp_path: Path) -> None:
    plugin, state = started(ProfilingOptions(folder=str(tmp_path / "none")))
    explanation = plugin.run(snapshot_of(), state).explanation
    assert "cannot be written" in explanation
    assert explanation.startswith("batch 4.60 CPUs and 14131 MiB")


def test_batch_resources_change_in_steps_and_are_taken_back_without_samples() -> None:
    plugin, state = started(ProfilingOptions())
    plugin.run(snapshot_of(), state)
    first = state.profile
    assert first is not None
    plugin.run(snapshot_of(1, {(NODE_CGROUP, Metric.CPU_USAGE): 6.2}), state)
    assert state.profile is not None
    assert state.profile.batch == first.batch
    plugin.run(snapshot_of(2, {(NODE_CGROUP, Metric.CPU_USAGE): 7.0}), state)
    assert state.profile.batch.cpu_millicores == 3_600
    blind = replace(snapshot_of(17), metrics=FixedMetrics())
    assert "not known" in plugin.run(blind, state).explanation
    assert state.profile.batch.cpu_millicores == 3_600
    blind = replace(snapshot_of(18), metrics=FixedMetrics())
    assert "taken back" in plugin.run(blind, state).explanation
    assert state.profile.batch == state.profile.mid == NOTHING


def test_batch_resources_are_without_what_other_schedulers_gave_away() -> None:
    plugin, state = started(ProfilingOptions())
    resources = {"kubernetes.io/batch-cpu": "600", "kubernetes.io/batch-memory": "1Gi"}
    allocations = [{"name": "yarn", "priority": "koord-batch", "resources": resources}]
    readable, unreadable = (
        {"node.koordinator.sh/thirdPartyAllocations": text}
        for text in (json.dumps({"allocations": allocations}), "{")
    )
    explanations = [
        plugin.run(replace(each, node=replace(each.node, annotations=annotations)), state).explanation
        for each, annotations in ((snapshot_of(), readable), (snapshot_of(1), unreadable))
    ]
    assert all(each.startswith("batch 4.00 CPUs and 13107 MiB") for each in explanations)
    assert ["thirdPartyAllocations" in each for each in explanations] == [False, True]


def test_a_pod_that_went_is_forgotten() -> None:
    plugin, state = started(ProfilingOptions())
    plugin.run(snapshot_of(), state)
    plugin.run(replace(snapshot_of(1), pods=snapshot_of().pods[:1]), state)
    assert set(state.histories) == {"web"}


def scraped(port: int, path: str = "metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as response:
        return str(response.read().decode())


def test_metrics_on_a_listener() -> None:
    port = free_port()
    plugin, state = started(ProfilingOptions(metrics_listen=f"127.0.0.1:{port}"))
    try:
        assert "koord_qos_manager" not in scraped(port)
        plugin.run(snapshot_of(), state)
        text = scraped(port)
        assert "koord_qos_manager_batch_allocatable_cpu_cores 4.6\n" in text
        assert 'koord_qos_manager_pod_peak_cpu_cores{namespace="default",pod="web"} 2.' in text
        assert "# TYPE koord_qos_manager_pod_interference_confidence gauge" in text
        # A reload with other options begins with a new state, and goes on listening.
        options = ProfilingOptions(metrics_listen=f"127.0.0.1:{port}", node_name="n")
        plugin.setup(PluginContext(gates={}, options=options))
        assert scraped(port) == text
        plugin.setup(PluginContext(gates={}, options=ProfilingOptions()))
        with pytest.raises(urllib.error.URLError):
            scraped(port)
    finally:
        plugin.metrics.close()


def test_the_node_metric_on_the_same_listener(tmp_path: Path) -> None:
    port = free_port()
    plugin, state = started(ProfilingOptions(metrics_listen=f"127.0.0.1:{port}", folder=str(tmp_path)))
    try:
        with pytest.raises(urllib.error.HTTPError) as raised:
            scraped(port, "node-metric")
        with raised.value:
            assert (raised.value.code, raised.value.headers["Retry-After"]) == (503, "60")
        plugin.run(snapshot_of(), state)
        assert json.loads(scraped(port, "node-metric")) == json.loads(
            (tmp_path / "node-metric.json").read_text()
        )
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/node-metric", b"x")
        with raised.value:
            assert raised.value.code == 405
    finally:
        plugin.metrics.close()


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (ProfilingOptions(), []),
        (ProfilingOptions(folder="/var/lib/x", metrics_listen="9446"), []),
        (ProfilingOptions(metrics_listen="[::1]:9446"), []),
        (ProfilingOptions(folder="x"), ["folder"]),
        (ProfilingOptions(metrics_listen="/run/metrics.sock"), ["metrics_listen"]),
        (ProfilingOptions(metrics_listen="unix:///run/metrics.sock"), ["metrics_listen"]),
        (ProfilingOptions(folder="./x", metrics_listen="127.0.0.1:http"), ["folder", "metrics_listen"]),
    ],
)
def test_options(options: ProfilingOptions, keys: list[str]) -> None:
    assert [key for key, _ in Profiling().option_problems(options)] == keys


def test_options_that_cannot_be_used_end_the_start(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[plugins.profiling.options]\nmetrics_listen = "x"\n')
    with pytest.raises(CombinedConfigError) as raised:
        configured(read(argparse.Namespace(config=str(file)), {}), [Profiling()])
    assert f"{file}: plugins.profiling.options.metrics_listen" in str(raised.value)


def test_a_best_effort_pod_without_label_is_batch() -> None:
    pod = pod_of("x", QoSClass.NONE, kube_qos=KubeQoSClass.BEST_EFFORT)
    use = node_use(replace(snapshot_of(), pods=(pod,)), TRAINING_S)
    assert use is not None
    assert use.pods[0].priority_class is PriorityClass.BATCH
