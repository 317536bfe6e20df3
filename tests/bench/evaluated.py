"""The row of a call that all policies are asked about, beside one that the three of version 0.1 decide on.

And beside one with Katalyst's pools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks.loaded import overridden_methods
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.datapath import rotated
from tests.bench.load import generate, plan_for
from tests.bench.processes import ProxyLauncher
from tests.bench.procfs import wait_until_idle
from tests.bench.scenarios import CONTAINER_NAME, SERVICE, Pod
from tests.bench.stands import DIRECT, PROXY, Way
from tests.bench.storm import NO_STRATEGIES, strategies
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.peers.load_client import LoadError, call

_TURN = 10
_CALLS_PER_SECOND = 300
_THREE, _ALL, _WITH_POOLS = "three", "all", "pools"
_OWNERS_OF_CPUS = frozenset({"cpuset", "katalyst-pools"})
"""Only one of them can be enabled."""
_EVERY_POLICY = '[node]\nobjects_dir = "{objects}"\nkubelet_dir = "{kubelet}"\n' + "".join(
    f"[policies.{each.name}]\nenabled = true\n"
    for each in built_in()
    # Not `system-config`, which would write this machine's sysctls.
    if each.name not in _OWNERS_OF_CPUS and not {"pod", "container"}.isdisjoint(overridden_methods(each))
)
_CONFIGS = {
    _ALL: f"{_EVERY_POLICY}[policies.cpuset]\nenabled = true\n",
    _WITH_POOLS: f"{_EVERY_POLICY}[policies.cpuset]\nenabled = false\n"
    "[policies.katalyst-pools]\nenabled = true\n",
}
_CONTROLLERS = "cpuset cpu io memory hugetlb pids"
_REQUESTS = {"cpu": "1", "memory": "1Gi"}
_POOLS = {"node.koordinator.sh/cpu-shared-pools": '[{"socket": 0, "node": 0, "cpuset": "0-1"}]'}
GPU = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 0}]})}


class EvaluatedRow:
    """`CreateContainer` in an LS pod with a GPU, on a node with strategies and pools of CPUs."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        self._pod: Pod | None = None

    def __call__(self, bench: Bench, turn: int) -> None:
        """Measures one round; the first starts the proxies."""
        if self._pod is None:
            if bench.full.launcher.template is not None:
                raise LoadError("another proxy's policies are not known")
            self._pod = _make_pod(bench.full.upstream)
            requests = {(self._pod.config.metadata.uid, CONTAINER_NAME): _REQUESTS}
            self._ways = {
                _THREE: _proxy(bench, _THREE, NO_STRATEGIES, requests),
                **{name: _proxy(bench, name, config, requests) for name, config in _CONFIGS.items()},
            }
            # Strategies are first applied to all that runs.
            wait_until_idle([way.pid for way in self._ways.values()])
        ways = rotated({DIRECT: bench.full.ways[DIRECT], **self._ways}, turn)
        count = max(_TURN, int(bench.options.seconds * _CALLS_PER_SECOND) // _TURN * _TURN)
        added, cpu_us = {}, {}
        for scenario, step in (("version", "version"), ("create-remove", "create")):
            plan = plan_for(ways, scenario, count)
            pods = dict.fromkeys(ways, self._pod.as_words())
            loads = generate(replace(plan, turn=_TURN, pods=pods, kubelet_headers=True))
            direct_us = loads[DIRECT][step].mean_us
            added[step] = {name: loads[name][step].mean_us - direct_us for name in self._ways}
            cpu_us = {name: loads[name][step].cpu_s * 1e6 / count for name in self._ways}
        three_us, all_us, passing_us = added["create"][_THREE], added["create"][_ALL], added["version"][_ALL]
        figures = {
            "three policies, added mean us": three_us,
            "all policies, added mean us": all_us,
            "passing call, added mean us": passing_us,
            "all policies, x three": all_us / three_us,
            "all policies, x passing": all_us / passing_us,
            "three policies, CPU us": cpu_us[_THREE],
            "all policies, CPU us": cpu_us[_ALL],
            "all policies, CPU x three": cpu_us[_ALL] / cpu_us[_THREE],
            # Katalyst's pools in place of the shared ones: placed and saved before the call goes on.
            "with pools, added mean us": added["create"][_WITH_POOLS],
            "with pools, x without": added["create"][_WITH_POOLS] / all_us,
            "with pools, CPU us": cpu_us[_WITH_POOLS],
            "with pools, CPU x without": cpu_us[_WITH_POOLS] / cpu_us[_ALL],
        }
        bench.results.add(names.EVALUATED, PROXY, figures)


def make_node(
    folder: Path, config: str, requests: Mapping[tuple[str, str], Mapping[str, str]] | None = None
) -> tuple[CgroupFiles, str]:
    """Makes cgroup files, Kubernetes objects and kubelet files; returns the first and the configuration.

    `requests`: of containers that the kubelet knows, by pod uid and name.
    """
    folder.mkdir()
    # The directories of QoS classes show which files this kernel has; containers have none here.
    files = CgroupFiles(folder / "cgroup", version=2)
    files.make("/kubepods/burstable")
    for path in ("/kubepods", "/kubepods/burstable"):
        files.write(path, "cgroup.controllers", _CONTROLLERS)
    objects = NodeObjects(folder / "node.d")
    objects.node(capacity={"cpu": "64", "memory": "256Gi"})
    objects.topology(_POOLS)
    objects.strategies(strategies(0))
    kubelet_files(folder / "kubelet", requests or {})
    return files, config.format(objects=objects.folder, kubelet=folder / "kubelet")


def _proxy(
    bench: Bench, name: str, config: str, requests: Mapping[tuple[str, str], Mapping[str, str]]
) -> Way:
    folder = bench.full.folder / f"evaluated-{name}"
    files, text = make_node(folder, config, requests)
    process = ProxyLauncher(None, files.root).make(folder / "proxy.sock", bench.full.upstream, config=text)
    bench.stack.enter_context(process)
    process.wait_until_serving()
    return Way(process.socket, process.pid)


def _make_pod(socket: str) -> Pod:
    config = pod_sandbox_config("bench-evaluated", qos="LS", annotations=GPU)
    request = api_pb2.RunPodSandboxRequest(config=config)
    answer = call(socket, SERVICE + "RunPodSandbox", request.SerializeToString())
    return Pod(api_pb2.RunPodSandboxResponse.FromString(answer).pod_sandbox_id, config)
