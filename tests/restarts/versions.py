"""Restarts that change the version: another installation of the program, and this one, in turn.

Pods of all QoS classes run with strategies, claims and a hook server. No restart may change a value of
theirs, and each version must explain the values as the other does.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import grpc
import inotify_simple
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc, plugin_pb2, plugin_pb2_grpc
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.testing.builders import KubeletQos, pod_sandbox_config
from tests.daemon.driving import BATCH
from tests.hooks.remote.behaviours import OVERLAY
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.busy_node import BusyPod
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects, kubelet_files, strategy_policies
from tests.lab.proxy_process import ManagerProcess
from tests.node.objects_of import NODE_NAME, Machine
from tests.restarts.figures import Window
from tests.restarts.load import Client
from tests.restarts.proxy_restarts import Report, report_under_load
from tests.restarts.stands import Stand
from tests.restarts.supervisors import Kind, Supervisor, supervised

KINDS: Final = (Kind.UPGRADE, Kind.SIGTERM, Kind.KILL)
VARIABLE: Final = "KOORD_RUNTIMEPROXY_OTHER_VERSION"
"""Names the virtual environment with the other version for tests; without it they take this one, too."""
_SETTLED_S: Final = 60.0
"""At most, on a busy machine."""
_CORES: Final = 8
_PERCENT: Final = 25
_SUPPRESSED_QUOTA: Final = str(_CORES * _PERCENT * 1_000)
_REQUEST_BYTES: Final = 64 * 1024 * 1024
_HIGH_BYTES: Final = 512 * 1024 * 1024
_BURST_US: Final = 30_000
_CONFIG: Final = """
[node]
kubelet_dir = "{folder}/kubelet"
sysfs_root = "{sysfs}"
name = "{node}"
shared_pools = "computed"
[qosmanager]
interval_s = 0.2
[owners.own]
allow = ["memory.high at_most pod", "cpu.cfs_burst_us set container"]
[plugins.own]
endpoint = "{folder}/own.sock"
mode = "enforce"
[audit]
file = "{folder}/audit.jsonl"
[plugins.profiling]
mode = "enforce"
"""
_STRATEGIES: Final[dict[str, object]] = {
    "resource-threshold-config": {
        "clusterStrategy": {
            "enable": True,
            "cpuSuppressPolicy": "cfsQuota",
            # The floor, whatever the load of the machine.
            "cpuSuppressThresholdPercent": 1,
            "cpuSuppressMinPercent": _PERCENT,
        }
    },
    "cpu-burst-config": {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 50}},
    "resource-qos-config": {
        "clusterStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}}
    },
    "cpu-normalization-config": {"enable": True, "defaultRatio": 1.25},
}
_OF_GRPCIO: Final = "grpc._cython.cygrpc"
"""In errors of versions whose server is grpcio's, if they end while the manager watches pods."""
_RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
_PODS: Final = {
    "be": ("BE", KubeletQos.BESTEFFORT, BATCH),
    "ls": ("LS", KubeletQos.BURSTABLE, {OVERLAY: json.dumps({"cpu_shares": 700})}),
    "lsr": ("LSR", KubeletQos.GUARANTEED, {_RESOURCE_STATUS: json.dumps({"cpuset": "2-3"})}),
    "lse": ("LSE", KubeletQos.GUARANTEED, {_RESOURCE_STATUS: json.dumps({"cpuset": "4"})}),
    "plain": ("", KubeletQos.BURSTABLE, {}),
}
"""By name: QoS class, the kubelet's, annotations."""
_OF_THE_MOMENT: Final = frozenset(
    {"time", "leaseEnd", "since", "containerId", "unapplied", "reason", "strategies"}
)
_MEASURED: Final = re.compile(r"\d+\.\d+(?= cores|,|$)")
"""These differ from one answer to the next; reasons are for people, and they, and the strategies that they
name, differ from version to version."""


@dataclass(frozen=True)
class VersionsReport:
    """What came out of it.

    Attributes:
        report: what clients have seen.
        files: how many were watched.
        writes: how often one of them was written.
        faults: values that changed, and what the versions say of them in different ways.
    """

    report: Report
    files: int
    writes: int
    faults: Sequence[str]


