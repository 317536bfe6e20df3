"""The kubelet's own files: configuration, state of the CPU manager, resources of the pods that it admitted.

All functions are pure. Checksums are ignored: they are of Go's own picture of the data. Source:
kubelet.config.k8s.io/v1beta1 KubeletConfiguration; Kubernetes pkg/kubelet/cm/cpumanager/state and
pkg/kubelet/allocation/state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runtimeproxy.node.features import CGROUPFS, SYSTEMD
from runtimeproxy.node.files import (
    InputError,
    cpus_of,
    mapping_of,
    parse_json,
    quantities_of,
    shortened,
    text_of,
    within,
)

CONFIG: Final = "config.yaml"
"""Source: kubeadm, KubeletConfigurationFileName."""
CPU_MANAGER_STATE: Final = "cpu_manager_state"
ALLOCATED_PODS_STATE: Final = "allocated_pods_state"
"""Kubernetes 1.33 and later."""
MAX_BYTES: Final = {CONFIG: 2**20, CPU_MANAGER_STATE: 2**22, ALLOCATED_PODS_STATE: 2**24}
"""Largest file of each name that is read: thousands of pods have a few MiB."""

_CPU_MANAGER_POLICIES: Final = ("none", "static")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletConfig:
    """What a kubelet configuration says; None: nothing."""

    cgroup_driver: str | None = None
    cpu_manager_policy: str | None = None
    reserved_cpus: frozenset[int] = frozenset()
    reserved: Mapping[str, int] = field(default_factory=dict)
    """`kubeReserved` and `systemReserved` together, in the units of `Node.capacity`."""
    has_memory_qos: bool = False
    """The feature gate MemoryQoS, which is off unless it is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuManagerState:
    """What the kubelet's CPU manager has allocated."""

    policy: str | None = None
    static_cpus: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    """By pod uid and container name."""


def parse_config(document: object) -> KubeletConfig:
    """Reads a KubeletConfiguration.

    Args:
        document: The YAML document.

    Raises:
        InputError: A field has a value that it cannot have.
    """
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
        reserved_cpus=reserved_cpus,
        reserved=reserved,
        has_memory_qos=_gate(config, "MemoryQoS"),
    )


def parse_cpu_manager_state(document: object) -> CpuManagerState:
    """Reads `cpu_manager_state`.

    Entries in the form of before Kubernetes 1.18, by container id, are left out.

    Args:
        document: The JSON value.

    Raises:
        InputError: It is not such a state.
    """
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


def parse_allocated_pods(document: object) -> dict[tuple[str, str], dict[str, int]]:
    """Reads the requests of all containers from `allocated_pods_state`.

    The state is JSON in a text of JSON. Newer kubelets add the pods as protobuf, and keep these entries.

    Args:
        document: The JSON value.

    Returns:
        Requests by pod uid and container name.

    Raises:
        InputError: It is not such a state.
    """
    outer = mapping_of(document)
    if "data" not in outer:
        raise InputError("is missing", "data")
    requests: dict[tuple[str, str], dict[str, int]] = {}
    with within("data"):
        state = mapping_of(parse_json(text_of(outer["data"])))
        with within("entries"):
            for uid, pod in mapping_of(state.get("entries")).items():
                with within(shortened(uid)):
                    requests.update(_requests(uid, mapping_of(pod)))
    return requests


def _requests(uid: str, pod: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, int]]:
    found: dict[tuple[str, str], dict[str, int]] = {}
    with within("ContainerResources"):
        for name, resources in mapping_of(pod.get("ContainerResources")).items():
            with within(shortened(name)), within("requests"):
                found[uid, name] = quantities_of(mapping_of(resources).get("requests"))
    return found


def _gate(config: Mapping[str, Any], name: str) -> bool:
    with within("featureGates"):
        is_on = mapping_of(config.get("featureGates")).get(name)
        if is_on is not None and not isinstance(is_on, bool):
            raise InputError("is neither true nor false", name)
    return bool(is_on)


def _choice(config: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str | None:
    value = config.get(key)
    if value is None or value == "":
        return None
    if value not in choices:
        raise InputError(f"is {shortened(repr(value))}, not {' or '.join(choices)}", key)
    return str(value)
