"""A node whose daemon gives start-up boosts: a real runtime, an API server, and the daemon in one mode."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from cri_api.runtimeproxy.v1 import api_pb2 as api
from cri_api.runtimeproxy.v1 import api_pb2_grpc
from tests.kubernetes.api_server import ApiServer
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod
from tests.lab.pods import NAMESPACE
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.lab.runtime_process import RuntimeProcess

QUOTA: Final = "cpu.cfs_quota_us"
IDLE_CPUS: Final = 8
"""Of `idle_procfs`."""
_NODE: Final = "boosts"
_CONFIG: Final = """
[daemon]
mode = "{mode}"
lock = "{folder}/front-end.lock"
[nri]
socket = "{nri}"
[policies.startup-boost]
enabled = true
[kubernetes]
enabled = true
kubeconfig = "{kubeconfig}"
[slo]
start_spread_s = 0
[node]
name = "{node}"
procfs_root = "{procfs}"
"""


class BoostNode:
    """Runs until the stack ends; pods are made through `client`.

    Args:
        stack: Ends it.
        folder: For all files.
        runtime: Has NRI switched on in mode `nri`.
        mode: Of the daemon.
        procfs: Where the daemon finds how idle the CPUs are.
        wrapper: Words before the daemon's command.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        runtime: RuntimeProcess,
        mode: str,
        procfs: Path,
        wrapper: tuple[str, ...] = (),
    ) -> None:
        self.runtime = runtime
        self.server = stack.enter_context(ApiServer())
        self.server.put("/api/v1/namespaces/koordinator-system/configmaps", "slo-controller-config", data={})
        self.server.put("/api/v1/nodes", _NODE, status={})
        config = _CONFIG.format(
            mode=mode,
            folder=folder,
            nri=runtime.nri_socket,
            kubeconfig=self.server.kubeconfig(folder),
            node=_NODE,
            procfs=procfs,
        )
        self.daemon = stack.enter_context(
            ProxyProcess(folder, ProxyOptions(str(runtime.socket), config=config, wrapper=wrapper))
        )
        socket = self.daemon.socket if mode == "proxy" else runtime.socket
        self.client = stack.enter_context(CriClient(socket))
        self._is_nri = mode == "nri"
        self._sequences: dict[str, int] = {}
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Waits until the daemon knows what runs, and hears of what starts."""
        wait_until(lambda: self.status().records.is_recovered, "the records")
        if self._is_nri:
            wait_until(lambda: self.status().nri.is_connected, "the runtime")

    def status(self) -> api.GetStatusResponse:
        with CriClient(self.daemon.socket) as client:
            stub = api_pb2_grpc.RuntimeProxyStub(client.channel)
            return stub.GetStatus(api.GetStatusRequest(), timeout=CALL_TIMEOUT_S)

    @property
    def starts(self) -> api.StartsStatus:
        """Openings and boosts."""
        return self.status().ledger.starts

    def put_pod(self, pod: RunningPod, *, is_ready: bool) -> None:
        """Sets what the API server says of it."""
        status = {"name": "main", "ready": is_ready, "containerID": f"containerd://{pod.container_id()}"}
        self.server.put(
            "/api/v1/pods",
            pod.spec.name,
            metadata={"namespace": NAMESPACE, "uid": pod.spec.uid, "annotations": dict(pod.spec.annotations)},
            spec={"nodeName": _NODE, "containers": [{"name": "main", "readinessProbe": {"exec": {}}}]},
            status={"phase": "Running", "containerStatuses": [status]},
        )

    def report_waiting(self, uids: Sequence[str]) -> None:
        """What cpu-guard says of pods that wait for CPUs."""
        self.set_claims("cpu-guard", waiting_pods=uids)

    def set_claims(
        self, owner: str, claims: Sequence[api.Claim] = (), waiting_pods: Sequence[str] = ()
    ) -> api.SetClaimsResponse:
        """Sets all claims of an owner."""
        self._sequences[owner] = self._sequences.get(owner, 0) + 1
        request = api.SetClaimsRequest(
            owner=owner,
            session="lab",
            sequence=self._sequences[owner],
            is_whole=True,
            claims=claims,
            waiting_pods=waiting_pods,
        )
        with CriClient(self.daemon.socket.parent / "admin" / "api.sock") as client:
            return api_pb2_grpc.AdminStub(client.channel).SetClaims(request, timeout=CALL_TIMEOUT_S)


def idle_procfs(folder: Path) -> Path:
    """Makes a procfs in this folder by which all of `IDLE_CPUS` have been idle since the boot."""
    made = folder / "proc"
    made.mkdir()
    lines = (f"cpu{each} 0 0 0 100" for each in range(IDLE_CPUS))
    (made / "stat").write_text("\n".join([f"cpu  0 0 0 {100 * IDLE_CPUS} 0 0 0 0 0 0", *lines, ""]))
    return made
