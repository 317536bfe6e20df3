"""Pods come and go under load, the daemon restarts, another program takes rules away, programs block."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtimeproxy.ledger.network_tools import TIMEOUT_S
from tests.lab.cri_client import CALL_TIMEOUT_S
from tests.lab.deadline import time_s, wait_until
from tests.network.load import TOLERANCE, Load, greedy, near_mbit
from tests.network.rules import assert_others_stay, class_bytes, contents_of
from tests.network.stand import CEILINGS_MBIT, Stand

_NUMBERS = range(1, 51)
_LONGEST_GAP_S = 1.0
"""Without a byte at the receiver: TCP that sends again, not a link without a qdisc."""


def test_pods_come_and_go_under_load_and_leave_nothing(stand: Stand) -> None:
    """Traffic keeps its ceiling meanwhile; then there are the rules of before, and others' untouched."""
    assert stand.network is not None
    before = stand.rules()
    with stand.pod("BE") as loaded:
        with_one = stand.contents()
        flows = greedy(loaded.network, stand.network.peer, stand.network.peer_addresses, (4, 6))
        with Load([flows]) as load, ThreadPoolExecutor(8) as threads:
            pods = list(threads.map(stand.addressed_pod, _NUMBERS))
            stand.wait_for_addressed_pods(_NUMBERS)
            assert stand.rules().class_count == before.class_count + len(_NUMBERS) // 3
            (rate,) = near_mbit(load, (CEILINGS_MBIT["BE"],))
            list(threads.map(stand.remove, pods))
            wait_until(lambda: stand.contents() == with_one, "the rules of one pod")
        assert rate == pytest.approx(CEILINGS_MBIT["BE"], rel=TOLERANCE)
    wait_until(lambda: stand.contents() == contents_of(before), "the rules of before")
    assert_others_stay(before, stand.rules())


def test_restarts_do_not_interrupt_traffic(stand: Stand) -> None:
    """Counters of classes go on, which those of new ones would not, and bytes arrive all the time."""
    assert stand.network is not None
    with stand.pod("LS", {"egressLimit": "20M"}) as pod:
        flows = greedy(pod.network, stand.network.peer, stand.network.peer_addresses, (4, 6))
        with Load([flows]) as load:
            for end in (stand.daemon.terminate, stand.daemon.kill):
                restart(stand, end)
            (rate,) = near_mbit(load, (20,))
        assert load.longest_gap_s < _LONGEST_GAP_S
        assert rate == pytest.approx(20, rel=TOLERANCE)


def restart(stand: Stand, end: Callable[[], object]) -> None:
    """The daemon ends and starts; at no time are there other rules."""
    rules, sent = stand.contents(), class_bytes(stand.node)
    end()
    assert stand.contents() == rules
    stand.daemon.start()
    stand.client.wait_until_serving(CALL_TIMEOUT_S)
    # When a pod that comes has its rules, those that were found have been compared.
    extra = stand.addressed_pod(220)
    stand.wait_for_addressed_pods([220])
    stand.remove(extra)
    wait_until(lambda: stand.contents() == rules, "the rules of before")
    now = class_bytes(stand.node)
    assert now.keys() == sent.keys()
    assert not [key for key in sent if now[key] < sent[key]], f"{sent}, then {now}"


def test_calls_do_not_wait_for_tc_and_nft(stand: Stand) -> None:
    """While the programs block, pods start and go, and the daemon ends; when they go on, the rules come."""
    numbers = range(202, 206)
    with stand.blocked_programs() as wait_for_call:
        first = stand.addressed_pod(201)
        wait_for_call()
        pods = [stand.addressed_pod(number) for number in numbers]
        stand.remove(first)
        stand.status()
        assert time_s(stand.daemon.terminate) < TIMEOUT_S
    stand.daemon.start()
    stand.client.wait_until_serving(CALL_TIMEOUT_S)
    stand.wait_for_addressed_pods(numbers)
    for pod in pods:
        stand.remove(pod)


def test_explain_names_class_and_share(stand: Stand) -> None:
    pod = stand.addressed_pod(213)
    stand.wait_for_addressed_pods([213])
    (target, *_) = stand.explain(pod).targets
    fields = {field.name: field for field in target.fields}
    stand.remove(pod)
    reason = fields["network_class"].claims[0].reason
    assert fields["network_class"].observed_value == "BE"
    assert "guarantee 15000000, ceiling 20000000 of 60000000 bits/s" in reason
    assert fields["network_egress_limit_bps"].observed_value == "5000000"
    assert fields["network_ingress_limit_bps"].observed_value == "6000000"
