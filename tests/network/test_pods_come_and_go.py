"""Pods come and go under load, the daemon restarts, another program takes rules away, programs block."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from runtimeproxy.testing.builders import pod_sandbox_config
from tests.daemon.driving import Pod
from tests.lab.cri_client import CALL_TIMEOUT_S
from tests.lab.deadline import wait_until
from tests.network.load import Load, greedy, steady_mbit
from tests.network.namespaces import UPLINK
from tests.network.rules import TABLE, assert_others_stay, class_bytes, contents_of
from tests.network.stand import CEILINGS_MBIT, LIMITS, Stand

_PODS = 50
_QOS = ("LS", "BE", "LSR", "SYSTEM")
_REPAIRED_WITHIN_S = 45.0
"""A little more than the ledger's period of 30 s."""
_LONGEST_GAP_S = 1.0
"""Without a byte at the receiver: a machine that is busy, not a link without a qdisc."""


def addressed_pod(stand: Stand, number: int) -> Pod:
    """Runs a pod without a namespace, whose addresses the runtime tells. Every third one has limits."""
    limits = {"egressLimit": "5M", "ingressLimit": "6M"}
    annotations = {LIMITS: json.dumps(limits)} if number % 3 == 0 else {}
    config = pod_sandbox_config(
        f"churn{number}", uid=f"churn-{number}", qos=_QOS[number % len(_QOS)], annotations=annotations
    )
    stand.runtime.state.pod_ips[config.metadata.uid] = addresses_of(number)
    return stand.run(config)


def addresses_of(number: int) -> tuple[str, str]:
    return f"10.88.200.{number}", f"2001:db8:88::c8{number:02x}"


def test_pods_come_and_go_under_load_and_leave_nothing(stand: Stand) -> None:
    """Traffic keeps its ceiling meanwhile; then there are the rules of before, and others' untouched."""
    assert stand.network is not None
    before = stand.rules()
    with stand.pod("BE") as loaded:
        with_one = stand.contents()
        flows = greedy(loaded.network, stand.network.peer, stand.network.peer_addresses, (4, 6))
        with Load([flows]) as load, ThreadPoolExecutor(8) as threads:
            pods = list(threads.map(lambda number: addressed_pod(stand, number), range(1, _PODS + 1)))
            stand.wait_for_words(
                *(address for number in range(1, _PODS + 1) for address in addresses_of(number))
            )
            assert stand.rules().class_count == before.class_count + _PODS // 3
            (rate,) = steady_mbit(load)
            list(threads.map(stand.remove, pods))
            wait_until(lambda: stand.contents() == with_one, "the rules of one pod")
        assert rate == pytest.approx(CEILINGS_MBIT["BE"], rel=0.1)
    wait_until(lambda: stand.contents() == contents_of(before), "the rules of before")
    assert_others_stay(before, stand.rules())


def test_restarts_do_not_interrupt_traffic(stand: Stand) -> None:
    """Counters of classes go on, which those of new ones would not, and bytes arrive all the time."""
    assert stand.network is not None
    with stand.pod("LS", {"egressLimit": "20M"}) as pod:
        flows = greedy(pod.network, stand.network.peer, stand.network.peer_addresses, (4, 6))
        with Load([flows]) as load, longest_gap(load) as gap_s:
            for end in (stand.daemon.terminate, stand.daemon.kill):
                restart(stand, end)
            (rate,) = steady_mbit(load)
        assert max(gap_s) < _LONGEST_GAP_S
        assert rate == pytest.approx(20, rel=0.1)


def restart(stand: Stand, end: Callable[[], object]) -> None:
    """The daemon ends and starts; at no time are there other rules."""
    rules, sent = stand.contents(), class_bytes(stand.node)
    end()
    assert stand.contents() == rules
    stand.daemon.start()
    stand.client.wait_until_serving(CALL_TIMEOUT_S)
    # When a pod that comes has its rules, those that were found have been compared.
    extra = addressed_pod(stand, 220)
    stand.wait_for_words(*addresses_of(220))
    stand.remove(extra)
    wait_until(lambda: stand.contents() == rules, "the rules of before")
    now = class_bytes(stand.node)
    assert now.keys() == sent.keys()
    assert all(now[key] >= sent[key] for key in sent)


@contextmanager
def longest_gap(load: Load) -> Iterator[list[float]]:
    """The longest time without a byte at the receiver, in a list that has it at the end of the block."""
    ended, gaps = threading.Event(), [0.0]

    def watch() -> None:
        pause_s, quiet_s, before = 0.05, 0.0, load.wire_bytes()
        while not ended.wait(pause_s):
            now = load.wire_bytes()
            quiet_s = quiet_s + pause_s if now == before else 0.0
            gaps[0], before = max(gaps[0], quiet_s), now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield gaps
    finally:
        ended.set()
        thread.join()


def delete_table(stand: Stand) -> None:
    stand.node.run("nft", "delete", "table", "inet", TABLE)


def delete_classes(stand: Stand) -> None:
    stand.node.run("tc", "qdisc", "delete", "dev", UPLINK, "root")


@pytest.mark.parametrize("take_away", [delete_table, delete_classes])
def test_what_another_program_deletes_comes_back_and_is_said(
    stand: Stand, take_away: Callable[[Stand], None]
) -> None:
    with stand.pod("LS", {"egressLimit": "8M", "ingressLimit": "12M"}):
        before = stand.contents()
        take_away(stand)
        assert stand.contents() != before
        wait_until(lambda: stand.contents() == before, "the rules", _REPAIRED_WITHIN_S)
        assert any("network" in entry.field for entry in stand.audit() if entry.kind == "changed")


def test_calls_do_not_wait_for_tc_and_nft(stand: Stand) -> None:
    """While the programs block, pods start and go; when they go on, the rules come."""
    with stand.blocked_programs() as wait_for_call:
        first = addressed_pod(stand, 201)
        wait_for_call()
        pods = [addressed_pod(stand, number) for number in range(202, 206)]
        stand.remove(first)
        stand.status()
    stand.wait_for_words(*(address for number in range(202, 206) for address in addresses_of(number)))
    for pod in pods:
        stand.remove(pod)


def test_explain_names_class_and_share(stand: Stand) -> None:
    pod = addressed_pod(stand, 210)
    stand.wait_for_words(*addresses_of(210))
    text = str(stand.explain(pod))
    stand.remove(pod)
    assert "SYSTEM" in text
