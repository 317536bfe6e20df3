"""Start-up boosts: follows containers that start, and adds to their quotas for a time.

What is added are claims of an owner of their own, `plugin:startup-boost`, which renews their lease. So they
are resolved and written as those of a QoS manager's plugins, beside them and those of policies; pods get the
sums of their containers; the runtime's book keeps what the kubelet asked for; and if this stops, they end.
`ledger.boost_rules` has the rules.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.cgroups.paths import paths_of
from runtimeproxy.errors import described
from runtimeproxy.fields.tables import QUOTA
from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.boost import BoostsStarts, WantedBoost
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.ledger.answers import target_of
from runtimeproxy.ledger.book_store import BoostedPod
from runtimeproxy.ledger.boost_rules import MOST_BOOSTS, MOST_S, WITHIN_S, Amounts, Boost, Boosts, NoBoost
from runtimeproxy.ledger.leased import ClaimsRequest, GivenClaim
from runtimeproxy.ledger.leases import Answer
from runtimeproxy.ledger.unapplied import Unapplied, UnappliedCause
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.record_views import recorded_container, recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.state.state_file import StateFile
from runtimeproxy.vocabulary import ClaimKey, ClaimLevel, Role

if TYPE_CHECKING:
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.ledger.leased import InWorker, LeasedClaims
    from runtimeproxy.ledger.ledger import Ledger
    from runtimeproxy.node.idle_cpus import IdleCpus
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

OWNER: Final = "startup-boost"
CLAIMANT: Final = Claimant(OWNER, ClaimantKind.PLUGIN)
REASONS: Final = {
    NoBoost.OFTEN: f"it has had {MOST_BOOSTS} boosts in {WITHIN_S:g} s",
    NoBoost.NO_ROOM: "all start-up boosts have half of the node's idle CPUs at most, and these are given",
    NoBoost.UNKNOWN_IDLE: "the node's idle CPUs are not known",
    NoBoost.PRESSURE: "another pod waits for CPUs more than it may, as cpu-guard says",
}
"""Why a boost waits, for people."""
USAGE: Final = "cpuacct.usage"
LOOK_S: Final = 1.0
"""Between two looks while there are boosts: none is held longer than that after it has ended."""
IDLE_LOOK_S: Final = 10.0
"""The same without: so that the node's idle CPUs are known when a container starts."""
LEFT_S: Final = 5.0
"""After the end of a container in which its cgroup goes; after a write that failed, for further ones."""
RENEW_S: Final = 5.0
"""How often the lease is renewed: a third of it."""
SAVED: Final = "boosts.json"
"""In the state folder: until when containers have boosts, and which have had some."""


