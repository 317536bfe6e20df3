"""The kubelet's own files: configuration, states of its managers, resources of the pods that it admitted.

Checksums are ignored: they are of Go's own picture of the data. Source: kubelet.config.k8s.io/v1beta1
KubeletConfiguration; Kubernetes pkg/kubelet/cm/cpumanager/state, pkg/kubelet/cm/memorymanager/state and
pkg/kubelet/allocation/state.

What a kubelet with the feature MemoryQoS writes, on cgroup version 2 only, depends on its version. Source:
Kubernetes 1.34.2, 1.35.0, 1.36.0, 1.37.2, pkg/features and pkg/kubelet, cm and kuberuntime:

- Up to 1.35 the feature is off by default. When on, `memory.min` is the memory request of each container (in
  `unified` of the message) and pod, and each minute the sum of the requests in the cgroups of all pods and of
  Burstable pods. `memory.high` of containers follows from `memoryThrottlingFactor`, 0.9 by default.
- 1.36: off by default. `memoryReservationPolicy` is None or TieredReservation. With the latter Guaranteed
  pods and containers have `memory.min`, Burstable ones `memory.low`; with the former containers have 0. Each
  minute `memory.min` of all pods, and `memory.low` of Burstable pods, is a sum, or 0 with None.
- From 1.37 on it is on by default, with None and without a factor (no `memory.high`). With TieredReservation
  the cgroup of all pods has `memory.low`, too, and a pod with a limit of its own `memory.high`. With None the
  cgroups of QoS classes are set to 0 at the kubelet's start only; so they are where the feature is off, and
  then each container has `memory.high: max`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtimeproxy.documents.reading import (
    InputError,
    cpus_of,
    mapping_of,
    parse_documents,
    parse_json,
    printable,
    quantities_of,
    shortened,
    text_of,
    within,
)
from runtimeproxy.node.input_file import ParsedInput, WatchedFile
from runtimeproxy.node.machine import CGROUPFS, SYSTEMD
from runtimeproxy.node.objects import TopologyFacts
from runtimeproxy.node.snapshot import EMPTY, KubeletFacts
from runtimeproxy.qos import KubeQoSClass

CONFIG: Final = "config.yaml"
"""Source: kubeadm, KubeletConfigurationFileName."""
CPU_MANAGER_STATE: Final = "cpu_manager_state"
MEMORY_MANAGER_STATE: Final = "memory_manager_state"
"""Kubernetes 1.21 and later."""
ALLOCATED_PODS_STATE: Final = "allocated_pods_state"
"""Kubernetes 1.33 and later."""
MAX_BYTES: Final = {
    CONFIG: 2**20,
    CPU_MANAGER_STATE: 2**22,
    MEMORY_MANAGER_STATE: 2**22,
    ALLOCATED_PODS_STATE: 2**24,
}
"""Largest file of each name that is read: thousands of pods have a few MiB."""

_CPU_MANAGER_POLICIES: Final = ("none", "static")
_MEMORY_MANAGER_POLICIES: Final = ("None", "Static", "BestEffort")
_MEMORY_QOS, _ALL_ALPHA, _ALL_BETA = _GATES = ("MemoryQoS", "AllAlpha", "AllBeta")
_TIERED: Final = "TieredReservation"
_BETA_MINOR: Final = 37
"""From Kubernetes 1.37 on MemoryQoS is beta, and on by default."""
_DISTINCT_MINORS: Final = (35, 36, 37)
"""One of each range of versions that treat the cgroups of QoS classes alike."""


class KubeletConfig(NamedTuple):
    """The used fields of a kubelet configuration; None: not set."""

    cgroup_driver: str | None = None
    cpu_manager_policy: str | None = None
    memory_manager_policy: str | None = None
    reserved_cpus: frozenset[int] = frozenset()
    reserved: Mapping[str, int] = EMPTY
    """`kubeReserved` and `systemReserved` together, in the units of `Node.capacity`."""
    feature_gates: Mapping[str, bool] = EMPTY
    """The gates of `_GATES` that it sets."""
    memory_reservation_policy: str | None = None


class CpuManagerState(NamedTuple):
    """Policy and allocations of the kubelet's CPU manager."""

    policy: str | None = None
    static_cpus: Mapping[tuple[str, str], frozenset[int]] = EMPTY
    """By pod uid and container name."""


def parse_config(document: object) -> KubeletConfig:
    """Reads a KubeletConfiguration. Raises InputError."""
    config = mapping_of(document)
    _choice(config, "kind", ("KubeletConfiguration",))
    with within("reservedSystemCPUs"):
        reserved_cpus = cpus_of(config.get("reservedSystemCPUs"))
    reserved: dict[str, int] = {}
    for key in ("kubeReserved", "systemReserved"):
        with within(key):
            for name, amount in quantities_of(config.get(key)).items():
                reserved[name] = reserved.get(name, 0) + amount
    return KubeletConfig(
        cgroup_driver=_choice(config, "cgroupDriver", (SYSTEMD, CGROUPFS)),
        cpu_manager_policy=_choice(config, "cpuManagerPolicy", _CPU_MANAGER_POLICIES),
        memory_manager_policy=_choice(config, "memoryManagerPolicy", _MEMORY_MANAGER_POLICIES),
        reserved_cpus=reserved_cpus,
        reserved=reserved,
        feature_gates=_gates(config),
        memory_reservation_policy=_choice(config, "memoryReservationPolicy", ("None", _TIERED)),
    )


