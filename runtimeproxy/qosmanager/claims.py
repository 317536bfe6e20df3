"""A plugin's claims and evictions in the daemon: one session per plugin, whose sequence has no gaps.

The daemon is the one that remembers: a session begins by taking over the claims there, so that no value
jumps when this process, the daemon or both are restarted. Nothing else renews the lease of a plugin's claims
than the plugin's own rounds. Used in the event loop's thread.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from runtimeproxy.qosmanager.client import ClaimsRefusedError
from runtimeproxy.qosmanager.plugin import Claim, Eviction, EvictionOutcome, EvictionResult, Role, Target
from runtimeproxy.vocabulary import MOST_EVICTION_REASON_BYTES

if TYPE_CHECKING:
    from cri_api.runtimeproxy.v1 import api_pb2
    from runtimeproxy.logs import FailureLog
    from runtimeproxy.qosmanager.client import DaemonConnection

CLAIMS_S: Final = 30.0
"""How long the daemon may take to write values."""
EVICTION_S: Final = 60.0
"""How long it may take to stop the containers of a pod."""
HEARTBEAT_S: Final = 4.0
"""Time without a change of claims after which their lease is renewed. Source: api.proto, the lease lasts
15 s; with the default interval two renewals may fail."""
REFUSED_S: Final = 30.0
"""When a claim that was refused is sent again."""
TAKEN_OVER_S: Final = 30.0
"""When a plugin whose session was taken over checks whether the other session has ended."""

_TAKEN_OVER: Final = "another process sets the claims of this plugin"

_Key = tuple[Target, str, Role]


class ClaimSession:
    """The claims of one owner, which is a plugin's name."""

    def __init__(self, owner: str, failures: FailureLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._owner = owner
        self._failures = failures
        self._clock = clock
        self._session = uuid.uuid4().hex
        self._connection: DaemonConnection | None = None
        self._sequence = 0
        self._held: dict[_Key, Claim] = {}
        self._waiting: frozenset[str] = frozenset()
        self._is_whole_due = False
        self._refused: dict[_Key, tuple[Claim, float]] = {}
        """The claim that was refused, and when it is sent again."""
        self._renewed_s = 0.0
        self._released_on: DaemonConnection | None = None
        self._blocked_until_s = 0.0

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(self._held.values())

    async def take_over(self, connection: DaemonConnection) -> list[Claim]:
        """Returns the effective claims in the daemon, which are this session's from now on.

        Raises:
            DaemonAwayError: it is away.
            ClaimsRefusedError: it does not know this owner, or another process renews its lease.
        """
        from cri_api.runtimeproxy.v1 import api_pb2
        from runtimeproxy.qosmanager.from_api import claims_of

        if connection is self._connection:
            return list(self._held.values())
        if self._clock() < self._blocked_until_s:
            raise ClaimsRefusedError(_TAKEN_OVER)
        if self._blocked_until_s:
            await self._check_other(connection)
        request = api_pb2.GetClaimsRequest(owner=self._owner, session=self._session)
        response = await connection.call(connection.admin.GetClaims, request, timeout=CLAIMS_S)
        owned = next((each for each in response.owners if each.owner.name == self._owner), None)
        self._held = {claim.key: claim for claim in claims_of(owned.claims)} if owned is not None else {}
        self._sequence = owned.owner.sequence if owned is not None else 0
        self._refused.clear()
        self._waiting = frozenset()
        self._is_whole_due = owned is None
        self._renewed_s = self._clock()
        self._connection, self._released_on, self._blocked_until_s = connection, None, 0.0
        return list(self._held.values())

    async def _check_other(self, connection: DaemonConnection) -> None:
        """Leaves the claims to the session that took over, as long as it renews them."""
        from cri_api.runtimeproxy.v1 import api_pb2

        request = api_pb2.GetClaimsRequest(owner=self._owner)
        response = await connection.call(connection.admin.GetClaims, request, timeout=CLAIMS_S)
        for each in response.owners:
            is_other = each.owner.session != self._session
            if is_other and each.owner.state == api_pb2.ClaimOwner.STATE_LEASED:
                self._blocked_until_s = self._clock() + TAKEN_OVER_S
                raise ClaimsRefusedError(_TAKEN_OVER)

    async def set(
        self,
        connection: DaemonConnection,
        wanted: Iterable[Claim],
        waiting_pods: frozenset[str] = frozenset(),
    ) -> None:
        """Has the daemon hold these claims and no others, or renews their lease.

        `waiting_pods`: uids of pods that wait for CPUs longer than they may.

        Raises:
            DaemonAwayError: it is away.
            ClaimsRefusedError: it takes none of them.
        """
        await self.take_over(connection)
        now_s = self._clock()
        by_key = {claim.key: claim for claim in wanted}
        for key, (claim, until_s) in tuple(self._refused.items()):
            if now_s >= until_s or not _is_same(by_key.get(key), claim):
                del self._refused[key]
        sendable = {key: claim for key, claim in by_key.items() if key not in self._refused}
        new = [claim for key, claim in sendable.items() if not _is_same(self._held.get(key), claim)]
        ended = [claim for key, claim in self._held.items() if key not in sendable]
        is_held, is_other = bool(self._held or waiting_pods), waiting_pods != self._waiting
        is_renewal_due = is_held and now_s >= self._renewed_s + HEARTBEAT_S
        if new or ended or self._is_whole_due or is_other or is_renewal_due:
            await self._send(connection, sendable, new, ended, waiting_pods)

    async def _send(
        self,
        connection: DaemonConnection,
        wanted: dict[_Key, Claim],
        new: list[Claim],
        ended: list[Claim],
        waiting_pods: frozenset[str],
    ) -> None:
        from cri_api.runtimeproxy.v1 import api_pb2

        if self._is_whole_due:
            new, ended = list(wanted.values()), []
        response = await self._request(connection, new, ended, waiting_pods)
        is_gap = response.outcome == api_pb2.SetClaimsResponse.OUTCOME_SEND_WHOLE_SET
        if is_gap and not self._is_whole_due:
            self._is_whole_due, new = True, list(wanted.values())
            response = await self._request(connection, new, (), waiting_pods)
        if response.outcome == api_pb2.SetClaimsResponse.OUTCOME_TAKEN_OVER:
            self._connection = None
            self._blocked_until_s = self._clock() + TAKEN_OVER_S
            raise ClaimsRefusedError(_TAKEN_OVER)
        if response.outcome != api_pb2.SetClaimsResponse.OUTCOME_TAKEN:
            raise ClaimsRefusedError("the daemon does not take the whole set of claims")
        self._is_whole_due = False
        self._renewed_s = self._clock()
        self._held, self._waiting = dict(wanted), waiting_pods
        self._report(new, response)

    async def _request(
        self,
        connection: DaemonConnection,
        claims: Sequence[Claim],
        ended: Sequence[Claim],
        waiting_pods: frozenset[str],
    ) -> api_pb2.SetClaimsResponse:
        from cri_api.runtimeproxy.v1 import api_pb2
        from runtimeproxy.qosmanager.from_api import claim_message, key_message

        self._sequence += 1
        request = api_pb2.SetClaimsRequest(
            owner=self._owner,
            session=self._session,
            sequence=self._sequence,
            is_whole=self._is_whole_due,
            claims=map(claim_message, claims),
            ended=map(key_message, ended),
            waiting_pods=sorted(waiting_pods),
        )
        try:
            return await connection.call(connection.admin.SetClaims, request, timeout=CLAIMS_S)
        except ClaimsRefusedError:
            self._is_whole_due = True
            raise

    def _report(self, sent: Sequence[Claim], response: api_pb2.SetClaimsResponse) -> None:
        for refused in response.refused:
            if refused.index >= len(sent):
                continue
            claim = sent[refused.index]
            self._held.pop(claim.key, None)
            self._refused[claim.key] = claim, self._clock() + REFUSED_S
            # Pods come and go: a cause with their ids would be another one each time.
            self._failures.report(
                self._owner,
                (refused.cause, claim.field, claim.target.level),
                f"the daemon refuses {claim_text(claim)}: {refused.reason}",
            )
        self._report_failed(response.failed)
        if response.problem:
            text = f"claims do not apply now: {response.problem}"
            self._failures.report(self._owner, response.problem, text)

    def _report_failed(self, writes: Iterable[api_pb2.FailedWrite]) -> None:
        for failed in writes:
            text = f"{failed.field} of {failed.target or failed.cgroup} was not written: {failed.error}"
            self._failures.report(self._owner, ("failed", failed.field, failed.error), text)

    async def release(self, connection: DaemonConnection) -> None:
        """Ends all claims of the plugin, once for each connection. Raises DaemonAwayError."""
        from cri_api.runtimeproxy.v1 import api_pb2

        if connection is self._released_on:
            return
        request = api_pb2.ReleaseClaimsRequest(owner=self._owner)
        try:
            response = await connection.call(connection.admin.ReleaseClaims, request, timeout=CLAIMS_S)
        except ClaimsRefusedError:
            # It does not know this owner, or writes no values: there is nothing to release.
            response = api_pb2.ReleaseClaimsResponse()
        self._held.clear()
        self._refused.clear()
        self._waiting = frozenset()
        self._connection, self._released_on = None, connection
        self._report_failed(response.failed)

    async def evict(
        self, connection: DaemonConnection, evictions: Sequence[Eviction], *, is_dry_run: bool
    ) -> list[EvictionResult]:
        """Proposes evictions one after the other; returns what became of each. Raises DaemonAwayError."""
        from google.protobuf.duration_pb2 import Duration

        from cri_api.runtimeproxy.v1 import api_pb2
        from runtimeproxy.qosmanager.from_api import cut_bytes

        results: list[EvictionResult] = []
        for each in evictions:
            reason = cut_bytes(each.reason, MOST_EVICTION_REASON_BYTES)
            request = api_pb2.EvictRequest(
                pod_uid=each.pod_uid,
                owner=self._owner,
                reason=reason,
                is_dry_run=is_dry_run,
                grace_period=Duration(seconds=math.ceil(each.grace_s)) if each.grace_s else None,
            )
            try:
                response = await connection.call(
                    connection.admin.Evict, request, timeout=EVICTION_S + each.grace_s
                )
            except ClaimsRefusedError as error:
                results.append(EvictionResult(each, EvictionOutcome.REFUSED, str(error)))
                continue
            outcome = _OUTCOMES.get(
                api_pb2.EvictResponse.Outcome.Name(response.outcome), EvictionOutcome.FAILED
            )
            results.append(EvictionResult(each, outcome, response.reason))
        return results


_OUTCOMES: Final = {
    "OUTCOME_EVICTED": EvictionOutcome.EVICTED,
    "OUTCOME_DRY_RUN": EvictionOutcome.DRY_RUN,
    "OUTCOME_REFUSED": EvictionOutcome.REFUSED,
    "OUTCOME_NOTHING_TO_STOP": EvictionOutcome.NOTHING,
}


def _is_same(one: Claim | None, other: Claim) -> bool:
    # Another reason alone is not sent.
    return one is not None and (one.value, one.ceiling) == (other.value, other.ceiling)


def claim_text(claim: Claim) -> str:
    target = f"{claim.target.level.replace('-', ' ')} {claim.target.id}".strip()
    sign = {Role.ADD: "+", Role.AT_MOST: "at most ", Role.SET: ""}[claim.role]
    return f"{claim.field} {sign}{claim.value} of {target}"
