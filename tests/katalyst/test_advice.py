"""What the daemon makes of an advisor's claims. Ids such as D20 are of Katalyst's own tests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.katalyst.advice import PoolClaim, bounded_advice, target_problem
from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.pool_operations import configure, initial, ramp_done
from runtimeproxy.katalyst.pools import (
    AdvisedSizes,
    PoolSettings,
    PoolState,
    StateEncoder,
    from_document,
    problems,
)
from runtimeproxy.vocabulary import PoolField
from tests.katalyst.pool_doubles import (
    DNB,
    RECLAIMED,
    SHARED,
    SNB,
    T16,
    checked,
    facts,
    machine,
    running,
    t16,
)

RECLAIM_ON: dict[str, Any] = {"enable_reclaim": True}


def settled(state: PoolState) -> PoolState:
    return checked(ramp_done(state, 1e9))


def advised(state: PoolState, *claims: PoolClaim) -> PoolState:
    advice = bounded_advice(state, claims).sizes(state)
    return checked(configure(state, state.settings, state.topology, advice))


def needs(pool: str, cpus: int) -> PoolClaim:
    return PoolClaim(pool, PoolField.REQUIRED_CPUS, cpus, "advisor")


def sizes(state: PoolState) -> dict[str, int]:
    return {name: len(cpus) for name, cpus in state.pools.items()}


def test_a_pool_has_what_it_needs_and_reclaim_the_rest() -> None:
    before = settled(running(t16(**RECLAIM_ON), facts("web", SHARED, 6)))
    assert sizes(before) == {"reserve": 2, "share": 6, "reclaim": 8}
    assert sizes(advised(before, needs("share", 3))) == {"reserve": 2, "share": 3, "reclaim": 11}
    # What pods of reclaimed_cores have at least stays theirs.
    assert sizes(advised(before, needs("share", 16))) == {"reserve": 2, "share": 10, "reclaim": 4}
    # Without its claims, sizes follow from requests again.
    assert sizes(advised(advised(before, needs("share", 3)))) == sizes(before)


@pytest.mark.parametrize(
    ("enable_reclaim", "overlap", "needed", "share", "reclaim"),
    [
        # D20, D21: 2 NUMA nodes of 24 CPUs, 4 reserved for reclaim on each.
        (True, False, 6, 6, 42),
        (True, False, 8, 8, 40),
        # D30, D32: all are the pool's, and reclaim has what it does not need, too, or its least size.
        (True, True, 6, 48, 42),
        (False, True, 6, 48, 8),
    ],
)
def test_sizes_of_a_whole_node(
    *, enable_reclaim: bool, overlap: bool, needed: int, share: int, reclaim: int
) -> None:
    configured = PoolSettings(enable_reclaim=enable_reclaim, overlap=overlap, reclaim_reserve=8)
    before = settled(running(initial(machine(48, 2, 2), configured), facts("web", SHARED, 12)))
    after = advised(before, needs("share", needed))
    assert (len(after.pools["share"]), len(after.pools["reclaim"])) == (share, reclaim)


def test_two_pools_of_a_whole_node_d35() -> None:
    configured = PoolSettings(enable_reclaim=True, overlap=True, reclaim_reserve=8)
    state = initial(machine(48, 2, 2), configured)
    for name in ("a", "b"):
        state = running(state, facts(name, KatalystQos(pool=name), 1))
    after = advised(settled(state), needs("a", 6), needs("b", 8))
    pools = after.pools
    assert (len(pools["a"]), len(pools["b"]), len(pools["a"] & pools["b"])) == (24, 24, 0)
    assert (len(pools["a"] & pools["reclaim"]), len(pools["b"] & pools["reclaim"])) == (18, 16)
    assert pools["reclaim"] <= pools["a"] | pools["b"]


@pytest.mark.parametrize(
    ("needed", "share", "reclaim"),
    # D20, D21 on one of 2 NUMA nodes of 24 CPUs, 4 reserved for reclaim on each; the other one is reclaim's.
    [(6, 6, 18 + 24), (8, 8, 16 + 24), (24, 20, 4 + 24)],
)
def test_sizes_of_a_numa_node(needed: int, share: int, reclaim: int) -> None:
    configured = PoolSettings(enable_reclaim=True, reclaim_reserve=8)
    before = running(initial(machine(48, 2, 2), configured), facts("web", SNB, 4))
    (pool,) = (name for name in before.pools if name.startswith("share"))
    after = advised(before, needs(pool, needed))
    assert (len(after.pools[pool]), len(after.pools["reclaim"])) == (share, reclaim)


def test_reclaim_may_have_all_cpus_of_a_pool() -> None:
    before = settled(running(t16(enable_reclaim=True, overlap=True), facts("web", SHARED, 6)))
    whole = PoolClaim("share", PoolField.OVERLAP_CPUS, 14, "advisor")
    after = advised(before, needs("share", 3), whole)
    assert after.pools["reclaim"] >= after.pools["share"]


def test_without_its_advisor_a_pool_shares_what_it_does_not_request() -> None:
    state = settled(running(t16(enable_reclaim=True, overlap=True), facts("web", SHARED, 6)))
    whole = PoolClaim("share", PoolField.OVERLAP_CPUS, 14, "advisor")
    after = advised(advised(state, needs("share", 1), whole))
    assert (len(after.pools["share"]), len(after.pools["share"] & after.pools["reclaim"])) == (14, 8)
    # The same of one pool of two.
    state = settled(running(after, facts("other", KatalystQos(pool="other"), 6)))
    both = advised(state, needs("share", 1), needs("other", 1), whole)
    one = advised(both, needs("other", 1))
    shared = {name: len(one.pools[name] & one.pools["reclaim"]) for name in ("share", "other")}
    assert {name: len(one.pools[name]) for name in shared} == {"share": 7, "other": 7}
    assert shared == {"share": 1, "other": 6}


def test_without_reclaim_advice_changes_nothing_and_says_so() -> None:
    before = settled(running(t16(), facts("web", SHARED, 6)))
    found = bounded_advice(before, [needs("share", 2)])
    assert "need enable_reclaim or overlap" in found.problems[0]
    assert sizes(advised(before, needs("share", 2))) == sizes(before)


def test_what_a_claim_may_be_for() -> None:
    state = settled(running(t16(**RECLAIM_ON), facts("web", SHARED, 6)))
    required, headroom = PoolField.REQUIRED_CPUS, PoolField.HEADROOM_BYTES
    assert target_problem(state, "share", required) == ""
    assert "there are: share" in target_problem(state, "batch", required)
    for name in ("reclaim", "reserve"):
        assert "no pool" in target_problem(state, name, required)
    assert (
        target_problem(state, "reclaim", headroom) == target_problem(state, "reclaim-NUMA3", headroom) == ""
    )
    for name in ("share", "reclaim-NUMA4", "reclaim-NUMA", "reclaim-NUMA²", "xreclaim-NUMA1"):
        assert "only reclaim" in target_problem(state, name, headroom)


def test_claims_are_bounded_by_the_node_and_those_on_pools_that_are_gone_are_left_out() -> None:
    state = settled(running(t16(**RECLAIM_ON), facts("web", SHARED, 6)))
    claims = [
        needs("gone", 5),
        PoolClaim("reclaim", PoolField.HEADROOM_MILLICPU, 999_000, "advisor", "much"),
        PoolClaim("reclaim", PoolField.HEADROOM_BYTES, 1 << 30, "advisor", "and more"),
        PoolClaim("reclaim-NUMA1", PoolField.HEADROOM_BYTES, 1 << 50, "advisor"),
        needs("share", 4),
        # That of a later owner counts.
        needs("share", 5)._replace(owner="model"),
    ]
    found = bounded_advice(state, claims)
    assert found.pools.keys() == {"reclaim", "reclaim-NUMA1", "share"}
    assert found.pools["reclaim"].headroom_millicpu == 14_000
    assert found.pools["reclaim"].reason == "much; and more"
    assert found.pools["reclaim-NUMA1"].headroom_bytes == 8 << 30
    assert (found.pools["share"].required_cpus, found.pools["share"].owner) == (5, "model")
    assert len(found.problems) == 2
    assert found.sizes(state) == AdvisedSizes({"share": 5})


def test_a_claim_on_a_pods_own_pool_splits_the_pod_off_its_pool() -> None:
    state = settled(running(t16(**RECLAIM_ON), facts("web", SHARED, 6)))
    state = settled(running(state, facts("noisy", SHARED, 4)))
    claims = needs("share", 5), needs("isolation-noisy", 3)
    after = advised(state, *claims)
    assert sizes(after) == {"reserve": 2, "share": 5, "isolation-noisy": 3, "reclaim": 6}
    assert after.pods["noisy"].owner == "isolation-noisy"
    assert not after.pods["noisy"].cpus & after.pools["share"]
    assert from_document(json.loads(StateEncoder().text(after)), T16) == after
    assert sizes(advised(after, needs("share", 5))) == {"reserve": 2, "share": 5, "reclaim": 9}
    # Without reclaim and overlap sizes have no effect.
    off = settled(running(t16(), facts("noisy", SHARED, 4)))
    assert bounded_advice(off, claims).sizes(off) == AdvisedSizes({"share": 5, "isolation-noisy": 3})


@pytest.mark.parametrize("uid", ["none", "bound", "batch"])
def test_only_pods_of_the_pool_can_be_isolated(uid: str) -> None:
    state = running(t16(**RECLAIM_ON), facts("bound", SNB, 1))
    state = settled(running(state, facts("batch", RECLAIMED, 2)))
    expected = f"only pods of shared_cores without NUMA nodes of their own can be isolated, not {uid}"
    assert target_problem(state, f"isolation-{uid}", PoolField.REQUIRED_CPUS) == expected
    assert not bounded_advice(state, [needs(f"isolation-{uid}", 2)]).pools
    overlap = target_problem(state, f"isolation-{uid}", PoolField.OVERLAP_CPUS)
    assert overlap.startswith("there is no pool isolation-")


def test_advice_is_saved_with_the_pools() -> None:
    state = settled(running(t16(enable_reclaim=True, overlap=True), facts("web", SHARED, 6)))
    state = advised(state, needs("share", 3), PoolClaim("share", PoolField.OVERLAP_CPUS, 9, "advisor"))
    assert from_document(json.loads(StateEncoder().text(state)), T16) == state


@given(
    st.dictionaries(st.sampled_from(["share", "share-NUMA0", "share-NUMA1"]), st.integers(1, 64)),
    st.dictionaries(st.sampled_from(["share", "share-NUMA0", "share-NUMA1"]), st.integers(0, 64)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 12),
    st.integers(0, 4),
)
@settings(max_examples=80, deadline=None)
def test_no_advice_breaks_an_invariant(
    required: dict[str, int],
    overlap: dict[str, int],
    enable_reclaim: bool,
    has_overlap: bool,
    reserve: int,
    reserved: int,
) -> None:
    configured = PoolSettings(
        reserved_count=reserved,
        enable_reclaim=enable_reclaim,
        overlap=has_overlap,
        reclaim_reserve=reserve,
    )
    state = initial(T16, configured)
    state = running(state, facts("bound", SNB, 1))
    state = running(state, facts("alone", DNB, 1))
    state = running(state, facts("batch", RECLAIMED, 2))
    state = settled(running(state, facts("web", SHARED, 3)))
    after = configure(state, configured, T16, AdvisedSizes(required, overlap=overlap))
    assert problems(after) == ()
    assert len(after.pools["reclaim"]) >= 1
    assert configure(after, configured, T16, None).pools == state.pools or has_overlap
