"""Which settings count at once when the configuration is read again, and which only after a restart."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings

_FIXED_GROUPS: Final = ("proxy", "cgroups", "node", "state")
_FIXED_KEYS: Final = {"hooks": ("worker_threads", "server_config_dir"), "log": ("format",)}


def reloaded(old: Settings, new: Settings) -> tuple[Settings, list[str]]:
    """Returns the settings that count from now on, and the changed keys that wait for a restart.

    Args:
        old: the settings that count now.
        new: the settings as they were read again.
    """
    waiting: list[str] = []
    result = new
    for group in fields(old):
        before, after = getattr(old, group.name), getattr(new, group.name)
        keys = _fixed_keys(group.name, before)
        changed = [key for key in keys if getattr(before, key) != getattr(after, key)]
        waiting += [f"{group.name}.{key}" for key in changed]
        if changed:
            kept = replace(after, **{key: getattr(before, key) for key in changed})
            result = replace(result, **{group.name: kept})
    return result, waiting


def _fixed_keys(name: str, group: object) -> tuple[str, ...]:
    if name in _FIXED_GROUPS:
        return tuple(each.name for each in fields(group))  # type: ignore[arg-type]  # all groups are dataclasses
    return _FIXED_KEYS.get(name, ())