class StartupBoosts:
    """Gives and ends boosts. Used in the event loop's thread.

    Args:
        node: The node's latest snapshot.
        policy: The policy that boosts starts; None if it is not loaded, or off.
        cgroup_of: The cgroup of a container; empty if it is not known.
        is_idle: Whether nothing is to be written: the bypass is on, or another process decides.
        is_recovered: Whether the records of all that runs are known.
        idle: Reads the node's idle CPUs, in a worker thread.
        clock: CLOCK_MONOTONIC in seconds.
        wall_clock: Seconds since the epoch.

    Attributes:
        rules: What is given, and what waits.
        is_pressed: Whether a pod other than that of this uid waits for CPUs, as far as a guard knows.
        problem: Why boosts are not applied; empty if they are.
        file: What outlives this process.
    """

    def __init__(
        self,
        ledger: Ledger,
        leased: LeasedClaims,
        store: PodStore,
        node: Callable[[], Node],
        policy: Callable[[], LoadedPolicy | None],
        cgroup_of: Callable[[PodRecord, ContainerRecord], str],
        in_worker: InWorker,
        is_idle: Callable[[], bool],
        is_recovered: Callable[[], bool],
        idle: IdleCpus,
        folder: Path,
        boot_id: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._leased = leased
        self._store = store
        self._node = node
        self.policy = policy
        self._cgroup_of = cgroup_of
        self._in_worker = in_worker
        self._is_idle = is_idle
        self._is_recovered = is_recovered
        self._idle = idle
        self._now_s = clock
        self._wall_s = wall_clock
        # Seen before they ran, and seen running.
        self._created: set[str] = set()
        self._running: set[str] = set()
        # When containers have started of which it is not known yet what they are to have.
        self._undecided: dict[str, float] = {}
        # Pods of containers that are gone, and what could not be written: until when their quota is compared.
        self._left: dict[str, float] = {}
        self._is_changed = False
        # Whether boosts of the process before this one are not claimed yet by this one.
        self._is_inherited = False
        self._renewed_s = 0.0
        # The same in each process: one goes on from the other.
        self._session = "daemon"
        self._sequence = 0
        self._wake = asyncio.Event()
        self._looked = asyncio.Condition()
        self._failures = FailureLog(output=logger)
        self.rules = Boosts()
        self.is_pressed: Callable[[str], bool] = lambda uid: False
        self.problem = ""
        # Never synced: a reboot ends all that it is about.
        effect = "boosts end, and containers that have had some may have more"
        leased.withheld = self.waiting
        self.file = StateFile(folder / SAVED, effect, version=1, boot_id=boot_id, is_synced=False)

    async def load(self) -> None:
        """Reads what the process before this one has given: to be awaited before anything is decided."""
        saved: Boosts | None = await self._in_worker(self._load)
        self.rules = Boosts() if saved is None else saved
        self._running = set(self.rules.active)
        # Those whose time is over are claimed, too, and so are those of a file that cannot be used. One that
        # has none any more may have been saved by a process that was killed before it ended the claim.
        self._is_changed = saved is not None or bool(self.file.unusable)
        self._is_inherited = any(boost.given_us for boost in self.rules.active.values())
        self._wake.set()

    def _load(self) -> Boosts | None:
        return self.file.load(partial(_rules_of, now_s=self._now_s()))

    # --- what happens to containers ----------------------------------------------------------------------

    def on_container(self, identity: str) -> None:
        """The record of a container has changed."""
        box = self._store.containers.get(identity)
        if box is None or box.id != identity or box.state is Lifecycle.STOPPED:
            self._created.discard(identity)
            self._running.discard(identity)
            self._undecided.pop(identity, None)
            if (boost := self.rules.active.get(identity)) is not None:
                pods = (pod for pod in self._store.pods if pod.uid == boost.uid)
                self._left |= {pod.cgroup_parent: self._now_s() + LEFT_S for pod in pods}
                self._wake.set()
            return
        if box.state is Lifecycle.CREATED:
            self._created.add(identity)
        elif identity not in self._running and box.detailed:
            self._running.add(identity)
            has_just_started = identity in self._created
            self._created.discard(identity)
            # If its start was not seen: since its creation.
            age_s = 0.0 if has_just_started else self._wall_s() - box.created_s
            self._undecided[identity] = self._now_s() - age_s
            self._begin_undecided()

    def _begin_undecided(self) -> None:
        """Decides on what has started, once strategies and policies are known."""
        since_s = self._now_s() - MOST_S
        undecided = {each: begun_s for each, begun_s in self._undecided.items() if begun_s > since_s}
        self._undecided = undecided
        if self._is_idle() or not self._knows_strategies():
            return
        self._undecided = {}
        for identity, begun_s in undecided.items():
            box = self._store.containers.get(identity)
            if box is not None and self._store.pods.get(box.pod_id) is None:
                self._undecided[identity] = begun_s
            elif box is not None:
                self._begin(box, begun_s)

    def _knows_strategies(self) -> bool:
        loaded = self.policy()
        return loaded is None or loaded.is_settled_on(self._node())

    def _begin(self, box: ContainerRecord, begun_s: float) -> None:
        wanted = self._wanted(box)
        if wanted is None or not 0.0 <= self._now_s() - begun_s < wanted.max_s:
            return
        pod = self._store.pods.get(box.pod_id)
        boost = Boost(
            box.id,
            pod.uid if pod is not None else "",
            box.name,
            _amounts(wanted),
            begun_s,
            begun_s + wanted.max_s,
            str(wanted.reason),
        )
        if self.rules.begin(boost, self._now_s()):
            self._wake.set()

    def _wanted(self, box: ContainerRecord) -> WantedBoost | None:
        """What the policy says of a container; None for no boost."""
        pod, loaded = self._store.pods.get(box.pod_id), self.policy()
        if pod is None or loaded is None or not isinstance(loaded.policy, BoostsStarts):
            return None
        view, node = recorded_pod(pod), self._node()
        try:
            if loaded.why_not_for(view, node):
                return None
            return loaded.policy.wanted_boost(recorded_container(box, view), node)
        except Exception as error:  # noqa: BLE001 - a bug that one pod shows must not affect the others
            about = f"{pod.namespace}/{pod.name}/{box.name}"
            self._failures.report(
                "boost", described(error), f"cannot be decided: {described(error)}", pod=about
            )
            return None

    def look_soon(self) -> None:
        # The API server may say that one is ready, or what strategies are, or a guard that a pod waits.
        if self.rules.active or self._undecided:
            self._wake.set()

    async def settled(self, identity: str, within_s: float) -> None:
        """Waits until the boost of a container that starts is written, or waits for its turn."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._looked:
                await self._looked.wait_for(lambda: self._is_settled(identity))

    def _is_settled(self, identity: str) -> bool:
        boost = self.rules.active.get(identity)
        return boost is None or boost.waits is not None or (boost.given_us > 0 and not self._is_changed)

    def waiting(self) -> Iterator[Unapplied]:
        """The boosts that wait, for `status` and `explain`."""
        to_wall_s = self._wall_s() - self._now_s()
        for identity, boost in tuple(self.rules.active.items()):
            box = self._store.containers.get(identity)
            pod = self._store.pods.get(box.pod_id) if box is not None else None
            if boost.waits is not None and box is not None and pod is not None:
                target = target_of(pod, box, self._cgroup_of(pod, box))
                wanted, why = f"+{boost.asked.amount_us}", REASONS[boost.waits]
                begun_s = boost.begun_s + to_wall_s
                yield Unapplied(target, QUOTA, wanted, (CLAIMANT,), UnappliedCause.TURN, why, begun_s)

    # --- time --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        # Until it is cancelled.
        while True:
            pause_s = LOOK_S
            try:
                await self.look()
                pause_s = self._pause_s()
            except Exception:  # a bug costs this look, not the next one
                logger.exception("boosts could not be looked after")
            async with self._looked:
                self._looked.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()

    def _pause_s(self) -> float:
        if not (self.rules.active or self._is_changed or self._undecided or self._left):
            return IDLE_LOOK_S
        if self._is_idle() or not self._leased.ready.is_set() or self._is_inherited:
            # What is over cannot end now.
            return LOOK_S
        next_s = self.rules.next_s()
        return LOOK_S if next_s is None else min(LOOK_S, max(0.0, next_s - self._now_s()))

    async def look(self) -> None:
        """Does what is due now."""
        self._begin_undecided()
        if self._is_idle() or not self._leased.ready.is_set():
            return
        if self.policy() is None and not (self.rules.active or self._is_changed or self._left):
            return
        if self._is_inherited and not await self._inherit():
            return
        usage, idle_cpus = await self._usage()
        now_s = self._now_s()
        for container, usage_us in usage.items():
            self.rules.note_usage(container, now_s, usage_us)
        ended = self.rules.end(
            now_s,
            ready=self._ready(),
            gone=self._gone(),
            withdrawn=self._withdrawn(),
            is_pressed=self.is_pressed,
        )
        given = self.rules.give(now_s, idle_cpus, self.is_pressed)
        if given or any(boost.given_us for boost, _ in ended):
            self._is_changed = True
        for boost, why in ended:
            about = {"uid": boost.uid, "container": boost.name, "why": why.value}
            if boost.given_us:
                logger.info("the start-up boost of %s has ended: %s", boost.name, why.value, extra=about)
            else:
                reason = REASONS[boost.waits] if boost.waits is not None else "it has not waited for long"
                text = "%s had no start-up boost until this ended: %s; %s"
                logger.info(text, boost.name, why.value, reason, extra=about)
        if self._is_changed:
            await self._apply()
        elif self.rules.active and now_s - self._renewed_s >= RENEW_S:
            await self._claim(is_whole=False)
        await self._compare_left(now_s)

    async def _inherit(self) -> bool:
        """Claims what the process before this one has given, before any of it ends; returns whether it could.

        Where the checkpoint is lost nothing else knows that files hold more than the kubelet's limits: what
        is over is claimed, too, so that its end brings them back.
        """
        given = [boost for boost in self.rules.active.values() if boost.given_us]
        if not self._is_recovered() and any(map(self._is_unknown, given)):
            return False
        boosted: dict[tuple[str, ...], BoostedPod] = {}
        for boost in given:
            for path in paths_of(pod.cgroup_parent for pod in self._store.pods.members(boost.uid)):
                added_us, least_us = boosted.get(path, BoostedPod(0, 0))
                boosted[path] = BoostedPod(added_us + boost.given_us, least_us + boost.asked.quota_us)
        self._ledger.books.boosted = boosted
        try:
            await self._claim(is_whole=True)
        finally:
            self._ledger.books.boosted = {}
        self._is_inherited, self._is_changed = False, True
        return True

    def _is_unknown(self, boost: Boost) -> bool:
        return self._store.containers.get(boost.container) is None

    async def _compare_left(self, now_s: float) -> None:
        """Compares quotas of pods of which a container with a boost has gone, and what could not be written.

        As long as a container's cgroup is there the kernel (version 1) refuses the pod less than its quota.
        """
        left = tuple(self._left)
        self._left = {cgroup: until_s for cgroup, until_s in self._left.items() if now_s < until_s}
        for cgroup in left:
            # Values of what hangs are compared from time to time, too.
            with suppress(TimeoutError):
                await self._in_worker(partial(self._ledger.repair, cgroup))

    async def _usage(self) -> tuple[dict[str, int], float | None]:
        """As of `_read`; nothing is known while a file hangs, so that what is over ends all the same."""
        try:
            return await self._in_worker(partial(self._read, self._cgroups()))
        except TimeoutError as error:
            text = f"what containers use, and idle CPUs, cannot be read: {error}"
            self._failures.report("boosts", "unread", text)
            return {}, None

    def _cgroups(self) -> dict[str, str]:
        """The cgroups of containers with a boost that is given."""
        found: dict[str, str] = {}
        for identity, boost in self.rules.active.items():
            box = self._store.containers.get(identity)
            pod = self._store.pods.get(box.pod_id) if box is not None else None
            if boost.given_us and box is not None and pod is not None:
                found[identity] = self._cgroup_of(pod, box)
        return found

    def _read(self, cgroups: Mapping[str, str]) -> tuple[dict[str, int], float | None]:
        """What these containers have used, and the node's idle CPUs; for a worker thread."""
        usage: dict[str, int] = {}
        for container, cgroup in cgroups.items():
            with suppress(OSError, ValueError):
                found = self._ledger.look(cgroup, (USAGE,)).get(USAGE) if cgroup else None
                value = self._ledger.books.formats.decode(USAGE, found.text) if found is not None else None
                if isinstance(value, int):
                    usage[container] = value
        return usage, self._idle.read(self._now_s())

    def _gone(self) -> set[str]:
        found = set[str]()
        for identity in self.rules.active:
            box = self._store.containers.get(identity)
            if box is None or box.state is Lifecycle.STOPPED:
                found.add(identity)
        return found

    def _withdrawn(self) -> set[str]:
        """Containers whose boost is not wanted any more, or another one is."""
        found = set[str]()
        if not self._knows_strategies():
            return found
        for identity, boost in self.rules.active.items():
            box = self._store.containers.get(identity)
            wanted = self._wanted(box) if box is not None else None
            if wanted is None or _amounts(wanted) != boost.asked:
                found.add(identity)
            else:
                boost.end_s = boost.begun_s + wanted.max_s
        return found

    def _ready(self) -> Collection[str]:
        live = self._node().live_pods
        pods = (live.get(boost.uid) for boost in self.rules.active.values())
        return frozenset().union(*(pod.ready for pod in pods if pod is not None))

    # --- claims ------------------------------------------------------------------------------------------

    async def _apply(self) -> None:
        """Saves what is given, and claims it: in this order, as a process may be killed between."""
        try:
            await self._in_worker(partial(self.file.save, self.rules.as_document(self._now_s())))
        except (OSError, TimeoutError) as error:
            # Without it a restart would lose the deadline, and the claim ends with its lease.
            self._failures.report("boosts", "unsaved", f"{self.file.path}: {described(error)}")
            self.problem = f"they cannot be saved: {described(error)}"
            return
        await self._claim(is_whole=True)

    async def _claim(self, *, is_whole: bool) -> None:
        self._sequence += 1
        given = [each for each in self.rules.active.values() if each.given_us and not self._is_unknown(each)]
        claims = [GivenClaim(place, *claim_of(boost)) for place, boost in enumerate(given)]
        request = ClaimsRequest(
            OWNER, self._session, self._sequence, is_whole=is_whole, claims=claims if is_whole else ()
        )
        response = await self._leased.set(request)
        self._renewed_s = self._now_s()
        refused = [each.reason for each in response.refused[:1]]
        # Without boosts nothing is left to be applied, and nothing would end the problem.
        self.problem = (refused[0] if refused else response.problem) if self.rules.active else ""
        # Of a lease that has ended meanwhile all is to be said again.
        self._is_changed = response.answer is not Answer.TAKEN or bool(refused)
        if response.answer is Answer.TAKEN_OVER:
            # Another session has claimed for this owner, such as an operator's.
            self._session, self._sequence = uuid.uuid4().hex, 0
        for reason in refused:
            self._failures.report("boosts", reason, f"a boost is refused: {reason}")
        for each in response.failed:
            self._failures.report(each.cgroup, each.error, f"a boost cannot be written: {each.error}")
            self._left[each.cgroup] = self._now_s() + LEFT_S


def claim_of(boost: Boost) -> tuple[ClaimKey, Claim]:
    """Return the claim of a boost that is given."""
    key = ClaimKey(ClaimLevel.CONTAINER, boost.container, QUOTA, Role.ADD)
    reason = boost.reason
    if boost.given_us < boost.asked.amount_us:
        reason = f"{reason}, of which {boost.given_us} are half of the node's idle CPUs"
    return key, Claim(CLAIMANT, Role.ADD, boost.given_us, 80, reason)


def _amounts(wanted: WantedBoost) -> Amounts:
    return Amounts(wanted.quota_us, wanted.period_us, wanted.amount_us)


def _rules_of(document: Mapping[str, object], now_s: float) -> Boosts:
    rules = Boosts()
    rules.take_document(document, now_s)
    return rules
