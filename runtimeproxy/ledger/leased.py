"""Claims with a lease: what owners outside of this process want of cgroups, such as plugins of a QoS manager.

Each owner has at most one session, whose requests renew the lease of all its claims. Policies are not asked
for them: only the cgroups that changed claims are for are resolved and written. Used in the event loop's
thread; files are read and written in worker threads.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from runtimeproxy.background import ShieldedTasks
from runtimeproxy.cgroups.pace import Pace, with_rests
from runtimeproxy.cgroups.paths import cgroup_path
from runtimeproxy.cgroups.writer import FAILURES, WriteResult
from runtimeproxy.counts import Counts
from runtimeproxy.errors import UNLIKE_OURS, RuntimeProxyError, described
from runtimeproxy.fields.tables import LISTS, QUOTA
from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.changes import CLEAR, Clear
from runtimeproxy.hooks.owners import Owner, refusal
from runtimeproxy.katalyst.advice import Advisors, PoolClaim
from runtimeproxy.ledger import leases
from runtimeproxy.ledger.answers import by_parameter
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.change_log import Applied, ClaimAudit
from runtimeproxy.ledger.claim_places import ClaimPlaces
from runtimeproxy.ledger.leases import Answer, Lease, Phase
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import OTHER_MODE, Unapplied, UnappliedCause, claim_text
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.records import Book, ContainerRecord, Level, is_leased
from runtimeproxy.state.state_file import StateFile
from runtimeproxy.vocabulary import ClaimKey, ClaimLevel, Mode, PoolField, Role

if TYPE_CHECKING:
    from runtimeproxy.ledger.ledger import Ledger

logger = logging.getLogger(__name__)

TICK_S: Final = 0.5
"""How often it is checked which leases have ended."""
PRUNE_S: Final = 10.0
"""How often claims on containers and pods that are gone are dropped."""
PODS_IN_A_JOB: Final = 25
"""Pods whose values one job of a worker thread writes: others wait for the thread."""
HANDED_OVER: Final = "claims.json"
"""In the state folder, from the moment in which an upgrade's process stops until the next one has read it."""
HANDED_OVER_S: Final = 120.0
"""How old such a file may be; a successor has 10 s to read it."""
UNRENEWED: Final = "unrenewed.json"
"""In the state folder: of claims that no session renews, for how long, in seconds by owner. A restart goes on
from there."""
ADVICE: Final = "advice.json"
"""In the state folder: the claims on Katalyst's pools, which no book has; of this boot only."""
UNRENEWED_STEP_S: Final = 1.0
"""How often it is saved. A process counts each step as a whole one, so that each restart counts."""
_BYTES_OF_A_CLAIM: Final = 64
"""Memory of a claim beside its texts."""


class UnknownOwnerError(RuntimeProxyError):
    """The configuration names no such owner."""


NOT_ALLOWED: Final = "not-allowed"
UNKNOWN_TARGET: Final = "unknown-target"
INVALID: Final = "invalid"
TOO_MANY: Final = "too-many"


class GivenClaim(NamedTuple):
    """A claim of a request that can be read."""

    place: int
    """In the request, from 0."""
    key: ClaimKey
    claim: Claim


class Refused(NamedTuple):
    """A claim of a request that is not taken."""

    place: int
    """In the request, from 0."""
    cause: str
    """`NOT_ALLOWED`, `UNKNOWN_TARGET`, `INVALID` or `TOO_MANY`."""
    reason: str
    key: ClaimKey | None = None
    """What it was for, if that can be read: a claim that the owner had for it ends."""


class ClaimsRequest(NamedTuple):
    """A request to change the claims of one owner."""

    owner: str
    session: str
    sequence: int
    is_whole: bool = False
    claims: Sequence[GivenClaim] = ()
    ended: Sequence[ClaimKey] = ()
    refused: Sequence[Refused] = ()
    waiting_pods: frozenset[str] = frozenset()
    """Uids of pods that wait for CPUs longer than they may."""


class ClaimsResponse(NamedTuple):
    """What became of it."""

    answer: Answer
    refused: Sequence[Refused] = ()
    failed: Sequence[WriteResult] = ()
    problem: str = ""
    """Why claims are not applied now; empty if they are."""


class _Applied(NamedTuple):
    """A claim that is in the books."""

    target: CgroupTarget
    claim: Claim


class _Change(NamedTuple):
    """A claim that is to be in the books, or not any more."""

    target: CgroupTarget
    record: ContainerRecord | None = None
    before: _Applied | None = None
    after: _Applied | None = None


