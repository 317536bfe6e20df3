"""The table of fields in `runtimeproxy/fields/README.md`: `python -m tests.fields.table` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from runtimeproxy.cgroups.resctrl import FOLDER, PREFIX
from runtimeproxy.fields.anolis import ANOLIS_FILES
from runtimeproxy.fields.declaration import ALL_LEVELS, PAGE_BYTES, ROLES, Declaration, Kind
from runtimeproxy.fields.declared import DECLARED
from runtimeproxy.fields.formats import FileFormat, ProcessFormat
from runtimeproxy.fields.kernel_settings import (
    KERNEL_SETTINGS,
    RESCTRL_GROUPS,
    SCHED_FEATURES,
    kernel_setting,
)
from runtimeproxy.units import MAX_INT64
from runtimeproxy.vocabulary import ClaimLevel, Role
from tests.lab.programs import REPOSITORY

README: Final = REPOSITORY / "runtimeproxy" / "fields" / "README.md"
BEGIN: Final = "<!-- begin: python -m tests.fields.table -->\n"
END: Final = "<!-- end -->\n"
BEGIN_SETTINGS: Final = "<!-- begin settings: python -m tests.fields.table -->\n"
END_SETTINGS: Final = "<!-- end settings -->\n"
BEGIN_ANOLIS: Final = "<!-- begin anolis: python -m tests.fields.table -->\n"
END_ANOLIS: Final = "<!-- end anolis -->\n"
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
    yield _file(field.format_for(1))
    yield "" if field.only_unified else _file(field.format_for(2))
    yield _values(field) if field.writable else "only read"
    yield "" if field.neutral is None else f"`{field.neutral}`" if field.neutral != "" else "empty"
    yield _names(frozenset(Role) - (ROLES[field.kind] if not field.only_set else {Role.SET}))
    yield _names(ALL_LEVELS - field.levels) if field.is_parameter else "any"
    yield _names(field.kubelet)
    yield ", ".join(filter(None, (field.koordlet, field.koordlet_moves)))


def _names(values: frozenset[Role] | frozenset[ClaimLevel]) -> str:
    return ", ".join(sorted(values))


def _file(file: FileFormat | None) -> str:
    if file is None:
        return ""
    return f"each of its {file.members.value}" if isinstance(file, ProcessFormat) else f"`{file.file}`"


def _values(field: Declaration) -> str:
    if field.kind is Kind.TEXT:
        return ", ".join(f"`{text}`" for text in field.texts) or (
            "name of a class" if field.resource else "name of a group"
        )
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


def settings_table() -> str:
    """The settings of the kernel that are no sysctls."""
    feature = kernel_setting(f"{SCHED_FEATURES}NAME")
    settings = (*KERNEL_SETTINGS.values(), *([feature] if feature is not None else []))
    rows = [("name", "file below `/sys`", "values"), ("---",) * 3]
    for each in settings:
        files = ", else ".join(f"`{file}`" for file in each.files)
        rows.append((f"`{each.name}`", files, f"0 to {each.maximum}"))
    group = f"`{FOLDER}/{PREFIX}NAME/schemata`"
    rows.append((f"`{RESCTRL_GROUPS}NAME`", group, "the lines of `L3` and `MB`, with commas between them"))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def anolis_table() -> str:
    rows = [("what", "is", "other kernels have", "feature"), ("---",) * 4]
    for each in ANOLIS_FILES:
        names = ", ".join(f"`{name}`" for name in each.names)
        others = "the same in cgroup version 2" if each.is_mainline_v2 else each.instead or "nothing"
        rows.append((names, each.use, others, f"`{each.feature}`" if each.feature else ""))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def written() -> str:
    """The document with the present tables."""
    text = README.read_text()
    for begin, made, end in (
        (BEGIN, table(), END),
        (BEGIN_SETTINGS, settings_table(), END_SETTINGS),
        (BEGIN_ANOLIS, anolis_table(), END_ANOLIS),
    ):
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{made}{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    README.write_text(written())
