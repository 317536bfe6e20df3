"""The source has no circles of imports, and few class names that stand in more than one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.readability.source import circles, parsed, repeated_class_names

MANY_NAMES = 24


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return parsed(Path(__file__).parents[2])


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
