"""What `tc` and nftables are to have, and the commands that lead there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.fields.network import NetworkClass, NetworkShares, Share, pod_minor
from runtimeproxy.ledger.network_plan import (
    TABLE,
    NetworkPod,
    NftState,
    PodPlan,
    TcClass,
    canonical,
    cgroup_match,
    default_links,
    fixed_rules,
    net_cls_match,
    nft_commands,
    nft_state,
    plan_pods,
    pod_key,
    root_qdiscs,
    share_classes,
    tc_classes,
    tc_commands,
    tc_removals,
)

LINK = "eth0"
SHARES = NetworkShares(
    1_000_000_000,
    (Share(500_000_000, 1_000_000_000), Share(400_000_000, 800_000_000), Share(96_000_000, 296_000_000)),
    (0, 0, 200_000_000),
)
POD = NetworkPod("u1", "x/a", ("kubepods", "podu1"), ("10.0.0.2", "fd00::2"), False, NetworkClass.BE)


def planned(*pods: NetworkPod, minors: dict[str, int] | None = None, **matches: Any) -> PodPlan:
    return plan_pods(SHARES, pods, (LINK,), minors or {}, matches)


def test_the_classes_of_the_link() -> None:
    assert share_classes(SHARES) == {
        each.minor: each
        for each in (
            TcClass(1, 0, 0, 1_000_000_000, 1_000_000_000),
            TcClass(0x20, 1, 1, 500_000_000, 1_000_000_000),
            TcClass(2, 0x20, 1, 8, 1_000_000_000),
            TcClass(0x30, 1, 2, 400_000_000, 800_000_000),
            TcClass(3, 0x30, 2, 8, 800_000_000),
            TcClass(0x40, 1, 3, 96_000_000, 296_000_000),
            TcClass(4, 0x40, 3, 8, 296_000_000),
        )
    }


@pytest.mark.parametrize(
    ("wanted", "command"),
    [
        (
            TcClass(1, 0, 0, 1_000_000, 1_000_000),
            "parent 4b52: classid 4b52:1 htb rate 1000000bit ceil 1000000bit burst 3200b cburst 3200b prio 0",
        ),
        (
            TcClass(0xABC, 0x40, 3, 8, 10**7),
            "parent 4b52:40 classid 4b52:abc htb rate 8bit ceil 10000000bit burst 3200b cburst 12500b prio 3",
        ),
    ],
)
def test_the_command_of_a_class(wanted: TcClass, command: str) -> None:
    assert wanted.command(LINK) == f"class replace dev eth0 {command} quantum 60000"


SHOWN = """class htb 4b52:1 root rate 1Gbit ceil 1Gbit burst 125000b cburst 125000b
class htb 4b52:2 parent 4b52:20 prio 1 rate 8bit ceil 1Gbit burst 176b cburst 125000b
class htb 4b52:20 parent 4b52:1 rate 500Mbit ceil 1Gbit burst 62500b cburst 125000b
class htb 4b52:3 parent 4b52:30 leaf 8001: prio 2 rate 8bit ceil 800Mbit burst 176b cburst 100000b
class htb 4b52:30 parent 4b52:1 rate 400Mbit ceil 800Mbit burst 50000b cburst 100000b
class htb 4b52:4 parent 4b52:40 prio 3 rate 8bit ceil 296Mbit burst 176b cburst 37000b
class htb 4b52:40 parent 4b52:1 rate 96Mbit ceil 296Mbit burst 12000b cburst 37000b
class htb 4b52:4ae5 parent 4b52:40 prio 3 rate 8bit ceil 12345Kbit burst 176b cburst 6250b
class htb 1:3 root prio 0 rate 1Mbit ceil 1Mbit burst 1600b cburst 1600b
class fq_codel 8001:5 parent 8001:
"""


def test_the_classes_that_tc_shows() -> None:
    found = tc_classes(SHOWN)
    assert found[0x4AE5] == TcClass(0x4AE5, 0x40, 3, 8, 12_345_000)
    assert found[0x30] == TcClass(0x30, 1, -1, 400_000_000, 800_000_000)
    assert len(found) == 8


def test_what_tc_shows_rounded_is_the_same() -> None:
    assert tc_commands(LINK, share_classes(SHARES), tc_classes(SHOWN)) == []
    own = TcClass(0x4AE5, 0x40, 3, 8, 12_345_672)
    assert tc_commands(LINK, {own.minor: own}, tc_classes(SHOWN)) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"order": 2},
        {"rate_bps": 96},
        {"ceiling_bps": 12_500_000},
    ],
)
def test_another_value_is_replaced(changed: dict[str, int]) -> None:
    own = TcClass(0x4AE5, 0x40, 3, 8, 12_345_672)._replace(**changed)
    assert tc_commands(LINK, {own.minor: own}, tc_classes(SHOWN)) == [own.command(LINK)]


def test_a_class_that_moves_is_made_anew() -> None:
    own = TcClass(0x4AE5, 0x30, 2, 8, 12_345_672)
    assert tc_commands(LINK, {own.minor: own}, tc_classes(SHOWN)) == [
        "class del dev eth0 classid 4b52:4ae5",
        own.command(LINK),
    ]


def test_classes_of_pods_alone_are_removed() -> None:
    assert tc_removals(LINK, {0x100}, [1, 2, 0x20, 0x4AE5, 0x100]) == ["class del dev eth0 classid 4b52:4ae5"]


def test_a_pod_of_a_class() -> None:
    plan = planned(POD)
    assert plan.classes == {}
    assert plan.left_out == {}
    assert {name: each for name, each in plan.nft.maps.items() if each} == {
        "class4": {"10.0.0.2": "4b52:4"},
        "class6": {"fd00::2": "4b52:4"},
        "class_limit4": {"10.0.0.2": "class_be_25000000"},
        "class_limit6": {"fd00::2": "class_be_25000000"},
    }
    assert plan.nft.limits == {"class_be_25000000"}


def test_a_pod_with_limits() -> None:
    plan = planned(POD._replace(egress_bps=8_000_000, ingress_bps=16_000_000))
    minor = pod_minor("u1")
    assert plan.classes == {minor: TcClass(minor, 0x40, 3, 8, 8_000_000)}
    assert plan.minors == {"u1": minor}
    assert plan.nft.maps["class4"] == {"10.0.0.2": f"4b52:{minor:x}"}
    assert plan.nft.maps["pod_limit6"] == {"fd00::2": "pod_u1_2000000"}
    assert plan.nft.limits == {"class_be_25000000", "pod_u1_2000000"}


def test_a_limit_above_the_class_is_the_class_s() -> None:
    (own,) = planned(POD._replace(egress_bps=10**12)).classes.values()
    assert own.ceiling_bps == 296_000_000


def test_two_pods_never_have_one_number() -> None:
    first = POD._replace(egress_bps=8_000)
    taken = pod_minor("u1")
    second = POD._replace(uid="u2", addresses=("10.0.0.9",), egress_bps=8_000)
    plan = planned(first, second, minors={"u2": taken})
    assert plan.minors == {"u1": taken + 1, "u2": taken}
    assert set(plan.classes) == {taken, taken + 1}


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        (None, "the runtime has not told its address yet"),
        ((), "none of its addresses is one of a pod"),
        (
            ("localhost", "127.0.0.1", "::", "fe80::1%eth0", '10.0.0.1" ; flush ruleset'),
            "none of its addresses is one of a pod",
        ),
    ],
)
def test_a_pod_without_an_address_is_left_out(addresses: tuple[str, ...] | None, why: str) -> None:
    plan = planned(POD._replace(addresses=addresses, egress_bps=80, ingress_bps=80))
    assert plan.left_out == {"u1": why}
    assert (plan.classes, plan.nft.limits, plan.nft.host_rules) == ({}, frozenset(), ())
    assert not any(plan.nft.maps.values())


def test_an_address_that_two_pods_have_is_the_first_one_s() -> None:
    other = POD._replace(
        uid="u2", name="x/b", addresses=("fd00::2", "10.0.0.9"), network_class=NetworkClass.LS
    )
    plan = planned(POD, other)
    assert plan.nft.maps["class4"] == {"10.0.0.2": "4b52:4", "10.0.0.9": "4b52:3"}
    assert plan.nft.maps["class6"] == {"fd00::2": "4b52:4"}
    assert plan.left_out == {"u2": "its address fd00::2 is that of pod x/a, which has been there for longer"}


def test_an_address_of_the_node_is_no_pod_s() -> None:
    """The daemons of the node would have the pod's limits."""
    pod = POD._replace(egress_bps=80)
    plan = plan_pods(SHARES, [pod], (LINK,), {}, {}, {"10.0.0.2", "FD00::2"})
    assert plan.left_out == {"u1": "its address fd00::2 is one of the node"}
    assert (plan.classes, plan.minors, plan.nft.limits) == ({}, {}, frozenset())
    assert not any(plan.nft.maps.values())


