"""A daemon with Katalyst's pools beside a real runtime, a QoS manager with short pauses, and pods."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as own_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc as own_grpc
from runtimeproxy.documents.reading import quantity_of
from runtimeproxy.katalyst.levels import AGGREGATED_REQUESTS, CPU_ENHANCEMENT, QOS_LEVEL
from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU
from runtimeproxy.units import parse_cpu_list
from tests.daemon.failures.scene import WITH_STATEMENTS
from tests.e2e.values import BEST_EFFORT, as_resources
from tests.lab import cgroup_v1
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec
from tests.lab.proxy_process import ManagerProcess, ProxyOptions, ProxyProcess
from tests.lab.runtime_process import RuntimeProcess

_Result = TypeVar("_Result")
Mode = Literal["proxy", "nri", "standalone"]
KILLED: Final = 137
"""The exit code of a container that got SIGKILL."""
PATIENT_S: Final = 90.0

_CONFIG: Final = """
[daemon]
mode = "{mode}"
lock = "{folder}/front-end.lock"
[nri]
socket = "{nri_socket}"
[node]
kubelet_dir = "{folder}/kubelet"
[policies.cpuset]
enabled = false
[policies.katalyst-qos]
enabled = true
[policies.katalyst-pools]
enabled = true
[policies.katalyst-pools.options]
enable_reclaim = true
overlap = true
reclaim_reserve = 1
ramp_up_s = 0.0
[owners.katalyst-advisor]
allow = [
  "pool.required_cpus set pool", "pool.overlap_cpus set pool", "pool.headroom_millicpu set pool",
  "pool.headroom_bytes set pool", "cpu.cfs_quota_us at_most qos-class",
]
[plugins.cpu-suppress]
mode = "off"
[qosmanager]
interval_s = 0.2
"""
_OF_DAEMON: Final = """
import runtimeproxy.ledger.leases, runtimeproxy.service.qos_manager
runtimeproxy.ledger.leases.LEASE_S = 6.0
runtimeproxy.service.qos_manager.reports_s = lambda: 0.2
"""
"""A lease longer than the time between two renewals; and how often the manager reports."""
_OF_MANAGER: Final = """
import runtimeproxy.qosmanager.client
from runtimeproxy.qosmanager.conditions import ConditionPlugin
from runtimeproxy.qosmanager.plugins.katalyst_reporter import KatalystReporter
runtimeproxy.qosmanager.client.POLL_S = 0.2
ConditionPlugin.interval_s = KatalystReporter.interval_s = 0.2
"""


def wrapper(statements: str) -> tuple[str, ...]:
    """Words before a command that have these statements run before it."""
    return (sys.executable, "-c", WITH_STATEMENTS, statements)


LONG_LEASES: Final = wrapper("import runtimeproxy.ledger.leases as leases; leases.LEASE_S = 600.0")
"""A lease that outlasts every test. Its claims are not renewed, and a busy machine is slow between steps."""


@dataclass
class KatalystSite:
    """A daemon and its manager, which is not started."""

    runtime: RuntimeProcess
    proxy: ProxyProcess
    manager: ManagerProcess
    kubelet: CriClient
    """Calls of the kubelet."""
    direct: CriClient
    """The runtime itself."""
    daemon: CriClient
    logs: Path
    config: str
    """Of the daemon; the manager's is with plugins."""

    def __post_init__(self) -> None:
        self.objects = NodeObjects(self.proxy.objects_folder)
        self._is_started = False
        self._api = own_grpc.RuntimeProxyStub(self.daemon.channel)

    # --- the manager ---------------------------------------------------------------------------------------

    def configure(self, plugins: Mapping[str, Mapping[str, Any]], more: str = "") -> None:
        """Has the manager, which is started if it does not run, enforce these plugins with these options."""
        tables = [
            f'[plugins.{name}]\nmode = "enforce"\n[plugins.{name}.options]\n'
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
            for name, options in plugins.items()
        ]
        self.proxy.config_file.write_text("\n".join((self.config, *tables, more)))
        if not self._is_started:
            self.manager.start()
            self._is_started = True
            return
        reloads = self._reloads()
        self.manager.signal(signal.SIGHUP)
        # Else the plugins of before may evict pods that run from now on.
        self.wait_until(lambda: self._reloads() > reloads, "the new configuration")

    def _reloads(self) -> int:
        return sum("configuration reloaded" in line for line in self.manager.log)

    def status(self) -> own_pb2.QosManagerStatus:
        found: own_pb2.QosManagerStatus = self._api.GetStatus(
            own_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S
        ).qos_manager
        return found

    def explanation(self, plugin: str) -> str:
        """What a plugin said of its last look; or why it does nothing."""
        found = (each for each in self.status().report.plugins if each.name == plugin)
        return next((each.problem or each.explanation for each in found), "")

    def wait_for(self, plugin: str, text: str) -> str:
        """Waits until a plugin says something with this text, and returns all of it."""
        return self.wait_until(lambda: _with(text, self.explanation(plugin)), f"{plugin}: {text}")

    def wait_until(self, condition: Callable[[], _Result | None], what: str) -> _Result:
        """As `deadline.wait_until`; the error has what manager and status say."""
        try:
            return wait_until(condition, what, PATIENT_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.status()}; {self.manager.log[-5:]}") from None

    def headroom_millicpu(self) -> int | None:
        """What the CustomNodeResource says that `reclaimed_cores` can use now; None: nothing yet."""
        answer = self._api.GetCustomNodeResource(
            own_pb2.GetCustomNodeResourceRequest(), timeout=CALL_TIMEOUT_S
        )
        document = json.loads(answer.report.json or "{}")
        resources = document.get("status", {}).get("resources", {})
        amount = resources.get("allocatable", {}).get(RECLAIMED_MILLICPU)
        return None if amount is None else quantity_of(RECLAIMED_MILLICPU, amount)

    def advice(self) -> dict[str, own_pb2.AdvisedPool]:
        """What counts of an advisor's claims, by pool."""
        node = self._api.GetNode(own_pb2.GetNodeRequest(), timeout=CALL_TIMEOUT_S)
        return {each.pool: each for each in node.katalyst_advice}

    def reclaim_size(self) -> int:
        """The CPUs of the pool `reclaim`."""
        node = self._api.GetNode(own_pb2.GetNodeRequest(), timeout=CALL_TIMEOUT_S)
        return next(len(parse_cpu_list(each.cpus)) for each in node.katalyst_pools if each.name == "reclaim")

    # --- pods ----------------------------------------------------------------------------------------------

    @contextmanager
    def pods(self, *specs: PodSpec) -> Iterator[dict[str, RunningPod]]:
        """Runs pods until the end of the block; they come by name."""
        with ExitStack() as stack:
            yield {each.name: stack.enter_context(self.pod(each)) for each in specs}

    def pod(self, spec: PodSpec) -> AbstractContextManager[RunningPod]:
        return running_pod(self.kubelet, spec, self.logs)

    def container(self, pod: RunningPod) -> api_pb2.ContainerStatus:
        """The runtime's own word."""
        request = api_pb2.ContainerStatusRequest(container_id=pod.container_id())
        found: api_pb2.ContainerStatus = self.direct.runtime.ContainerStatus(
            request, timeout=CALL_TIMEOUT_S
        ).status
        return found

    def running(self, pods: Mapping[str, RunningPod]) -> set[str]:
        """The pods that the runtime says to run, and that the kernel has processes of."""
        return {
            name
            for name, pod in pods.items()
            if self.container(pod).state == api_pb2.CONTAINER_RUNNING and processes(pod)
        }

    def wait_for_eviction(self, pods: Mapping[str, RunningPod], name: str) -> None:
        """Waits until one of some pods is stopped and the audit has it, and sees its processes gone."""
        pod = pods[name]
        self.wait_until(
            lambda: self.container(pod).state == api_pb2.CONTAINER_EXITED, f"the end of the pod {name}"
        )
        # Its entry is written when the runtime has answered, which is later.
        uid = pod.spec.uid
        self.wait_until(
            lambda: any((each.uid, each.after) == (uid, "evicted") for each in self._evictions()),
            f"the entry of the pod {name}",
        )
        assert self.container(pod).exit_code == KILLED
        assert processes(pod) == []
        assert self.running(pods) == pods.keys() - {name}

    def evictions_by(self, plugin: str) -> Sequence[own_pb2.AuditEntry]:
        """All that the audit has of the evictions of a plugin."""
        return [each for each in self._evictions() if each.policy == f"plugin:{plugin}"]

    def _evictions(self) -> Iterator[own_pb2.AuditEntry]:
        answers = self._api.WatchAudit(own_pb2.WatchAuditRequest(), timeout=CALL_TIMEOUT_S)
        return (each for answer in answers for each in answer.entries if each.field == "eviction")


