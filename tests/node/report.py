"""The table of one run: each check with its outcome; one that left no line counts as failed."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One check of the table."""

    name: str
    ok: bool
    seen: str
    took_s: float


def rows(names: Sequence[str], lines: Iterable[str]) -> list[Row]:
    """One row for each name, in that order, from the JSON lines that the node has written."""
    made = {row.name: row for row in map(_row, filter(_is_whole, lines))}
    return [made.get(name, Row(name, False, "was not made", 0.0)) for name in names]


def table(made: Sequence[Row], width: int = 110) -> str:
    """The rows for people."""
    lines: list[str] = []
    for row in made:
        lines.append(f"{'ok  ' if row.ok else 'FAIL'} {row.took_s:6.1f} s  {row.name}")
        lines += textwrap.wrap(row.seen, width, initial_indent=" " * 15, subsequent_indent=" " * 15)
    failed = sum(not row.ok for row in made)
    return "\n".join([*lines, f"{len(made)} checks, {failed} failed"])


def _is_whole(line: str) -> bool:
    """False for a line that was being written when the node died."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _row(line: str) -> Row:
    read = json.loads(line)
    return Row(read["name"], bool(read["ok"]), str(read["seen"]), float(read["took_s"]))
