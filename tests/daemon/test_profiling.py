"""The plugin `profiling` in the QoS manager's process, beside a daemon: its file and its metrics."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.ports import free_port
from tests.lab.proxy_process import ManagerProcess

CONFIG = """\
[node]
name = "node-a"
[qosmanager]
interval_s = 0.2
[plugins.profiling]
mode = "enforce"
[plugins.profiling.options]
folder = "%(folder)s"
metrics_listen = "127.0.0.1:%(port)d"
node_name = "node-a"
"""
NODE = """\
apiVersion: v1
kind: Node
metadata: {name: node-a}
status:
  capacity: {cpu: "64", memory: 1Ti}
  allocatable: {cpu: "64", memory: 1Ti}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config, namespace: koordinator-system}
data:
  colocation-config: '{"enable": true}'
"""
QUICK = """\
import runpy, sys
from runtimeproxy.qosmanager.plugins.profiling import Profiling
Profiling.interval_s = 0.5
runpy.run_module("runtimeproxy.qosmanager", run_name="__main__", alter_sys=False)
"""
"""The manager's process, in which the plugin runs twice a second instead of once a minute."""
MIB = 1 << 20


class QuickManager(ManagerProcess):
    def command(self) -> list[str]:
        program, _, _, *words = super().command()
        return [program, "-c", QUICK, *words]


@pytest.mark.slow
def test_what_the_process_reports(daemons: Daemons, cgroup_files: CgroupFiles, socket_folder: Path) -> None:
    folder, port = socket_folder / "profiling", free_port()
    folder.mkdir()
    daemon = daemons.prepare(CONFIG % {"folder": folder, "port": port})
    daemon.objects_folder.mkdir()
    (daemon.objects_folder / "node.yaml").write_text(NODE)
    daemon.start()
    web = pod_sandbox_config("web", qos="LS", labels={"koordinator.sh/priority-class": "koord-prod"})
    with CriClient(daemon.socket) as client:
        run = api_pb2.RunPodSandboxRequest(config=web)
        sandbox = client.runtime.RunPodSandbox(run, timeout=CALL_TIMEOUT_S).pod_sandbox_id
        create = create_container_request(sandbox, container_config("main", pod=web), web)
        container = client.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        start = api_pb2.StartContainerRequest(container_id=container)
        client.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
        job = batch_pod(client, "job").run().create().start().config
    for pod, used in ((web, 300 * MIB), (job, 200 * MIB)):
        stat = f"anon {used}\ninactive_anon {used}\nactive_anon 0\ninactive_file 0\nunevictable 0\n"
        cgroup_files.write(pod.linux.cgroup_parent, "memory.current", str(used))
        cgroup_files.write(pod.linux.cgroup_parent, "memory.stat", stat)
        cgroup_files.write(pod.linux.cgroup_parent, "cpu.stat", "usage_usec 1000\n")
    manager = QuickManager(daemon.folder, daemon.config_file, daemon.socket, daemon.options.environment)
    file = folder / "node-metric.json"
    try:
        manager.start()

        def pods() -> dict[str, dict[str, object]]:
            """What is reported of pods, once both have samples."""
            if not file.exists():
                return {}
            found = json.loads(file.read_text())["status"]["podsMetric"]
            return {each["name"]: each for each in found} if len(found) == 2 else {}

        reported = wait_until(pods, f"the file; {manager.log[-10:]}")
        written = json.loads(file.read_text())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        assert manager.terminate() == 0
    finally:
        manager.close()
    assert (written["apiVersion"], written["kind"]) == ("slo.koordinator.sh/v1alpha1", "NodeMetric")
    assert written["metadata"]["name"] == "node-a"
    updated = time.strptime(written["status"]["updateTime"], "%Y-%m-%dT%H:%M:%SZ")
    assert abs(time.time() - (time.mktime(updated) - time.timezone)) < 60
    usage = written["status"]["nodeMetric"]["nodeUsage"]["resources"]
    # The files of procfs are the machine's.
    assert int(usage["memory"]) > 64 * MIB
    assert usage["cpu"].endswith("m")
    assert {name: (each["qos"], each["priority"]) for name, each in reported.items()} == {
        "web": ("LS", "koord-prod"),
        "job": ("BE", "koord-batch"),
    }
    assert reported["web"]["podUsage"] == {"resources": {"cpu": "0m", "memory": str(300 * MIB)}}
    reclaimable = json.loads(written["metadata"]["annotations"]["koord-runtime-proxy.io/reclaimable"])
    assert int(reclaimable["kubernetes.io/batch-memory"]) > 100 << 30
    samples = {(sample.name, *sample.labels.values()) for family in families for sample in family.samples}
    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert ("koord_qos_manager_pod_peak_memory_bytes", "default", "web") in samples
    assert values["koord_qos_manager_node_usage_memory_bytes"] > 64 * MIB
    assert values["koord_qos_manager_batch_allocatable_memory_bytes"] > 100 << 30
    assert (folder / "prediction.json").exists()