def test_a_limit_of_a_version_before_this_one_costs_no_other_pod_anything() -> None:
    (own,) = planned(POD._replace(ingress_bps=10**18)).nft.limits - planned(POD).nft.limits
    rate = int(own.rpartition("_")[2])
    assert (rate + 2**31) * 10**9 < 2**64


HOST = POD._replace(addresses=(), is_host_network=True, ingress_bps=16_000_000)


def test_a_host_network_pod_on_cgroup_version_2() -> None:
    plan = planned(HOST, u1=cgroup_match(("kubepods.slice", "pod-u1.slice"), 77))
    match = 'socket cgroupv2 level 2 "kubepods.slice/pod-u1.slice"'
    assert plan.nft.host_rules == (
        ("host_egress", f"{match} meta priority set 4b52:4", "u1 77 4b52:4"),
        (
            "host_ingress",
            f'iifname {{ "eth0" }} {match} limit name "pod_u1_2000000" drop',
            "u1 77 pod_u1_2000000",
        ),
        (
            "host_ingress",
            f'iifname {{ "eth0" }} {match} limit name "class_be_25000000" drop',
            "u1 77 class_be_25000000",
        ),
    )
    assert not any(plan.nft.maps.values())


def test_another_cgroup_of_the_path_has_another_rule() -> None:
    path = ("kubepods", "podu1")
    before, after = (planned(HOST, u1=cgroup_match(path, inode)).nft for inode in (1, 2))
    commands = nft_commands(after, before)
    assert commands[:2] == [f"flush chain inet {TABLE} {each}" for each in ("host_egress", "host_ingress")]
    assert len(commands) == 5
    assert nft_commands(before, before) == []


