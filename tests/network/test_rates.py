"""Rates that receivers see: classes of the node, limits of pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from tests.network.load import TOLERANCE, Load, greedy, near_mbit, steady_mbit
from tests.network.namespaces import Family
from tests.network.stand import CEILINGS_MBIT, GUARANTEES_MBIT, TOTAL_MBIT, RunningPod, Stand

_MANY_BURSTS_S = 2.5
"""In two windows a burst above the limit of what is received is a fiftieth. Headers of packets that the
kernel has joined, which nftables does not see, are another twentieth."""
BOTH: tuple[Family, Family] = (4, 6)


@pytest.fixture(scope="module")
def pods(stand: Stand) -> Iterator[Mapping[str, RunningPod]]:
    """A pod of each class."""
    with ExitStack() as stack:
        yield {qos: stack.enter_context(stand.pod(qos)) for qos in GUARANTEES_MBIT}


@pytest.mark.parametrize("family", BOTH, ids=["ipv4", "ipv6"])
def test_each_class_has_its_guarantee_beside_the_others(
    stand: Stand, pods: Mapping[str, RunningPod], family: Family
) -> None:
    assert stand.network is not None
    peer, addresses = stand.network.peer, stand.network.peer_addresses
    flows = [greedy(pods[qos].network, peer, addresses, (family,)) for qos in GUARANTEES_MBIT]
    with Load(flows) as load:
        measured = near_mbit(load, tuple(GUARANTEES_MBIT.values()))
    assert dict(zip(GUARANTEES_MBIT, measured, strict=True)) == pytest.approx(GUARANTEES_MBIT, rel=TOLERANCE)


@pytest.mark.parametrize("qos", list(CEILINGS_MBIT))
def test_a_class_alone_has_its_ceiling(stand: Stand, pods: Mapping[str, RunningPod], qos: str) -> None:
    assert stand.network is not None
    with Load([greedy(pods[qos].network, stand.network.peer, stand.network.peer_addresses, BOTH)]) as load:
        (measured,) = near_mbit(load, (CEILINGS_MBIT[qos],))
    assert measured == pytest.approx(CEILINGS_MBIT[qos], rel=TOLERANCE)


def test_the_nodes_own_traffic_is_none_of_pods(stand: Stand, pods: Mapping[str, RunningPod]) -> None:
    """A process of the node beside a BE pod: it has the total less the pod's guarantee."""
    assert stand.network is not None
    peer, addresses = stand.network.peer, stand.network.peer_addresses
    flows = [greedy(one, peer, addresses, (4,)) for one in (stand.node, pods["BE"].network)]

    def is_total(rates: list[float]) -> bool:
        return sum(rates) == pytest.approx(TOTAL_MBIT, rel=TOLERANCE)

    with Load(flows) as load:
        of_node, of_pod = steady_mbit(load, is_wanted=is_total)
    assert of_node + of_pod == pytest.approx(TOTAL_MBIT, rel=TOLERANCE)
    assert of_pod >= (1 - TOLERANCE) * GUARANTEES_MBIT["BE"]
    assert of_node >= (1 - TOLERANCE) * GUARANTEES_MBIT["SYSTEM"]


def test_a_pod_has_limits_of_its_own_in_both_directions(stand: Stand) -> None:
    """IPv4 and IPv6 together have one limit; another pod of the class is not held."""
    assert stand.network is not None
    peer, addresses = stand.network.peer, stand.network.peer_addresses

    def is_egress(rates: list[float]) -> bool:
        return rates[0] == pytest.approx(8, rel=TOLERANCE)

    with stand.pod("LS", {"ingressLimit": "12M", "egressLimit": "8M"}) as pod, stand.pod("LS") as other:
        sent = [greedy(pod.network, peer, addresses, BOTH), greedy(other.network, peer, addresses, (4,))]
        with Load(sent) as load:
            egress, beside = steady_mbit(load, is_wanted=is_egress)
        # Not at one time: the limit of what is sent delays acknowledgements of what is received.
        with Load([greedy(peer, pod.network, pod.network.addresses, BOTH)]) as load:
            (ingress,) = near_mbit(load, (12,), _MANY_BURSTS_S)
    assert (egress, ingress) == pytest.approx((8, 12), rel=TOLERANCE)
    assert beside > 3 * egress


def test_limits_of_pods_do_not_lift_the_ceiling_of_their_class(stand: Stand) -> None:
    assert stand.network is not None
    peer, addresses = stand.network.peer, stand.network.peer_addresses
    with ExitStack() as stack:

        def is_ceiling(rates: list[float]) -> bool:
            return sum(rates) == pytest.approx(CEILINGS_MBIT["BE"], rel=TOLERANCE)

        limited = [stack.enter_context(stand.pod("BE", {"egressLimit": "15M"})) for _ in range(3)]
        with Load([greedy(pod.network, peer, addresses, (4,)) for pod in limited]) as load:
            measured = steady_mbit(load, is_wanted=is_ceiling)
    assert sum(measured) == pytest.approx(CEILINGS_MBIT["BE"], rel=TOLERANCE)
