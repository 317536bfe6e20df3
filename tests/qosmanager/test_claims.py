"""Sessions of claims: what is sent, and that no value jumps when either side is restarted."""

from typing import Any

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.logs import FailureLog
from runtimeproxy.qosmanager.claims import HEARTBEAT_S, REFUSED_S, TAKEN_OVER_S, ClaimSession
from runtimeproxy.qosmanager.client import ClaimsRefusedError, DaemonAwayError, DaemonConnection
from runtimeproxy.qosmanager.plugin import Claim, Eviction, EvictionOutcome, Role, Target
from runtimeproxy.qosmanager.snapshot import Level
from tests.qosmanager.conftest import Client
from tests.qosmanager.fake_daemon import FakeDaemon

OWNER = "cpu-suppress"


def claim(container: str, value: int = 1_000, **more: Any) -> Claim:
    return Claim(Target(Level.CONTAINER, container), "cpu.cfs_quota_us", Role.ADD, value, **more)


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Peer:
    """A session, its clock, and the daemon that it is with."""

    def __init__(self, daemon: FakeDaemon, client: Client) -> None:
        self.daemon = daemon
        self._client = client
        self.clock = Clock()
        self.waiting = frozenset[str]()
        self.session = self.new_session()

    def new_session(self) -> ClaimSession:
        """What a new process has."""
        return ClaimSession(OWNER, FailureLog(), self.clock)

    async def connection(self) -> DaemonConnection:
        await self._client.wait_for(lambda: self._client.client.observed)
        connection = self._client.client.connection
        assert connection is not None
        return connection

    async def restart_daemon(self) -> None:
        before = await self.connection()
        await self.daemon.stop()
        await self._client.wait_for(lambda: self._client.client.connection is not before)
        await self.daemon.start()

    async def set(self, *claims: Claim) -> list[Any]:
        """Sets claims; returns what was sent for that, without the take-over."""
        before = len(self.daemon.requests)
        await self.session.set(await self.connection(), claims, self.waiting)
        return [each for each in self.daemon.requests[before:] if isinstance(each, api_pb2.SetClaimsRequest)]

    @property
    def values(self) -> dict[str, str]:
        return {target: value for (target, _), value in self.daemon.values(OWNER).items()}


@pytest.fixture
async def peer(daemon: FakeDaemon, client: Client) -> Peer:
    return Peer(daemon, client)


async def test_pods_that_wait_are_told_with_and_without_claims(peer: Peer) -> None:
    assert await peer.set() == []
    for waiting in ({"b", "a"}, {"a"}, set[str]()):
        peer.waiting = frozenset(waiting)
        (sent,) = await peer.set()
        assert (list(sent.waiting_pods), len(sent.claims)) == (sorted(waiting), 0)
        assert await peer.set() == []
    # They are forgotten with the lease, and when all is released.
    peer.waiting = frozenset({"a"})
    await peer.set()
    peer.clock.now_s += HEARTBEAT_S
    (renewed,) = await peer.set()
    assert renewed.waiting_pods == ["a"]
    await peer.session.release(await peer.connection())
    (again,) = await peer.set()
    assert again.waiting_pods == ["a"]


async def test_only_what_differs_is_sent(peer: Peer) -> None:
    (first,) = await peer.set(claim("a"), claim("b"))
    assert (len(first.claims), len(first.ended), first.is_whole) == (2, 0, False)
    assert await peer.set(claim("a", reason="another one"), claim("b")) == []
    (second,) = await peer.set(claim("a", 2_000), claim("c"))
    assert (len(second.claims), len(second.ended)) == (2, 1)
    assert second.sequence == first.sequence + 1
    (third,) = await peer.set(claim("a", 2_000, ceiling=9_000), claim("c"))
    assert [each.ceiling for each in third.claims] == [9_000]
    assert peer.values == {"a": "2000", "c": "1000"}
    await peer.set()
    assert peer.values == {}


async def test_a_heartbeat_renews_the_lease_of_claims(peer: Peer) -> None:
    await peer.set(claim("a"))
    peer.clock.now_s += HEARTBEAT_S - 0.1
    assert await peer.set(claim("a")) == []
    peer.clock.now_s += 0.1
    (beat,) = await peer.set(claim("a"))
    assert (len(beat.claims), len(beat.ended), beat.is_whole) == (0, 0, False)
    await peer.set()
    peer.clock.now_s += 2 * HEARTBEAT_S
    assert await peer.set() == []


async def test_a_new_process_goes_on_from_the_claims_that_count(peer: Peer) -> None:
    await peer.set(claim("a", 5_000, ceiling=9_000, reason="throttled"), claim("b"))
    peer.session = peer.new_session()
    held = await peer.session.take_over(await peer.connection())
    assert held == [claim("a", 5_000, ceiling=9_000, reason="throttled"), claim("b")]
    (request,) = await peer.set(claim("a", 5_000, ceiling=9_000), claim("b", 1_200))
    assert [each.value for each in request.claims] == ["1200"]
    assert peer.values == {"a": "5000", "b": "1200"}


async def test_a_restarted_daemon_is_asked_what_counts(peer: Peer) -> None:
    await peer.set(claim("a"), claim("b"))
    # It has lost one, as after a lapse.
    claims = peer.daemon.owners[OWNER].claims
    del claims[next(iter(claims))]
    await peer.restart_daemon()
    (request,) = await peer.set(claim("a"), claim("b"))
    assert (len(request.claims), request.is_whole) == (1, False)
    assert peer.values == {"a": "1000", "b": "1000"}


async def test_a_connection_that_has_ended_carries_no_more_claims(peer: Peer) -> None:
    await peer.set(claim("a"))
    ended = await peer.connection()
    await peer.restart_daemon()
    await peer.connection()
    with pytest.raises(DaemonAwayError):
        await peer.session.set(ended, [claim("a", 2_000)])


