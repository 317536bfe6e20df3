"""Fits the plans of one batch to the tree of cgroups, see `runtimeproxy.ledger.tree`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from runtimeproxy.cgroups.order import Key
from runtimeproxy.fields.tables import IDLE, LISTS, PERIOD, QUOTA, SHARES
from runtimeproxy.ledger.books import Formats, Plan, Value
from runtimeproxy.ledger.tree import BURST, MEMORY_AT_LEAST_MIN, MEMORY_MIN, Path, TreeRules, TreeValue, fit
from runtimeproxy.pods.records import Level

Changes: TypeAlias = Mapping[str, Value | None]
"""Fitted values, by parameter; None: nothing is to be written."""

_BESIDE: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        QUOTA: (PERIOD, BURST),
        PERIOD: (QUOTA, BURST),
        BURST: (QUOTA, PERIOD),
        MEMORY_MIN: MEMORY_AT_LEAST_MIN,
        **dict.fromkeys(MEMORY_AT_LEAST_MIN, (MEMORY_MIN,)),
    }
)
"""The parameters of the same cgroup that a value has to fit to."""
_ABOVE: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {QUOTA: (QUOTA, PERIOD), PERIOD: (QUOTA, PERIOD), **{name: (name,) for name in LISTS}}
)
"""The parameters of the cgroup above."""
OF_CHILDREN: Final = frozenset({QUOTA, PERIOD, *LISTS})
"""The parameters that the cgroups below have to fit to."""
_FITTED: Final = frozenset({*_BESIDE, *LISTS})


def cgroup_version(formats: Formats) -> int:
    return 2 if formats.file_of(QUOTA) == formats.file_of(PERIOD) else 1


def with_neighbours(names: Iterable[str]) -> set[str]:
    """The parameters of a cgroup that have to be known where values of these are planned."""
    given = set(names)
    if IDLE in given:
        given.add(SHARES)  # which the kernel forgets while the cgroup is idle
    return given.union(*(_BESIDE[name] for name in given if name in _BESIDE))


def parents_to_read(plans: Iterable[Plan], formats: Formats) -> Iterator[tuple[Path, set[str]]]:
    """The cgroups above, and the parameters there, that changed values have to fit to."""
    is_v1 = cgroup_version(formats) == 1
    for plan in plans:
        if is_v1 and plan.level is Level.QOS_CLASS:
            # An empty list of a class is that of the cgroup above, which version 1 does not put there itself.
            names = {name for name in LISTS if _changes(plan, name, formats)}
            if names:
                yield plan.path[:-1], names
        if is_v1 and plan.level is Level.POD:
            # What the pod had may be more than the cgroup above has now.
            names = {name for name in LISTS if _gives_back(plan, name) and _changes(plan, name, formats)}
            if names:
                yield plan.path[:-1], names
        if plan.level is Level.CONTAINER:
            names = {above for name in _ABOVE if _changes(plan, name, formats) for above in _ABOVE[name]}
            if names:
                yield plan.path[:-1], names


def depends_on_children(plan: Plan, formats: Formats) -> bool:
    # Whether its containers may not fit to a new quota or list.
    return plan.level is Level.POD and any(_changes(plan, name, formats) for name in OF_CHILDREN)


def _gives_back(plan: Plan, name: str) -> bool:
    """Whether a value is written with the end of all claims on it."""
    entry = plan.book.entries.get(name)
    return name in plan.given_back or (entry is not None and not entry.claims)


def _changes(plan: Plan, name: str, formats: Formats) -> bool:
    values, present = plan.values, plan.present
    if name not in values:
        return False
    return name not in present or not formats.matches(name, values[name], present[name].text)


def fitted(plans: Iterable[Plan], formats: Formats) -> dict[Path, dict[str, Value | None]]:
    """Fits the values of a batch; returns those that change, by cgroup.

    `plans`: of a batch, with what the values have to fit to in `present`.
    """
    values = {Key(plan.path, name): value for plan in plans for name, value in _tree_values(plan, formats)}
    if not values:
        return {}
    rules = TreeRules(
        cgroup_version=cgroup_version(formats),
        rounds_quotas=any(key.path and key.path[0].endswith(".slice") for key in values),
    )
    result = fit(values, rules)
    changes: dict[Path, dict[str, Value | None]] = {}
    for note in result.notes:
        path, name = note.key
        changes.setdefault(path, {})[name] = result.values.get(note.key)
    return changes


def _tree_values(plan: Plan, formats: Formats) -> Iterator[tuple[str, TreeValue]]:
    for name in {*plan.values, *plan.present} & _FITTED:
        if name in plan.values:
            is_claimed = name in plan.book.entries and bool(plan.book.entries[name].claims)
            bounded, gives_back = name in plan.bounded, _gives_back(plan, name)
            # The kernel may take an empty list that was there before.
            yield name, TreeValue(plan.values[name], is_claimed, bounded, name in plan.raw, gives_back)
        else:
            value = formats.decode(name, plan.present[name].text)
            if value is not None:
                yield name, TreeValue(value, is_claimed=False)
