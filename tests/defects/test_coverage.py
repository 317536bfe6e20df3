"""Every defect has a test, and the table of the README names it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
DEFECTS = range(1, 28)


def marked_defects(path: Path) -> Iterator[tuple[int, str]]:
    """The numbers in the `defect` markers of a file, each with its test function."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test_"):
            continue
        for mark in function.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.defect":
                yield from ((int(ast.literal_eval(number)), function.name) for number in mark.args)


def test_every_defect_has_a_test() -> None:
    covered = {number for path in HERE.glob("test_*.py") for number, _ in marked_defects(path)}

    assert covered == set(DEFECTS)


def test_the_table_says_where_each_is_tested() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", (HERE / "README.md").read_text(), flags=re.MULTILINE)
    told = {(int(number), file) for number, files in rows for file in re.findall(r"`(\w+\.py)`", files)}
    found = {(number, path.name) for path in HERE.glob("test_*.py") for number, _ in marked_defects(path)}

    assert told == found
