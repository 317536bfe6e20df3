"""Problems of a configuration: where, and why."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """Something in a configuration that cannot be used, or is not used."""

    file: str
    """Path of the file; empty for labels and annotations."""
    key: str
    """Key of the ConfigMap, or of the label or annotation."""
    path: str
    """The place in the key's JSON, such as `nodeStrategies[0].cpuBurstPercent`; empty for the whole key."""
    reason: str
    """Goes on a sentence that begins with the place."""
    is_warning: bool = False
    """The key counts all the same."""

    def __str__(self) -> str:
        place = f"{self.key}: {self.path}" if self.path else self.key
        return printable(": ".join(part for part in (self.file, f"{place} {self.reason}") if part))


def printable(text: str) -> str:
    """Returns a text on one line: what cannot be printed is escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
