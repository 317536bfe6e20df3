"""Katalyst's dynamic configuration of a node: its targets in the folder of objects and on the API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.katalyst.dynamic_config import NO_CONFIG
from runtimeproxy.katalyst.levels import LevelRules, OnError
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.node.api_server import ApiServerInputs, KatalystSink
from runtimeproxy.node.dynamic_config import DynamicConfig
from runtimeproxy.node.facts import NodeReader
from runtimeproxy.node.input_file import GRACE_S
from runtimeproxy.node.inputs import STATE_FILE, InputPlaces, InputsReading, NodeInputs
from runtimeproxy.node.object_folder import FolderObjects
from runtimeproxy.node.objects import KATALYST_KINDS, Kind
from runtimeproxy.node.snapshot import Input, InputState, Node
from tests.katalyst.objects import NODE, custom_config, target
from tests.node.objects_of import node_object

KNOWN, UNKNOWN, WITHDRAWN = InputState.KNOWN, InputState.UNKNOWN, InputState.WITHDRAWN
ON = {"reclaimedResourceConfig": {"enableReclaim": True}}
OFF = {"reclaimedResourceConfig": {"enableReclaim": False}}
KCC = custom_config({0: ["pool"]})


class Watched:
    """A node with a folder of objects, and maybe an API server; each look is a second after another."""

    def __init__(self, root: Path, server: ApiServerInputs | None = None) -> None:
        self.objects, self.state = root / "node.d", root / "state"
        self.objects.mkdir()
        self.server = server
        self.now_s = 0.0
        self.seen: InputsReading = self.start()

    def start(self) -> InputsReading:
        none = self.objects / "none"
        places = InputPlaces(
            sysfs=none,
            procfs=none,
            devfs=none,
            cgroup_root=none,
            objects_dir=self.objects,
            state_dir=self.state,
            node_name=NODE,
            levels=LevelRules(),
        )
        self.inputs = NodeInputs(places, NodeReader(none, none, devfs=none), self.server)
        self.is_first = True
        self.seen = self.inputs.restore(self.now_s)
        return self.seen

    def look(self, after_s: float = 1.0) -> Node:
        changed = frozenset[Input]()
        for _ in range(2):
            self.now_s += after_s
            self.seen = self.inputs.look(self.now_s, is_first=self.is_first)
            self.is_first, after_s = False, 1.0
            changed |= self.seen.changed
        self.seen = self.seen._replace(changed=changed)
        return self.seen.node

    def write(self, *documents: Any, name: str = "katalyst.yaml") -> Node:
        listed = {"kind": "List", "apiVersion": "v1", "items": documents}
        (self.objects / name).write_text(json.dumps(listed))
        return self.look()

    @property
    def reasons(self) -> dict[str, str]:
        return {each.name: each.reason for each in self.seen.katalyst_targets}


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def enabled(node: Node) -> bool | None:
    return node.katalyst.enable_reclaim


def test_targets_come_change_and_go(watched: Watched) -> None:
    assert watched.look().state_of(Input.KATALYST) is WITHDRAWN
    node = watched.write(target("all", config=OFF), target("b", selector="pool=b", config=ON), KCC)
    assert (enabled(node), node.state_of(Input.KATALYST)) == (False, KNOWN)
    assert Input.KATALYST in watched.seen.changed
    assert watched.seen.problems == ()
    assert watched.reasons == {
        "all": "is for all nodes",
        "b": "the node's labels do not match nodeLabelSelector pool=b",
    }
    # The node's labels are those of its object.
    assert enabled(watched.write(node_object(labels={"pool": "b"}), name="node.yaml")) is True
    # The targets that are left apply as soon as the file has no others.
    node = watched.write(target("all", config=OFF), target("b", selector="pool=c", config=ON), KCC)
    assert enabled(node) is False
    (watched.objects / "katalyst.yaml").unlink()
    assert enabled(watched.look()) is False
    node = watched.look(GRACE_S)
    assert (node.katalyst, node.state_of(Input.KATALYST)) == (NO_CONFIG, WITHDRAWN)
    assert watched.reasons == {}


def test_a_target_that_a_file_has_no_longer_does_not_stand_in_the_way(watched: Watched) -> None:
    watched.write(target("one", config=ON))
    assert enabled(watched.write(target("another", config=OFF))) is False
    assert not any("AdminQoSConfiguration:" in each for each in watched.seen.problems)


def test_levels_and_errors_by_dynamic_configuration(watched: Watched) -> None:
    own = {"defaultLevel": "reclaimed_cores", "onError": "reject"}
    node = watched.write(target("all", config={"runtimeProxyConfig": own}))
    assert node.levels == LevelRules(default_level=QosLevel.RECLAIMED, on_error=OnError.REJECT)
    assert watched.write(target("all")).levels == LevelRules()


def test_an_invalid_target_leaves_all_as_it_was_and_is_said(watched: Watched) -> None:
    watched.write(target("all", config=ON))
    node = watched.write(target("all", config=OFF), target("bad", nodes=["x"]))
    assert (enabled(node), node.state_of(Input.KATALYST)) == (True, KNOWN)
    assert watched.seen.problems == (
        "AdminQoSConfiguration bad: has ephemeralSelector.nodeNames without lastDuration",
        "AdminQoSConfiguration: one of them is not valid; the node goes by the last ones that all were",
    )
    assert watched.reasons["bad"] == "has ephemeralSelector.nodeNames without lastDuration"
    # A restart does not lose what is valid.
    restored = watched.start()
    assert enabled(restored.node) is True
    assert enabled(watched.look()) is True


def test_a_file_that_cannot_be_read_keeps_its_targets(watched: Watched) -> None:
    watched.write(target("all", config=ON))
    (watched.objects / "katalyst.yaml").write_text("a: [")
    assert enabled(watched.look()) is True
    assert watched.seen.problems[0].endswith("; what was there before stays")


def test_a_field_that_is_not_supported_is_named(watched: Watched) -> None:
    watched.write(target("all", config={**ON, "evictionConfig": {}, "reclaimedResourceConfg": {}}))
    file = watched.objects / "katalyst.yaml"
    assert watched.seen.notes == (
        f"{file}: AdminQoSConfiguration all: spec.config.evictionConfig is not supported, and is not used",
    )
    (problem,) = watched.seen.problems
    assert "reclaimedResourceConfg is not a known field" in problem
    assert [each.path for each in watched.seen.strategy_problems] == ["spec.config.reclaimedResourceConfg"]


def test_objects_that_are_not_about_targets_are_named(watched: Watched) -> None:
    other = custom_config({0: ["pool"]}, resource="evictionconfigurations", name="other")
    watched.write(target("all", config=ON), KCC, other, {**target("x"), "kind": "AdminQosConfiguration"})
    assert watched.reasons == {"all": "is for all nodes"}
    assert any("did you mean AdminQoSConfiguration?" in each for each in watched.seen.problems)
    assert any("about other objects than adminqosconfigurations" in each for each in watched.seen.notes)


def test_the_end_of_a_target_is_a_reason_for_another_look() -> None:
    now_s = [1000.0]
    dynamic = DynamicConfig(lambda: now_s[0])
    from runtimeproxy.katalyst.targets import read_target

    document = target("mine", nodes=[NODE], last="20s", created="1970-01-01T00:16:40Z", config=ON)
    found = FolderObjects(targets=(read_target(document), read_target(target("all", config=OFF))))
    assert dynamic.update(found, NODE, {}).enable_reclaim is True
    assert dynamic.wait_s == pytest.approx(20.0, abs=0.01)
    now_s[0] += dynamic.wait_s or 0.0
    assert dynamic.update(found, NODE, {}).enable_reclaim is False
    assert dynamic.wait_s is None


# The API server


class Server:
    """An API server's objects of Katalyst, as watches give them."""

    def __init__(self, spread_s: float = 0.0) -> None:
        self.inputs = ApiServerInputs("API server", spread_s, lambda: 0.5, kinds=frozenset(Kind))
        self.targets = KatalystSink(self.inputs, Kind.TARGET)
        self.custom_configs = KatalystSink(self.inputs, Kind.CUSTOM_CONFIG)