@pytest.mark.parametrize("name", ['a"; flush ruleset #', "a b", "a\\x2db", "a;b", "é"])
def test_a_cgroup_whose_name_nftables_would_read_as_a_command(name: str) -> None:
    assert str(cgroup_match(("kubepods", name), 7)).startswith("nftables cannot name its cgroup 'kubepods/")


def test_a_host_network_pod_whose_cgroup_is_gone_is_left_out() -> None:
    assert planned(HOST, u1="its cgroup cannot be found").left_out == {"u1": "its cgroup cannot be found"}


def test_host_network_pods_of_one_number_have_one_rule() -> None:
    """Two would take from a limit twice."""
    pods = [HOST._replace(uid=uid, ingress_bps=0) for uid in ("u1", "u2")]
    match = net_cls_match("u1", NetworkClass.BE, has_limit=False)
    plan = planned(*pods, u1=match, u2=match)
    assert [(chain, expression) for chain, expression, _ in plan.nft.host_rules] == [
        ("host_egress", f"meta cgroup {0x4B52_0004} meta priority set 4b52:4"),
        (
            "host_ingress",
            f'iifname {{ "eth0" }} meta cgroup {0x4B52_0004} limit name "class_be_25000000" drop',
        ),
    ]
    assert net_cls_match("u1", NetworkClass.BE, has_limit=True).expression == (
        f"meta cgroup {0x4B52_0000 | pod_minor('u1')}"
    )


def test_host_network_pods_of_one_number_and_other_limits() -> None:
    """Which packets are whose cannot be told, and the second rule would have all of them."""
    first, second = HOST, HOST._replace(uid="u2", name="x/b", network_class=NetworkClass.LS)
    match = net_cls_match("u1", NetworkClass.BE, has_limit=True)
    plan = planned(first, second, u1=match, u2=match)
    assert plan.left_out == {"u2": "pod x/a has the same number of net_cls, and its class"}
    assert plan.nft.host_rules == planned(first, u1=match).nft.host_rules


def test_pods_come_and_go_by_element() -> None:
    first, both = planned(POD).nft, planned(POD, POD._replace(uid="u2", addresses=("10.0.0.9",))).nft
    assert nft_commands(both, first) == [
        f"add element inet {TABLE} class4 {{ 10.0.0.9 : 4b52:4 }}",
        f'add element inet {TABLE} class_limit4 {{ 10.0.0.9 : "class_be_25000000" }}',
    ]
    assert nft_commands(first, both) == [
        f"delete element inet {TABLE} class4 {{ 10.0.0.9 }}",
        f"delete element inet {TABLE} class_limit4 {{ 10.0.0.9 }}",
    ]


def test_another_limit_is_another_object() -> None:
    """Added before its elements, and the old one deleted after them."""
    before, after = (planned(POD._replace(ingress_bps=bps)).nft for bps in (8_000_000, 80_000_000))
    assert nft_commands(after, before) == [
        f"add limit inet {TABLE} pod_u1_10000000 {{ rate over 10000000 bytes/second burst 1000000 bytes ; }}",
        f"delete element inet {TABLE} pod_limit4 {{ 10.0.0.2 }}",
        f'add element inet {TABLE} pod_limit4 {{ 10.0.0.2 : "pod_u1_10000000" }}',
        f"delete element inet {TABLE} pod_limit6 {{ fd00::2 }}",
        f'add element inet {TABLE} pod_limit6 {{ fd00::2 : "pod_u1_10000000" }}',
        f"delete limit inet {TABLE} pod_u1_1000000",
    ]


