"""Claims with a lease and evictions as messages, and requests as claims. Pure, but for times of the day."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy import api_names
from runtimeproxy.api_names import MODES, key_of
from runtimeproxy.core.eviction import EvictionMethod, PodEvictionOutcome, Result
from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.changes import Clear
from runtimeproxy.hooks.owners import Owner, claim_of, refusal
from runtimeproxy.ledger.leased import (
    INVALID,
    NOT_ALLOWED,
    TOO_MANY,
    UNKNOWN_TARGET,
    ClaimsRequest,
    ClaimsResponse,
    GivenClaim,
    OwnedClaims,
    Refused,
)
from runtimeproxy.ledger.leases import LEASE_S, Answer, Phase
from runtimeproxy.service.api.values import duration, timestamp
from runtimeproxy.vocabulary import MOST_TARGET, ClaimKey, Mode

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from runtimeproxy.cgroups.writer import WriteResult

OUTCOMES: Final = {
    Answer.TAKEN: api_pb2.SetClaimsResponse.OUTCOME_TAKEN,
    Answer.SEND_WHOLE_SET: api_pb2.SetClaimsResponse.OUTCOME_SEND_WHOLE_SET,
    Answer.TAKEN_OVER: api_pb2.SetClaimsResponse.OUTCOME_TAKEN_OVER,
}
MOST_WAITING: Final = 256
"""Pods of a request that wait."""
MOST_SESSION: Final = 64
"""Characters of a session's name."""

_PHASES: Final = {
    Phase.NONE: api_pb2.ClaimOwner.STATE_NONE,
    Phase.LEASED: api_pb2.ClaimOwner.STATE_LEASED,
    Phase.HELD: api_pb2.ClaimOwner.STATE_HELD,
    Phase.RESTORED: api_pb2.ClaimOwner.STATE_RESTORED,
}
_CAUSES: Final = {
    NOT_ALLOWED: api_pb2.RefusedClaim.CAUSE_NOT_ALLOWED,
    UNKNOWN_TARGET: api_pb2.RefusedClaim.CAUSE_UNKNOWN_TARGET,
    INVALID: api_pb2.RefusedClaim.CAUSE_INVALID,
    TOO_MANY: api_pb2.RefusedClaim.CAUSE_TOO_MANY,
}
EVICTIONS: Final = {
    PodEvictionOutcome.EVICTED: api_pb2.EvictResponse.OUTCOME_EVICTED,
    PodEvictionOutcome.DRY_RUN: api_pb2.EvictResponse.OUTCOME_DRY_RUN,
    PodEvictionOutcome.REFUSED: api_pb2.EvictResponse.OUTCOME_REFUSED,
    PodEvictionOutcome.FAILED: api_pb2.EvictResponse.OUTCOME_FAILED,
    PodEvictionOutcome.NOTHING_TO_STOP: api_pb2.EvictResponse.OUTCOME_NOTHING_TO_STOP,
}
_METHODS: Final = {
    EvictionMethod.NONE: api_pb2.EvictResponse.METHOD_UNSPECIFIED,
    EvictionMethod.STOP_CONTAINERS: api_pb2.EvictResponse.METHOD_STOP_CONTAINERS,
    EvictionMethod.EVICTION_API: api_pb2.EvictResponse.METHOD_EVICTION_API,
}


def session_problem(session: str) -> str:
    """Why a text is no session; empty if it is one."""
    if not session:
        return "no session is given"
    if len(session) > MOST_SESSION or not session.isascii() or not session.isprintable():
        return f"the session is not of 1 to {MOST_SESSION} printable ASCII characters"
    return ""


