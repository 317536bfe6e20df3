"""The table of fields in `runtimeproxy/fields/README.md`: `python -m tests.fields.table` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from runtimeproxy.fields.declaration import ALL_LEVELS, PAGE_BYTES, ROLES, Declaration, Kind
from runtimeproxy.fields.declared import DECLARED
from runtimeproxy.fields.formats import FileFormat
from runtimeproxy.units import MAX_INT64
from runtimeproxy.vocabulary import ClaimLevel, Role
from tests.lab.programs import REPOSITORY

README: Final = REPOSITORY / "runtimeproxy" / "fields" / "README.md"
BEGIN: Final = "<!-- begin: python -m tests.fields.table -->\n"
END: Final = "<!-- end -->\n"
HEADER: Final = (
    *("field", "message", "file, version 1", "file, version 2", "values", "neutral"),
    *(
        "no claims in the roles",
        "no leased claims on",
        "the kubelet writes it on",
        "koordlet's gates",
    ),
)


def table() -> str:
    """As it is to stand in the document."""
    rows = [HEADER, ("---",) * len(HEADER), *(tuple(_row(each)) for each in DECLARED)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(field: Declaration) -> Iterator[str]:
    yield f"`{field.name}`"
    unified = f"`unified[{field.name}]`" if field.only_unified else ""
    notes = ", ".join([*(["NRI"] * (not field.cri)), *(["creation only"] * field.creation_only)])
    yield unified or (f"`{field.resource}`{f' ({notes})' if notes else ''}" if field.resource else "")
    yield _file(field.v1)
    yield "" if field.only_unified else _file(field.v2)
    yield _values(field) if field.writable else "only read"
    yield "" if field.neutral is None else f"`{field.neutral}`" if field.neutral != "" else "empty"
    yield _names(frozenset(Role) - (ROLES[field.kind] if not field.only_set else {Role.SET}))
    yield _names(ALL_LEVELS - field.levels) if field.is_parameter else "any"
    yield _names(field.kubelet)
    yield ", ".join(filter(None, (field.koordlet, field.koordlet_moves)))


def _names(values: frozenset[Role] | frozenset[ClaimLevel]) -> str:
    return ", ".join(sorted(values))


def _file(file: FileFormat | None) -> str:
    return "" if file is None else f"`{file.file}`"


def _values(field: Declaration) -> str:
    if field.kind is Kind.TEXT:
        return ", ".join(f"`{text}`" for text in field.texts) or "name of a class"
    if field.kind is Kind.DEVICES:
        return (
            "settings by block device"
            if field.pattern
            else f"by block device: {field.minimum} to {field.maximum:,}"
        )
    if field.kind is not Kind.NUMBER:
        return str(field.kind.value)
    least = f"{field.minimum if field.policy_minimum is None else field.policy_minimum:,}"
    least = "a page" if field.policy_minimum == PAGE_BYTES else least
    most = "" if field.maximum == MAX_INT64 else f" to {field.maximum:,}"
    numbers = f"{least}{most or ' and more'}"
    return f"{numbers}, -1 for unlimited" if field.unlimited else numbers


def written() -> str:
    """The document with the present table."""
    before, _, rest = README.read_text().partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(written())
