"""All inputs of a node together: states, generations, last good values, with a clock of the test's own."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from runtimeproxy.hooks.sources import ratio_source
from runtimeproxy.node.derived import SharedCpus
from runtimeproxy.node.facts import NodeReader
from runtimeproxy.node.input_file import GRACE_S
from runtimeproxy.node.inputs import STATE_FILE, InputPlaces, InputsReading, NodeInputs, PoolSource
from runtimeproxy.node.objects import RESERVATION
from runtimeproxy.node.snapshot import NO_STRATEGIES, Feature, Input, InputState, Node, PodCpus, Pool
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.names import CPU_NORMALIZATION_ENABLED
from runtimeproxy.slo.strategies import Layer
from runtimeproxy.testing import CgroupFiles
from tests.node.objects_of import (
    BURST,
    LS_POOLS,
    NODE_NAME,
    SYSTEM_QOS,
    Machine,
    MountedConfigMap,
    config_map,
    listed,
    node_object,
    node_slo,
    text_of,
    topology,
    write,
)

KNOWN, UNKNOWN, WITHDRAWN = InputState.KNOWN, InputState.UNKNOWN, InputState.WITHDRAWN
RATIO = "node.koordinator.sh/cpu-normalization-ratio"
POOLS = {LS_POOLS: [{"socket": 0, "node": 0, "cpuset": "0-3"}, {"socket": 1, "node": 1, "cpuset": "4-7"}]}
OTHER = {"clusterStrategy": {"cpuBurstPercent": 300}}
STAYS = "; what was there before stays"
CONFIG = b"kind: KubeletConfiguration\ncgroupDriver: systemd\ncpuManagerPolicy: static\n"


class Watched:
    """A node in folders, and what was seen of it; each look is a second after the one before."""

    def __init__(self, root: Path, pools: PoolSource = "nrt") -> None:
        self.machine = Machine(root)
        self.objects = root / "node.d"
        self.kubelet = root / "kubelet"
        self.state = root / "state"
        self.now_s = 0.0
        self.pools: PoolSource = pools
        self.shared: SharedCpus | None = None
        self.changed: frozenset[Input] = frozenset()
        self.problems: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.wait_s: float | None = None
        self.start()

    def start(self) -> Node:
        """Another process looks at the folders; returns what it knows before its first look."""
        machine = self.machine
        places = InputPlaces(
            sysfs=machine.sysfs,
            procfs=machine.procfs,
            cgroup_root=machine.cgroups,
            kubelet_dir=self.kubelet,
            objects_dir=self.objects,
            state_dir=self.state,
            node_name=NODE_NAME,
            pools=self.pools,
        )
        self.inputs = NodeInputs(places, NodeReader(machine.sysfs, machine.cgroups, lambda: self.now_s))
        self._is_first = True
        return self._take(self.inputs.restore(self.now_s))

    def look(self, after_s: float = 1.0) -> Node:
        """The node after the next look; a change has settled by then."""
        self.now_s += after_s
        first = self.inputs.look(self.now_s, is_first=self._is_first)
        self._is_first = False
        self.now_s += 1
        second = self.inputs.look(self.now_s)
        return self._take(second._replace(changed=first.changed | second.changed))

    def _take(self, look: InputsReading) -> Node:
        self.changed, self.problems, self.notes, self.wait_s = (
            look.changed,
            look.problems,
            look.notes,
            look.wait_s,
        )
        self.shared = look.shared
        return look.node


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    made = Watched(tmp_path)
    made.objects.mkdir()
    made.kubelet.mkdir()
    return made


def burst_of(node: Node) -> int | None:
    """Of the cluster strategy."""
    return node.strategies.cpu_burst.cpu_burst_percent


def states(node: Node) -> dict[Input, InputState]:
    return {each: node.state_of(each) for each in node.states}


def test_without_any_source_nothing_is_known(tmp_path: Path) -> None:
    none = tmp_path / "none"
    places = InputPlaces(sysfs=none, procfs=none, devfs=none, cgroup_root=none)
    inputs = NodeInputs(places, NodeReader(none, none, devfs=none))
    inputs.restore(0)
    node = inputs.look(0, is_first=True).node
    local = (Input.CPUS, Input.MEMORY, Input.BLOCK_DEVICES, Input.CGROUPS, Input.DEVICES)
    assert states(node) == {each: UNKNOWN if each in local else WITHDRAWN for each in node.states}
    assert (node.cpus, node.strategies, node.pools, node.kubelet) == (None, NO_STRATEGIES, None, None)


def test_the_version_of_the_kubelet_is_that_of_the_node_object(watched: Watched) -> None:
    """It says what the kubelet writes."""
    config = b"kind: KubeletConfiguration\nfeatureGates: {MemoryQoS: true}\n"
    (watched.kubelet / "config.yaml").write_bytes(config)
    kubelet = watched.look().kubelet
    assert kubelet is not None
    assert (kubelet.version, len(kubelet.class_memory)) == ("", 2)
    document = node_object()
    document["status"]["nodeInfo"] = {"kubeletVersion": "v1.37.2"}
    write(watched.objects / "node.yaml", document)
    kubelet = watched.look().kubelet
    assert kubelet is not None
    assert (kubelet.version, kubelet.class_memory) == ("v1.37.2", {})


def test_what_is_absent_from_the_start_is_withdrawn_at_once(watched: Watched) -> None:
    watched.objects.rmdir()
    watched.kubelet.rmdir()
    node = watched.look()
    withdrawn = (Input.STRATEGIES, Input.NODE_OBJECT, Input.POOLS, Input.NORMALIZATION, Input.KUBELET)
    assert [node.state_of(each) for each in withdrawn] == [WITHDRAWN] * 5
    assert node.state_of(Input.CPUS) is node.state_of(Input.MEMORY) is KNOWN


def test_everything_is_read(watched: Watched) -> None:
    objects = (
        config_map(cpu_burst_config=BURST),
        node_object(annotations={RATIO: "1.25"}),
        topology(POOLS),
    )
    write(watched.objects / "all.yaml", listed(*objects))
    (watched.kubelet / "config.yaml").write_bytes(CONFIG)
    (watched.kubelet / "cpu_manager_state").write_text(
        '{"policyName":"static","defaultCpuSet":"0-2","entries":{"u":{"main":"3"}},"checksum":1}'
    )
    entries = {"u": {"ContainerResources": {"main": {"requests": {"cpu": "1", "memory": "1Gi"}}}}}
    (watched.kubelet / "allocated_pods_state").write_text(
        json.dumps({"data": json.dumps({"entries": entries}), "checksum": 1})
    )
    node = watched.look()
    assert (watched.problems, watched.notes) == ((), ())
    assert {each for each in Input if node.state_of(each) is not KNOWN} == {
        Input.BLOCK_DEVICES,
        Input.CGROUPS,
        Input.CPU_POOLS,
        Input.KATALYST,
        Input.PRIORITY,
    }
    assert burst_of(node) == 200
    provenance = node.strategies.provenance_of("cpu_burst.cpu_burst_percent")
    assert (provenance.source, provenance.file) == (Layer.CLUSTER, str(watched.objects / "all.yaml"))
    assert node.normalization_ratio == 1.25
    assert node.labels == {"pool": "a"}
    assert node.allocatable is not None
    assert node.allocatable["cpu"] == 3900
    assert node.pools is not None
    assert [pool.cpus for pool in node.pools.ls] == [frozenset(range(4)), frozenset(range(4, 8))]
    assert node.kubelet is not None
    assert (node.kubelet.cpu_manager_policy, node.cgroup_driver) == ("static", "systemd")
    assert node.kubelet.static_cpus == {("u", "main"): frozenset({3})}
    assert node.requests == {("u", "main"): {"cpu": 1000, "memory": 2**30}}
    assert node.cpus is not None
    assert len(node.cpus) == 8


def test_each_input_has_its_own_generation(watched: Watched) -> None:
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
    write(watched.objects / "node.yaml", node_object())
    before = watched.look()
    again = watched.look()
    assert again is before
    assert watched.changed == frozenset()
    write(watched.objects / "node.yaml", node_object(labels={"pool": "b"}))
    after = watched.look()
    assert watched.changed == {Input.NODE_OBJECT}
    assert after.generations[Input.NODE_OBJECT] == before.generations[Input.NODE_OBJECT] + 1
    assert after.generations[Input.STRATEGIES] == before.generations[Input.STRATEGIES]


def test_a_node_strategy_follows_the_nodes_labels(watched: Watched) -> None:
    nodes = [{"name": "b", "nodeSelector": {"matchLabels": {"pool": "b"}}, "cpuBurstPercent": 400}]
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config={**BURST, "nodeStrategies": nodes}))
    write(watched.objects / "node.yaml", node_object())
    assert burst_of(watched.look()) == 200
    write(watched.objects / "node.yaml", node_object(labels={"pool": "b"}))
    assert burst_of(watched.look()) == 400
    assert watched.changed == {Input.NODE_OBJECT, Input.STRATEGIES}


def test_what_the_node_itself_says_counts_without_any_config_map(watched: Watched) -> None:
    own = {"node.koordinator.sh/network-bandwidth": "10G"}
    write(
        watched.objects / "node.yaml",
        node_object(annotations=own, labels={CPU_NORMALIZATION_ENABLED: "false"}),
    )
    node = watched.look()
    assert node.state_of(Input.STRATEGIES) is KNOWN
    assert node.strategies.system.total_network_bandwidth == 10**10
    by = node.strategies.provenance_of("cpu_normalization.enable")
    assert str(by) == f"node label {CPU_NORMALIZATION_ENABLED}"
    strategies = node.strategies
    write(watched.objects / "node.yaml", node_object(annotations={**own, "other": "x"}, labels=node.labels))
    assert watched.look().strategies is strategies
    write(watched.objects / "node.yaml", node_object())
    node = watched.look()
    assert (node.strategies, node.state_of(Input.STRATEGIES)) == (NO_STRATEGIES, WITHDRAWN)


def test_a_misspelled_name_of_the_node_is_a_problem_and_any_other_one_a_note(watched: Watched) -> None:
    own = {"node.koordinator.sh/resevation": "{}", "node.koordinator.sh/raw-allocatable": "{}"}
    write(watched.objects / "node.yaml", node_object(annotations=own))
    before = watched.look()
    (problem,) = watched.problems
    assert problem.endswith(
        "is not a known name, and is not used; did you mean node.koordinator.sh/reservation?"
    )
    assert (before.strategies, before.state_of(Input.STRATEGIES)) == (NO_STRATEGIES, WITHDRAWN)
    write(watched.objects / "node.yaml", node_object(labels={"node.koordinator.sh/new-thing": "1"}))
    watched.look()
    assert watched.problems == ()
    (note,) = watched.notes
    assert note == "node.koordinator.sh/new-thing is not a known name, and is not used"
    write(watched.objects / "node.yaml", node_object())
    watched.look()
    assert watched.notes == ()


@pytest.mark.parametrize("is_yaml", [False, True])
def test_what_the_node_itself_says_makes_no_unknown_strategies_known(watched: Watched, is_yaml: bool) -> None:
    own = {"node.koordinator.sh/network-bandwidth": "10G"}
    write(watched.objects / "node.yaml", node_object(annotations=own))
    if is_yaml:
        write(watched.objects / "cm.yaml", config_map(cpu_burst_config={"clusterStrategy": 3}))
    else:
        (watched.objects / "cm.yaml").write_text("kind: [")
    node = watched.look()
    assert (node.strategies, node.state_of(Input.STRATEGIES)) == (NO_STRATEGIES, UNKNOWN)


def end_of(problem: str, beginning: str) -> float:
    """When a problem with this beginning says that something is withdrawn, in seconds since the epoch."""
    place, _, end = problem.partition("; what was there before is withdrawn at ")
    assert place == beginning
    return datetime.strptime(end, "%Y-%m-%dT%H:%M:%S%z").timestamp()


def test_a_missing_file_is_withdrawn_after_a_minute(watched: Watched) -> None:
    path = watched.objects / "cm.yaml"
    write(path, config_map(cpu_burst_config=BURST))
    watched.look()
    path.unlink()
    before_s = time.time()
    node = watched.look()
    (problem,) = watched.problems
    assert before_s + GRACE_S - 1 <= end_of(problem, f"{path}: is gone") <= time.time() + GRACE_S
    assert (burst_of(node), node.state_of(Input.STRATEGIES), watched.changed) == (200, KNOWN, frozenset())
    assert watched.wait_s is not None
    assert 0 < watched.wait_s <= GRACE_S
    watched.look(GRACE_S / 2)
    assert watched.problems == (problem,)
    node = watched.look(GRACE_S / 2)
    assert (node.strategies, node.state_of(Input.STRATEGIES)) == (NO_STRATEGIES, WITHDRAWN)
    assert watched.changed == {Input.STRATEGIES}
    assert not watched.problems


def test_a_missing_file_that_is_back_is_no_problem_any_more(watched: Watched) -> None:
    path = watched.objects / "cm.yaml"
    write(path, config_map(cpu_burst_config=BURST))
    watched.look()
    path.rename(path.with_suffix(".away"))
    watched.look()
    assert watched.problems
    path.with_suffix(".away").rename(path)
    assert burst_of(watched.look()) == 200
    assert not watched.problems


def test_a_key_that_a_mounted_config_map_holds_no_longer_is_a_problem(watched: Watched) -> None:
    watched.objects.mkdir(exist_ok=True)
    for key in ("cpu-burst-config", "resource-qos-config"):
        (watched.objects / key).write_text("{}")
    watched.look()
    assert not watched.problems
    (watched.objects / "resource-qos-config").unlink()
    watched.look()
    (problem,) = watched.problems
    assert problem.startswith(f"{watched.objects}/resource-qos-config: is gone; ")


def test_an_empty_or_missing_folder_is_withdrawn_after_a_minute(watched: Watched) -> None:
    path = watched.objects / "node.yaml"
    write(path, node_object())
    watched.look()
    watched.objects.rename(watched.objects.with_name("away"))
    assert watched.look().state_of(Input.NODE_OBJECT) is KNOWN
    assert [each.partition(";")[0] for each in watched.problems] == [f"{path}: is gone"]
    assert watched.look(GRACE_S).state_of(Input.NODE_OBJECT) is WITHDRAWN
    watched.objects.with_name("away").rename(watched.objects)
    assert watched.look().labels == {"pool": "a"}


def test_a_file_that_is_renamed_counts_at_once(watched: Watched) -> None:
    write(watched.objects / "a.yaml", config_map(cpu_burst_config=BURST))
    watched.look()
    (watched.objects / "a.yaml").unlink()
    write(
        watched.objects / "z.yaml", config_map(cpu_burst_config={"clusterStrategy": {"cpuBurstPercent": 300}})
    )
    assert burst_of(watched.look()) == 300
    assert watched.problems == ()
    assert burst_of(watched.look(GRACE_S)) == 300


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a: [", "line 2 column 1"),
        (b"", "is empty"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"a0: &a [x]\nb: *a\n", "anchors are not allowed"),
        (text_of(config_map(cpu_burst_config=BURST)).partition(b"cpuBurstPercent")[0], "line "),
        (b"x" * (5 * 2**20), "has more than 4194304 bytes"),
    ],
)
def test_a_broken_file_withdraws_nothing(watched: Watched, content: bytes, problem: str) -> None:
    path = watched.objects / "cm.yaml"
    write(path, config_map(cpu_burst_config=BURST))
    watched.look()
    path.write_bytes(content)
    for after_s in (1, 10 * GRACE_S):
        node = watched.look(after_s)
        assert (burst_of(node), node.state_of(Input.STRATEGIES)) == (200, KNOWN)
        assert [problem in text and str(path) in text for text in watched.problems] == [True]


ALL = text_of(config_map(cpu_burst_config=BURST), node_object(), topology(POOLS))
LISTED = text_of(listed(config_map(cpu_burst_config=BURST), node_object()))


@pytest.mark.parametrize("text", [ALL, LISTED, text_of(config_map(cpu_burst_config=BURST))])
def test_a_file_that_is_cut_anywhere_withdraws_nothing_at_once(watched: Watched, text: bytes) -> None:
    path = watched.objects / "all.yaml"
    path.write_bytes(text)
    good = watched.look()
    for size in range(0, len(text), 7):
        path.write_bytes(text[:size])
        node = watched.look(0.01)
        assert (node.strategies, node.labels, node.pools) == (good.strategies, good.labels, good.pools)
        if text[:size].strip(b"-\n"):
            assert all(str(path) in problem for problem in watched.problems), text[:size]
            assert watched.problems or size > text.rindex(b"kind:"), text[:size]
        watched.now_s -= 2
    path.write_bytes(text)
    assert watched.look().strategies == good.strategies
    assert watched.problems == ()


def test_an_object_without_kind_is_an_error_where_one_was_good(watched: Watched) -> None:
    path = watched.objects / "cm.yaml"
    text = text_of(config_map(cpu_burst_config=BURST))
    path.write_bytes(text.partition(b"kind:")[0])
    assert burst_of(watched.look()) == 1000
    assert not watched.problems
    assert len(watched.notes) == 1
    path.write_bytes(text)
    assert burst_of(watched.look()) == 200
    path.write_bytes(text.partition(b"kind:")[0])
    for after_s in (1, 10 * GRACE_S):
        assert burst_of(watched.look(after_s)) == 200
        reason = "has an object without kind or name, and holds no ConfigMap any more; is it half written?"
        assert watched.problems == (f"{path}: {reason}{STAYS}",)
    watched.start()
    assert burst_of(watched.look()) == 200


def test_an_object_that_its_file_holds_no_longer_counts_for_a_minute(watched: Watched) -> None:
    """A file that is cut between two objects cannot be told from another one."""
    path = watched.objects / "all.yaml"
    write(path, config_map(cpu_burst_config=BURST), node_object())
    watched.look()
    write(path, config_map(cpu_burst_config=OTHER))
    node = watched.look()
    assert (burst_of(node), node.labels, node.state_of(Input.NODE_OBJECT)) == (300, {"pool": "a"}, KNOWN)
    (problem,) = watched.problems
    assert end_of(problem, f"{path}: holds no Node any more") <= time.time() + GRACE_S
    assert watched.wait_s is not None
    assert 0 < watched.wait_s <= GRACE_S
    write(path, config_map(cpu_burst_config=BURST))
    assert watched.look(GRACE_S / 2).labels == {"pool": "a"}
    node = watched.look(GRACE_S / 2)
    assert (burst_of(node), node.labels, node.state_of(Input.NODE_OBJECT)) == (200, {}, WITHDRAWN)
    assert not watched.problems


def test_an_object_that_moves_to_another_file_counts_there_at_once(watched: Watched) -> None:
    write(watched.objects / "all.yaml", config_map(cpu_burst_config=BURST), node_object())
    watched.look()
    write(watched.objects / "all.yaml", config_map(cpu_burst_config=BURST))
    write(watched.objects / "node.yaml", node_object(labels={"pool": "b"}))
    assert watched.look().labels == {"pool": "b"}
    assert watched.look(GRACE_S).labels == {"pool": "b"}
    assert watched.problems == ()


def test_what_was_never_good_is_unknown(watched: Watched) -> None:
    path = watched.objects / "all.yaml"
    path.write_text("a: [")
    node = watched.look()
    of_objects = (Input.STRATEGIES, Input.NODE_OBJECT, Input.POOLS, Input.NORMALIZATION)
    assert [node.state_of(each) for each in of_objects] == [UNKNOWN] * 4
    write(path, node_object())
    node = watched.look()
    assert [node.state_of(each) for each in of_objects] == [WITHDRAWN, KNOWN, WITHDRAWN, WITHDRAWN]


def test_a_bad_object_leaves_the_others_of_its_file(watched: Watched) -> None:
    path = watched.objects / "all.yaml"
    write(path, node_object(), topology(POOLS))
    good = watched.look()
    lie = {LS_POOLS: [{"socket": 0, "node": 0, "cpuset": "0-63"}]}
    write(path, node_object(labels={"pool": "b"}), topology(lie))
    node = watched.look()
    assert (node.pools, node.labels) == (good.pools, {"pool": "b"})
    assert node.state_of(Input.POOLS) is KNOWN
    reason = "[0].cpuset: this node has no CPU 8-63, only 0-7; what was there before stays"
    assert watched.problems == (f"{path}: NodeResourceTopology: metadata.annotations.{LS_POOLS}{reason}",)


def test_annotations_of_a_megabyte_are_a_problem_of_that_object(watched: Watched) -> None:
    path = watched.objects / "node.yaml"
    write(path, node_object())
    watched.look()
    write(path, node_object(labels={"pool": "b"}, annotations={"big": "x" * 2**20}))
    assert watched.look().labels == {"pool": "a"}
    assert watched.problems == (
        f"{path}: Node: metadata.annotations: has more than 262144 bytes; most are of big{STAYS}",
    )


def test_a_key_that_cannot_be_used_keeps_its_last_good_text(watched: Watched) -> None:
    path = watched.objects / "cm.yaml"
    write(
        path,
        config_map(cpu_burst_config=BURST, system_config={"clusterStrategy": {"watermarkScaleFactor": 50}}),
    )
    watched.look()
    broken = {"clusterStrategy": {"watermarkScaleFactor": 70}}
    write(path, config_map(cpu_burst_config="{", system_config=broken))
    node = watched.look()
    assert burst_of(node) == 200
    assert node.strategies.system.watermark_scale_factor == 70
    assert len(watched.problems) == 1
    assert f"{path}: cpu-burst-config" in watched.problems[0]
    write(path, config_map(system_config=broken))
    assert burst_of(watched.look()) == 1000, "a key that is taken out is withdrawn at once"
    assert not watched.problems


def test_a_mounted_config_map(watched: Watched) -> None:
    mounted = MountedConfigMap(watched.objects)
    mounted.publish(cpu_burst_config=json.dumps(BURST), extra="x")
    node = watched.look()
    assert burst_of(node) == 200
    file = str(watched.objects / "cpu-burst-config")
    assert node.strategies.provenance_of("cpu_burst.cpu_burst_percent").file == file
    assert [str(watched.objects / "extra") in text for text in watched.notes] == [True]
    mounted.publish(cpu_burst_config=json.dumps(OTHER))
    assert burst_of(watched.look()) == 300
    (watched.objects / "..data").unlink()
    assert burst_of(watched.look()) == 300
    mounted.publish()
    assert watched.look(GRACE_S).state_of(Input.STRATEGIES) is WITHDRAWN


def test_the_first_of_two_counts(watched: Watched) -> None:
    write(watched.objects / "a.yaml", config_map(cpu_burst_config=BURST), node_object())
    write(watched.objects / "b.yaml", config_map(cpu_burst_config=OTHER), node_object(labels={"pool": "b"}))
    node = watched.look()
    assert (burst_of(node), node.labels) == (200, {"pool": "a"})
    first, second = watched.objects / "a.yaml", watched.objects / "b.yaml"
    assert watched.problems == (
        f"{second}: cpu-burst-config is in {first}, too, which is used",
        f"{second}: Node is in {first}, too, which is used",
    )


def test_a_node_slo_stands_for_the_strategies(watched: Watched) -> None:
    write(watched.objects / "slo.yaml", node_slo(cpuBurstStrategy={"cpuBurstPercent": 500}))
    node = watched.look()
    assert (burst_of(node), node.state_of(Input.STRATEGIES)) == (500, KNOWN)
    write(watched.objects / "slo.yaml", node_slo(cpuBurstStrategy={"cpuBurstPercent": -1}))
    assert burst_of(watched.look()) == 500
    assert len(watched.problems) == 1
    assert burst_of(watched.start()) == 500


def test_other_files_are_named_once_as_notes(watched: Watched) -> None:
    (watched.objects / "README.md").write_text("x")
    (watched.objects / "folder").mkdir()
    (watched.objects / ".hidden.yaml").write_text("a: [")
    (watched.objects / "cm.yaml~").write_text("a: [")
    write(watched.objects / "pod.yaml", {"kind": "Pod"}, node_object("node-b"))
    node = watched.look()
    name = f"whose name is {NODE_NAME} (node.name)"
    assert watched.problems == (f"{watched.objects}: has no Node of this node, {name}",)
    notes = watched.notes
    watched.start()
    watched.look()
    assert watched.notes == notes
    assert len(watched.problems) == 1
    assert [text.split(": ")[0].rsplit("/", 1)[1] for text in watched.notes] == [
        "README.md",
        "cm.yaml~",
        "folder",
        "pod.yaml",
        "pod.yaml",
    ]
    assert node.state_of(Input.NODE_OBJECT) is WITHDRAWN


def test_the_last_good_values_count_at_the_next_start(watched: Watched) -> None:
    path = watched.objects / "all.yaml"
    write(path, config_map(cpu_burst_config=BURST), node_object(annotations={RATIO: "1.5"}), topology(POOLS))
    (watched.kubelet / "config.yaml").write_bytes(CONFIG)
    (watched.kubelet / "cpu_manager_state").write_text('{"policyName":"static","entries":{"u":{"c":"3"}}}')
    before = watched.look()
    file = watched.state / STATE_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    path.rename(path.with_name("away.txt"))
    restored = watched.start()
    assert restored.strategies == before.strategies
    assert (restored.pools, restored.normalization_ratio) == (before.pools, 1.5)
    assert (restored.labels, restored.allocatable) == (before.labels, before.allocatable)
    assert restored.kubelet == before.kubelet
    assert restored.state_of(Input.STRATEGIES) is KNOWN
    assert watched.look().state_of(Input.STRATEGIES) is KNOWN
    assert watched.look(GRACE_S).state_of(Input.STRATEGIES) is WITHDRAWN
    assert watched.start().state_of(Input.STRATEGIES) is UNKNOWN, "what was withdrawn is not saved"


def test_a_file_that_was_broken_meanwhile_keeps_the_last_good_values(watched: Watched) -> None:
    path = watched.objects / "all.yaml"
    lie = {LS_POOLS: [{"cpuset": "99"}]}
    write(path, config_map(cpu_burst_config=BURST), node_object(annotations={RATIO: "1.5"}), topology(POOLS))
    before = watched.look()
    write(path, config_map(cpu_burst_config="{"), node_object(annotations={RATIO: "fast"}), topology(lie))
    for node in (watched.look(), watched.start(), watched.look()):
        assert (burst_of(node), node.normalization_ratio, node.pools) == (200, 1.5, before.pools)
    assert len(watched.problems) == 3
    path.write_text("a: [")
    for node in (watched.look(), watched.start(), watched.look()):
        assert (burst_of(node), node.normalization_ratio, node.pools) == (200, 1.5, before.pools)


def test_before_the_first_look_nothing_is_withdrawn(watched: Watched) -> None:
    watched.look()
    restored = watched.start()
    assert WITHDRAWN not in states(restored).values()
    assert WITHDRAWN in states(watched.look()).values()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"version":1}',
        b'{"version":1,"kubelet":null,"objects":null}',
    ],
)
def test_saved_values_that_are_not_usable_are_left_out(watched: Watched, content: bytes) -> None:
    watched.state.mkdir()
    (watched.state / STATE_FILE).write_bytes(content)
    watched.start()
    assert [str(watched.state / STATE_FILE) in text for text in watched.problems] == [True]
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
    assert burst_of(watched.look()) == 200
    assert watched.problems == ()
    assert burst_of(watched.start()) == 200


@pytest.mark.parametrize("change", ["version", "folder"])
def test_saved_values_of_another_version_or_folder_do_not_count(watched: Watched, change: str) -> None:
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
    watched.look()
    file = watched.state / STATE_FILE
    saved: dict[str, Any] = json.loads(file.read_text())
    if change == "version":
        saved["version"] = 99
    else:
        saved["objects"]["folder"] = "/elsewhere"
    file.write_text(json.dumps(saved))
    assert watched.start().state_of(Input.STRATEGIES) is UNKNOWN
    assert watched.problems == ()


def test_values_that_cannot_be_saved_count_all_the_same(watched: Watched) -> None:
    watched.state.write_text("a file")
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
    assert burst_of(watched.look()) == 200
    assert [f"{watched.state / STATE_FILE}: not saved" in text for text in watched.problems] == [True]


def test_the_kubelets_files_keep_their_last_good_values(watched: Watched) -> None:
    config = watched.kubelet / "config.yaml"
    state = watched.kubelet / "cpu_manager_state"
    pods = watched.kubelet / "allocated_pods_state"
    config.write_bytes(CONFIG)
    state.write_text('{"policyName":"static","entries":{"u":{"c":"3"}}}')
    entries = {"u": {"ContainerResources": {"c": {"requests": {"cpu": "1"}}}}}
    pods.write_text(json.dumps({"data": json.dumps({"entries": entries})}))
    before = watched.look()
    for file in (config, state, pods):
        file.write_bytes(file.read_bytes()[:20] + b"{")
    node = watched.look()
    assert (node.kubelet, node.requests) == (before.kubelet, before.requests)
    assert len(watched.problems) == 3
    for file in (config, state, pods):
        file.unlink()
    assert watched.look().kubelet == before.kubelet
    node = watched.look(GRACE_S)
    assert (node.kubelet, node.state_of(Input.KUBELET)) == (None, WITHDRAWN)
    assert node.state_of(Input.POD_REQUESTS) is WITHDRAWN


def test_without_files_of_the_kubelet_the_topology_counts(watched: Watched) -> None:
    policy = {"policy": "static", "reservedCPUs": "0"}
    allocs = [{"uid": "u", "cpuset": "3", "managedByKubelet": True}]
    annotations = {
        "kubelet.koordinator.sh/cpu-manager-policy": policy,
        "node.koordinator.sh/pod-cpu-allocs": allocs,
    }
    write(watched.objects / "nrt.yaml", topology(annotations))
    node = watched.look()
    assert node.kubelet is not None
    assert (node.kubelet.cpu_manager_policy, node.kubelet.reserved_cpus) == ("static", frozenset({0}))
    assert node.kubelet.static_cpus == {("u", ""): frozenset({3})}
    (watched.kubelet / "config.yaml").write_text("kind: KubeletConfiguration\n")
    node = watched.look()
    assert node.kubelet is not None
    assert node.kubelet.cpu_manager_policy == "none"


def test_computed_pools_follow_from_cpus_the_kubelet_and_the_node(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "computed")
    watched.objects.mkdir()
    watched.kubelet.mkdir()
    # The pods make them known, and those are known elsewhere.
    assert watched.look().state_of(Input.POOLS) is UNKNOWN
    assert watched.shared is not None
    first = watched.shared
    watched.look()
    assert watched.shared is first
    (watched.kubelet / "cpu_manager_state").write_text('{"policyName":"static","entries":{"v":{"c":"4"}}}')
    write(watched.objects / "node.yaml", node_object(annotations={SYSTEM_QOS: '{"cpuset":"7"}'}))
    watched.look()
    pools = watched.shared.pools([PodCpus(QoSClass.LSR, frozenset(range(4)))])
    assert pools.ls == (Pool(socket=1, numa_node=1, cpus=frozenset({5, 6})),)
    assert pools.system_cpus == {7}
    write(watched.objects / "node.yaml", node_object(annotations={SYSTEM_QOS: '{"cpuset":"x"}'}))
    before = watched.shared
    watched.look()
    assert watched.shared is before
    assert len(watched.problems) == 1


def test_a_reservation_that_cannot_be_read_is_a_problem(watched: Watched) -> None:
    text = '{"resources": {"cpu": "much"}}'
    write(watched.objects / "node.yaml", node_object(annotations={RESERVATION: text}))
    watched.look()
    (problem,) = watched.problems
    assert problem == (
        f"Node: metadata.annotations.{RESERVATION}.resources.cpu: is not a quantity: 'much'; "
        "nothing of it is reserved"
    )
    write(watched.objects / "node.yaml", node_object())
    watched.look()
    assert watched.problems == ()


def test_the_ratio_is_computed_where_no_annotation_gives_it(watched: Watched) -> None:
    model = "Intel(R) Xeon(R) Platinum 8269CY CPU @ 2.50GHz"
    ratios = {"baseRatio": 1.1, "hyperThreadTurboEnabledRatio": 1.5}
    config = {"enable": True, "ratioModel": {model: ratios}}
    write(watched.objects / "cm.yaml", config_map(cpu_normalization_config=config))
    node = watched.look()
    assert (node.normalization_ratio, node.state_of(Input.NORMALIZATION)) == (1.5, KNOWN)
    info = {"cpuModel": model, "hyperThreadEnabled": False, "turboEnabled": False}
    write(watched.objects / "nrt.yaml", topology({"node.koordinator.sh/cpu-basic-info": info}))
    assert watched.look().normalization_ratio == 1.1
    write(watched.objects / "node.yaml", node_object(annotations={RATIO: "2.00"}))
    assert watched.look().normalization_ratio == 2.0
    # Koordlet leaves out a change by so little.
    write(watched.objects / "node.yaml", node_object(annotations={RATIO: "2.005"}))
    assert watched.look().normalization_ratio == 2.005
    write(watched.objects / "node.yaml", node_object(annotations={RATIO: "9"}))
    node = watched.look()
    assert (node.normalization_ratio, node.state_of(Input.NORMALIZATION)) == (2.005, KNOWN)
    assert watched.problems == (f"Node: {RATIO}: is 9, not in 1 to 5; the ratio stays as it is",)
    write(watched.objects / "node.yaml", node_object())
    write(watched.objects / "cm.yaml", config_map(cpu_normalization_config={"enable": False}))
    node = watched.look()
    assert (node.normalization_ratio, node.state_of(Input.NORMALIZATION)) == (None, WITHDRAWN)


def test_the_ratio_comes_from_the_strategy_of_the_nodes_own_cpu(watched: Watched) -> None:
    def source(model: str) -> str:
        info = {"cpuModel": model, "hyperThreadEnabled": False, "turboEnabled": False}
        write(watched.objects / "nrt.yaml", topology({"node.koordinator.sh/cpu-basic-info": info}))
        return str(ratio_source(watched.look()))

    of_node = {"name": "gold", "nodeSelector": {"matchLabels": {"pool": "a"}}}
    config = {
        "enable": True,
        "ratioModel": {"A": {"baseRatio": 1.5}, "B": {"baseRatio": 1.6}},
        "nodeConfigs": [{**of_node, "ratioModel": {"B": {"baseRatio": 1.1}}, "defaultRatio": 1.2}],
    }
    write(watched.objects / "cm.yaml", config_map(cpu_normalization_config=config), node_object())
    assert source("A").startswith("(cluster strategy of cpu-normalization-config in ")
    assert source("B").startswith("(node strategy gold of cpu-normalization-config in ")
    restored = watched.start()
    assert str(ratio_source(restored)).startswith("(node strategy gold of ")
    # The default, which no model has an entry for.
    assert source("C").startswith("(node strategy gold of ")
    bad = node_object(annotations={RATIO: "9"})
    write(watched.objects / "cm.yaml", config_map(cpu_normalization_config=config), bad)
    assert source("C").startswith("(node strategy gold of "), "the ratio stays as it is"
    good = node_object(annotations={RATIO: "2.00"})
    write(watched.objects / "cm.yaml", config_map(cpu_normalization_config=config), good)
    assert source("C") == "(Node annotation)"


def test_cpus_are_switched_off_and_on(watched: Watched) -> None:
    watched.look()
    watched.machine.switch("0-3")
    node = watched.look(20)
    assert Input.CPUS in watched.changed
    assert node.cpus is not None
    assert [cpu.is_online for cpu in node.cpus] == [True] * 4 + [False] * 4
    assert node.facts.online_cpus == frozenset(range(4))


def test_disks_and_volumes_come_and_go(watched: Watched) -> None:
    assert watched.look().state_of(Input.BLOCK_DEVICES) is UNKNOWN
    disk = watched.machine.sysfs / "class/block/sda"
    disk.mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    node = watched.look(20)
    assert node.state_of(Input.BLOCK_DEVICES) is KNOWN
    assert node.block_devices is not None
    assert (node.block_devices.disks, node.block_devices.pod_volumes) == ({"sda": "8:0"}, {})
    watched.look(20)
    assert Input.BLOCK_DEVICES not in watched.changed
    mounts = watched.machine.procfs / "self/mountinfo"
    mounts.parent.mkdir()
    point = "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pvc-1/mount"
    mounts.write_text(f"36 35 8:0 / {point} rw - ext4 /dev/sda rw\n")
    node = watched.look(20)
    assert watched.changed == {Input.BLOCK_DEVICES}
    assert node.block_devices is not None
    assert node.block_devices.pod_volumes == {("u1", "pvc-1"): ("8:0",)}
    (disk / "dev").unlink()
    node = watched.look(20)
    assert node.block_devices is not None
    assert node.block_devices.disks == {}


def test_a_strategy_that_moves_to_another_file_tells_so(watched: Watched) -> None:
    for name in ("a.yaml", "b.yaml"):
        write(watched.objects / name, config_map(cpu_burst_config=BURST))
        node = watched.look()
        assert Input.STRATEGIES in watched.changed
        provenance = node.strategies.provenance_of("cpu_burst.cpu_burst_percent")
        assert provenance.file == str(watched.objects / name)
        (watched.objects / name).unlink()


@pytest.mark.parametrize("version", [1, 2])
def test_features_are_unknown_until_there_is_a_cgroup_that_shows_them(
    watched: Watched, version: Literal[1, 2]
) -> None:
    (watched.machine.cgroups).mkdir()
    files = CgroupFiles(watched.machine.cgroups, version)
    assert watched.look().state_of(Input.CGROUPS) is UNKNOWN
    files.make("/kubepods.slice")
    if version == 2:
        (files.folder("/kubepods.slice") / "cgroup.controllers").write_text("cpuset cpu memory\n")
    node = watched.look()
    assert Input.CGROUPS in watched.changed
    assert (node.state_of(Input.CGROUPS), node.cgroup_driver) == (KNOWN, "systemd")
    assert Feature.BURST in node.features


def test_of_many_other_objects_some_are_named(watched: Watched) -> None:
    pods = [{"kind": "ConfigMap", "metadata": {"name": f"map-{number}"}} for number in range(100)]
    write(watched.objects / "all.yaml", listed(*pods, config_map(cpu_burst_config=BURST)))
    assert burst_of(watched.look()) == 200
    assert len(watched.notes) == 17
    assert watched.notes[-1].endswith("84 more objects are not read")


def test_a_link_to_itself_is_one_bad_file(watched: Watched) -> None:
    watched.look()
    for name in ("loop.yaml", "loop"):
        (watched.objects / name).symlink_to(name)
    write(watched.objects / "node.yaml", node_object())
    assert watched.look().labels == {"pool": "a"}
    assert len(watched.problems) == 2
    assert all("Too many levels of symbolic links" in text for text in watched.problems)


@pytest.mark.parametrize("number", [".nan", ".inf", "0x" + "f" * 9000, "9" * 5000])
@pytest.mark.parametrize("name", ["slo.yaml", "slo.json"])
def test_a_number_that_is_none_costs_no_last_good_value(watched: Watched, number: str, name: str) -> None:
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
    number = number.replace(".nan", "NaN").replace(".inf", "Infinity") if name.endswith("json") else number
    text = '{"kind": "NodeSLO", "metadata": {"name": "%s"}, "spec": {"other": %s}}'
    (watched.objects / name).write_text(text % (NODE_NAME, number))
    assert burst_of(watched.look()) == 200
    (watched.objects / "cm.yaml").write_text("a: [")
    assert burst_of(watched.start()) == 200
    assert not any("node.json" in text for text in watched.problems)


def test_a_saved_file_that_no_parser_bears_is_left_out(watched: Watched) -> None:
    watched.state.mkdir()
    (watched.state / STATE_FILE).write_text('{"version": 1, "kubelet": ' + "[" * 100_000)
    watched.start()
    assert STATE_FILE in watched.problems[0]


def test_of_many_other_files_some_are_named(watched: Watched) -> None:
    for number in range(1000):
        (watched.objects / f"{number}.md").touch()
    watched.look()
    assert len(watched.notes) == 17
    assert watched.notes[-1] == f"{watched.objects}: 984 more files are not read"


def test_of_many_files_with_the_same_object_some_are_named(watched: Watched) -> None:
    for number in range(300):
        write(watched.objects / f"{number:03}.yaml", node_object())
    assert watched.look().labels == {"pool": "a"}
    assert len(watched.problems) == 18
    assert watched.problems[0] == f"{watched.objects}: has more than 256 files; the others are not read"
    assert watched.problems[-1] == "239 more objects and keys are there twice"


def test_files_beside_it_take_no_known_file_away(watched: Watched) -> None:
    path = watched.objects / "z.yaml"
    write(path, node_object())
    watched.look()
    for turn in range(3):
        for number in range(300):
            (watched.objects / f"{9 - turn}{number}").write_text("x: {}")
        assert watched.look().labels == {"pool": "a"}
        problem = f"{watched.objects}: has more than 256 files; the others are not read"
        assert problem in watched.problems
        objects = watched.inputs._objects
        assert objects is not None
        assert len(objects._files) == 256
    path.unlink()
    watched.look()
    assert watched.look(2 * GRACE_S).labels == {}


@pytest.mark.parametrize("error", [errno.EACCES, errno.ESTALE, errno.EMFILE])
def test_a_folder_that_cannot_be_read_stays_as_it_was(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    path = watched.objects / "node.yaml"
    write(path, node_object())
    watched.look()

    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "scandir", refuse)
    assert watched.look(2 * GRACE_S).labels == {"pool": "a"}
    problem = f"{watched.objects}: cannot be read: {os.strerror(error)}; all stays as it is"
    assert list(watched.problems) == [problem]
    monkeypatch.undo()
    path.unlink()
    watched.look()
    assert watched.look(2 * GRACE_S).labels == {}
    assert list(watched.problems) == []


def test_a_folder_that_is_a_link_to_itself_is_polled(watched: Watched) -> None:
    watched.objects.rmdir()
    watched.objects.symlink_to(watched.objects)
    assert watched.look().labels == {}
    assert "Too many levels of symbolic links" in watched.problems[0]
    assert watched.inputs.look(watched.now_s).needs_polling
    watched.objects.unlink()
    watched.objects.mkdir()
    write(watched.objects / "node.yaml", node_object())
    assert watched.look().labels == {"pool": "a"}


def test_the_tree_tells_the_cgroup_driver_before_the_configuration(watched: Watched) -> None:
    (watched.kubelet / "config.yaml").write_text("kind: KubeletConfiguration\ncgroupDriver: cgroupfs\n")
    assert watched.look().cgroup_driver == "cgroupfs"
    watched.machine.cgroups.mkdir()
    CgroupFiles(watched.machine.cgroups, 2).make("/kubepods.slice")
    assert watched.look().cgroup_driver == "systemd", "kubelets from 1.31 on ask the runtime"


def test_an_empty_configuration_of_the_kubelet_is_no_configuration(watched: Watched) -> None:
    (watched.kubelet / "config.yaml").write_bytes(CONFIG)
    before = watched.look().kubelet
    assert before is not None
    for text in ("", "---\n", "# nothing yet\n"):
        (watched.kubelet / "config.yaml").write_text(text)
        assert watched.look().kubelet == before
        assert watched.problems == (f"{watched.kubelet / 'config.yaml'}: is empty{STAYS}",)


@pytest.mark.parametrize("name", ["config.yaml", "cpu_manager_state", "allocated_pods_state"])
def test_a_file_of_the_kubelet_that_is_cut_off_keeps_its_values(watched: Watched, name: str) -> None:
    resources = json.dumps({"entries": {"u": {"ContainerResources": {"c": {"requests": {"cpu": "1"}}}}}})
    texts = {
        "config.yaml": "cgroupDriver: systemd\ncpuManagerPolicy: static\nkind: KubeletConfiguration",
        "cpu_manager_state": '{"policyName":"static","entries":{"u":{"c":"3"}}}',
        "allocated_pods_state": json.dumps({"data": resources}),
    }
    for each, text in texts.items():
        (watched.kubelet / each).write_text(text)
    good = watched.look()
    for size in range(len(texts[name])):
        (watched.kubelet / name).write_text(texts[name][:size])
        node = watched.look(0.01)
        assert (node.kubelet, node.requests) == (good.kubelet, good.requests)
        assert [str(watched.kubelet / name) in text for text in watched.problems] == [True]


def test_a_misspelled_name_is_a_problem_and_another_unknown_one_a_note(watched: Watched) -> None:
    strategy = {"clusterStrategy": {"policy": "auto", "cpuBurstPercnt": 200, "burstShares": 2}}
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=strategy, cpu_brust_config="{}", new="{}"))
    node = watched.look()
    assert node.strategies.cpu_burst.policy == "auto"
    assert {each.rpartition("; ")[2] for each in watched.problems} == {
        "did you mean cpuBurstPercent?",
        "did you mean cpu-burst-config?",
    }
    assert ["burstShares" in each or "new" in each for each in watched.notes] == [True, True]


def test_a_config_map_whose_name_is_misspelled_is_a_problem(watched: Watched) -> None:
    for name, is_problem in (("slo-controler-config", True), ("other", False)):
        objects = config_map(cpu_burst_config="{}")
        objects["metadata"]["name"] = name
        write(watched.objects / "cm.yaml", objects)
        watched.look()
        assert bool(watched.problems) == is_problem
        assert bool(watched.notes) != is_problem