async def test_a_gap_is_closed_with_the_whole_set(peer: Peer) -> None:
    await peer.set(claim("a"), claim("b"))
    peer.daemon.owners[OWNER].sequence += 7
    first, whole = await peer.set(claim("a"), claim("c"))
    assert not first.is_whole
    assert whole.is_whole
    assert len(whole.claims) == 2
    assert peer.values == {"a": "1000", "c": "1000"}
    (after,) = await peer.set(claim("c"))
    assert not after.is_whole


async def test_an_owner_of_which_the_daemon_has_nothing_begins(peer: Peer) -> None:
    await peer.set(claim("a"))
    peer.daemon.owners[OWNER].session = ""
    first, whole = await peer.set(claim("b"))
    assert not first.is_whole
    assert whole.is_whole
    assert peer.values == {"b": "1000"}


async def test_two_processes_do_not_fight(peer: Peer) -> None:
    old = peer.session
    await peer.set(claim("a"))
    peer.session = peer.new_session()
    await peer.set(claim("b"))
    peer.session = old
    with pytest.raises(ClaimsRefusedError, match="another process sets the claims"):
        await peer.set(claim("a", 2_000))
    requests = len(peer.daemon.requests)
    with pytest.raises(ClaimsRefusedError, match="another process"):
        await peer.set(claim("a"))
    assert len(peer.daemon.requests) == requests
    peer.clock.now_s += TAKEN_OVER_S
    with pytest.raises(ClaimsRefusedError, match="another process"):
        await peer.set(claim("a"))
    assert peer.values == {"b": "1000"}
    # The other one has ended: nothing renews its lease.
    peer.daemon.owners[OWNER].is_leased = False
    peer.clock.now_s += TAKEN_OVER_S
    await peer.set(claim("a"))
    assert peer.values == {"a": "1000"}


async def test_a_refused_claim_is_not_sent_each_second(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    peer.daemon.refuse = lambda sent: "may not" if sent.value == "1000" else ""
    await peer.set(claim("a"), claim("b", 2_000))
    assert "the daemon refuses cpu.cfs_quota_us +1000 of container a: may not" in caplog.text
    assert peer.values == {"b": "2000"}
    assert await peer.set(claim("a"), claim("b", 2_000)) == []
    # Another value is another claim.
    await peer.set(claim("a", 3_000), claim("b", 2_000))
    assert peer.values == {"a": "3000", "b": "2000"}
    await peer.set(claim("a"), claim("b", 2_000))
    assert peer.values == {"b": "2000"}
    peer.daemon.refuse = lambda _: ""
    peer.clock.now_s += REFUSED_S
    await peer.set(claim("a"), claim("b", 2_000))
    assert peer.values == {"a": "1000", "b": "2000"}


async def test_after_a_refused_request_the_whole_set_is_sent(peer: Peer) -> None:
    await peer.set(claim("a"))
    peer.daemon.fail["SetClaims"] = (grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")
    with pytest.raises(ClaimsRefusedError, match="too large"):
        await peer.set(claim("b"))
    del peer.daemon.fail["SetClaims"]
    (whole,) = await peer.set(claim("b"))
    assert whole.is_whole
    assert peer.values == {"b": "1000"}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ((grpc.StatusCode.NOT_FOUND, "no owner has this name"), ClaimsRefusedError),
        ((grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), ClaimsRefusedError),
        ((grpc.StatusCode.UNAVAILABLE, "another process serves now"), DaemonAwayError),
    ],
)
async def test_a_take_over_that_fails_is_made_again(
    peer: Peer, status: tuple[grpc.StatusCode, str], error: type[Exception]
) -> None:
    peer.daemon.fail["GetClaims"] = status
    with pytest.raises(error):
        await peer.set(claim("a"))
    del peer.daemon.fail["GetClaims"]
    await peer.set(claim("a"))
    assert peer.values == {"a": "1000"}


async def test_release_ends_also_the_claims_of_a_process_before(peer: Peer) -> None:
    await peer.set(claim("a"))
    peer.session = peer.new_session()
    connection = await peer.connection()
    await peer.session.release(connection)
    assert OWNER not in peer.daemon.owners
    requests = len(peer.daemon.requests)
    await peer.session.release(connection)
    assert len(peer.daemon.requests) == requests
    await peer.set(claim("b"))
    await peer.session.release(connection)
    assert peer.values == {}


async def test_a_daemon_without_this_owner_has_nothing_to_release(peer: Peer) -> None:
    peer.daemon.fail["ReleaseClaims"] = (grpc.StatusCode.NOT_FOUND, "no owner has this name")
    await peer.session.release(await peer.connection())


async def test_what_became_of_evictions_is_returned(peer: Peer) -> None:
    connection = await peer.connection()
    pods = [Eviction("u", "7 GiB of 8 GiB are used")]
    (done,) = await peer.session.evict(connection, pods, is_dry_run=False)
    (dry,) = await peer.session.evict(connection, pods, is_dry_run=True)
    assert (done.outcome, dry.outcome) == (EvictionOutcome.EVICTED, EvictionOutcome.DRY_RUN)
    assert [(each.pod_uid, each.owner, each.is_dry_run) for each in peer.daemon.evictions] == [
        ("u", OWNER, False),
        ("u", OWNER, True),
    ]
    peer.daemon.fail["Evict"] = (grpc.StatusCode.NOT_FOUND, "no such pod")
    (gone,) = await peer.session.evict(connection, pods, is_dry_run=False)
    assert (gone.outcome, gone.reason) == (EvictionOutcome.REFUSED, "no such pod")
