"""The kubelet's folder, with the last good value of each of its files that count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtimeproxy.node.files import mapping_of, parse_json, printable
from runtimeproxy.node.kubelet import (
    ALLOCATED_PODS_STATE,
    CONFIG,
    CPU_MANAGER_STATE,
    MAX_BYTES,
    CpuManagerState,
    KubeletConfig,
    parse_allocated_pods,
    parse_config,
    parse_cpu_manager_state,
)
from runtimeproxy.node.snapshot import KubeletFacts
from runtimeproxy.node.topology_annotations import TopologyFacts
from runtimeproxy.node.watched_file import Parsed, WatchedFile
from runtimeproxy.node.yaml_documents import parse_documents

Requests = Mapping[tuple[str, str], Mapping[str, int]]

_CONFIG_KEYS = (
    "kind",
    "cgroupDriver",
    "cpuManagerPolicy",
    "reservedSystemCPUs",
    "kubeReserved",
    "systemReserved",
    "featureGates",
)


class KubeletFolder:
    """The files are looked at again and again in one thread at a time.

    Args:
        folder: May be missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The kubelet replaces its states as a whole.
        self.config: WatchedFile[KubeletConfig] = WatchedFile(
            folder / CONFIG, MAX_BYTES[CONFIG], _read_config
        )
        self.cpu_manager: WatchedFile[CpuManagerState] = WatchedFile(
            folder / CPU_MANAGER_STATE, MAX_BYTES[CPU_MANAGER_STATE], _read_cpu_manager, settle_s=0
        )
        self.allocated_pods: WatchedFile[Requests] = WatchedFile(
            folder / ALLOCATED_PODS_STATE, MAX_BYTES[ALLOCATED_PODS_STATE], _read_allocated_pods, settle_s=0
        )
        self._files: tuple[WatchedFile[Any], ...] = (self.config, self.cpu_manager, self.allocated_pods)

    @property
    def problems(self) -> tuple[str, ...]:
        """Of all files, with their paths."""
        return tuple(text for file in self._files for text in file.problems)

    @property
    def wait_s(self) -> float | None:
        """Time after which another look is due even without an event; None: none."""
        return min((file.wait_s for file in self._files if file.wait_s is not None), default=None)

    @property
    def needs_polling(self) -> bool:
        """Whether there are changes without an event."""
        return not all(file.is_watchable for file in self._files)

    @property
    def is_unknown(self) -> bool:
        """Whether there is a file that counts and was never good."""
        return self.config.is_unknown or self.cpu_manager.is_unknown

    def look(self, now_s: float, *, is_first: bool = False) -> None:
        """Looks at all files, and reads those that have changed."""
        for file in self._files:
            file.look(now_s, is_first=is_first)

    def facts(self, topology: TopologyFacts | None) -> KubeletFacts | None:
        """What the files say, and of what they do not say the NodeResourceTopology; None if nobody does."""
        config, state = self.config.value, self.cpu_manager.value
        published = topology or TopologyFacts()
        if config is None and state is None and published.kubelet_policy is None:
            return None
        policy = published.kubelet_policy
        static = published.static_cpus or {}
        if config is not None:
            # Source: kubelet.config.k8s.io/v1beta1, the default of cpuManagerPolicy.
            policy = config.cpu_manager_policy or "none"
        if state is not None:
            policy, static = state.policy, state.static_cpus
        reserved_cpus = config.reserved_cpus if config is not None else frozenset()
        return KubeletFacts(
            cpu_manager_policy=policy,
            reserved_cpus=reserved_cpus or published.kubelet_reserved_cpus,
            reserved=config.reserved if config is not None else {},
            static_cpus=static,
            has_memory_qos=config is not None and config.has_memory_qos,
        )

    def saved(self) -> dict[str, Any]:
        """The values as JSON can hold them; the pods' requests change too often to be saved."""
        return {
            "folder": printable(self._folder),
            "files": {
                file.path.name: {"stamp": file.stamp, "source": file.source}
                for file in (self.config, self.cpu_manager)
                if file.source is not None
            },
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Sets what `saved` gave in a former process.

        Raises:
            InputError, ValueError, TypeError, KeyError: It is not usable.
        """
        if saved["folder"] != printable(self._folder):
            return
        config, state = saved["files"].get(CONFIG), saved["files"].get(CPU_MANAGER_STATE)
        if config is not None:
            source = config["source"]
            self.config.restore(Parsed(parse_config(source), source), _stamp(config))
        if state is not None:
            source = state["source"]
            self.cpu_manager.restore(Parsed(parse_cpu_manager_state(source), source), _stamp(state))


def _read_config(data: bytes, _: KubeletConfig | None) -> Parsed[KubeletConfig]:
    documents = parse_documents(data)
    document = mapping_of(documents[0] if documents else None)
    config = parse_config(document)
    return Parsed(config, {key: document[key] for key in _CONFIG_KEYS if key in document})


def _read_cpu_manager(data: bytes, _: CpuManagerState | None) -> Parsed[CpuManagerState]:
    document = mapping_of(parse_json(data))
    state = parse_cpu_manager_state(document)
    return Parsed(state, {key: document[key] for key in ("policyName", "entries") if key in document})


def _read_allocated_pods(data: bytes, _: Requests | None) -> Parsed[Requests]:
    return Parsed(parse_allocated_pods(parse_json(data)))


def _stamp(entry: Mapping[str, Any]) -> Any:  # noqa: ANN401 - compared only
    stamp = entry["stamp"]
    return tuple(stamp) if stamp is not None else None