def parse_cpu_manager_state(document: object) -> CpuManagerState:
    """Reads `cpu_manager_state`, without the entries of before Kubernetes 1.18. Raises InputError."""
    state = mapping_of(document)
    with within("policyName"):
        policy = text_of(state.get("policyName"))
        if not policy:
            raise InputError("is missing")
    static: dict[tuple[str, str], frozenset[int]] = {}
    with within("entries"):
        for uid, containers in mapping_of(state.get("entries")).items():
            if isinstance(containers, str):
                continue
            with within(shortened(uid)):
                for name, cpus in mapping_of(containers).items():
                    with within(shortened(name)):
                        static[uid, name] = cpus_of(cpus)
    return CpuManagerState(policy=policy, static_cpus=static)


def parse_memory_manager_state(document: object) -> str:
    """Reads the policy in `memory_manager_state`. Raises InputError."""
    with within("policyName"):
        policy = text_of(mapping_of(document).get("policyName"))
        if not policy:
            raise InputError("is missing")
    return policy


def parse_allocated_pods(document: object) -> dict[tuple[str, str], dict[str, int]]:
    """Reads requests by pod uid and container name from `allocated_pods_state`. Raises InputError."""
    outer = mapping_of(document)
    if "data" not in outer:
        raise InputError("is missing", "data")
    requests: dict[tuple[str, str], dict[str, int]] = {}
    with within("data"):
        # JSON in a text of JSON. Newer kubelets add the pods as protobuf, and keep these entries.
        state = mapping_of(parse_json(text_of(outer["data"])))
        with within("entries"):
            for uid, pod in mapping_of(state.get("entries")).items():
                with within(shortened(uid)):
                    containers = mapping_of(pod).get("ContainerResources")
                    with within("ContainerResources"):
                        for name, resources in mapping_of(containers).items():
                            with within(shortened(name)), within("requests"):
                                requests[uid, name] = quantities_of(mapping_of(resources).get("requests"))
    return requests


def class_memory(config: KubeletConfig, version: str) -> dict[KubeQoSClass, frozenset[str]]:
    """The parameters that a kubelet writes to the cgroups of QoS classes each minute.

    If the version, such as `v1.37.2`, is not known: all that some version writes.
    """
    found = re.match(r"v1\.(\d+)", version)
    minors = _DISTINCT_MINORS if found is None else (int(found[1]),)
    written: dict[KubeQoSClass, frozenset[str]] = {}
    for minor in minors:
        for qos, names in _class_memory_of(config, minor).items():
            written[qos] = written.get(qos, frozenset()).union(names)
    return written


def _class_memory_of(config: KubeletConfig, minor: int) -> Mapping[KubeQoSClass, tuple[str, ...]]:
    """That of Kubernetes 1.`minor`."""
    is_beta = minor >= _BETA_MINOR
    of_stage = config.feature_gates.get(_ALL_BETA if is_beta else _ALL_ALPHA, is_beta)
    if not config.feature_gates.get(_MEMORY_QOS, of_stage):
        return EMPTY
    if minor < 36:
        return {KubeQoSClass.GUARANTEED: ("memory.min",), KubeQoSClass.BURSTABLE: ("memory.min",)}
    if not is_beta:
        return {KubeQoSClass.GUARANTEED: ("memory.min",), KubeQoSClass.BURSTABLE: ("memory.low",)}
    if config.memory_reservation_policy != _TIERED:
        return EMPTY
    return {KubeQoSClass.GUARANTEED: ("memory.min", "memory.low"), KubeQoSClass.BURSTABLE: ("memory.low",)}


