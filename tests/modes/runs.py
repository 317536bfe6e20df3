"""One real runtime, the daemon in one mode beside it, and pods that come and go."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod
from tests.lab.node_objects import NodeObjects, strategy_policies
from tests.lab.pods import PodSpec
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.lab.runtime_process import RuntimeProcess
from tests.modes.first_act import FILE_ONLY, cgroup_values, first_seen, values_now
from tests.modes.pods import BURST_PERCENT, NORMALIZATION_RATIO, POLICY

Mode = Literal["proxy", "nri", "standalone"]
MODES: Final[tuple[Mode, ...]] = ("proxy", "nri", "standalone")
SETTLED_S: Final = 60.0
"""At most, on a busy machine."""
POD: Final = "pod"

Values = Mapping[str, Mapping[str, str]]
"""By `POD-NAME/CONTAINER`, and by `POD-NAME/pod` for the pod's own cgroup: its values."""


@dataclass(frozen=True)
class Node:
    """The daemon of a mode, and the socket for the kubelet's calls."""

    mode: Mode
    daemon: ProxyProcess
    objects: NodeObjects
    client: CriClient

    def is_registered(self) -> bool:
        """Whether the runtime has taken the plugin once, and never dropped it."""
        lines = [line for line in self.daemon.log if "frontends.nri" in line]
        lost = [line for line in lines if "not connected with the runtime" in line]
        return any("registered with the runtime" in line for line in lines) and not lost

    def status(self) -> api_pb2.GetStatusResponse:
        with CriClient(self.daemon.socket) as client:
            api = api_pb2_grpc.RuntimeProxyStub(client.channel)
            return api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)

    def command(self, *words: str) -> str:
        """What a command of the program prints about the daemon."""
        return self.daemon.run(*words).stdout


def burst_strategy(percent: int) -> dict[str, object]:
    strategy = {"policy": "cpuBurstOnly", "cpuBurstPercent": percent}
    return {"cpu-burst-config": {"clusterStrategy": strategy}}


def normalize(objects: NodeObjects, ratio: str) -> None:
    objects.node(annotations={"node.koordinator.sh/cpu-normalization-ratio": ratio})


@contextmanager
def node(
    mode: Mode,
    runtime: RuntimeProcess,
    policies: Mapping[str, str] | None = None,
    config: str = "",
    *,
    learns_owners: bool = False,
) -> Iterator[Node]:
    """Runs the daemon in this mode, with strategies for all that the policies of Koordinator can do here.

    Args:
        mode: Of the daemon.
        runtime: Which has NRI switched on.
        policies: The texts of more policies by their names.
        config: More of the configuration.
        learns_owners: Whether the runtime tells which plugin has set which field.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="modes-", dir="/tmp")))
        # Of HAMi, whose limits need it; the same one in each mode.
        library = runtime.folder / "libvgpu.so"
        library.touch()
        text = (
            f'[daemon]\nmode = "{mode}"\nlock = "{folder}/front-end.lock"\n'
            f'[nri]\nsocket = "{runtime.nri_socket}"\nlearn_owners = {str(learns_owners).lower()}\n'
            f"{strategy_policies(enabled=True)}"
            f'[policies.gpu-env.options]\nhami_library_path = "{library}"\n{config}'
        )
        daemon = ProxyProcess(folder, ProxyOptions(str(runtime.socket), config=text))
        objects = NodeObjects(daemon.objects_folder)
        normalize(objects, NORMALIZATION_RATIO)
        objects.strategies(burst_strategy(BURST_PERCENT))
        daemon.policies_folder.mkdir()
        for name, body in {"lab": POLICY, **(policies or {})}.items():
            (daemon.policies_folder / f"{name}.py").write_text(body)
            (daemon.policies_folder / f"{name}.py").chmod(0o644)
        stack.enter_context(daemon)
        if mode == "nri":
            wait_until(lambda: any("registered with the runtime" in line for line in daemon.log), "NRI")
        client = stack.enter_context(CriClient(daemon.socket if mode == "proxy" else runtime.socket))
        yield Node(mode, daemon, objects, client)


@contextmanager
def running(
    client: CriClient,
    specs: Sequence[PodSpec],
    logs: Path,
    cgroup_prefix: str = "",
    remover: CriClient | None = None,
) -> Iterator[list[RunningPod]]:
    """Runs pods one after another, and waits until their programs have written what they see first.

    `remover` removes them, if `client` may be gone then.
    """
    with ExitStack() as stack:
        pods = [
            stack.enter_context(
                running_pod(client, spec, logs, kubelet_files(spec), cgroup_prefix, remover=remover)
            )
            for spec in specs
        ]
        for pod in pods:
            for name in pod.container_ids:
                wait_until(output_of(pod, name).exists, f"{pod.spec.name}/{name}")
        yield pods


def output_of(pod: RunningPod, container: str) -> Path:
    """Where the program of a container writes."""
    (spec,) = (each for each in pod.spec.containers if each.name == container)
    return Path(spec.mounts["/lab/out"]) / container


def kubelet_files(spec: PodSpec) -> dict[str, str]:
    """What the kubelet writes to the pod's cgroup."""
    requested = spec.containers[0].resources
    quota_us = requested.cpu_quota * len(spec.containers)
    return {"cpu.shares": str(requested.cpu_shares), "cpu.cfs_quota_us": str(quota_us or -1)}