class CgroupWatch:
    """Follows the values of all files of some cgroups that are there, from `with` to the end of its block."""

    def __init__(self, root: Path, cgroups: Sequence[str]) -> None:
        self.writes = 0
        self.changes: list[str] = []
        self._inotify = inotify_simple.INotify()
        self._folders = {
            self._inotify.add_watch(root / cgroup, inotify_simple.flags.CLOSE_WRITE): root / cgroup
            for cgroup in cgroups
        }
        self._values = {
            file: file.read_text()
            for folder in self._folders.values()
            for file in folder.iterdir()
            if file.is_file()
        }
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    @property
    def files(self) -> int:
        return len(self._values)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._inotify.close()

    def _follow(self) -> None:
        while not self._is_over.is_set():
            for event in self._inotify.read(timeout=100):
                self._look(self._folders[event.wd] / event.name)

    def _look(self, file: Path) -> None:
        self.writes += 1
        # Empty while the next write is on its way, which has an event of its own.
        value, before = file.read_text(), self._values.get(file, "")
        if value and value != before:
            self._values[file] = value
            name = "/".join(file.parts[-2:])
            self.changes.append(f"{name}: {before.strip()!r} became {value.strip()!r}")


class Claiming(plugin_pb2_grpc.QoSPluginServicer):
    """A plugin of the QoS manager that claims what it is told to."""

    def __init__(self) -> None:
        self.claims: list[api_pb2.Claim] = []

    def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        return plugin_pb2.DescribeResponse(interval=Duration(nanos=200_000_000))

    def Decide(self, request: Any, context: Any) -> Any:  # noqa: N802
        return plugin_pb2.DecideResponse(claims=self.claims)


