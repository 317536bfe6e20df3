"""The daemon with a real API server: edits of the ConfigMap and of a pod reach what runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2_grpc
from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.daemon.live_annotations import LIVE, OF_TASKS, POLICIES, STRATEGIES, Live, check_edits
from tests.daemon.test_kubernetes import QUOTA_US, run_pod
from tests.e2e_api.conftest import NODE, config_map, pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.kube_api_server import KubeApiServer
from tests.lab.programs import need_controllers_of_v1
from tests.service.api.conftest import status_of

EVERY = (*LIVE, OF_TASKS)


@pytest.mark.parametrize("live", EVERY, ids=[each.key.rpartition("/")[2] for each in EVERY])
def test_an_edited_annotation_applies_soon(
    cluster: KubeApiServer, kubeconfig: Path, daemons: Daemons, cgroup_files: CgroupFiles, live: Live
) -> None:
    if live is OF_TASKS:
        need_controllers_of_v1("pids")
    for folder in ("/kubepods/burstable", "/kubepods/besteffort"):
        cgroup_files.make(folder)
    cluster.upsert({**config_map(), "data": STRATEGIES})
    cluster.apply(json.dumps(pod("live")))
    daemon = daemons.start(
        f'[kubernetes]\nenabled = true\nkubeconfig = "{kubeconfig}"\n[slo]\nstart_spread_s = 0\n'
        f'[node]\nname = "{NODE}"\n{POLICIES}'
    )
    uid = cluster.get(pod("live"))["metadata"]["uid"]
    score = int(live.before) if live is OF_TASKS else 0
    container = run_pod(daemon, cgroup_files, "live", uid, oom_score_adj=score)

    def edit(annotations: Mapping[str, str]) -> None:
        # A merge patch: a key with null is taken away.
        cluster.replace(pod("live", annotations={live.key: None, **annotations}))

    try:
        check_edits(live, cgroup_files, container, edit)
    finally:
        cluster.delete(pod("live"))


def burst(percent: int) -> str:
    return json.dumps({"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": percent}})


def test_edits_reach_running_pods(
    cluster: KubeApiServer, kubeconfig: Path, daemons: Daemons, cgroup_files: CgroupFiles
) -> None:
    for folder in ("/kubepods/burstable", "/kubepods/besteffort"):
        cgroup_files.make(folder)
    cluster.upsert(config_map(cpu_burst_config=burst(20)))
    cluster.apply(json.dumps(pod("web")))
    uid = cluster.get(pod("web"))["metadata"]["uid"]
    daemon = daemons.start(
        f'[kubernetes]\nenabled = true\nkubeconfig = "{kubeconfig}"\n[slo]\nstart_spread_s = 0\n'
        f'[node]\nname = "{NODE}"\n[policies.cpu-burst]\nenabled = true\n'
    )
    container = run_pod(daemon, cgroup_files, "web", uid)

    def wait_for(percent: int) -> None:
        wanted = str(QUOTA_US * percent // 100)
        what = f"a burst of {percent} %"
        wait_until(lambda: cgroup_files.read(container, "cpu.max.burst") == wanted or None, what)

    wait_for(20)
    cluster.upsert(config_map(cpu_burst_config=burst(30)))
    wait_for(30)
    own = json.dumps({"policy": "cpuBurstOnly", "cpuBurstPercent": 50})
    cluster.replace(pod("web", annotations={"koordinator.sh/cpuBurst": own}))
    wait_for(50)
    with CriClient(daemon.socket) as client:
        status = status_of(api_pb2_grpc.RuntimeProxyStub(client.channel))
    watching = [each.kind for each in status.kubernetes.watches if each.state == each.STATE_WATCHING]
    assert {"Node", "Pod", "ConfigMap"} <= set(watching)
    cluster.delete(pod("web"))