def values(pods: Sequence[RunningPod]) -> dict[str, Mapping[str, str]]:
    """The values of all cgroups of pods and containers now."""
    found: dict[str, Mapping[str, str]] = {}
    for pod in pods:
        found[f"{pod.spec.name}/{POD}"] = cgroup_values(pod.spec.cgroup_parent)
        for name in pod.container_ids:
            now = values_now(pod.container_cgroup(name), pod.main_pid(name))
            found[f"{pod.spec.name}/{name}"] = now
    return found


def first_values(pods: Sequence[RunningPod]) -> dict[str, Mapping[str, str]]:
    """What the programs have seen first."""
    return {
        f"{pod.spec.name}/{name}": first_seen(output_of(pod, name))
        for pod in pods
        for name in pod.container_ids
    }


def settled(pods: Sequence[RunningPod], is_right: Callable[[Values], bool]) -> tuple[Values, float]:
    """Waits for the values; returns them, right or not, and how long that took."""
    began_s = time.monotonic()
    while not is_right(found := values(pods)) and time.monotonic() - began_s < SETTLED_S:
        time.sleep(0.05)
    return found, time.monotonic() - began_s


def merged(final: Values, first: Values) -> dict[str, Mapping[str, str]]:
    """What should have been there first: what is there in the end, and what is read once only."""
    return {place: {**each, **final[place]} for place, each in first.items()}


def differences(found: Values, wanted: Values) -> list[str]:
    """What is not as it should be, one line each."""
    return [
        f"{place} {name}: {found.get(place, {}).get(name)}, not {value}"
        for place, each in wanted.items()
        for name, value in each.items()
        if found.get(place, {}).get(name) != value
    ]


# --- what modes may differ in ------------------------------------------------------------------------------


def is_of_table(mode: Mode, place: str, name: str, *, at_first: bool) -> bool:
    """Whether a mode may lack a value by the table of modes.

    Proxy: files that no message carries are written once the program runs. Stand-alone: all is written then;
    what only a creation carries is missing, as the limit of memory and swap that runtimes add to a limit of
    memory, and on cgroup v1 the pod's quota stays that with which the kubelet starts its containers.
    """
    if mode == "proxy":
        return at_first and name in FILE_ONLY
    if mode == "nri":
        return False
    is_creation = name.startswith(("env:", "path:", "memory/memory.memsw."))
    return at_first or is_creation or (place.endswith(f"/{POD}") and name == "cpu/cpu.cfs_quota_us")


def unexplained(found: Values, wanted: Values, mode: Mode, *, at_first: bool = False) -> list[str]:
    """What a mode lacks of these values, other than by the table."""
    due = {
        place: {
            name: value
            for name, value in each.items()
            if not is_of_table(mode, place, name, at_first=at_first)
        }
        for place, each in wanted.items()
    }
    return differences(found, due)
