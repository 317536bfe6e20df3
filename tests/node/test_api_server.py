"""Objects and pods of the API server: what counts, from when on, and beside the folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.documents.reading import InputError
from runtimeproxy.hooks.views import PodView
from runtimeproxy.node import api_server
from runtimeproxy.node.api_server import ApiServerInputs, ObjectSink, PodSink, read_pod, runtime_uid
from runtimeproxy.node.facts import NodeReader
from runtimeproxy.node.inputs import SAVE_PODS_S, STATE_FILE, InputPlaces, InputsReading, NodeInputs
from runtimeproxy.node.object_folder import FolderObjects
from runtimeproxy.node.objects import KATALYST_KINDS, Kind, Reader
from runtimeproxy.node.snapshot import Input, InputState, LivePod, Node
from tests.node.objects_of import (
    BURST,
    NODE_NAME,
    Machine,
    config_map,
    node_object,
    node_slo,
    topology,
    write,
)

KNOWN, UNKNOWN, WITHDRAWN = InputState.KNOWN, InputState.UNKNOWN, InputState.WITHDRAWN
READER = Reader(NODE_NAME, frozenset(range(8)))
OTHER = {"clusterStrategy": {"cpuBurstPercent": 300}}
BAD_TOPOLOGY = {"node.koordinator.sh/cpu-shared-pools": [{"cpuset": "99"}]}


def pod(name: str = "web", node: str = NODE_NAME, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "app", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": {"a": "b"}},
        "spec": {"nodeName": node, "priority": 9500, "containers": containers, **spec},
        "status": {"phase": "Running"},
    }


class Inputs:
    """Inputs with a clock of their own, of which each draw is a half."""

    def __init__(self, spread_s: float = 60.0) -> None:
        self.inputs = ApiServerInputs("API server", spread_s, lambda: 0.5)
        self.now_s = 1000.0

    def look(self, after_s: float = 0.0) -> FolderObjects:
        self.now_s += after_s
        self.inputs.look(self.now_s, READER)
        return self.inputs.found

    def text(self, after_s: float = 0.0) -> str:
        (text,) = self.look(after_s).config.values()
        return text.text


def test_what_is_known_first_counts_at_once() -> None:
    it = Inputs()
    assert it.look().unknown == frozenset(Kind) - KATALYST_KINDS
    it.inputs.put(Kind.CONFIG_MAP, config_map(cpu_burst_config=BURST))
    it.inputs.put(Kind.NODE, node_object())
    it.inputs.put(Kind.NODE_SLO, None)
    found = it.look()
    (text,) = found.config.values()
    assert text.file == "API server: slo-controller-config"
    assert found.node is not None
    assert found.node.labels == {"pool": "a"}
    assert found.unknown == {Kind.TOPOLOGY}
    assert found.node_slo is None


def test_a_change_starts_later_and_the_newest_one_counts() -> None:
    it = Inputs()
    it.inputs.put(Kind.CONFIG_MAP, config_map(x="1"))
    it.look()
    it.inputs.put(Kind.CONFIG_MAP, config_map(x="2"))
    assert it.text() == "1"
    assert it.inputs.wait_s == 30.0
    it.inputs.put(Kind.CONFIG_MAP, config_map(x="3"))
    assert it.text(20.0) == "1"
    assert it.inputs.wait_s == 10.0  # a second change does not put the first one off
    assert it.text(10.0) == "3"
    assert it.inputs.wait_s is None


def test_a_change_that_is_taken_back_never_starts() -> None:
    it = Inputs()
    it.inputs.put(Kind.CONFIG_MAP, config_map(x="1"))
    it.look()
    it.inputs.put(Kind.CONFIG_MAP, config_map(x="2"))
    it.look()
    it.inputs.put(Kind.CONFIG_MAP, config_map(x="1"))
    assert it.text() == "1"
    assert it.inputs.wait_s is None
    assert it.text(100.0) == "1"


def test_a_deletion_is_such_a_change() -> None:
    it = Inputs()
    it.inputs.put(Kind.NODE_SLO, node_slo(a={"b": 1}))
    assert it.look().node_slo is not None
    it.inputs.put(Kind.NODE_SLO, None)
    assert it.look().node_slo is not None
    assert it.inputs.waiting == (Kind.NODE_SLO,)
    found = it.look(30.0)
    assert found.node_slo is None
    assert Kind.NODE_SLO not in found.unknown


def test_what_only_this_node_publishes_starts_at_once() -> None:
    it = Inputs()
    it.inputs.put(Kind.TOPOLOGY, topology())
    first = it.look().topology
    it.inputs.put(Kind.TOPOLOGY, topology({"node.koordinator.sh/cpu-shared-pools": [{"cpuset": "0-3"}]}))
    assert it.look().topology != first


def test_a_node_whose_status_changes_only_is_the_same() -> None:
    it = Inputs()
    it.inputs.put(Kind.NODE, node_object())
    it.look()
    document = node_object()
    document["status"]["conditions"] = [{"type": "Ready"}]
    it.inputs.put(Kind.NODE, document)
    it.look()
    assert it.inputs.waiting == ()


def test_an_object_that_cannot_be_used_leaves_the_last_good_one() -> None:
    it = Inputs()
    it.inputs.put(Kind.TOPOLOGY, topology(BAD_TOPOLOGY))
    assert Kind.TOPOLOGY in it.look().unknown
    (problem,) = it.inputs.problems
    assert problem.startswith("API server: NodeResourceTopology: metadata.annotations")
    it.inputs.put(Kind.TOPOLOGY, topology())
    good = it.look().topology
    assert good is not None
    assert not it.inputs.problems
    it.inputs.put(Kind.TOPOLOGY, topology(BAD_TOPOLOGY))
    assert it.look().topology is good
    assert it.inputs.problems[0].endswith("what was there before stays")


@pytest.mark.parametrize("document", [node_object("another"), {"kind": "Pod"}, [], "x", config_map()])
def test_what_is_about_something_else_is_ignored(document: object) -> None:
    it = Inputs()
    it.inputs.put(Kind.NODE, document)
    assert Kind.NODE in it.look().unknown


def test_sinks_take_their_object_only() -> None:
    it = Inputs(0.0)
    sink = ObjectSink(it.inputs, Kind.NODE, NODE_NAME)
    named = {key: value for key, value in node_object().items() if key != "kind"}
    sink.on_listed([node_object("another"), named, {}, 7])
    assert it.look().node is not None
    sink.on_changed(node_object("another"))
    sink.on_deleted(node_object("another"))
    assert it.look().node is not None
    sink.on_changed(node_object(labels={"pool": "b"}))
    found = it.look().node
    assert found is not None
    assert found.labels == {"pool": "b"}
    sink.on_deleted(named)
    assert it.look().node is None
    sink.on_changed(named)
    assert it.look().node is not None
    sink.on_listed([])
    assert it.look().node is None


# Pods


def test_a_pod_as_it_counts() -> None:
    side = {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Mi"}}}
    found = read_pod(pod(initContainers=[{"name": "init"}, side]), NODE_NAME)
    assert found == LivePod(
        uid="uid-web",
        namespace="ns",
        name="web",
        priority=9500,
        annotations={"a": "b"},
        requests={"side": {"memory": 2**20}, "app": {"cpu": 500, "memory": 2**30}},
    )
    assert read_pod(pod(node="another"), NODE_NAME) is None
    ended = pod()
    ended["status"]["phase"] = "Succeeded"
    assert read_pod(ended, NODE_NAME) is None


def test_a_static_pod_has_the_uid_that_the_kubelet_gave_it() -> None:
    document = pod()
    document["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    found = read_pod(document, NODE_NAME)
    assert found is not None
    assert (found.uid, found.is_static) == ("hash", True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metadata": []}, "metadata"),
        ({"metadata": {"name": "x"}}, "has no name or uid"),
        ({"metadata": {"uid": "x", "name": 7}}, r"metadata\.name: is a number"),
        ({"metadata": {"uid": "x", "name": "x", "annotations": {"a": 7}}}, r"annotations\.a: is a number"),
        ({"spec": {"nodeName": NODE_NAME, "priority": "9"}}, r"spec\.priority: is not a whole number"),
        ({"spec": {"nodeName": NODE_NAME, "priority": True}}, r"spec\.priority: is not a whole number"),
        ({"spec": {"nodeName": NODE_NAME, "containers": 7}}, r"spec\.containers: is a number, not a list"),
        (
            {"spec": {"nodeName": NODE_NAME, "containers": [{"resources": {"requests": {"cpu": "x"}}}]}},
            r"spec\.containers\[0\]\.resources\.requests\.cpu: is not a quantity",
        ),
    ],
)
def test_pods_that_cannot_be_used(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_pod({**pod(), **change}, NODE_NAME)


@pytest.mark.parametrize(
    "document", [None, [], {"metadata": 7}, {"metadata": {"annotations": []}}, {"metadata": {"uid": 7}}]
)
def test_what_has_no_uid(document: object) -> None:
    assert runtime_uid(document) == ""


class Pods:
    """Pods as a sink leaves them."""

    def __init__(self) -> None:
        self.inputs = ApiServerInputs("API server")
        self.sink = PodSink(self.inputs, NODE_NAME)

    @property
    def names(self) -> list[str]:
        self.inputs.look(0.0, READER)
        return sorted(each.name for each in self.inputs.pods.values())


def test_pods_come_change_and_go() -> None:
    it = Pods()
    assert (it.names, it.inputs.has_pods) == ([], False)
    it.sink.on_listed([pod("a"), pod("b"), pod("c", node="another")])
    assert it.names == ["a", "b"]
    assert it.inputs.has_pods
    it.sink.on_changed(pod("d"))
    it.sink.on_changed({**pod("a"), "status": {"phase": "Failed"}})
    it.sink.on_deleted(pod("b"))
    assert it.names == ["d"]
    it.sink.on_listed([])
    assert it.names == []


def test_a_list_that_fails_halfway_changes_nothing() -> None:
    it = Pods()
    it.sink.on_listed([pod("a")])

    def cut_off() -> Iterator[Any]:
        yield pod("b")
        raise InputError("is cut off")

    with pytest.raises(InputError):
        it.sink.on_listed(cut_off())
    assert it.names == ["a"]


def test_a_pod_that_goes_bad_stays_as_it_was() -> None:
    it = Pods()
    bad = pod("a", priority="x")
    it.sink.on_changed(bad)
    assert it.names == []
    it.sink.on_changed(pod("a"))
    it.sink.on_changed(bad)
    assert it.names == ["a"]
    assert it.sink.problems == {"uid-a": "pod a: spec.priority: is not a whole number"}
    it.sink.on_listed([bad])
    assert it.names == ["a"]
    it.sink.on_deleted(bad)
    assert it.names == []
    assert it.sink.problems == {}


def test_pods_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "MAX_PODS", 2)
    monkeypatch.setattr(api_server, "MAX_ANNOTATION_BYTES", 100)
    it = Pods()
    it.sink.on_listed([pod("a"), pod("b"), pod("c")])
    assert it.names == ["a", "b"]
    assert it.sink.problems == {"uid-c": "pod c: is one of more than 2 pods"}
    large = pod("b")
    large["metadata"]["annotations"] = {"x": "y" * 100}
    it.sink.on_changed(large)
    assert "more than 100 bytes of annotations" in it.sink.problems["uid-b"]
    it.sink.on_deleted(pod("a"))
    large["metadata"]["annotations"] = {"x": "y" * 99}
    it.sink.on_changed(large)
    assert it.names == ["b"]
    assert it.sink.problems == {"uid-c": "pod c: is one of more than 2 pods"}


# Beside the other inputs of a node


class Watched:
    """A node in folders with an API server."""

    def __init__(self, root: Path, spread_s: float = 0.0) -> None:
        self.machine = Machine(root)
        self.objects = root / "node.d"
        self.objects.mkdir(exist_ok=True)
        self.places = InputPlaces(
            sysfs=self.machine.sysfs,
            procfs=self.machine.procfs,
            cgroup_root=self.machine.cgroups,
            kubelet_dir=root / "kubelet",
            objects_dir=self.objects,
            state_dir=root / "state",
            node_name=NODE_NAME,
        )
        self.now_s = 0.0
        self.start(spread_s)

    def start(self, spread_s: float = 0.0) -> None:
        self.server = ApiServerInputs("API server", spread_s, lambda: 0.5)
        reader = NodeReader(self.places.sysfs, self.places.cgroup_root, lambda: self.now_s)
        self.inputs = NodeInputs(self.places, reader, self.server)
        self.first = self.inputs.restore(self.now_s)

    def look(self, after_s: float = 1.0) -> InputsReading:
        self.now_s += after_s
        return self.inputs.look(self.now_s, is_first=True)

    @property
    def node(self) -> Node:
        return self.inputs.node

    def state(self, of: Input) -> InputState:
        return self.node.state_of(of)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_before_it_has_answered_nothing_is_withdrawn(watched: Watched) -> None:
    watched.look()
    for each in (Input.NODE_OBJECT, Input.STRATEGIES, Input.POOLS, Input.POD_REQUESTS):
        assert watched.state(each) is UNKNOWN
    watched.server.put(Kind.CONFIG_MAP, config_map(cpu_burst_config=BURST))
    watched.server.put(Kind.NODE, node_object())
    watched.server.put(Kind.TOPOLOGY, None)
    watched.server.put(Kind.NODE_SLO, None)
    look = watched.look()
    assert {Input.STRATEGIES, Input.NODE_OBJECT, Input.POOLS} <= look.changed
    assert watched.state(Input.STRATEGIES) is KNOWN
    assert watched.state(Input.NODE_OBJECT) is KNOWN
    assert watched.state(Input.POOLS) is WITHDRAWN
    assert watched.node.allocatable is not None
    provenance = watched.node.strategies.provenance
    assert {each.file for each in provenance.values()} == {"API server: slo-controller-config"}


def test_an_object_in_the_folder_hides_that_of_the_server(watched: Watched) -> None:
    write(watched.objects / "node.yaml", node_object(labels={"pool": "of the folder"}))
    watched.server.put(Kind.NODE, node_object(labels={"pool": "of the server"}))
    watched.server.put(Kind.CONFIG_MAP, config_map(cpu_burst_config=BURST))
    look = watched.look()
    assert watched.node.labels == {"pool": "of the folder"}
    assert watched.state(Input.STRATEGIES) is KNOWN
    (note,) = (each for each in look.notes if "API server" in each)
    assert note == "Node: that in the folder is used (node.objects_dir), not the API server's"
    (watched.objects / "node.yaml").unlink()
    watched.look()
    assert watched.node.labels == {"pool": "of the folder"}
    watched.look(61.0)
    assert watched.node.labels == {"pool": "of the server"}


def test_a_file_that_was_never_good_hides_nothing(watched: Watched) -> None:
    (watched.objects / "bad.yaml").write_text("kind: [")
    watched.server.put(Kind.NODE, node_object())
    watched.look()
    assert watched.node.labels == {"pool": "a"}
    assert watched.state(Input.STRATEGIES) is UNKNOWN


def test_a_change_that_waits_has_the_next_look_in_time(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 60.0)
    watched.server.put(Kind.NODE, node_object())
    watched.look()
    watched.server.put(Kind.NODE, node_object(labels={"pool": "b"}))
    assert watched.look().wait_s == 30.0
    assert watched.node.labels == {"pool": "a"}
    look = watched.look(30.0)
    assert look.changed == {Input.NODE_OBJECT}
    assert watched.node.labels == {"pool": "b"}


def test_pods_make_a_snapshot_but_change_no_input(watched: Watched) -> None:
    watched.look()
    sink = PodSink(watched.server, NODE_NAME)
    sink.on_listed([pod("a"), pod("b")])
    look = watched.look()
    assert look.changed_pods == {"uid-a", "uid-b"}
    assert watched.node.live_pods["uid-a"].priority == 9500
    sink.on_changed(pod("b", priority=5500))
    sink.on_changed({**pod("a"), "status": {"phase": "Pending"}})
    look = watched.look()
    assert look.changed_pods == {"uid-b"}
    assert look.changed == frozenset()
    sink.on_deleted(pod("a"))
    assert watched.look().changed_pods == frozenset()
    assert watched.look().changed_pods == frozenset()
    assert watched.node.live_pods.keys() == {"uid-b"}


def test_the_last_good_values_are_there_at_the_next_start(watched: Watched) -> None:
    sink = PodSink(watched.server, NODE_NAME)
    watched.look()
    watched.server.put(Kind.CONFIG_MAP, config_map(cpu_burst_config=BURST))
    watched.server.put(Kind.NODE, node_object())
    sink.on_listed([pod("a")])
    watched.look()
    before = watched.node
    watched.start(60.0)
    assert watched.node.strategies == before.strategies
    assert watched.node.labels == before.labels
    assert watched.node.live_pods == before.live_pods
    watched.look()
    # The server has not answered yet.
    assert watched.state(Input.STRATEGIES) is KNOWN
    assert watched.node.live_pods == before.live_pods
    # What is another one now starts as each change.
    watched.server.put(Kind.CONFIG_MAP, config_map(cpu_burst_config=OTHER))
    assert watched.look().changed == frozenset()
    assert Input.STRATEGIES in watched.look(31.0).changed


def test_a_state_of_another_program_is_no_obstacle(watched: Watched) -> None:
    watched.server.put(Kind.NODE, node_object())
    watched.look()
    path = watched.places.state_dir
    assert path is not None
    saved = json.loads((path / STATE_FILE).read_text())
    del saved["api_server"]
    (path / STATE_FILE).write_text(json.dumps(saved))
    watched.start()
    assert not watched.first.problems
    saved["api_server"] = {"objects": [7, {"kind": "Node"}], "pods": [{"uid": "x", "of-tomorrow": 1}]}
    (path / STATE_FILE).write_text(json.dumps(saved))
    watched.start()
    (problem,) = watched.first.problems
    assert "is not usable" in problem


def test_pods_alone_are_saved_from_time_to_time(watched: Watched) -> None:
    sink = PodSink(watched.server, NODE_NAME)
    watched.look()
    sink.on_listed([pod("a")])
    watched.look(SAVE_PODS_S)
    path = watched.places.state_dir
    assert path is not None

    def saved() -> list[str]:
        document = json.loads((path / STATE_FILE).read_text())
        return [each["name"] for each in document["api_server"]["pods"]]

    assert saved() == ["a"]
    sink.on_changed(pod("b"))
    watched.look()
    assert saved() == ["a"]
    watched.look(SAVE_PODS_S)
    assert saved() == ["a", "b"]


# What is known of a pod

POD = PodView(uid="uid-web", namespace="ns", name="web")


def test_priority_and_requests_are_known_for_its_pods() -> None:
    live = read_pod(pod(), NODE_NAME)
    assert live is not None
    states = {Input.POD_REQUESTS: KNOWN}
    both = (Input.PRIORITY, Input.POD_REQUESTS)
    node = Node(live_pods={live.uid: live}, states=states)
    assert node.unknown_inputs(both, POD) == ()
    assert node.priority_of(POD) == 9500
    assert node.requests_of(POD) == {"app": {"cpu": 500, "memory": 2**30}}
    assert Node(states=states).unknown_inputs(both, POD) == both
    assert Node().priority_of(POD) is None
    # The kubelet's own state counts over it.
    of_kubelet = {("uid-web", "app"): {"memory": 7}}
    node = Node(live_pods={live.uid: live}, requests=of_kubelet, states=states)
    assert node.requests_of(POD) == {"app": {"memory": 7}}
    without = live._replace(priority=None)
    assert Node(live_pods={live.uid: without}).unknown_inputs((Input.PRIORITY,), POD) == (Input.PRIORITY,)


def test_which_containers_are_ready() -> None:
    """Of those with a probe: without one a container is ready when it runs."""
    probe = {"httpGet": {"port": 80}}
    document = pod(
        containers=[
            {"name": "probed", "readinessProbe": probe},
            {"name": "slow", "startupProbe": probe},
            {"name": "plain"},
        ],
        initContainers=[
            {"name": "sidecar", "restartPolicy": "Always", "startupProbe": probe},
            {"name": "init"},
        ],
    )
    inits = [
        {"name": "sidecar", "ready": True, "containerID": "containerd://ddd"},
        {"name": "init", "ready": True, "containerID": "containerd://eee"},
    ]
    statuses: list[object] = [
        {"name": "probed", "ready": True, "containerID": "containerd://aaa"},
        {"name": "slow", "ready": False, "containerID": "containerd://bbb"},
        {"name": "plain", "ready": True, "containerID": "containerd://ccc"},
        {"name": "probed", "ready": True},
        "garbage",
    ]
    status = {"phase": "Running", "containerStatuses": statuses, "initContainerStatuses": inits}
    found = read_pod({**document, "status": status}, NODE_NAME)
    assert found is not None
    assert found.ready == {"aaa", "ddd"}
    broken = read_pod({**document, "status": {"containerStatuses": {"a": 1}}}, NODE_NAME)
    assert broken is not None
    assert broken.ready == frozenset()
