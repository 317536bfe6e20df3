"""All inputs of a node together: one pass reads the changed ones, and makes the next snapshot."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from runtimeproxy.documents.reading import InputError, printable
from runtimeproxy.node.api_server import ApiServerInputs, joined
from runtimeproxy.node.block_devices import BlockDevices, read_block_devices
from runtimeproxy.node.cpu_claims import CpuClaims
from runtimeproxy.node.derived import (
    NormalizationRatio,
    SharedCpus,
    normalization_ratio,
    published_pools,
    reservation_of,
    topology_of,
    without_claimed,
)
from runtimeproxy.node.dynamic_config import DynamicConfig
from runtimeproxy.node.facts import NodeReader
from runtimeproxy.node.kubelet import KubeletFolder
from runtimeproxy.node.machine import (
    Processor,
    WithoutFiles,
    guess_cgroup_driver,
    network_features,
    read_cpus,
    read_features,
    read_memory,
    read_processor,
)
from runtimeproxy.node.object_folder import FolderObjects, ObjectFolder, StrategyTexts
from runtimeproxy.node.objects import Kind, NodeObject, Reader, TopologyFacts
from runtimeproxy.node.resctrl import Resctrl, read_resctrl
from runtimeproxy.node.snapshot import (
    EMPTY,
    FIELDS,
    NO_STRATEGIES,
    Cpu,
    Input,
    InputState,
    KubeletFacts,
    LivePod,
    Node,
    Pools,
)
from runtimeproxy.slo.names import CPU_NORMALIZATION_RATIO
from runtimeproxy.slo.strategies import Strategies
from runtimeproxy.state.state_file import StateFile

if TYPE_CHECKING:
    from runtimeproxy.katalyst.levels import LevelRules
    from runtimeproxy.katalyst.targets import TargetState
    from runtimeproxy.slo.reading import Problem as StrategyProblem

_PROCFS: Final = Path("/proc")

STATE_FILE: Final = "node.json"
"""In the state folder: the last good values, for the next start."""
STATE_VERSION: Final = 1

SLOW_S: Final = 10.0
"""Between two reads of inputs without events: CPUs, memory, block devices, the cgroup tree."""

SAVE_PODS_S: Final = 30.0
"""Least time between two savings of nothing but pods of the API server: they come and go all the time."""

PoolSource = Literal["nrt", "computed"]


class InputPlaces(NamedTuple):
    """Where the inputs are; None: there are none."""

    sysfs: Path = Path("/sys")
    procfs: Path = _PROCFS
    devfs: Path = Path("/dev")
    cgroup_root: Path = Path("/sys/fs/cgroup")
    kubelet_dir: Path | None = None
    objects_dir: Path | None = None
    cdi_dir: Path | None = None
    state_dir: Path | None = None
    node_name: str = ""
    """Name of the Node object; empty for the host's."""
    pools: PoolSource = "nrt"
    levels: LevelRules | None = None
    """As `Node.levels`."""
    node_labels: Mapping[str, str] = EMPTY
    """Labels beside those of the Node object, for a node that is described by hand."""
    without_files: WithoutFiles | None = None
    """None: this node is asked, if the folder of procfs is its own."""


class InputsReading(NamedTuple):
    """The result of one pass."""

    node: Node
    changed: frozenset[Input]
    """Inputs whose value or state is another one than before."""
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    wait_s: float | None
    """Time after which another pass is due even without an event; None: none."""
    needs_polling: bool
    strategy_problems: tuple[StrategyProblem, ...] = ()
    katalyst_targets: tuple[TargetState, ...] = ()
    """Of Katalyst's dynamic configuration, each with why it applies or not."""
    shared: SharedCpus | None = None
    """The inputs of computed pools, beside the pods; None: none, or not known yet."""
    changed_pods: frozenset[str] = frozenset()
    """The uids of the pods of which the API server says something else than before."""


_TELLING: Final = frozenset({"cpu", "memory"})
"""Controllers whose files tell the kernel's features."""