def items(*documents: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """As lists have them: without a kind."""
    return ({key: each[key] for key in each if key not in ("kind", "apiVersion")} for each in documents)


def test_targets_of_the_api_server(tmp_path: Path) -> None:
    server = Server()
    watched = Watched(tmp_path, server.inputs)
    assert watched.look().state_of(Input.KATALYST) is UNKNOWN
    selecting = target("a", selector="!pool", config=ON)
    server.targets.on_listed(items(selecting))
    node = watched.look()
    assert (enabled(node), node.state_of(Input.KATALYST)) == (None, UNKNOWN)
    assert watched.reasons == {"a": "waits until it is known which labels targets may select by"}
    server.custom_configs.on_listed(items(KCC))
    assert enabled(watched.look()) is True
    assert [each.file for each in watched.seen.katalyst_targets] == ["API server"]
    server.targets.on_changed(target("all", config=OFF))
    assert enabled(watched.look()) is True
    server.targets.on_deleted(selecting)
    assert enabled(watched.look()) is False
    # The folder's targets hide the server's.
    assert enabled(watched.write(target("own", config=ON))) is True
    assert any("that in the folder is used" in each for each in watched.seen.notes)


def test_a_change_of_the_api_server_starts_after_a_random_time(tmp_path: Path) -> None:
    server = Server(spread_s=60.0)
    watched = Watched(tmp_path, server.inputs)
    server.custom_configs.on_listed(items())
    server.targets.on_listed(items(target("all", config=ON)))
    assert enabled(watched.look()) is True
    server.targets.on_changed(target("all", config=OFF))
    assert enabled(watched.look()) is True
    assert watched.seen.wait_s is not None
    assert server.inputs.waiting == (Kind.TARGET,)
    assert enabled(watched.look(31.0)) is False


def test_what_the_server_has_said_survives_a_restart_without_it(tmp_path: Path) -> None:
    server = Server()
    watched = Watched(tmp_path, server.inputs)
    server.custom_configs.on_listed(items())
    server.targets.on_listed(items(target("all", config=ON)))
    watched.look()
    watched.server = Server().inputs
    assert enabled(watched.start().node) is True
    node = watched.look()
    assert enabled(node) is True
    assert watched.reasons == {"all": "is for all nodes"}


def test_a_server_that_is_not_asked_for_targets_makes_nothing_unknown(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ApiServerInputs("API server"))
    assert watched.look().state_of(Input.KATALYST) is WITHDRAWN
    assert not KATALYST_KINDS & watched.inputs.node.states.keys()


# What is hostile


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


HOSTILE = {
    "huge": [target("x", config={"a": "b" * 1_000_000})],
    "deep": [target("x", config=nested(50))],
    "wrong types": [{**target("x"), "spec": {key: [] for key in target("x", last="1h")["spec"]}}],
    "a spec that is none": [{**target("x"), "spec": "spec"}],
    "no name": [{"kind": "AdminQoSConfiguration", "metadata": {"name": 5}}],
    "many values": [target("x", selector=f"pool in ({','.join(f'v{each}' for each in range(10_000))})"), KCC],
    "many names": [target("x", nodes=[f"n{each}" for each in range(10_001)], last="1h")],
    "many targets": [target(f"t{each}", selector=f"pool=v{each}") for each in range(1_000)] + [KCC],
    "many keys": [target("x"), custom_config({0: [f"k{each}" for each in range(5_000)]})],
    "control characters": [target("x\x1b[2J\n", nodes=["\x1b"], last="\n")],
}


@pytest.mark.parametrize("documents", HOSTILE.values(), ids=HOSTILE)
def test_hostile_targets_leave_what_was_there(watched: Watched, documents: list[Any]) -> None:
    watched.write(target("good", config=ON))
    node = watched.write(*documents, name="hostile.json")
    assert enabled(node) is True
    assert watched.seen.problems or not all(each.is_applied for each in watched.seen.katalyst_targets)
    for text in (*watched.seen.problems, *watched.seen.notes):
        assert text.isprintable()
        assert len(text) < 1_000
    # A process that starts with it beside what it saved goes by what it saved.
    assert enabled(watched.start().node) is True
    assert enabled(watched.look()) is True


@pytest.mark.parametrize(
    "value",
    [
        5,
        {},
        {"targets": [], "custom_configs": [], "applied": 5},
        {"targets": [["f", {}]], "custom_configs": [], "applied": {}},
        {"targets": [["f"]], "custom_configs": [], "applied": {"target": "t", "version": "v", "config": {}}},
        {
            "targets": "abc",
            "custom_configs": {},
            "applied": {"target": 1, "version": [], "config": nested(60)},
        },
        {
            "targets": [["f", target("x", nodes=5)]],
            "custom_configs": [["f", KCC], ["f", KCC]],
            "applied": {"target": "t", "version": "v", "config": {"reclaimedResourceConfig": 5}},
        },
    ],
)
def test_a_poisoned_saved_state(watched: Watched, value: Any) -> None:
    watched.write(target("all", config=ON))
    path = watched.state / STATE_FILE
    document = json.loads(path.read_text())
    assert _replaced(document, "katalyst", value)
    path.write_text(json.dumps(document))
    watched.start()
    assert enabled(watched.look()) is True
    watched.start()
    assert enabled(watched.look()) is True
    assert watched.reasons == {"all": "is for all nodes"}


def _replaced(document: Any, key: str, value: Any) -> bool:
    """Puts another value in the place of the first one with this key, at any depth."""
    if not isinstance(document, dict):
        return False
    if key in document:
        document[key] = value
        return True
    return any(_replaced(each, key, value) for each in document.values())


def test_as_many_targets_as_are_compared(watched: Watched) -> None:
    documents = [target(f"t{each}", selector=f"pool=v{each}") for each in range(512)]
    watched.write(target("all", config=ON), *documents[:-1], KCC, name="many.json")
    assert len(watched.reasons) == 512
    assert watched.seen.problems == ()