class VersionsNode:
    """A daemon and a manager of one version or the other; a supervisor that changes the version."""

    def __init__(
        self,
        stand: Stand,
        kind: Kind,
        daemon: Supervisor,
        manager: ManagerProcess,
        claiming: Claiming,
        programs: Programs,
    ) -> None:
        self.socket = daemon.socket
        self.pods: list[BusyPod] = []
        self.faults: list[str] = []
        self._kind = kind
        self._daemon = daemon
        self._manager = manager
        self._claiming = claiming
        self._programs = programs
        self._cgroups = stand.folder / "cgroup"
        self._audit_file = stand.folder / "audit.jsonl"
        self._audited = 0
        self._said: dict[str, Any] = {}

    def fill(self, files: CgroupFiles) -> None:
        """Runs the pods."""
        with CriClient(self.socket) as client:
            client.wait_until_serving(30)
            for name, (qos, kubelet_qos, annotations) in _PODS.items():
                config = pod_sandbox_config(
                    name, qos=qos, kubelet_qos=kubelet_qos, uid=f"uid-{name}", annotations=annotations
                )
                files.make(config.linux.cgroup_parent)
                pod = BusyPod(client, config)
                pod.run().create().start()
                self.pods.append(pod)

    def cgroups(self) -> list[str]:
        """Those of the pods, of their containers, and of the QoS classes."""
        parents = [pod.config.linux.cgroup_parent.strip("/") for pod in self.pods]
        containers = [f"{parent}/{pod.container}" for parent, pod in zip(parents, self.pods, strict=True)]
        return ["kubepods", "kubepods/burstable", "kubepods/besteffort", *parents, *containers]

    def claim(self, high_bytes: int) -> None:
        """Has the plugin claim a bound of the first pod's memory, and waits until all claims are in force."""
        be, ls, *_ = self.pods
        self._claiming.claims = [
            _claim("memory.high", "AT_MOST", high_bytes, pod_uid=be.config.metadata.uid),
            _claim("cpu.cfs_burst_us", "SET", _BURST_US, container_id=ls.container),
        ]
        self._wait_for(be.config.linux.cgroup_parent, "memory.high", str(high_bytes))
        self._wait_for(f"{ls.config.linux.cgroup_parent}/{ls.container}", "cpu.max.burst", str(_BURST_US))
        self._wait_for("kubepods/besteffort", "cpu.max", _SUPPRESSED_QUOTA)

    def settle(self) -> None:
        """Restarts the version that runs, and remembers what it says of all values."""
        request = api_pb2.SetPolicyModeRequest(policy="gpu-env", mode=api_pb2.MODE_DRY_RUN)
        with CriClient(self._manager.folder / "admin" / "api.sock") as client:
            api_pb2_grpc.AdminStub(client.channel).SetPolicyMode(request, timeout=CALL_TIMEOUT_S)
        self._daemon.restart()
        self._restart_manager()
        self._said = self._answers()
        self._audited = len(self._audit_file.read_text())

    def restart(self) -> Window:
        """Starts the other version of the daemon, then of the manager."""
        version = self._programs.change()
        window = self._daemon.restart()
        self._compare(f"{version}, the manager not yet")
        self._restart_manager()
        self._compare(version)
        return window

    def complaints(self) -> list[str]:
        """The errors in the logs of all processes, and what is no record, such as a traceback."""
        wrong = [line for line in self._manager.log if not line.startswith("{") or '"level":"error"' in line]
        return [line for line in [*self._daemon.complaints(), *wrong] if _OF_GRPCIO not in line]

    def audit(self) -> list[str]:
        """What the audit file says of the pods since they were settled."""
        text = self._audit_file.read_text()[self._audited :]
        entries = map(json.loads, text.splitlines())
        return [
            f"audit: {each}" for each in entries if _is_change(each) and each.get("uid") in self._said["pods"]
        ]

    def _restart_manager(self) -> None:
        if self._kind is Kind.KILL:
            self._manager.kill()
        else:
            self._manager.terminate()
        self._manager.forget_states()
        self._manager.start()
        self._manager.wait_for_state("STATUS=cpu-suppress: ", _SETTLED_S)

    def _wait_for(self, cgroup: str, name: str, value: str) -> None:
        file = self._cgroups / cgroup.lstrip("/") / name
        wait_until(lambda: file.read_text().split()[:1] == [value], f"{value} in {file}", _SETTLED_S)

    def _compare(self, version: str) -> None:
        """Waits until this version says the same of the values."""
        found: dict[str, Any] = {}

        def is_same() -> bool:
            nonlocal found
            found = self._answers()
            return not list(_differences(found, self._said))

        try:
            wait_until(is_same, "the same answers", _SETTLED_S)
        except TimeoutError:
            self.faults += (f"{version}: {each}" for each in _differences(found, self._said))

    def _answers(self) -> dict[str, Any]:
        """What the daemon says of all values, and of where they come from."""
        with CriClient(self.socket) as client:
            client.wait_until_serving(30)
            api = api_pb2_grpc.RuntimeProxyStub(client.channel)
            uids = [pod.config.metadata.uid for pod in self.pods]
            pods = [api.Explain(api_pb2.ExplainRequest(pod=uid), timeout=CALL_TIMEOUT_S) for uid in uids]
            status = api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)
        return {
            "pods": {uid: _lasting(MessageToDict(pod)) for uid, pod in zip(uids, pods, strict=True)},
            "modes": {each.name: each.mode for each in status.policies},
            "hook servers": [each.name for each in status.hook_servers],
            "claims": {each.name: (each.mode, each.claims) for each in status.claim_owners},
            "problems": list(status.problems),
        }


def _is_change(entry: Mapping[str, Any]) -> bool:
    return any(change["kind"] == "changed" for change in entry["changes"])


def _lasting(value: Any) -> Any:
    """An answer without what is of the moment."""
    if isinstance(value, dict):
        return {name: _lasting(each) for name, each in value.items() if name not in _OF_THE_MOMENT}
    if isinstance(value, str):
        return _MEASURED.sub("N", value)
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def _differences(found: Any, wanted: Any, path: str = "") -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        # A newer version may say more.
        for name, each in wanted.items():
            yield from _differences(found.get(name), each, f"{path}.{name}")
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from _differences(one, other, f"{path}[{number}]")
    elif found != wanted:
        yield f"{path.lstrip('.')}: {found!r}, not {wanted!r}"