def _gates(config: Mapping[str, Any]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    with within("featureGates"):
        gates = mapping_of(config.get("featureGates"))
        for name in _GATES:
            is_on = gates.get(name)
            if isinstance(is_on, bool):
                found[name] = is_on
            elif is_on is not None:
                raise InputError("is neither true nor false", name)
    return found


def _choice(config: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str | None:
    value = config.get(key)
    if value is None or value == "":
        return None
    if value not in choices:
        raise InputError(f"is {shortened(repr(value))}, not {' or '.join(choices)}", key)
    return str(value)


Requests = Mapping[tuple[str, str], Mapping[str, int]]

_CONFIG_KEYS = (
    "kind",
    "cgroupDriver",
    "cpuManagerPolicy",
    "memoryManagerPolicy",
    "reservedSystemCPUs",
    "kubeReserved",
    "systemReserved",
    "featureGates",
    "memoryReservationPolicy",
)


class KubeletFolder:
    """The kubelet's files, watched in one thread at a time; the folder may be missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The kubelet replaces its states as a whole.
        self.config: WatchedFile[KubeletConfig] = WatchedFile(
            folder / CONFIG, MAX_BYTES[CONFIG], _read_config
        )
        self.cpu_manager: WatchedFile[CpuManagerState] = WatchedFile(
            folder / CPU_MANAGER_STATE, MAX_BYTES[CPU_MANAGER_STATE], _read_cpu_manager, settle_s=0
        )
        self.memory_manager: WatchedFile[str] = WatchedFile(
            folder / MEMORY_MANAGER_STATE,
            MAX_BYTES[MEMORY_MANAGER_STATE],
            _read_memory_manager,
            settle_s=0,
        )
        self.allocated_pods: WatchedFile[Requests] = WatchedFile(
            folder / ALLOCATED_PODS_STATE,
            MAX_BYTES[ALLOCATED_PODS_STATE],
            lambda data, _: ParsedInput(parse_allocated_pods(parse_json(data))),
            settle_s=0,
        )
        self._files: tuple[WatchedFile[Any], ...] = (
            self.config,
            self.cpu_manager,
            self.memory_manager,
            self.allocated_pods,
        )

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(text for file in self._files for text in (*file.problems, file.withdrawal) if text)

    @property
    def wait_s(self) -> float | None:
        return min((file.wait_s for file in self._files if file.wait_s is not None), default=None)

    @property
    def needs_polling(self) -> bool:
        return not all(file.is_watchable for file in self._files)

    @property
    def is_unknown(self) -> bool:
        return self.config.is_unknown or self.cpu_manager.is_unknown

    def look(self, now_s: float, *, is_first: bool = False) -> None:
        for file in self._files:
            file.look(now_s, is_first=is_first)

    def facts(self, topology: TopologyFacts | None, version: str = "") -> KubeletFacts | None:
        """Kubelet facts from its files, completed from NodeResourceTopology; None if neither has any."""
        config, state = self.config.value, self.cpu_manager.value
        published = topology or TopologyFacts()
        if config is None and state is None and published.kubelet_policy is None:
            return None
        policy = published.kubelet_policy
        memory_policy = self.memory_manager.value
        static = published.static_cpus or {}
        if config is not None:
            # Source: kubelet.config.k8s.io/v1beta1, the default of cpuManagerPolicy.
            policy = config.cpu_manager_policy or "none"
            memory_policy = memory_policy or config.memory_manager_policy or "None"
        if state is not None:
            policy, static = state.policy, state.static_cpus
        reserved_cpus = config.reserved_cpus if config is not None else frozenset()
        return KubeletFacts(
            cpu_manager_policy=policy,
            memory_manager_policy=memory_policy,
            reserved_cpus=reserved_cpus or published.kubelet_reserved_cpus,
            reserved=config.reserved if config is not None else {},
            static_cpus=static,
            class_memory=class_memory(config, version) if config is not None else {},
            version=version,
        )

    def saved(self) -> dict[str, Any]:
        # The pods' requests change too often to be saved.
        return {
            "folder": printable(self._folder),
            "files": {
                file.path.name: {"stamp": file.stamp, "source": file.source}
                for file in (self.config, self.cpu_manager, self.memory_manager)
                if file.source is not None
            },
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Sets what `saved` gave in a former process; raises anything if it is not usable."""
        if saved["folder"] != printable(self._folder):
            return
        files: tuple[tuple[WatchedFile[Any], Callable[[object], object]], ...] = (
            (self.config, parse_config),
            (self.cpu_manager, parse_cpu_manager_state),
            (self.memory_manager, parse_memory_manager_state),
        )
        for file, parse in files:
            if (entry := saved["files"].get(file.path.name)) is not None:
                stamp, source = entry["stamp"], entry["source"]
                file.restore(ParsedInput(parse(source), source), tuple(stamp) if stamp is not None else None)


def _read_config(data: bytes, _: KubeletConfig | None) -> ParsedInput[KubeletConfig]:
    documents = parse_documents(data)
    if not documents:
        # A file that is being written is empty at first, and no kubelet starts with it.
        raise InputError("is empty")
    document = mapping_of(documents[0])
    if not document.get("kind"):
        # No kubelet starts with it either: kubeadm sorts the keys, and the file is cut off before this one.
        raise InputError("is missing", "kind")
    config = parse_config(document)
    return ParsedInput(config, {key: document[key] for key in _CONFIG_KEYS if key in document})


def _read_cpu_manager(data: bytes, _: CpuManagerState | None) -> ParsedInput[CpuManagerState]:
    document = mapping_of(parse_json(data))
    state = parse_cpu_manager_state(document)
    return ParsedInput(state, {key: document[key] for key in ("policyName", "entries") if key in document})


def _read_memory_manager(data: bytes, _: str | None) -> ParsedInput[str]:
    document = mapping_of(parse_json(data))
    return ParsedInput(parse_memory_manager_state(document), {"policyName": document.get("policyName")})
