"""Names that nothing knows, and which known name one was probably meant to be."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

MOST_EDITS: Final = 2
"""Of a misspelled name: a character more, less or another one, or two neighbours swapped, is one edit."""
MAX_NAME_LENGTH: Final = 128
"""Of a name that is compared, in characters: longer than every known one, however misspelled."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, the nearest first; empty if there is none.

    At most `MOST_EDITS` make one of the other, and fewer than half of the known name's characters (without
    a domain before it): one for `qos` and `name`, two from five characters on. Otherwise any short word
    would be a misspelled one. A difference of case is none.
    """
    if len(name) > MAX_NAME_LENGTH:
        return ""
    found, least = "", MOST_EDITS + 1
    folded = name.lower()
    for each in known:
        most = min(least - 1, (len(each.rpartition("/")[2]) - 1) // 2)
        if (number := edits(folded, each.lower(), most)) is not None:
            found, least = each, number
    return found


def nearest_key(name: str, known: Collection[str]) -> str:
    """As `nearest`; else the shortest known key with a group or unit more, such as `step_us` for `step`."""
    longer = [each for each in known if each.startswith(f"{name}_") or each.endswith(f"_{name}")]
    return nearest(name, known) or (min(longer, key=len, default="") if len(name) > 2 else "")


def did_you_mean(guess: str) -> str:
    """The end of a text about a wrong name; empty without a guess."""
    return f"; did you mean {guess}?" if guess else ""


def edits(one: str, other: str, most: int) -> int | None:
    """The distance of optimal string alignment of two texts; None if it is more than `most`."""
    if most < 0 or abs(len(one) - len(other)) > most:
        return None
    # One edit adds and removes at most one character: this tells most names apart at once.
    if len(set(one) ^ set(other)) > 2 * most:
        return None
    # Only what lies near the diagonal can be small enough.
    before_last: list[int] = []
    last = list(range(len(other) + 1))
    for row, char in enumerate(one, 1):
        first, end = max(1, row - most), min(len(other), row + most)
        present = [most + 1] * (len(other) + 1)
        present[0] = row
        for column in range(first, end + 1):
            is_same = char == other[column - 1]
            number = min(last[column - 1] + (not is_same), last[column] + 1, present[column - 1] + 1)
            if row > 1 and column > 1 and char == other[column - 2] and one[row - 2] == other[column - 1]:
                number = min(number, before_last[column - 2] + 1)
            present[column] = number
        if min(present[first - 1 : end + 1]) > most:
            return None
        before_last, last = last, present
    return last[-1] if last[-1] <= most else None