def request_of(message: api_pb2.SetClaimsRequest, owner: Owner) -> ClaimsRequest:
    """What a message asks for; for a worker thread, as there may be thousands of claims.

    Args:
        message: See the proto.
        owner: The one that it names.
    """
    given: list[GivenClaim] = []
    refused: list[Refused] = []
    for place, each in enumerate(message.claims):
        key = _bounded_key(each.key)
        if isinstance(key, str):
            refused.append(Refused(place, INVALID, key))
            continue
        if owner.mode is Mode.OFF:
            refused.append(Refused(place, NOT_ALLOWED, f"owner {owner.name} is off", key))
        elif reason := refusal(owner.rules, key.field, key.role, key.level):
            refused.append(Refused(place, NOT_ALLOWED, reason, key))
        else:
            try:
                given.append(GivenClaim(place, key, _claim(owner, key, each)))
            except ValueError as error:
                refused.append(Refused(place, INVALID, str(error), key))
    keys = map(_bounded_key, message.ended)
    ended = [key for key in keys if not isinstance(key, str)]
    waiting = frozenset(uid for uid in islice(message.waiting_pods, MOST_WAITING) if len(uid) <= MOST_TARGET)
    return ClaimsRequest(
        message.owner, message.session, message.sequence, message.is_whole, given, ended, refused, waiting
    )


def _claim(owner: Owner, key: ClaimKey, message: api_pb2.Claim) -> Claim:
    value = message.value if message.HasField("value") else None
    ceiling = message.ceiling if message.HasField("ceiling") else None
    return claim_of(owner, key.field, key.role, value, ceiling, message.reason)


def _bounded_key(message: api_pb2.ClaimKey) -> ClaimKey | str:
    key = key_of(message)
    if isinstance(key, str) or 0 < len(key.target) <= MOST_TARGET:
        return key
    return f"the target is not of 1 to {MOST_TARGET} characters"


def response_of(response: ClaimsResponse) -> api_pb2.SetClaimsResponse:
    message = api_pb2.SetClaimsResponse(
        outcome=OUTCOMES[response.answer],
        refused=[
            api_pb2.RefusedClaim(index=each.place, cause=_CAUSES[each.cause], reason=each.reason)
            for each in response.refused
        ],
        failed=map(failed_message, response.failed),
        problem=response.problem,
    )
    if response.answer is Answer.TAKEN:
        message.lease.CopyFrom(duration(LEASE_S))
    return message


def failed_message(result: WriteResult) -> api_pb2.FailedWrite:
    return api_pb2.FailedWrite(
        time=timestamp(time.time()),
        cgroup=result.cgroup,
        field=result.name,
        value=str(result.value),
        error=result.error,
    )


def owner_message(owned: OwnedClaims, now_s: float) -> api_pb2.ClaimOwner:
    """An owner and its lease.

    Args:
        owned: Its claims.
        now_s: By the clock of leases.
    """
    lease, owner = owned.lease, owned.owner
    return api_pb2.ClaimOwner(
        name=owner.name,
        state=_PHASES[owned.phase],
        session=lease.session,
        sequence=lease.sequence,
        claims=len(owned.claims),
        refused=owned.refused,
        lease_end=wall_time(lease.end_s, now_s),
        hold_end=wall_time(owned.hold_end_s, now_s),
        mode=MODES[owner.mode],
        priority=owner.priority,
        problem=owned.problem if owned.claims else "",
        requests=sum(owned.requests.read().values()),
        lapses=owned.lapses,
        may_evict=owner.may_evict,
        refusal=owned.refusal if owned.refused else "",
    )


def owned_messages(owners: Iterable[OwnedClaims], now_s: float) -> list[api_pb2.OwnedClaims]:
    return [
        api_pb2.OwnedClaims(
            owner=owner_message(owned, now_s),
            claims=[claim_message(key, claim) for key, claim in sorted(owned.claims.items(), key=_by_key)],
        )
        for owned in owners
    ]


def _by_key(item: tuple[ClaimKey, Claim]) -> ClaimKey:
    return item[0]


def claim_message(key: ClaimKey, claim: Claim) -> api_pb2.Claim:
    value = None if isinstance(claim.value, Clear) else claim.value
    return api_names.claim_message(key, value, claim.ceiling, str(claim.reason))


def evict_response(result: Result) -> api_pb2.EvictResponse:
    return api_pb2.EvictResponse(
        outcome=EVICTIONS[result.outcome],
        reason=result.reason,
        containers=[
            api_pb2.StoppedContainer(id=each.id, name=each.name, error=each.error)
            for each in result.containers
        ],
        method=_METHODS[result.method],
        retry_at=None if result.retry_s is None else timestamp(time.time() + result.retry_s),
    )


def wall_time(at_s: float | None, now_s: float) -> Timestamp | None:
    # `at_s`: by the clock of leases.
    return None if at_s is None else timestamp(time.time() + at_s - now_s)
