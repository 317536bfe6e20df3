"""Several configuration errors as one."""

from __future__ import annotations

from collections.abc import Sequence

from runtimeproxy.errors import ConfigError


class CombinedConfigError(ConfigError):
    """All that is wrong with a configuration; its text has one line for each.

    Attributes:
        errors: each of them, never empty. Source, key and reason are the first one's.
    """

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        super().__init__(first.source, first.key, first.reason)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))