def processes(pod: RunningPod) -> list[int]:
    """The processes of a pod's container; none: its cgroup may be gone."""
    try:
        return cgroup_v1.processes(pod.container_cgroup())
    except FileNotFoundError:
        return []


def _with(text: str, whole: str) -> str:
    return whole if text in whole else ""


def of_level(
    name: str,
    level: str,
    *,
    requests: Mapping[str, str] | None = None,
    tolerance_rate: float | None = None,
    command: tuple[str, ...] = (),
    kube_qos: KubeQos = "besteffort",
    resources: api_pb2.LinuxContainerResources | None = None,
    mounts: Mapping[str, str] | None = None,
) -> PodSpec:
    """A pod of a level of Katalyst's; `requests` are told by its annotation."""
    annotations = {QOS_LEVEL: level}
    if requests is not None:
        annotations[AGGREGATED_REQUESTS] = json.dumps(requests)
    if tolerance_rate is not None:
        annotations[CPU_ENHANCEMENT] = json.dumps({"suppression_tolerance_rate": str(tolerance_rate)})
    container = ContainerSpec(resources=resources or as_resources(BEST_EFFORT), mounts=mounts or {})
    if command:
        container = ContainerSpec(resources=container.resources, mounts=container.mounts, command=command)
    return PodSpec(name, kube_qos, annotations=annotations, containers=(container,))