@dataclass(slots=True, eq=False)
class OwnedClaims:
    """The claims of one owner.

    Attributes:
        problem: why they are not applied; empty if they are.
        problem_s: since when, by the clock of leases.
        refused: claims that were refused, and not replaced since.
        refusal: why the last one was.
        requests: that came in, by what became of them.
        refusals: refused claims, by cause.
        lapses: how many leases with claims have ended.
        waiting_pods: as the last request says.
        is_advice_late: whether claims on pools have ended with the lease, and the owner has claimed nothing
            since.
    """

    owner: Owner
    lease: Lease = field(default_factory=Lease)
    claims: dict[ClaimKey, Claim] = field(default_factory=dict)
    problem: str = ""
    problem_s: float = 0.0
    refused: int = 0
    refusal: str = ""
    requests: Counts[Answer] = field(default_factory=Counts)
    refusals: Counts[str] = field(default_factory=Counts)
    lapses: int = 0
    waiting_pods: frozenset[str] = frozenset()
    is_advice_late: bool = False
    size_bytes: int = 0
    applied: dict[ClaimKey, _Applied] = field(default_factory=dict)
    dirty: set[ClaimKey] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def phase(self) -> Phase:
        return leases.phase(self.lease)

    @property
    def hold_end_s(self) -> float | None:
        """Until when claims are held after the lease, by the clock of leases; None for none."""
        if self.lease.end_s is None or not self._held_keys():
            return None
        return self.lease.end_s + min(self.owner.hold_s, leases.MOST_HOLD_S)

    def end_s(self, role: Role) -> float | None:
        """When a claim ends without another request; None for no lease."""
        hold_end_s = self.hold_end_s if role in self.owner.hold_roles else None
        return self.lease.end_s if hold_end_s is None else hold_end_s

    def note_problem(self, problem: str, now_s: float) -> None:
        # Empty if the claims are applied.
        if problem != self.problem:
            self.problem, self.problem_s = problem, now_s

    def put(self, key: ClaimKey, claim: Claim) -> bool:
        """Takes a claim, unless the owner has too many then; returns whether it did."""
        self.drop(key)
        size_bytes = _size_bytes(key, claim)
        if len(self.claims) >= self.owner.most_claims:
            return False
        if self.size_bytes + size_bytes > self.owner.most_bytes:
            return False
        self.claims[key] = claim
        self.size_bytes += size_bytes
        return True

    def drop(self, key: ClaimKey) -> None:
        claim = self.claims.pop(key, None)
        if claim is not None:
            self.size_bytes -= _size_bytes(key, claim)

    def mark_unwritten(self, changes: Mapping[ClaimKey, _Change]) -> None:
        """Has claims written, or ended, again: the books have them as of before these changes, or after."""
        booked = {key: it for key, each in changes.items() if (it := each.after or each.before) is not None}
        self.dirty.update(booked)
        self.applied = {**booked, **self.applied}

    def not_held(self) -> list[ClaimKey]:
        """The claims that end with the lease."""
        return [key for key in self.claims if not self._is_held(key)]

    def _held_keys(self) -> bool:
        return any(map(self._is_held, self.claims))

    def _is_held(self, key: ClaimKey) -> bool:
        # Advice is about the load of a moment.
        return bool(self.owner.hold_s) and key.role in self.owner.hold_roles and not _is_advice(key)


def _size_bytes(key: ClaimKey, claim: Claim) -> int:
    texts = (key.target, key.field, str(claim.reason), claim.value if isinstance(claim.value, str) else "")
    return _BYTES_OF_A_CLAIM + sum(map(len, texts))


ResultT = TypeVar("ResultT")


class InWorker(Protocol):
    """Runs something in a worker thread; raises TimeoutError if it hangs."""

    def __call__(self, work: Callable[[], ResultT]) -> Awaitable[ResultT]: ...


