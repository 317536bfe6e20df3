"""The lease of one owner's claims: which requests count, and when the claims end. Pure; times are given.

A session sends requests with sequence numbers one after the other, and each renews the lease. A request that
does not follow the last one may lack what others have said, so the whole set is asked for. One session is
effective at a time: a new one takes over, and the one before it is answered so.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

LEASE_S: Final = 15.0
"""By CLOCK_MONOTONIC, which goes on through restarts of processes, and stands still while the node sleeps."""
MOST_HOLD_S: Final = 300.0
"""How long claims may be held after their lease: longer than a manager takes to start again."""
MOST_FORMER: Final = 8
"""Sessions that are remembered as taken over; a client that is older than these sends all claims first."""


class Answer(StrEnum):
    """What becomes of a request."""

    TAKEN = "taken"
    SEND_WHOLE_SET = "send-whole-set"
    TAKEN_OVER = "taken-over"


class Phase(StrEnum):
    """The state of an owner's lease."""

    NONE = "none"
    """No session, and no claims."""
    LEASED = "leased"
    HELD = "held"
    """The lease has ended; what is not held is released."""
    RESTORED = "restored"
    """Claims of the process before this one; no session has taken over yet, and the lease has not ended."""


class Lease(NamedTuple):
    """The session of one owner, and until when its claims hold."""

    session: str = ""
    sequence: int = 0
    """Of the last request that was taken."""
    end_s: float | None = None
    """None: there is none, and nothing to end."""
    has_lapsed: bool = False
    """Whether its end was acted upon: what is not held is released."""
    is_restored: bool = False
    needs_whole: bool = False
    """Whether claims have ended without the session's doing, so that it has to send all of them."""
    former: tuple[str, ...] = ()
    """Sessions that were taken over, the newest last."""


def on_request(
    lease: Lease, session: str, sequence: int, now_s: float, *, is_whole: bool
) -> tuple[Answer, Lease]:
    """Return what becomes of a request, and the lease after it.

    `sequence`: of the request. The last one again is the same request again, whose response was lost: it
    changes nothing more. `now_s`: by the clock of leases. `is_whole`: whether it has all claims of the owner.
    """
    if session in lease.former:
        return Answer.TAKEN_OVER, lease
    if session == lease.session:
        follows = sequence in (lease.sequence, lease.sequence + 1) and not lease.needs_whole
        if not is_whole and not follows:
            return Answer.SEND_WHOLE_SET, lease
    elif not is_whole:
        return Answer.SEND_WHOLE_SET, lease
    return Answer.TAKEN, _renewed(lease, session, sequence, now_s)


def taken_over(lease: Lease, session: str, now_s: float) -> Lease:
    """Return the lease when a session goes on from the present claims, with the number after the present one.

    The session that has it already, or had it once, may do so, too.
    """
    sequence = lease.sequence if session == lease.session else 0
    return _renewed(lease, session, sequence, now_s)


def restored(now_s: float, unrenewed_s: float = 0.0) -> Lease:
    """Return the lease of claims that a process before this one has left; it goes on when this one serves.

    Args:
        now_s: by the clock of leases.
        unrenewed_s: see `unrenewed_s`; of the process before this one. Without it, restarts that follow one
            another would keep the claims of a dead manager for good.
    """
    return Lease(end_s=now_s + LEASE_S - unrenewed_s, is_restored=True)


def unrenewed_s(lease: Lease, now_s: float) -> float | None:
    """Return for how long processes have served without a request for claims that are held or restored.

    None for a lease that a session renews: it begins anew if the process is killed now.
    """
    if lease.end_s is None or not (lease.has_lapsed or lease.is_restored):
        return None
    return now_s - lease.end_s + LEASE_S


def is_due(lease: Lease, now_s: float) -> bool:
    return lease.end_s is not None and not lease.has_lapsed and now_s >= lease.end_s


def lapsed(lease: Lease, *, has_released: bool) -> Lease:
    """Return the lease after its end was acted upon.

    `has_released`: whether a claim has ended. If all are held, the session may go on as if in time.
    """
    return lease._replace(has_lapsed=True, needs_whole=lease.needs_whole or has_released)


def is_hold_over(lease: Lease, now_s: float, hold_s: float) -> bool:
    return lease.end_s is not None and lease.has_lapsed and now_s >= lease.end_s + min(hold_s, MOST_HOLD_S)


def released(lease: Lease) -> Lease:
    # All claims have ended after the hold; the session must send them again.
    return lease._replace(end_s=None, has_lapsed=False, is_restored=False, needs_whole=True)


def ended(lease: Lease) -> Lease:
    # There is no session any more.
    return Lease(former=lease.former)


def phase(lease: Lease) -> Phase:
    if lease.end_s is None:
        return Phase.NONE
    if lease.has_lapsed:
        return Phase.HELD
    return Phase.RESTORED if lease.is_restored else Phase.LEASED


def as_document(lease: Lease) -> dict[str, Any]:
    return lease._asdict()


def from_document(document: Mapping[str, Any]) -> Lease:
    """Return the lease of the process before this one.

    Raises:
        TypeError: it is none.
        ValueError: it is none.
    """
    values = {**document, "former": tuple(map(str, document["former"]))}
    end_s = document["end_s"]
    return Lease(**values)._replace(
        end_s=None if end_s is None else float(end_s), sequence=int(document["sequence"])
    )


def _renewed(lease: Lease, session: str, sequence: int, now_s: float) -> Lease:
    former = tuple(each for each in lease.former if each != session)
    if lease.session not in ("", session):
        former = (*former, lease.session)[-MOST_FORMER:]
    return Lease(session, sequence, now_s + LEASE_S, former=former)