class NodeInputs:
    """Reads all inputs; used in one thread at a time."""

    def __init__(
        self, places: InputPlaces, reader: NodeReader, api_server: ApiServerInputs | None = None
    ) -> None:
        self._places = places
        self._reader = reader
        self._api_server = api_server
        self._name = name_of_node(places.node_name)
        self._kubelet = KubeletFolder(places.kubelet_dir) if places.kubelet_dir else None
        self._objects = ObjectFolder(places.objects_dir) if places.objects_dir else None
        self._claims = CpuClaims(places.cdi_dir) if places.cdi_dir else None
        self._strategies = StrategyTexts()
        self._dynamic_config = DynamicConfig()
        self._local = _Local()
        self._local_read_s: float | None = None
        self._pools: Pools | None = None
        self._shared: SharedCpus | None = None
        self._ratio: NormalizationRatio | None = None
        self._problems: list[str] = []
        self._saved: dict[str, Any] | None = None
        self._saved_s = -SAVE_PODS_S
        self._file = state_file(places.state_dir) if places.state_dir is not None else None
        self.node = Node()

    def restore(self, now_s: float) -> InputsReading:
        """Takes the last good values of a former process; what of them is not usable now is left out."""
        self._read_local(now_s)
        if self._file is not None:
            self._file.load(self._take)
        self._saved = self._to_save()
        look = self._assemble(is_restored=True)
        problem = self._file.unusable if self._file is not None else ""
        return look._replace(problems=(problem, *look.problems) if problem else look.problems)

    def look(self, now_s: float, *, is_first: bool = False) -> InputsReading:
        """Reads everything that has changed; the first look of the process waits for nothing."""
        if self._local_read_s is None or now_s - self._local_read_s >= SLOW_S or not self._local.is_complete:
            self._read_local(now_s)
        if self._kubelet is not None:
            self._kubelet.look(now_s, is_first=is_first)
        if self._objects is not None:
            self._objects.look(now_s, self._object_reader(), is_first=is_first)
        if self._claims is not None:
            self._claims.look()
        if self._api_server is not None:
            self._api_server.look(now_s, self._object_reader())
        look = self._assemble()
        problem = self._save(now_s)
        return look._replace(problems=(problem, *look.problems) if problem else look.problems)

    # Reading

    def _read_local(self, now_s: float) -> None:
        places, facts = self._places, self._reader.facts()
        self._local_read_s = now_s
        cpus = self._local.cpus
        online = frozenset(cpu.id for cpu in cpus or () if cpu.is_online)
        is_here, without_files = places.procfs == _PROCFS, places.without_files
        if without_files is None:
            without_files = WithoutFiles.of_this_node() if is_here else WithoutFiles()
        if cpus is None or online != facts.online_cpus:
            cpus = read_cpus(places.sysfs)
        self._local = _Local(
            cpus=cpus,
            memory_bytes=read_memory(places.sysfs, places.procfs),
            processor=read_processor(places.sysfs, places.procfs),
            features=read_features(
                facts,
                places.cgroup_root,
                places.sysfs,
                places.procfs,
                without_files,
            )
            | (network_features() if is_here else frozenset()),
            cgroup_driver=guess_cgroup_driver(places.cgroup_root),
            block_devices=read_block_devices(places.sysfs, places.procfs),
            resctrl=read_resctrl(places.sysfs),
        )

    def _object_reader(self) -> Reader:
        cpus = self._local.cpus
        return Reader(self._name, None if cpus is None else frozenset(cpu.id for cpu in cpus))

    # Making a snapshot

    def _assemble(self, *, is_restored: bool = False) -> InputsReading:
        kubelet, objects, local = self._kubelet, self._objects, self._local
        found = objects.found if objects is not None else FolderObjects()
        api_server = self._api_server
        notes: list[str] = []
        if api_server is not None:
            found, notes = joined(found, api_server.found)
        self._problems = []
        states = {Input.CPUS: _known(local.cpus), Input.MEMORY: _known(local.memory_bytes)}
        states[Input.BLOCK_DEVICES] = _state(local.block_devices is not None, is_unknown=True)
        facts = self._reader.facts()
        # Before there is a cgroup with their files, as at boot, features are not missing but unknown.
        telling = _TELLING & facts.controllers.keys()
        states[Input.CGROUPS] = _known(telling if telling <= facts.files.keys() else None)
        states[Input.DEVICES] = _known(facts.devices)
        config = kubelet.config.value if kubelet is not None else None
        node = found.node or NodeObject()
        if self._places.node_labels:
            node = node._replace(labels={**node.labels, **self._places.node_labels})
        of_kubelet = kubelet.facts(found.topology, node.kubelet_version) if kubelet is not None else None
        is_kubelet_unknown = kubelet is not None and kubelet.is_unknown
        states[Input.KUBELET] = _state(of_kubelet is not None, is_kubelet_unknown)
        states[Input.NODE_OBJECT] = _state(found.node is not None, Kind.NODE in found.unknown)
        try:
            reservation_of(node.annotations)
        except InputError as error:
            self._problems.append(f"Node: {error}; nothing of it is reserved")
        strategies = self._strategies.update(found, node)
        has_bad = bool({Kind.CONFIG_MAP, Kind.NODE_SLO} & found.unknown) or self._strategies.is_unknown
        states[Input.STRATEGIES] = _state(strategies is not NO_STRATEGIES, has_bad)
        katalyst = self._dynamic_config.update(found, self._name, node.labels)
        states[Input.KATALYST] = _state(bool(katalyst.target), self._dynamic_config.is_unknown)
        states[Input.POOLS] = self._update_pools(found, of_kubelet)
        unknown = {
            each for each in (Input.NODE_OBJECT, Input.STRATEGIES) if states[each] is InputState.UNKNOWN
        }
        states[Input.NORMALIZATION] = self._update_ratio(node, strategies, found.topology, bool(unknown))
        requests = kubelet.allocated_pods.value if kubelet is not None else None
        # Kubelets before 1.33 write none: that is no reason to wait for them.
        has_bad_pods = kubelet is not None and kubelet.allocated_pods.is_unknown
        states[Input.POD_REQUESTS] = _state(requests is not None, has_bad_pods)
        if api_server is not None and requests is None:
            states[Input.POD_REQUESTS] = InputState.KNOWN if api_server.has_pods else InputState.UNKNOWN
        if is_restored:
            # A source that is not there now may be there in the first pass: nothing is withdrawn yet.
            states = {
                each: InputState.UNKNOWN if state is InputState.WITHDRAWN else state
                for each, state in states.items()
            }
        values: dict[str, Any] = {
            "cpus": local.cpus,
            "memory_bytes": local.memory_bytes,
            "features": local.features,
            "block_devices": local.block_devices,
            "resctrl": local.resctrl,
            # Kubelets from 1.31 on take the runtime's driver, whatever is in their configuration.
            "cgroup_driver": local.cgroup_driver or (config.cgroup_driver if config is not None else None),
            "kubelet": of_kubelet,
            "labels": node.labels,
            "annotations": node.annotations,
            "capacity": node.capacity or None,
            "allocatable": node.allocatable or None,
            "strategies": strategies,
            "katalyst": katalyst,
            "pools": self._pools,
            "claimed_cpus": self._claims.cpus if self._claims is not None else EMPTY,
            **self._normalization(),
            "requests": requests or {},
            "live_pods": api_server.pods if api_server is not None else EMPTY,
            "levels": katalyst.level_rules(levels) if (levels := self._places.levels) is not None else None,
        }
        pods_before = self.node.live_pods
        changed = self._publish(Node(facts=facts, **values), states)
        dynamic = self._dynamic_config
        parts = [part for part in (kubelet, objects, api_server) if part is not None]
        return InputsReading(
            node=self.node,
            changed=changed,
            problems=(
                *(text for part in parts for text in part.problems),
                *(self._claims.problems if self._claims is not None else ()),
                *self._strategies.problems,
                *dynamic.problems,
                *self._problems,
            ),
            notes=(
                *(objects.notes if objects is not None else ()),
                *notes,
                *self._strategies.notes,
                *dynamic.notes,
            ),
            wait_s=min((part.wait_s for part in (*parts, dynamic) if part.wait_s is not None), default=None),
            needs_polling=any(part.needs_polling for part in (kubelet, objects) if part is not None),
            strategy_problems=(*self._strategies.found_problems, *dynamic.found_problems),
            katalyst_targets=dynamic.targets,
            shared=self._shared,
            changed_pods=_changed_pods(pods_before, self.node.live_pods),
        )

    def _publish(self, node: Node, states: Mapping[Input, InputState]) -> frozenset[Input]:
        """Makes it the snapshot, with the old values where they are equal; returns what has changed."""
        old = self.node
        changed = frozenset(
            each
            for each, names in FIELDS.items()
            if states[each] is not old.states.get(each, InputState.UNKNOWN)
            or any(getattr(node, name) != getattr(old, name) for name in names)
        )
        if node.strategies.provenance != old.strategies.provenance:
            changed |= {Input.STRATEGIES}
        if changed or node.facts is not old.facts or node.live_pods is not old.live_pods:
            generations = {each: old.generations.get(each, 0) + (each in changed) for each in FIELDS}
            self.node = replace(node, states=states, generations=generations)
        return changed

    def _update_pools(self, found: FolderObjects, kubelet: KubeletFacts | None) -> InputState:
        claims = self._claims.cpus.values() if self._claims is not None else ()
        claimed = frozenset[int]().union(*claims)
        if self._places.pools == "nrt":
            pools = published_pools(found.topology) if found.topology is not None else None
            self._pools = without_claimed(pools, claimed) if pools is not None else None
            return _state(self._pools is not None, Kind.TOPOLOGY in found.unknown)
        cpus = self._local.cpus
        if cpus is not None:
            try:
                topology = topology_of(found.topology, found.node.annotations if found.node else {})
            except InputError as error:
                self._problems.append(f"Node: {error}; the pools stay as they are")
            else:
                static = kubelet.static_cpus.values() if kubelet is not None else ()
                shared = SharedCpus(cpus, tuple(static), topology, claimed)
                self._shared = self._shared if shared == self._shared else shared
        # They are known once the pods are.
        return InputState.UNKNOWN

    def _update_ratio(
        self, node: NodeObject, strategies: Strategies, topology: TopologyFacts | None, is_unknown: bool
    ) -> InputState:
        published = topology.processor if topology is not None else None
        processor = published if published is not None and published.model else self._local.processor
        try:
            ratio = normalization_ratio(node.annotations, strategies.cpu_normalization, processor)
        except InputError as error:
            where = "Node" if error.place == CPU_NORMALIZATION_RATIO else "cpu-normalization-config"
            self._problems.append(f"{where}: {error}" + ("; the ratio stays as it is" if self._ratio else ""))
            return _known(self._ratio)
        if ratio is None and is_unknown:
            return _known(self._ratio)
        self._ratio = ratio
        return _state(ratio is not None, is_unknown=False)

    def _normalization(self) -> dict[str, Any]:
        """Those of the snapshot, by which they are saved, too."""
        ratio, path = self._ratio or (None, "")
        return {"normalization_ratio": ratio, "normalization_path": path}

    # The next start

    def _take(self, saved: Any) -> None:  # noqa: ANN401 - JSON
        if saved["version"] != STATE_VERSION:
            return
        if self._kubelet is not None:
            self._kubelet.restore(saved["kubelet"])
        if self._objects is not None and saved["objects"]["folder"] == printable(self._objects.folder):
            self._objects.restore(saved["objects"]["files"], self._object_reader())
            self._strategies.restore(saved["strategies"])
            ratio = saved["normalization_ratio"]
            path = str(saved.get("normalization_path", ""))
            self._ratio = NormalizationRatio(float(ratio), path) if ratio is not None else None
        if saved.get("katalyst") is not None and (self._objects or self._api_server):
            self._dynamic_config.restore(saved["katalyst"])
        if self._api_server is not None and saved.get("api_server") is not None:
            self._api_server.restore(saved["api_server"], self._object_reader())

    def _to_save(self) -> dict[str, Any]:
        objects = self._objects
        return {
            "version": STATE_VERSION,
            "kubelet": self._kubelet.saved() if self._kubelet is not None else None,
            "objects": {
                "folder": printable(objects.folder) if objects is not None else "",
                "files": objects.saved() if objects is not None else {},
            },
            "strategies": self._strategies.saved(),
            **self._normalization(),
            "katalyst": self._dynamic_config.saved(),
            "api_server": self._api_server.saved() if self._api_server is not None else None,
        }

    def _save(self, now_s: float) -> str:
        """Saves the last good values if they have changed; returns the problem."""
        file, saved = self._file, self._to_save()
        if file is None or saved == self._saved:
            return ""
        if self._differs_in_pods_only(saved) and now_s < self._saved_s + SAVE_PODS_S:
            return ""
        self._saved_s = now_s
        try:
            file.save(saved)
        except OSError as error:
            return f"{printable(file.path)}: not saved: {error.strerror}"
        self._saved = saved
        return ""

    def _differs_in_pods_only(self, saved: Mapping[str, Any]) -> bool:
        old = self._saved
        if old is None or not old.get("api_server") or not saved["api_server"]:
            return False
        pods = old["api_server"]["pods"]
        return old == {**saved, "api_server": {**saved["api_server"], "pods": pods}}


