"""Every item of the list has a test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ITEMS = range(1, 89)
"""Payload to compression; the items on hooks from 89 on are covered where hooks are tested."""


def test_every_item_is_covered() -> None:
    covered = {item for path in Path(__file__).parent.glob("test_*.py") for item in marked_items(path)}

    assert covered == set(ITEMS)


def marked_items(path: Path) -> Iterator[int]:
    """The numbers in the `conformance` markers of a file's test functions."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test_"):
            continue
        for mark in function.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.conformance":
                yield from (int(ast.literal_eval(item)) for item in mark.args)