class Programs:
    """A link to the virtual environment whose program is started; the first is the other version's."""

    def __init__(self, link: Path, other: Path, this: Path) -> None:
        self._link = link
        self._folders = {"the other version": other, "this version": this}
        self._is_this = False
        link.symlink_to(other)

    @property
    def are_one(self) -> bool:
        return len(set(self._folders.values())) == 1

    @property
    def python(self) -> str:
        return str(self._link / "bin" / "python")

    def change(self) -> str:
        """Links to the one that is not linked, and returns what it is."""
        self._is_this = not self._is_this
        name = ("the other version", "this version")[self._is_this]
        fresh = self._link.with_suffix(".new")
        fresh.symlink_to(self._folders[name])
        fresh.replace(self._link)
        return name


def restarted_as_other(
    stand: Stand, kind: Kind, restarts: int, clients: Sequence[Client], other: Path, this: Path
) -> VersionsReport:
    """Restarts daemon and manager under the load of all clients; each restart changes the version.

    `other` and `this` are virtual environments; `other` is the first one.
    """
    files = CgroupFiles(stand.folder / "cgroup", version=2)
    programs = Programs(stand.folder / "program", other, this)
    with (
        _versions_node(stand, kind, programs, files) as node,
        CgroupWatch(files.root, node.cgroups()) as watch,
    ):
        report = report_under_load(stand, node, kind, restarts, clients)
        faults = [*node.faults, *watch.changes, *node.audit()]
        node.claim(_HIGH_BYTES // 2)
        wait_until(lambda: len(watch.changes) > 0, "the change of a claim", _SETTLED_S)
        return VersionsReport(report, watch.files, watch.writes, faults)


@contextmanager
def _versions_node(
    stand: Stand, kind: Kind, programs: Programs, files: CgroupFiles
) -> Iterator[VersionsNode]:
    requests = {(f"uid-{name}", "main"): {"memory": str(_REQUEST_BYTES)} for name in _PODS}
    kubelet_files(stand.folder / "kubelet", requests)
    machine = Machine(stand.folder / "machine")
    for cgroup in ("/kubepods/burstable", "/kubepods/besteffort"):
        files.make(cgroup)
    config = _CONFIG.format(folder=stand.folder, sysfs=machine.sysfs, node=NODE_NAME)
    if programs.are_one:
        # Pods that start would lift a bound that is watched; older versions do not know the key.
        config += '[ledger]\nopenings = "off"\n'
    # Else the folder in which the tests run would come first, which has this version.
    environment = {**stand.environment, "PYTHONSAFEPATH": "1"}
    options = replace(
        stand.proxy_options(),
        config=config + strategy_policies(enabled=True),
        environment=environment,
        python=programs.python,
    )
    with ExitStack() as stack:
        claiming = stack.enter_context(_claiming(stand.folder / "own.sock"))
        server = stack.enter_context(HookServerProcess(stand.folder / "hook.sock"))
        daemon = stack.enter_context(supervised(kind, stand.folder, options))
        folder = stand.folder / kind
        objects = NodeObjects(folder / "node.d", NODE_NAME)
        objects.node(capacity={"cpu": str(_CORES), "memory": "16Gi"})
        objects.strategies(_STRATEGIES)
        server.register(folder / "hooks", "server.json", "PreRunPodSandbox", "PreCreateContainer")
        endpoint = folder / "proxy.sock"
        manager = ManagerProcess(folder, folder / "config.toml", endpoint, environment, programs.python)
        node = VersionsNode(stand, kind, daemon, manager, claiming, programs)
        node.fill(files)
        stack.enter_context(manager)
        node.claim(_HIGH_BYTES)
        node.settle()
        yield node


@contextmanager
def _claiming(path: Path) -> Iterator[Claiming]:
    service = Claiming()
    server = grpc.server(ThreadPoolExecutor(1))
    plugin_pb2_grpc.add_QoSPluginServicer_to_server(service, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield service
    server.stop(None).wait()


def _claim(field: str, role: str, value: int, **target: str) -> api_pb2.Claim:
    key = api_pb2.ClaimKey(
        target=api_pb2.ClaimTarget(**target),
        field=field,
        role=api_pb2.ExplainedClaim.Role.Value(f"ROLE_{role}"),
    )
    return api_pb2.Claim(key=key, value=str(value), reason="as the test says")
