"""Tables of fields, each with what stands below it, as `explain` and `simulate` print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from runtimeproxy.commands.output import FAINT, STRONG, Cell, Page, Words

_GAP: Final = "  "
_INDENT: Final = 2


class FieldRow(NamedTuple):
    """One field."""

    cells: Sequence[Cell]
    """Its name and its values, one for each column."""
    remarks: Sequence[tuple[Cell, Words]] = ()
    """What stands below it: who or what, and the text."""


def show_fields(columns: Sequence[str], rows: Sequence[FieldRow], page: Page) -> None:
    """Prints a table; where it is too wide for the terminal, each value has a line of its own."""
    header = tuple(Cell(column, STRONG) for column in columns)
    lines = [tuple(map(_on_one_line, row.cells)) for row in rows]
    widths = [max(len(line[number].text) for line in (header, *lines)) for number in range(len(columns))]
    is_wide = _INDENT + sum(widths) + len(_GAP) * (len(widths) - 1) <= page.width
    if is_wide:
        page.line(_padded(header, widths), indent=_INDENT)
    label_width = max(map(len, columns[1:]))
    for row, line in zip(rows, lines, strict=True):
        if is_wide:
            page.line(_padded(line, widths), indent=_INDENT)
        else:
            page.line(line[0], indent=_INDENT)
            for label, value in zip(columns[1:], line[1:], strict=True):
                about = Cell(label.lower(), FAINT)
                page.entry(about, value, indent=2 * _INDENT, label_width=label_width)
        widest = max((len(about.text) for about, _ in row.remarks), default=0)
        for about, words in row.remarks:
            page.entry(about, words, indent=2 * _INDENT, label_width=widest)


def claim_text(value: str, reason: str, sources: Iterable[str], effect: str = "") -> str:
    """Returns what someone wants, why, where that comes from, and why it does not count."""
    text = f"{value}: {reason}" if reason else value
    named = "; ".join(dict.fromkeys(sources))
    return text + (f" [{named}]" if named else "") + (f" ({effect})" if effect else "")


def _on_one_line(cell: Cell) -> Cell:
    return Cell(" ".join(cell.text.split()) or "''", cell.style)


def _padded(cells: Sequence[Cell], widths: Sequence[int]) -> Words:
    parts: list[str | Cell] = []
    for cell, width in zip(cells, widths, strict=True):
        parts += [cell, " " * (width - len(cell.text)) + _GAP]
    return parts