class LeasedClaims:
    """The claims of all owners. Used in the event loop's thread.

    Args:
        places: Where claims count.
        is_idle: Whether nothing is to be written: the bypass is on, policies are not loaded, or another
            process decides.
        clock: CLOCK_MONOTONIC in seconds.

    Attributes:
        ready: Set once the claims of the process before this one are known.
        on_pool_claims: Called when claims on Katalyst's pools have changed.
        on_waiting: Called when other pods wait for CPUs longer than they may.
        withheld: What an owner of this process wants and does not claim yet.
        unwritten: Parameters that another agent of this node writes: claims on them are not applied.
        files: What outlives this process, beside the claims in the checkpoint.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: ClaimPlaces,
        in_worker: InWorker,
        is_idle: Callable[[], bool],
        audit: ClaimAudit,
        folder: Path,
        boot_id: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._books = ledger.books
        self._places = places
        self._in_worker = in_worker
        self._is_idle = is_idle
        self._audit = audit
        # Never synced: a reboot ends all that they are about.
        self._handed_over_file = StateFile(folder / HANDED_OVER, "sessions begin anew", is_synced=False)
        effect = "leases and holds of claims begin anew"
        self._unrenewed_file = StateFile(folder / UNRENEWED, effect, is_synced=False)
        effect = "the sizes of pools follow from requests until an advisor claims"
        self._advice_file = StateFile(folder / ADVICE, effect, boot_id=boot_id, is_synced=False)
        self.files = (self._unrenewed_file, self._handed_over_file, self._advice_file)
        # As saved.
        self._unrenewed: dict[str, float] = {}
        self._wake = asyncio.Event()
        # None: not known.
        self._saved_advice: dict[str, Any] | None = None
        self._failures = FailureLog(output=logger)
        # A request whose client is gone is carried out all the same: the next one builds on it.
        self._requests = ShieldedTasks()
        self._boot_id = boot_id
        self.now_s = clock
        self.owners: dict[str, OwnedClaims] = {}
        self.ready = asyncio.Event()
        self.on_pool_claims: Callable[[], None] = lambda: None
        self.on_waiting: Callable[[], None] = lambda: None
        self.withheld: Callable[[], Iterable[Unapplied]] = lambda: ()
        self.unwritten: Mapping[str, str] = {}
        self._loading = asyncio.Lock()
        # Whether there may be claims in the books that no owner has.
        self._is_unread = False
        self._pruned_s = clock()
        self._was_idle = True
        self._blocked = ledger.books.blocked

    # --- requests ----------------------------------------------------------------------------------------

    def owned(self, name: str) -> OwnedClaims:
        """The claims of an owner. Raises UnknownOwnerError if there is none of this name."""
        found = self.owners.get(name)
        if found is None:
            known = ", ".join(self.owners) or "none"
            raise UnknownOwnerError(f"no owner is named {name[:64]}; there are: {known}")
        return found

    def end_s(self, claim: Claim) -> float | None:
        """When a claim ends without another request, by the clock of leases; None for one without a lease."""
        owned = self.owners.get(claim.owner.name) if is_leased(claim) else None
        return None if owned is None else owned.end_s(claim.role)

    def dry_run(self, level: ClaimLevel, target: str) -> Iterator[tuple[OwnedClaims, ClaimKey, Claim]]:
        for owned in self.owners.values():
            if owned.owner.mode is Mode.DRY_RUN:
                for key, claim in owned.claims.items():
                    if (key.level, key.target) == (level, target):
                        yield owned, key, claim

    def unapplied(self) -> Iterator[Unapplied]:
        # The claims that are taken and not in the books, and those that an owner of this process withholds.
        yield from self.withheld()
        for owned in tuple(self.owners.values()):
            if owned.owner.mode is not Mode.ENFORCE:
                continue
            for key, claim in tuple(owned.claims.items()):
                if _is_advice(key):
                    # The pools say what of them has no effect.
                    continue
                if (why := self._kept_from(owned, key)) is not None:
                    place = self._places.find(key)
                    if not isinstance(place, str):
                        since_s = time.time() - max(0.0, self.now_s() - owned.problem_s)
                        yield Unapplied(
                            place.target, key.field, claim_text(claim), (claim.owner,), *why, since_s
                        )

    def advisors(self) -> Advisors:
        """The claims on pools that count now, that of the highest priority and name the last of a value."""
        late = tuple(name for name, owned in self.owners.items() if owned.is_advice_late)
        return Advisors(tuple(self._pool_claims()), late, self.ready.is_set())

    def _pool_claims(self) -> Iterator[PoolClaim]:
        if not self.ready.is_set():
            return
        for owned in sorted(self.owners.values(), key=lambda each: (each.owner.priority, each.owner.name)):
            if owned.owner.mode is not Mode.ENFORCE:
                continue
            for key, claim in owned.claims.items():
                if _is_advice(key) and isinstance(claim.value, int):
                    yield PoolClaim(
                        key.target, PoolField(key.field), claim.value, owned.owner.name, str(claim.reason)
                    )

    def _kept_from(self, owned: OwnedClaims, key: ClaimKey) -> tuple[UnappliedCause, str] | None:
        """Why a claim is not in the books; None if it is."""
        if key.field in self.unwritten:
            return UnappliedCause.KOORDLET, f"koordlet writes it: {self.unwritten[key.field]}"
        if key.field in self._books.blocked:
            return UnappliedCause.CPU_MODE, OTHER_MODE
        if key in owned.dirty and owned.problem:
            return UnappliedCause.NOT_COUNTING, owned.problem
        return None

    async def set(self, request: ClaimsRequest) -> ClaimsResponse:
        """Takes a request, and goes on when the caller is cancelled.

        Returns:
            What became of it, when its values are written or could not be.

        Raises:
            UnknownOwnerError: There is no such owner.
        """
        return await self._requests.run(self._set(self.owned(request.owner), request))

    async def _set(self, owned: OwnedClaims, request: ClaimsRequest) -> ClaimsResponse:
        async with owned.lock:
            answer, lease = leases.on_request(
                owned.lease, request.session, request.sequence, self.now_s(), is_whole=request.is_whole
            )
            owned.requests.add(answer)
            if answer is not Answer.TAKEN:
                return ClaimsResponse(answer)
            if owned.lease.session not in ("", request.session):
                text = "claims of %s: another session has taken over"
                logger.warning(text, owned.owner.name, extra={"owner": owned.owner.name})
            self._renew(owned, lease)
            if owned.waiting_pods != request.waiting_pods:
                owned.waiting_pods = request.waiting_pods
                self.on_waiting()
            if owned.is_advice_late:
                owned.is_advice_late = False
                self.on_pool_claims()
            if not (request.claims or request.ended or request.refused or request.is_whole):
                return ClaimsResponse(answer, problem=owned.problem)
            touched, refused = await self._take(owned, request)
            failed = await self._sync(owned, touched)
            return ClaimsResponse(answer, refused, failed, owned.problem)

    async def release(self, name: str, session: str = "") -> tuple[Answer, int, Sequence[WriteResult]]:
        """Ends all claims of an owner, and goes on when the caller is cancelled.

        Returns:
            How many there were, and what could not be written.

        Raises:
            UnknownOwnerError: There is no such owner.
        """
        return await self._requests.run(self._release(self.owned(name), session))

    async def _release(self, owned: OwnedClaims, session: str) -> tuple[Answer, int, Sequence[WriteResult]]:
        async with owned.lock:
            if session and session != owned.lease.session:
                return Answer.TAKEN_OVER, 0, ()
            count, keys = len(owned.claims), list(owned.claims)
            for key in keys:
                owned.drop(key)
            owned.lease, owned.refused = leases.ended(owned.lease), 0
            owned.is_advice_late, owned.waiting_pods = False, frozenset()
            self.on_pool_claims()
            return Answer.TAKEN, count, await self._sync(owned, keys)

    def is_pressed(self, uid: str) -> bool:
        """Whether a pod other than this one waits for CPUs longer than it may, as far as an owner says so."""
        now_s = self.now_s()
        return any(
            owned.waiting_pods - {uid}
            for owned in self.owners.values()
            if owned.owner.mode is Mode.ENFORCE
            and owned.lease.end_s is not None
            and now_s < owned.lease.end_s
        )

    async def take_over(self, name: str, session: str) -> OwnedClaims:
        """Lets a session go on from the present claims of an owner.

        Raises:
            UnknownOwnerError: There is no such owner.
        """
        owned = self.owned(name)
        async with owned.lock:
            if session != owned.lease.session:
                text = "claims of %s: a session goes on from %d claims"
                logger.info(text, name, len(owned.claims), extra={"owner": name})
            self._renew(owned, leases.taken_over(owned.lease, session, self.now_s()))
        return owned

    def _renew(self, owned: OwnedClaims, lease: Lease) -> None:
        if leases.unrenewed_s(owned.lease, self.now_s()) is not None:
            # Saved at once: otherwise kills that come soon after it would end the claims of a live manager.
            self._wake.set()
        owned.lease = lease

    async def _take(self, owned: OwnedClaims, request: ClaimsRequest) -> tuple[list[ClaimKey], list[Refused]]:
        """Changes the claims as far as they can be; returns what may have changed, and what is refused."""
        refused = list(request.refused)
        touched = dict.fromkeys(request.ended)
        touched |= {each.key: None for each in refused if each.key is not None}
        if request.is_whole:
            touched |= dict.fromkeys(owned.claims)
        touched |= dict.fromkeys(each.key for each in request.claims)
        given = {each.key for each in request.claims}
        for key in touched:
            if key not in given:
                owned.drop(key)
        pace = Pace()
        for each in request.claims:
            if rest_s := pace.rest_s():
                # Calls of the kubelet are served meanwhile.
                await asyncio.sleep(min(rest_s, 0.001))
                pace.resume()
            found = self._places.find(each.key)
            if isinstance(found, str):
                owned.drop(each.key)
                refused.append(Refused(each.place, UNKNOWN_TARGET, found, each.key))
            elif not owned.put(each.key, each.claim):
                reason = f"{owned.owner.name} has {len(owned.claims)} claims of {owned.size_bytes} bytes"
                refused.append(Refused(each.place, TOO_MANY, f"{reason}, and may not have more", each.key))
        for one in refused:
            owned.refusals.add(one.cause)
        owned.refused, owned.refusal = len(refused), refused[-1].reason if refused else ""
        return list(touched), sorted(refused)

    # --- the books ---------------------------------------------------------------------------------------

    def _counts_now(self, owned: OwnedClaims, key: ClaimKey) -> bool:
        return owned.owner.mode is Mode.ENFORCE and key.field not in self.unwritten

    def _problem(self, owned: OwnedClaims) -> str:
        """Why claims of an owner are not applied now; empty if they are."""
        if owned.owner.mode is not Mode.ENFORCE:
            return f"{owned.owner.name} is in mode {owned.owner.mode}"
        fields = sorted({key.field for key in owned.claims} & self.unwritten.keys())
        if fields:
            return f"another agent of this node writes {', '.join(fields)}: {self.unwritten[fields[0]]}"
        return "nothing is written now: the bypass is on, or policies are loading" if self._is_idle() else ""

    async def _sync(self, owned: OwnedClaims, keys: Iterable[ClaimKey]) -> list[WriteResult]:
        """Brings the books to the claims on these keys; returns the values that could not be written."""
        owned.note_problem(self._problem(owned), self.now_s())
        if self._is_idle():
            owned.dirty.update(keys)
            return []
        keys = list(keys)
        self._sync_pools(owned, [key for key in keys if _is_advice(key)])
        keys = [key for key in keys if not _is_advice(key)]
        changes: dict[ClaimKey, _Change] = {}
        failed: list[WriteResult] = []
        try:
            changes.update(self._changes(owned, keys))
            if owned.owner.mode is Mode.DRY_RUN:
                wanted = ((key, each.target, owned.claims.get(key)) for key, each in changes.items())
                self._audit.on_dry_run(owned.owner, wanted)
            groups = list(self._groups(owned, changes))
            for start in range(0, len(groups), PODS_IN_A_JOB):
                applied = await self._write(owned, groups[start : start + PODS_IN_A_JOB], changes)
                self._audit.on_applied(owned.owner, applied)
                failed += [each for each in applied if each.outcome in FAILURES]
        except Exception as error:  # noqa: BLE001 - it costs these values, and they are written again
            owned.mark_unwritten(changes)
            reason, bug = str(error), None if isinstance(error, OSError) else error
            if bug is not None:
                reason = described(bug)
            name = owned.owner.name
            text = f"could not be written: {reason}"
            self._failures.report(f"claims of {name}", reason, text, error=bug, owner=name)
            owned.note_problem(f"values could not be written: {reason}", self.now_s())
        return failed

    def _sync_pools(self, owned: OwnedClaims, keys: Sequence[ClaimKey]) -> None:
        """Has the pools follow the claims on them, which bound them and say what of them has no effect.

        A claim on a pool that has gone stays: the pool may come back while the lease lasts.
        """
        for key in keys:
            owned.dirty.discard(key)
            before, now = owned.applied.pop(key, None), owned.claims.get(key)
            if now is not None and owned.owner.mode is Mode.ENFORCE:
                target = CgroupTarget(Level.NODE, "", f"pool {key.target}")
                owned.applied[key] = _Applied(target, now)
            if before is not None or now is not None:
                claim = before.claim if before is not None else None
                self._audit.on_pool(owned.owner, key, claim, now, is_late=owned.is_advice_late)
        if keys:
            self.on_pool_claims()

    async def _write(
        self, owned: OwnedClaims, groups: Sequence[Sequence[Wanted]], changes: Mapping[ClaimKey, _Change]
    ) -> list[Applied]:
        """Has a worker thread write some groups.

        A thread that hangs goes on at some time, and others have changed and written these claims by then. It
        leaves the rest alone, and what it was at is brought to the present claims.

        Raises:
            TimeoutError: A file hangs.
            OSError: A file cannot be read.
        """
        loop, is_given_up = asyncio.get_running_loop(), threading.Event()

        def work() -> list[Applied]:
            applied: list[Applied] = []
            try:
                for group in groups:
                    if is_given_up.is_set():
                        break
                    applied += self._ledger.change(group)
            finally:
                if is_given_up.is_set():
                    with suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(owned.mark_unwritten, changes)
            return applied

        try:
            return await self._in_worker(partial(with_rests, work))
        except BaseException:
            is_given_up.set()
            raise

    def _changes(self, owned: OwnedClaims, keys: Iterable[ClaimKey]) -> Iterator[tuple[ClaimKey, _Change]]:
        # Those that are not in the books as they should be; then they are taken for booked.
        for key in keys:
            is_dirty = key in owned.dirty
            owned.dirty.discard(key)
            before, want = owned.applied.get(key), owned.claims.get(key)
            place = self._places.find(key) if want is not None else ""
            if isinstance(place, str) or want is None:
                # It has ended, or what it is for is gone.
                owned.drop(key)
                if before is not None:
                    del owned.applied[key]
                    yield key, _Change(before.target, None, before)
                continue
            now = _Applied(place.target, want)
            if not self._counts_now(owned, key):
                owned.applied.pop(key, None)
                if before is not None or owned.owner.mode is Mode.DRY_RUN:
                    yield key, _Change(place.target, place.record, before)
            elif is_dirty or before != now:
                owned.applied[key] = now
                yield key, _Change(place.target, place.record, before, now)

    def _groups(
        self, owned: OwnedClaims, changes: Mapping[ClaimKey, _Change]
    ) -> Iterator[tuple[Wanted, ...]]:
        """The cgroups that have changed: those of a pod together, and with those below a class its bound."""
        found: dict[tuple[str, ...], dict[str, Wanted]] = {}
        bounding: list[tuple[str, ...]] = []
        for key, change in changes.items():
            target, record = change.target, change.record
            path = cgroup_path(target.cgroup)
            group = found.setdefault(path[:-1] if target.level is Level.CONTAINER else path, {})
            wanted = group.get(target.cgroup)
            if wanted is None:
                wanted = Wanted(target, {}, owner=owned.owner.claimant)
                if record is not None:
                    asked, booked = by_parameter(record.requested), by_parameter(record.booked)
                    wanted = wanted._replace(requested=asked, booked=booked)
            claims = {**wanted.claims, key.field: self._claims_on(owned, key)}
            group[target.cgroup] = wanted._replace(claims=claims)
            if key.level is ClaimLevel.QOS_CLASS and key.field in LISTS and key.role is Role.AT_MOST:
                group[target.cgroup] = wanted._replace(claims=claims, binds_descendants=True)
                bounding.append(path)
        for bound in bounding:
            below = [path for path in found if path != bound and path[: len(bound)] == bound]
            for path in below:
                found[bound] |= found.pop(path)
            self._add_own_below(owned, bound, found[bound])
        for group in found.values():
            yield tuple(group.values())

    def _claims_on(self, owned: OwnedClaims, key: ClaimKey) -> tuple[Claim, ...]:
        """All claims that the books are to have of an owner on one value."""
        keys = (key._replace(role=role) for role in Role)
        return tuple(owned.applied[each].claim for each in keys if each in owned.applied)

    def _add_own_below(self, owned: OwnedClaims, bound: tuple[str, ...], group: dict[str, Wanted]) -> None:
        # What the owner claims itself below a class is not covered by its claim on the class.
        for key, applied in owned.applied.items():
            is_below = key.level in (ClaimLevel.POD, ClaimLevel.CONTAINER) and key.field in LISTS
            if is_below and applied.target.cgroup not in group:
                path = cgroup_path(applied.target.cgroup)
                if path[: len(bound)] == bound:
                    claims = {key.field: self._claims_on(owned, key)}
                    wanted = Wanted(applied.target, claims, owner=owned.owner.claimant)
                    group[applied.target.cgroup] = wanted

    # --- time --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        # Ends leases and holds, and catches up after the bypass, until it is cancelled.
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.look()
            except Exception:  # a bug costs this check, not the next one
                logger.exception("leases of claims could not be checked")

    async def look(self) -> None:
        """Does what is due now."""
        if self.ready.is_set():
            await self._save_unrenewed()
        if self._is_unread and not self._is_idle() and not self._loading.locked():
            await self._read_again()
        if self._is_idle() or not self.ready.is_set():
            self._was_idle = True
            return
        self._note_cpu_mode()
        if self._was_idle:
            self._was_idle = False
            await self.sync_all()
        if is_pruning := self.now_s() - self._pruned_s >= PRUNE_S:
            self._pruned_s = self.now_s()
        for owned in tuple(self.owners.values()):
            now_s = self.now_s()
            if leases.is_due(owned.lease, now_s) or leases.is_hold_over(
                owned.lease, now_s, owned.owner.hold_s
            ):
                await self._end(owned)
            if owned.dirty or is_pruning:
                async with owned.lock:
                    await self._sync(owned, list(owned.claims if is_pruning else owned.dirty))
        await self._save_advice()

    def _note_cpu_mode(self) -> None:
        # Another one has taken claims out of the books, or takes them again.
        changed, self._blocked = self._books.blocked ^ self._blocked, self._books.blocked
        if changed:
            for owned in self.owners.values():
                owned.dirty.update(key for key in owned.claims if key.field in changed)

    async def _save_unrenewed(self) -> None:
        """Saves how long nothing has renewed claims that would otherwise begin anew with each restart."""
        now_s, found = self.now_s(), {}
        for name, owned in self.owners.items():
            time_s = leases.unrenewed_s(owned.lease, now_s)
            if time_s is not None:
                # Rounded: the sum of two times may be a little less than it was.
                found[name] = (round(time_s, 3) // UNRENEWED_STEP_S + 1) * UNRENEWED_STEP_S
        if found == self._unrenewed:
            return
        try:
            await self._in_worker(partial(self._unrenewed_file.save, found))
        except (OSError, TimeoutError) as error:
            reason = described(error)
            text = f"{self._unrenewed_file.path}: {reason}; after a restart leases and holds begin anew"
            self._failures.report("unrenewed", reason, text)
        else:
            self._unrenewed = found

    async def _save_advice(self) -> None:
        """Saves the claims on pools, so that a restart goes on with them as long as their leases last."""
        found = {
            name: claims
            for name, owned in self.owners.items()
            if owned.owner.mode is Mode.ENFORCE
            and (claims := [_listed(key, it) for key, it in owned.claims.items() if _is_advice(key)])
        }
        if found == self._saved_advice:
            return
        try:
            await self._in_worker(partial(self._advice_file.save, {"owners": found}))
        except (OSError, TimeoutError) as error:
            reason = described(error)
            text = f"{self._advice_file.path}: {reason}; after a restart sizes of pools follow from requests"
            self._failures.report("advice", reason, text)
        else:
            self._saved_advice = found

    async def sync_all(self) -> None:
        # Brings the books to all claims, as after a change of what is applied at all.
        for owned in tuple(self.owners.values()):
            async with owned.lock:
                await self._sync(owned, [*owned.claims, *(owned.applied.keys() - owned.claims.keys())])

    async def _end(self, owned: OwnedClaims) -> None:
        async with owned.lock:
            now_s, name = self.now_s(), owned.owner.name
            if leases.is_hold_over(owned.lease, now_s, owned.owner.hold_s):
                keys = list(owned.claims)
                owned.lease = leases.released(owned.lease)
            elif leases.is_due(owned.lease, now_s):
                keys = owned.not_held()
                # A session without claims has nothing to renew.
                if owned.claims:
                    owned.lapses += 1
                    held = len(owned.claims) - len(keys)
                    text = "no request has renewed the claims of %s: %d are released, %d held for up to %d s"
                    about = {"owner": name, "released": len(keys), "held": held}
                    logger.warning(text, name, len(keys), held, owned.owner.hold_s, extra=about)
                owned.lease = leases.lapsed(owned.lease, has_released=bool(keys))
                if len(keys) == len(owned.claims):
                    owned.lease = leases.released(owned.lease)
            else:
                return
            owned.is_advice_late = owned.is_advice_late or any(map(_is_advice, keys))
            for key in keys:
                owned.drop(key)
            await self._sync(owned, keys)

    # --- configuration, restarts and upgrades ------------------------------------------------------------

    def configure(self, owners: Mapping[str, Owner]) -> None:
        """Takes the owners of the configuration; `sync_all` follows."""
        for name in self.owners.keys() - owners.keys():
            gone = self.owners[name]
            if gone.claims or gone.applied:
                # What it has claimed ends, and then it is forgotten.
                gone.owner = gone.owner._replace(rules=(), mode=Mode.OFF)
                for key in list(gone.claims):
                    gone.drop(key)
            else:
                del self.owners[name]
        for name, owner in owners.items():
            owned = self.owners.setdefault(name, OwnedClaims(owner))
            owned.owner, owned.is_advice_late = owner, False
            for key in list(owned.claims):
                if owner.mode is Mode.OFF or refusal(owner.rules, key.field, key.role, key.level):
                    owned.drop(key)
        self.owners = dict(sorted(self.owners.items()))

    async def load(self, *, is_successor: bool) -> None:
        """Takes over the claims of the process before this one, from the files and from an upgrade.

        Raises:
            TimeoutError: A file hangs; the claims of before stay.
        """
        async with self._loading:
            self.ready.clear()
            self._is_unread = False
            await self._restore()
            handed_over: dict[str, Any] = await self._in_worker(self._read)
            self._unrenewed = await self._in_worker(self._read_unrenewed)
            self.owners = {name: OwnedClaims(owned.owner) for name, owned in self.owners.items()}
            self._adopt()
            self._saved_advice = None
            self._adopt_advice(await self._in_worker(self._read_advice))
            for name, document in handed_over.items():
                if is_successor and name in self.owners:
                    with suppress(*UNLIKE_OURS):
                        self._take_document(self.owners[name], document)
            await self._save_unrenewed()
            self.ready.set()

    async def reload(self) -> None:
        """Takes back what a failed successor has changed: the files have it. If one hangs, `look` does so."""
        self.ready.clear()
        await self._read_again()

    def on_books_loaded(self) -> None:
        # The next check takes over their claims. Those of a checkpoint that was read late come after `load`.
        self._is_unread = True

    async def _read_again(self) -> None:
        self._is_unread = False
        try:
            if self.ready.is_set():
                await self._restore()
                self._adopt()
            else:
                await self.load(is_successor=False)
        except TimeoutError as error:
            self._is_unread = True
            self._failures.report("claims", "unread", f"cannot be read now, and it is tried again: {error}")

    async def _restore(self) -> None:
        await self._in_worker(partial(self._ledger.restore_leased, self._places.records()))

    def _adopt(self) -> None:
        """Takes over the claims of the books that no owner has."""
        known = self._places.keys()
        for book, _, target in self._books.leased():
            for key, claim in _claims_of(book, known.get(book.id)):
                name = claim.owner.name
                owned = self.owners.get(name)
                if owned is None or refusal(owned.owner.rules, key.field, key.role, key.level):
                    # Nothing renews it.
                    owned = self.owners.setdefault(name, OwnedClaims(Owner(name, hold_s=0.0)))
                if key in owned.applied:
                    continue
                owned.applied[key] = _Applied(target, claim)
                if owned.lease.session or not owned.put(key, claim):
                    # It ends: the owner's session has told all that it claims, or there is no room for more.
                    owned.dirty.add(key)
                elif owned.lease.end_s is None:
                    owned.lease = leases.restored(self.now_s(), self._unrenewed.get(name, 0.0))

    def _adopt_advice(self, saved: Mapping[str, Sequence[tuple[ClaimKey, Claim]]]) -> None:
        """Takes over the claims on pools of the process before this one."""
        for name, claims in saved.items():
            owned = self.owners[name]
            for key, claim in claims:
                if owned.put(key, claim) and owned.lease.end_s is None:
                    owned.lease = leases.restored(self.now_s(), self._unrenewed.get(name, 0.0))

    def hand_over(self) -> None:
        """Writes leases and claims for the successor of an upgrade; for a worker thread."""
        document = {
            "boot": self._boot_id,
            "time_s": self.now_s(),
            "owners": {
                name: {
                    "lease": leases.as_document(owned.lease),
                    "claims": [_listed(key, claim) for key, claim in owned.claims.items()],
                }
                for name, owned in self.owners.items()
                if owned.lease.end_s is not None
            },
        }
        self._handed_over_file.save(document)

    def _read(self) -> dict[str, Any]:
        """Reads the leases and claims of a predecessor, by owner; removes the file."""
        owners = self._handed_over_file.load(self._owners_of)
        with suppress(OSError):
            self._handed_over_file.path.unlink()
        return owners or {}

    def _owners_of(self, document: Mapping[str, Any]) -> dict[str, Any]:
        age_s = self.now_s() - document["time_s"]
        is_present = document["boot"] == self._boot_id and 0 <= age_s <= HANDED_OVER_S
        return dict(document["owners"]) if is_present else {}

    def _read_unrenewed(self) -> dict[str, float]:
        return self._unrenewed_file.load(_durations_s) or {}

    def _read_advice(self) -> dict[str, list[tuple[ClaimKey, Claim]]]:
        """The saved claims on pools that their owners may still make."""
        return self._advice_file.load(self._advice_of) or {}

    def _advice_of(self, saved: Mapping[str, Any]) -> dict[str, list[tuple[ClaimKey, Claim]]]:
        found = {}
        for name, rows in saved["owners"].items():
            owned = self.owners.get(name)
            if owned is not None and owned.owner.mode is Mode.ENFORCE:
                claims = [_read_claim(owned.owner, row) for row in rows]
                found[name] = [each for each in claims if _is_allowed_advice(owned.owner, *each)]
        return found

    def _take_document(self, owned: OwnedClaims, document: Mapping[str, Any]) -> None:
        lease = leases.from_document(document["lease"])
        claims = [_read_claim(owned.owner, row) for row in document["claims"]]
        for key in list(owned.claims):
            owned.drop(key)
        for key, claim in claims:
            if not refusal(owned.owner.rules, key.field, key.role, key.level):
                owned.put(key, claim)
        owned.lease = lease


def _durations_s(saved: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): _duration_s(time_s) for name, time_s in saved.items()}


def _duration_s(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _claims_of(book: Book, found: tuple[ClaimLevel, str] | None) -> Iterator[tuple[ClaimKey, Claim]]:
    """The claims with a lease of a book, but for those that follow from claims on other cgroups."""
    if found is None:
        if book.level is not Level.NODE:
            return
        found = ClaimLevel.HOST_APPLICATION, book.id
    level, target = found
    for name, entry in book.entries.items():
        for claim in entry.claims:
            follows = level is ClaimLevel.POD and name == QUOTA and claim.role is Role.ADD
            if is_leased(claim) and not follows:
                yield ClaimKey(level, target, name, claim.role), claim


def _is_advice(key: ClaimKey) -> bool:
    return key.level is ClaimLevel.POOL


def _is_allowed_advice(owner: Owner, key: ClaimKey, claim: Claim) -> bool:
    """Whether a saved claim is one on a pool that the owner may still make."""
    is_number = isinstance(claim.value, int) and not isinstance(claim.value, bool)
    return is_number and _is_advice(key) and not refusal(owner.rules, key.field, key.role, key.level)


def _listed(key: ClaimKey, claim: Claim) -> list[object]:
    value = None if isinstance(claim.value, Clear) else claim.value
    return [*key, value, claim.ceiling, str(claim.reason)]


def _read_claim(owner: Owner, row: Sequence[Any]) -> tuple[ClaimKey, Claim]:
    """The claim of a list of `_listed`; raises what is usual if it is none."""
    level, target, field, role, *rest = row
    key = ClaimKey(ClaimLevel(level), str(target), str(field), Role(role))
    return key, _claim(owner, role, *rest)


def _claim(owner: Owner, role: str, value: Any, ceiling: Any, reason: Any) -> Claim:  # noqa: ANN401 - JSON
    if value is not None and not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is no value")
    return Claim(
        owner.claimant,
        Role(role),
        CLEAR if value is None else value,
        owner.priority,
        str(reason),
        None if ceiling is None else int(ceiling),
    )
