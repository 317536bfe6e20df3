"""The table of modes and fields in the README: `python -m tests.frontends.table` writes it anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from runtimeproxy.fields.tables import OF_PROCESSES
from runtimeproxy.frontends.modes import carried_in
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.hooks.ways import SETTABLE, Way, has_file, way_of
from tests.lab.programs import REPOSITORY

README: Final = REPOSITORY / "README.md"
BEGIN: Final = "<!-- begin: python -m tests.frontends.table -->\n"
END: Final = "<!-- end -->\n"
MODES: Final = ("proxy", "nri", "standalone")
HEADER: Final = ("policy", "of", "fields", *(f"`{mode}`" for mode in MODES), "changes while it runs")
OWNERS: Final = {
    "pod": "pod",
    "container": "container",
    "qos_class": "QoS class",
    "node": "host application, node",
}
"""Whose values the methods of policies give."""


def ways_of(method: str, name: str) -> tuple[Way, ...]:
    return tuple(way_of(carried_in(mode), method, name) for mode in MODES)


def _rows(policy: str, sets_fields: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, ...]]:
    for method, names in sets_fields.items():
        by_ways: dict[tuple[str, ...], list[str]] = {}
        for name in sorted(names):
            is_in_file = has_file(method, name) or method in ("qos_class", "node")
            of_file = "file of each process" if name in OF_PROCESSES else "file"
            later = of_file if is_in_file else f"next {'sandbox' if method == 'pod' else 'container'}"
            if set(ways := ways_of(method, name)) != {Way.NONE}:
                by_ways.setdefault((*ways, later), []).append(name)
        for key, found in by_ways.items():
            yield policy, OWNERS[method], ", ".join(_shown(found)), *key


def _shown(names: Iterable[str]) -> Iterator[str]:
    """Names that begin alike as one, such as `memory.*`."""
    found = list(names)
    groups = [name.partition(".")[0] for name in found]
    for group in dict.fromkeys(groups):
        of_group = [name for name in found if name.partition(".")[0] == group]
        yield from (f"`{name}`" for name in of_group) if len(of_group) < 4 else (f"`{group}.*`",)


def _any_policy() -> dict[str, list[str]]:
    """What a policy may set beside files, by method."""
    return {
        method: [name for name in SETTABLE[method] if not has_file(method, name)]
        for method in ("pod", "container")
    }


def table() -> str:
    """As it is to stand in the document."""
    rows = [row for policy in built_in() for row in _rows(f"`{policy.name}`", policy.sets_fields)]
    rows += _rows("any", _any_policy())
    lines = [HEADER, ("---",) * len(HEADER), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def written() -> str:
    """The document with the present table."""
    before, _, rest = README.read_text().partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(written())
