"""What people are told about places in pools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtimeproxy.katalyst.explain import WouldBe, advice_text, reasons, where_it_would_go
from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.pool_operations import admit, configure, ramp_done
from runtimeproxy.katalyst.pools import AdvisedSizes, Refusal
from runtimeproxy.katalyst.transition import AdvisedPool
from tests.katalyst.pool_doubles import (
    DNB,
    EXCLUSIVE,
    RECLAIMED,
    SHARED,
    SNB,
    T16,
    UNBOUND,
    checked,
    facts,
    running,
    system,
    t16,
)

NO_POOL = (
    "the pods of the pool share request nothing, so there is no such pool; it is on 14 CPUs (1,3-15), which "
    "no pod has alone and no NUMA node with bound pods has"
)


@pytest.mark.parametrize(
    ("qos", "cpus", "said"),
    [
        (SHARED, 3, "pool share: 1 pod requests 3000m, that is 3 CPUs: 3 CPUs (1,8-9)"),
        (SNB, 1.2, "pool share-NUMA2: 1 pod requests 1200m x 2, that is 3 CPUs: 3 CPUs (4-5,12)"),
        (DNB, 2, "NUMA nodes 0 with 3 CPUs free for 2000m; CPUs 1,9 by topology"),
        (EXCLUSIVE, 2, "NUMA nodes 0 with 3 CPUs free for 2000m; CPUs 1,8-9 all that are free"),
        (UNBOUND, 2, "CPUs 1,9 by topology, of no NUMA node in particular"),
        (RECLAIMED, 1, "pool reclaim: 14 CPUs (1,3-15), what other pools leave, or 4 CPUs at least"),
        (system("reserve"), 1, "system_cores: the pools reserve*, 2 CPUs (0,2)"),
        (SHARED, 0, NO_POOL),
    ],
)
def test_why_a_pod_has_its_cpus(qos: KatalystQos, cpus: float, said: str) -> None:
    state = ramp_done(running(t16(enable_reclaim=True), facts("p", qos, cpus)), 30.0)
    assert said in reasons(state, "p")


def test_why_a_pool_has_more_or_less() -> None:
    state = ramp_done(running(t16(), facts("p", SHARED, 3)), 30.0)
    assert "it has more since reclaim is off: 10 CPUs" in reasons(state, "p")[0]
    advised = checked(configure(state, state.settings, T16, AdvisedSizes({"share": 5})))
    assert "the advisor says 5" in reasons(advised, "p")[0]
    crowded = running(state, facts("s", replace(SNB, numa_ids=frozenset({1})), 2.5))
    assert "2500m x 2, that is 5 CPUs; it has less" in reasons(crowded, "s")[1]


def test_a_pod_that_ramps_up_and_one_without_a_place() -> None:
    state = running(t16(), facts("p", SHARED, 3))
    assert reasons(state, "p")[0].startswith("it ramps up for 30 s on 14 CPUs (1,3-15)")
    state = checked(admit(state, facts("x", EXCLUSIVE, 20), is_forced=True))
    assert reasons(state, "x")[0].startswith("in the pool share since it has no other place: ")
    assert reasons(state, "unknown") == ()


def test_where_a_pod_would_go() -> None:
    state = t16()
    would = where_it_would_go(state, facts("p", SHARED, 2))
    assert isinstance(would, WouldBe)
    assert len(would.at_first.cpus) == 14
    assert (would.later.owner, len(would.later.cpus)) == ("share", 10)
    assert would.reasons == reasons(ramp_done(running(state, facts("p", SHARED, 2)), 30.0), "p")
    assert isinstance(where_it_would_go(state, facts("p", EXCLUSIVE, 20)), Refusal)
    assert where_it_would_go(state, facts("p", DNB, is_handled=False)) is None


def test_what_an_advisor_says_of_a_pod_s_pool() -> None:
    state = ramp_done(running(t16(enable_reclaim=True), facts("p", SHARED, 6)), 1e9)
    state = running(state, facts("batch", RECLAIMED, 2))
    state = configure(state, state.settings, T16, AdvisedSizes({"share": 3}))
    advice = {
        "share": AdvisedPool(3, owner="model", reason="used 2.5 cores"),
        "reclaim": AdvisedPool(None, None, 7_500, 3 << 29, "model"),
    }
    size, said, _ = reasons(state, "p", advice)
    assert size.startswith("pool share: 1 pod requests 6000m, that is 6 CPUs; the advisor says 3: 3 CPUs")
    assert said == "model says of pool share: it needs 3 CPUs (used 2.5 cores)"
    _, said, _ = reasons(state, "batch", advice)
    assert said == "model says of pool reclaim: headroom 7.5 CPUs, headroom 1.5 GiB"
    assert len(reasons(state, "p")) == 2
    assert advice_text("a", AdvisedPool(6, 18)) == (
        "an advisor says of pool a: it needs 6 CPUs, reclaim has 18 of them, too"
    )
