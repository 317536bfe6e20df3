"""What commands print: text for people, JSON and YAML for programs.

The JSON and YAML of a message are protobuf's JSON mapping of it, with all fields. Text is coloured on a
terminal only, and not if NO_COLOR is set; elsewhere it has no escape sequences, and no line is wrapped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from runtimeproxy.documents.reading import printable
from runtimeproxy.vocabulary import claimed_text

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import RenderableType
    from rich.text import Text

GOOD: Final = "green"
DOUBTFUL: Final = "yellow"
BAD: Final = "bold red"
FAINT: Final = "dim"
STRONG: Final = "bold"
"""Styles of `rich`."""

_UNBOUNDED: Final = 100_000
"""Columns of a line where the output is not a terminal."""
_GAP: Final = 2
"""Columns between two columns of a table."""
_INDENT: Final = 2
"""Spaces before the lines of a table of fields."""
_SHORT: Final = 20
"""Columns of a table with longer cells than this are made narrower first."""


class Cell(NamedTuple):
    """A text with a style."""

    text: str
    style: str = ""


Words = str | Cell | Sequence[str | Cell]
"""A text, or its parts, one after the other. What cannot be printed in it is escaped."""


class Page:
    """Prints text.

    Args:
        file: where to; None for standard output.
        width: columns of a line; None for those of the terminal, and unbounded where there is none.
        is_terminal: None: as the file says.
    """

    def __init__(
        self, file: TextIO | None = None, *, width: int | None = None, is_terminal: bool | None = None
    ) -> None:
        from rich.console import Console

        self._file = file or sys.stdout
        self._console = Console(
            file=self._file,
            width=width,
            force_terminal=is_terminal,
            highlight=False,
            markup=False,
            emoji=False,
        )
        # By FORCE_COLOR, too.
        self.is_terminal = self._console.is_terminal
        if width is None and not self.is_terminal:
            self._console.width = _UNBOUNDED

    @property
    def width(self) -> int:
        return self._console.width

    def gap(self) -> None:
        self._file.write("\n")

    def line(self, words: Words, *, indent: int = 0) -> None:
        from rich.padding import Padding

        self._print(Padding(_text(words), (0, 0, 0, indent), expand=False))

    def entry(self, label: str | Cell, words: Words, *, indent: int = 0, label_width: int = 0) -> None:
        """Prints a paragraph beside a label.

        `indent`: spaces before all lines. `label_width`: columns of the label at least.
        """
        from rich.padding import Padding
        from rich.table import Table

        grid = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        grid.add_column(min_width=label_width, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(_text(label), _text(words))
        self._print(Padding(grid, (0, 0, 0, indent), expand=False))

    def entries(self, found: Iterable[tuple[str | Cell, Words]], *, indent: int = 0) -> None:
        rows = list(found)
        widest = max((len(_text(label)) for label, _ in rows), default=0)
        for label, words in rows:
            self.entry(label, words, indent=indent, label_width=widest)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Words]], *, indent: int = 0) -> None:
        """Prints a table; cells that are too long for the terminal are wrapped."""
        from rich.padding import Padding
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style=STRONG, padding=(0, _GAP, 0, 0))
        texts = [[_text(cell) for cell in row] for row in rows]
        for number, column in enumerate(columns):
            is_short = max((len(row[number]) for row in texts), default=0) <= _SHORT
            table.add_column(column, no_wrap=is_short, overflow="ellipsis" if is_short else "fold")
        for row in texts:
            table.add_row(*row)
        self._print(Padding(table, (0, 0, 0, indent), expand=False))

    def _print(self, renderable: RenderableType) -> None:
        # Captured, so that an error of writing is this program's, and not handled by rich.
        with self._console.capture() as capture:
            self._console.print(renderable)
        lines = capture.get().split("\n")
        if not self.is_terminal:
            lines = [each.rstrip() for each in lines]
        self._file.write("\n".join(lines))


class FieldRow(NamedTuple):
    """One field."""

    cells: Sequence[Cell]
    """Its name and its values, one for each column."""
    remarks: Iterable[tuple[Cell, Words]] = ()
    """Labels and paragraphs below it."""


def show_fields(columns: Sequence[str], rows: Sequence[FieldRow], page: Page) -> None:
    """Prints a table; where it is too wide for the terminal, each value has a line of its own."""
    header = tuple(Cell(column, STRONG) for column in columns)
    lines = [[Cell(" ".join(text.split()) or "''", style) for text, style in row.cells] for row in rows]
    widths = [max(len(line[number].text) for line in (header, *lines)) for number in range(len(columns))]
    is_wide = _INDENT + sum(widths) + _GAP * (len(widths) - 1) <= page.width
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
        page.entries(row.remarks, indent=2 * _INDENT)


def claim_text(role: str, value: str | None, reason: str, sources: Iterable[str], effect: str = "") -> str:
    """Returns a claim for people.

    `value`: None to clear the field. `sources`: the strategies behind it. `effect`: why it has no effect, or
    less.
    """
    claimed = claimed_text(role, value)
    text = f"{claimed}: {reason}" if reason else claimed
    # A reason may say where the strategies come from.
    named = "; ".join(each for each in dict.fromkeys(sources) if f"({each})" not in reason)
    return text + (f" [{named}]" if named else "") + (f" ({effect})" if effect else "")


def _padded(cells: Sequence[Cell], widths: Sequence[int]) -> Words:
    parts: list[str | Cell] = []
    for cell, width in zip(cells, widths, strict=True):
        parts += [cell, " " * (width - len(cell.text)) + " " * _GAP]
    return parts


def print_message(message: Message, form: str, *, is_stream: bool = False) -> None:
    """Prints a message for programs.

    `form`: `json` or `yaml`. `is_stream`: whether more of them follow: JSON is one line then, and YAML a
    document.
    """
    from google.protobuf.json_format import MessageToDict

    print_value(MessageToDict(message, always_print_fields_with_no_presence=True), form, is_stream=is_stream)


def print_value(value: object, form: str, *, is_stream: bool = False) -> None:
    if form == "json":
        text = json.dumps(value, ensure_ascii=False, indent=None if is_stream else 2)
        # Without what a terminal would act on, such as a change of the direction of writing.
        print("".join(it if it.isprintable() or it == "\n" else json.dumps(it)[1:-1] for it in text))
        return
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, explicit_start=is_stream)
    if not text.replace("\n", "").isprintable():
        text = yaml.safe_dump(value, sort_keys=False, explicit_start=is_stream)
    print(text, end="")


def counted(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def _text(words: Words) -> Text:
    from rich.text import Text

    parts = [words] if isinstance(words, str | Cell) else words
    text = Text()
    for part in parts:
        shown, style = part if isinstance(part, Cell) else (part, "")
        text.append(printable(shown), style)
    return text
