"""The source has no circles of imports, each class name once but for a few, and small composed objects."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.readability.source import (
    attributes,
    calls_of,
    circles,
    composing_objects,
    parsed,
    reaches,
    repeated_class_names,
)

MANY_NAMES = 24
MANY_ATTRIBUTES = 14


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return parsed(Path(__file__).parents[2])


@pytest.mark.slow
def test_there_are_no_circles(trees: dict[str, ast.Module]) -> None:
    assert circles(trees) == []


def test_a_class_name_stands_in_one_place(trees: dict[str, ast.Module]) -> None:
    assert len(repeated_class_names(trees)) <= MANY_NAMES, repeated_class_names(trees)


def test_only_tests_and_examples_import_the_grpc_library(trees: dict[str, ast.Module]) -> None:
    """Its core ends the process at some GOAWAYs; a program of ours has one client."""
    allowed = ("runtimeproxy.testing.", "runtimeproxy.qosmanager.examples.", "cri_api.")
    found = [
        name
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        if any(alias.name.partition(".")[0] == "grpc" for alias in node.names)
    ]
    assert [name for name in found if not name.startswith(allowed)] == []


def test_one_reader_of_json_and_yaml_and_one_way_to_replace_a_file(trees: dict[str, ast.Module]) -> None:
    """A second reader has other bounds; a file that is not replaced as a whole may be cut by a crash."""
    allowed = {
        # A deep copy, in which dates are texts.
        "runtimeproxy.config.sources": {"json.loads"},
        # What another language would have, without this package.
        "runtimeproxy.qosmanager.examples.squeeze": {"json.loads"},
        # Files of the kernel.
        "runtimeproxy.process": {"write_text"},
        "runtimeproxy.ledger.kernel_settings": {"write_text"},
    }
    found = [
        (name, call)
        for name, tree in trees.items()
        if not name.startswith(("runtimeproxy.documents.", "runtimeproxy.testing.", "runtimeproxy.demo."))
        for call in calls_of(tree)
        if call in {"json.loads", "json.load", "yaml.safe_load", "yaml.load", "yaml.parse", "os.replace"}
        or call.rpartition(".")[2] in {"write_text", "write_bytes", "NamedTemporaryFile", "JSONDecoder"}
    ]
    assert [
        (name, call) for name, call in found if not {call, call.rpartition(".")[2]} & allowed.get(name, set())
    ] == []
    assert {name for name, _ in found} == allowed.keys()


def test_imports_for_types_make_circles_too() -> None:
    texts = {
        "a": "from b import B",
        "b": "if TYPE_CHECKING:\n    from c import C\nclass B: ...",
        "c": "def later():\n    import a",
        "d": "import a\nclass B: ...",
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}
    assert circles(trees) == [("a", "b", "c")]
    assert repeated_class_names(trees) == {"B": ["b", "d"]}


def test_no_object_is_composed_of_many_parts(trees: dict[str, ast.Module]) -> None:
    found = composing_objects(trees)
    assert {
        "runtimeproxy.core.core.Core",
        "runtimeproxy.frontends.cri_proxy.calls.interceptor.CallServices",
        "runtimeproxy.service.daemon.Daemon",
    } <= found.keys()
    assert {name: number for name, number in found.items() if number > MANY_ATTRIBUTES} == {}


def test_the_service_does_not_reach_through_the_core(trees: dict[str, ast.Module]) -> None:
    assert reaches(trees) == []


def test_attributes_and_reaches_are_found() -> None:
    text = (
        "class A:\n    y: int = 0\n    z: ClassVar[int] = 0\n    def set(self):\n"
        "        self.a, self.b.c = 1, 2\n        self.d: int = core.x.y\n"
        "        return self._core.x, parts.core.x.z.more"
    )
    tree = ast.parse(text)
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    assert attributes(found) == {"y", "a", "d"}
    trees = {"runtimeproxy.service.a": tree, "runtimeproxy.frontends.b.relay.c": tree}
    assert composing_objects(trees) == {"runtimeproxy.service.a.A": 3}
    assert [each.partition(" ")[2] for each in reaches(trees)] == ["core.x.y", "parts.core.x.z"]