def state_file(state_dir: Path) -> StateFile:
    return StateFile(state_dir / STATE_FILE, "the last good values of before are not used")


def name_of_node(configured: str) -> str:
    return configured or os.uname().nodename.strip().lower()


def _changed_pods(before: Mapping[str, LivePod], after: Mapping[str, LivePod]) -> frozenset[str]:
    """The new and changed ones; the runtime's calls tell of those that are gone."""
    if before is after:
        return frozenset()
    return frozenset(uid for uid, pod in after.items() if before.get(uid) != pod)


class _Local(NamedTuple):
    """The content of sysfs, procfs and the cgroup tree."""

    cpus: tuple[Cpu, ...] | None = None
    memory_bytes: Mapping[int, int] = EMPTY
    processor: Processor = Processor()
    features: frozenset[str] = frozenset()
    cgroup_driver: str | None = None
    block_devices: BlockDevices | None = None
    resctrl: Resctrl | None = None

    @property
    def is_complete(self) -> bool:
        return self.cpus is not None and self.cgroup_driver is not None


def _known(value: object) -> InputState:
    return InputState.UNKNOWN if value is None or value in ({}, frozenset()) else InputState.KNOWN


def _state(is_known: bool, is_unknown: bool) -> InputState:
    if is_known:
        return InputState.KNOWN
    return InputState.UNKNOWN if is_unknown else InputState.WITHDRAWN