def using_mib(mib: int) -> tuple[str, ...]:
    """A command that uses so much memory: it has read it, and blocks at a full pipe."""
    return ("/bin/sh", "-c", f"dd if=/dev/zero bs={mib}M count=1 | sleep 1000000")


@contextmanager
def katalyst_site(
    runtime: RuntimeProcess,
    folder: Path,
    logs: Path,
    mode: Mode = "proxy",
    *,
    samples: str = "",
    of_manager: str = "",
) -> Iterator[KatalystSite]:
    """Runs the daemon in this mode.

    Args:
        folder: Of the daemon; its path is short.
        logs: Of pods.
        samples: More of the table `qosmanager`.
        of_manager: More statements that run before the manager.
    """
    kubelet_files(folder / "kubelet", {})
    config = _CONFIG.format(mode=mode, folder=folder, nri_socket=runtime.nri_socket) + samples
    with ExitStack() as stack:
        options = ProxyOptions(str(runtime.socket), config=config, wrapper=wrapper(_OF_DAEMON))
        proxy = stack.enter_context(ProxyProcess(folder, options))
        manager = ManagerProcess(
            folder, proxy.config_file, proxy.socket, wrapper=wrapper(_OF_MANAGER + of_manager)
        )
        stack.callback(manager.close)
        direct = stack.enter_context(CriClient(runtime.socket))
        daemon = stack.enter_context(CriClient(proxy.socket))
        kubelet = daemon if mode == "proxy" else direct
        if mode == "nri":
            wait_until(lambda: "registered with the runtime" in str(proxy.log), "the registration")
        yield KatalystSite(runtime, proxy, manager, kubelet, direct, daemon, logs, config)
