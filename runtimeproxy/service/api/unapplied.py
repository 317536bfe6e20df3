"""What is wanted and not in force, as messages. Used in the event loop's thread."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.ledger.unapplied import PROBLEMS, Unapplied
from runtimeproxy.service.api.values import timestamp

if TYPE_CHECKING:
    from runtimeproxy.ledger.leased import LeasedClaims
    from runtimeproxy.ledger.upkeep import Upkeep

MOST_VALUES: Final = 100
"""In a status."""


def unapplied_of(upkeep: Upkeep, leased: LeasedClaims) -> list[Unapplied]:
    """All that is wanted and not in force now; what is a problem comes first."""
    found = itertools.chain(upkeep.unapplied(), leased.unapplied())
    return sorted(found, key=_order)


def _order(each: Unapplied) -> tuple[bool, str, str, str]:
    return each.cause not in PROBLEMS, each.target.name, each.target.cgroup, each.field


def unapplied_messages(found: Iterable[Unapplied], most: int = MOST_VALUES) -> list[api_pb2.UnappliedValue]:
    return [
        api_pb2.UnappliedValue(
            target=each.target.name,
            cgroup=each.target.cgroup,
            field=each.field,
            wanted=each.wanted,
            owners=map(str, each.owners),
            cause=each.cause,
            reason=each.reason,
            since=timestamp(each.since_s),
            is_problem=each.cause in PROBLEMS,
        )
        for each in itertools.islice(found, most)
    ]