@pytest.mark.parametrize(
    ("uid", "key"),
    [
        ("0a-1b", "0a_1b"),
        ("a/b", f"a_b_{0x4AD7BA6D:08x}"),
    ],
)
def test_names_of_pods_in_nftables(uid: str, key: str) -> None:
    found = pod_key(uid)
    assert found == key if "/" not in uid else found.startswith("a_b_")
    assert pod_key("a/b") != pod_key("a.b")


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("10.211.248.149", "10.211.248.149"),
        ("FD00:0:0::1", "fd00::1"),
        ("", ""),
        ("10.0.0.256", ""),
        ("224.0.0.1", ""),
        ("::", ""),
        ("::1", ""),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::ffff:0:0", ""),
        ("fe80::1", ""),
        ("169.254.1.1", "169.254.1.1"),
    ],
)
def test_addresses(address: str, text: str) -> None:
    assert canonical(address) == text


def listed(state: NftState, links: tuple[str, ...] = (LINK,), **extra: Any) -> dict[str, Any]:
    """As `nft -j list table` prints it."""
    hooks = {"egress": "postrouting", "host_egress": "output", "ingress": "forward", "host_ingress": "input"}
    objects: list[dict[str, Any]] = [{"metainfo": {"version": "1.0.6"}}, {"table": {"name": TABLE}}]
    objects += [
        {"chain": {"name": name, "hook": hook, "prio": -145, "policy": "accept"}}
        for name, hook in hooks.items()
    ]
    objects += [{"limit": {"name": name}} for name in state.limits]
    objects += [
        {"map": {"name": name, **({"elem": [list(each) for each in values.items()]} if values else {})}}
        for name, values in state.maps.items()
    ]
    objects += [
        {"rule": {"chain": chain, "comment": comment, "handle": 9}}
        for chain, _, comment in (*fixed_rules(links), *state.host_rules)
    ]
    return {"nftables": [*objects, *({kind: each} for kind, each in extra.items())]}


def test_our_table_as_it_is_listed() -> None:
    state = planned(POD, HOST._replace(uid="u2"), u2=cgroup_match(("a",), 1)).nft
    document = json.loads(json.dumps(listed(state)))
    found = nft_state(document, (LINK,))
    assert found is not None
    assert nft_commands(state, found) == []


@pytest.mark.parametrize(
    ("links", "extra"),
    [
        (("eth1",), {}),
        ((LINK, "flannel.1"), {}),
        ((LINK,), {"rule": {"chain": "egress", "comment": "another's"}}),
        ((LINK,), {"chain": {"name": "other", "hook": "input", "prio": 0}}),
        ((LINK,), {"map": {"name": "other"}}),
    ],
)
def test_a_table_that_is_not_as_it_was_made(links: tuple[str, ...], extra: dict[str, Any]) -> None:
    assert nft_state(listed(planned(POD).nft, **extra), links) is None


@pytest.mark.parametrize("document", [None, [], {}, {"nftables": 1}, {"nftables": [1, {"map": 2}]}])
def test_other_documents_are_no_table(document: object) -> None:
    assert nft_state(document, (LINK,)) is None


def test_roots_of_links() -> None:
    found = root_qdiscs(
        [
            {"kind": "noqueue", "handle": "0:", "dev": "lo", "root": True, "options": {}},
            {"kind": "mq", "handle": "0:", "dev": "eth0", "root": True},
            {"kind": "fq_codel", "handle": "0:", "dev": "eth0", "parent": ":1"},
            {"kind": "htb", "handle": "4b52:", "dev": "eth1", "root": True},
            {"kind": "htb", "handle": "1:", "dev": "eth2", "root": True},
            {"kind": "fq", "handle": "8001:", "dev": "eth3", "root": True},
            "?",
        ]
    )
    assert {link: (each.is_default, each.is_ours) for link, each in found.items()} == {
        "lo": (True, False),
        "eth0": (True, False),
        "eth1": (False, True),
        "eth2": (False, False),
        "eth3": (False, False),
    }
    assert root_qdiscs({"x": 1}) == {}


IPV4 = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth1\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t00000000\t0101A8C0\t0003\t0\t0\t50\t00000000\t0\t0\t0
eth2\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
IPV6 = """fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth3
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
"""  # noqa: E501 - as the kernel prints it


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "links"),
    [
        (IPV4, "", ("eth0", "eth1")),
        ("", IPV6, ("eth3",)),
        (IPV4, IPV6, ("eth0", "eth1", "eth3")),
        ("", "", ()),
        ("a\nb c\n", "d\n", ()),
    ],
)
def test_links_of_default_routes(ipv4: str, ipv6: str, links: tuple[str, ...]) -> None:
    assert default_links(ipv4, ipv6) == links


def test_a_state_is_compared_by_its_marks() -> None:
    state = planned(HOST, u1=cgroup_match(("a",), 1)).nft
    as_listed = replace(state, host_rules=tuple((chain, "", mark) for chain, _, mark in state.host_rules))
    assert nft_commands(state, as_listed) == []
