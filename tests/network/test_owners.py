"""Qdiscs, tables and filters of others; what is given back; programs that are missing."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.lab.deadline import wait_until
from tests.network.namespaces import (
    UPLINK,
    Namespace,
    NodeNetwork,
    tap_uplink,
)
from tests.network.rules import TABLE, add_foreign_rules, assert_others_stay, rules_of
from tests.network.stand import Stand, need_network_namespaces

_OFF = "[policies.network-qos]\nenabled = false\n"


def withdraw(stand: Stand) -> None:
    stand.objects.strategies({})


def switch_off(stand: Stand) -> None:
    stand.daemon.config_file.write_text(_OFF)
    stand.daemon.signal(signal.SIGHUP)


def restore(stand: Stand) -> None:
    stand.daemon.terminate()
    stand.restore()


def kill_and_restore(stand: Stand) -> None:
    stand.daemon.kill()
    stand.restore()


@pytest.fixture
def node() -> Iterator[Namespace]:
    """A node without devices but `lo`."""
    need_network_namespaces()
    with Namespace("node") as made:
        yield made


@pytest.mark.parametrize(
    ("queues", "kind", "ways"),
    [
        pytest.param(2, "mq", (withdraw, switch_off), id="mq-withdrawn-switched-off"),
        pytest.param(1, "pfifo_fast", (restore,), id="pfifo_fast-restored"),
        pytest.param(2, "mq", (kill_and_restore,), id="mq-killed-and-restored"),
    ],
)
def test_the_default_qdisc_comes_back(
    node: Namespace, socket_folder: Path, queues: int, kind: str, ways: Sequence[Callable[[Stand], None]]
) -> None:
    with tap_uplink(node, queues):
        before = rules_of(node)
        if before.root["kind"] != kind:
            pytest.skip(f"the kernel's default of {queues} queues is {before.root['kind']} here, not {kind}")
        with Stand(socket_folder, node) as stand:
            stand.start()
            for give_back in ways:
                stand.configure()
                stand.wait_for_classes()
                give_back(stand)
                stand.wait_for_off()
                assert stand.rules() == before


def test_a_bridged_uplink_without_queue_has_none_again(socket_folder: Path) -> None:
    """The kernel's default of a virtual device is `noqueue`; rules of others stay as they are."""
    need_network_namespaces()
    with NodeNetwork() as network:
        add_foreign_rules(network.node)
        before = rules_of(network.node)
        assert before.root["kind"] == "noqueue"
        with Stand(socket_folder, network.node, network) as stand:
            stand.start()
            with stand.pod("LS", {"ingressLimit": "12M", "egressLimit": "8M"}), stand.pod("BE"):
                assert_others_stay(before, stand.rules())
            with stand.pod("BE"):
                switch_off(stand)
                stand.wait_for_off()
            assert stand.rules() == before


_TBF = "qdisc replace dev eth0 root handle 9: tbf rate 1gbit burst 1mb limit 10mb\n"
_HTB_AS_KOORDLETS = """\
qdisc replace dev eth0 root handle 1: htb default 2
class add dev eth0 parent 1: classid 1:1 htb rate 1gbit quantum 60000
class add dev eth0 parent 1:1 classid 1:2 htb rate 1gbit quantum 60000
"""


def test_a_foreign_root_qdisc_is_never_replaced(node: Namespace, socket_folder: Path) -> None:
    """The policy is off and says why, of one owner and of the next; it works when they are gone."""
    with tap_uplink(node, 1), Stand(socket_folder, node, compares_often=True) as stand:
        stand.configure()
        for batch in (_TBF, _HTB_AS_KOORDLETS):
            node.batch("tc", batch)
            before = stand.rules()
            if batch == _TBF:
                stand.daemon.start()
            problem = stand.wait_for_problem(f"{before.root['kind']} {before.root['handle']}")
            assert UPLINK in problem
            after = stand.rules()
            assert (after.qdiscs, after.classes) == (before.qdiscs, before.classes)
            node.run("tc", "qdisc", "delete", "dev", UPLINK, "root")
            stand.wait_for_classes()


@pytest.mark.parametrize("program", ["tc", "nft"])
def test_a_missing_program_is_named(node: Namespace, socket_folder: Path, program: str) -> None:
    with tap_uplink(node, 1), Stand(socket_folder, node, without=program) as stand:
        before = stand.rules()
        stand.configure()
        stand.daemon.start()
        assert program in stand.wait_for_problem(program)
        assert stand.rules() == before


def delete_table(stand: Stand) -> None:
    stand.node.run("nft", "delete", "table", "inet", TABLE)


def delete_qdisc(stand: Stand) -> None:
    stand.node.run("tc", "qdisc", "delete", "dev", UPLINK, "root")


def delete_class_and_addresses(stand: Stand) -> None:
    stand.node.run("nft", "flush", "map", "inet", TABLE, "class4")
    own = stand.rules().classes[UPLINK]
    (minor,) = (found[1] for found in re.finditer(r"class htb (\S+) .* ceil 5Mbit", own))
    stand.node.run("tc", "class", "delete", "dev", UPLINK, "classid", minor)


def test_what_another_program_deletes_comes_back_and_is_said(node: Namespace, socket_folder: Path) -> None:
    """With the next comparison, which is every minute, and here every 2 s."""
    with tap_uplink(node, 1), Stand(socket_folder, node, compares_often=True) as stand:
        stand.start()
        stand.addressed_pod(3)
        stand.wait_for_addressed_pods([3])
        before = stand.contents()
        for take_away in (delete_table, delete_qdisc, delete_class_and_addresses):
            take_away(stand)
            assert stand.contents() != before
            wait_until(lambda: stand.contents() == before, f"the rules after {take_away.__name__}")
        assert any("network" in entry.field for entry in stand.audit() if entry.kind == "changed")
