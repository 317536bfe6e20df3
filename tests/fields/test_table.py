"""The table of fields in the documents is that of the declarations, and type checkers see their names."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from runtimeproxy.fields.declared import DECLARED
from runtimeproxy.fields.resources import ResourceChange, Resources
from runtimeproxy.fields.tables import (
    CRI_FIELDS,
    FIELDS,
    LISTS,
    NEUTRAL,
    PARAMETERS,
    RESOURCE_FIELDS,
    neutral_text,
    unified_text,
)
from tests.fields.table import README, written


def test_the_table_of_the_document() -> None:
    assert README.read_text() == written(), "python -m tests.fields.table"


def test_names_are_given_once() -> None:
    for names in (
        [field.name for field in DECLARED],
        [field.resource for field in DECLARED if field.resource],
        [field.cri for field in DECLARED if field.cri],
    ):
        assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("kind", [Resources, ResourceChange])
def test_what_messages_carry_is_written_out_for_type_checkers(kind: type[Any]) -> None:
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    named = {
        each.target.id
        for each in body.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assert named - {"hugepage_limits_bytes", "unified"} == RESOURCE_FIELDS.keys()


@pytest.mark.parametrize("field", DECLARED, ids=lambda field: field.name)
def test_a_neutral_value_is_one_of_the_field(field: Any) -> None:
    if field.neutral is not None:
        assert field.canonical(field.neutral) == field.neutral
    for file in filter(None, (field.v1, field.v2)):
        if field.neutral is not None and file.compose is None:
            assert file.matches(field.neutral, file.encode(field.neutral))


def test_tables() -> None:
    assert {"cpuset.cpus", "cpuset.mems"} <= set(LISTS)
    # Names of classes have none, which a runtime takes for a new container only.
    classes = {name for name, field in FIELDS.items() if field.pattern and field.creation_only}
    assert NEUTRAL.keys() == {name for name, field in FIELDS.items() if field.writable} - classes
    assert "memory.swap.max" in FIELDS
    assert "memory.swap.max" not in PARAMETERS
    assert RESOURCE_FIELDS.keys() - CRI_FIELDS.keys() >= {"pids_limit", "rdt_class", "blockio_class"}


@pytest.mark.parametrize("name", ["gold", "koordlet-0a1b", "_", "a.b-c", "L3.max", "x" * 128])
def test_names_of_classes(name: str) -> None:
    assert FIELDS["rdt_class"].canonical(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/PODQOS", "-x", "a b", "a\n", "\0", "\ud800", "\u00e4", "x" * 129]
)
def test_no_names_of_classes(name: str) -> None:
    with pytest.raises(ValueError, match="blockio_class is not a name"):
        FIELDS["blockio_class"].canonical(name)


@pytest.mark.parametrize(
    ("file", "values", "text"),
    [
        ("cpu.max", {"cpu.cfs_quota_us": 5_000}, "5000 100000"),
        ("cpu.max", {"cpu.cfs_period_us": 5_000}, "max 5000"),
        ("cpu.max", {"cpu.shares": 2}, None),
        ("cpu.weight", {"cpu.shares": 1}, "1"),
        ("cpuset.cpus", {"cpuset.cpus": "1-2"}, "1-2"),
        ("strange", {"strange": 1}, None),
    ],
)
def test_the_text_of_a_file_of_version_2(file: str, values: Any, text: str | None) -> None:
    assert unified_text(file, values) == text


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("cpu.weight", "100"),
        ("cpu.max", "max 100000"),
        ("pids.max", "max"),
        ("memory.min", "0"),
        ("io.max", None),
    ],
)
def test_the_text_of_a_new_cgroup(file: str, text: str | None) -> None:
    assert neutral_text(file) == text
