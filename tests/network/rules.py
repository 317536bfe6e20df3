"""What a namespace's kernel has: qdiscs, classes, filters, nft tables; and which of it belongs to others."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.network.namespaces import BRIDGE, UPLINK, Namespace

TABLE: Final = "koord_network_qos"
"""Ours."""
FOREIGN_TABLES: Final = """
table inet other_firewall {
 set friends {
  type ipv4_addr
  elements = { 198.51.100.1, 198.51.100.2 }
 }
 map classes {
  type ipv4_addr : classid
  elements = { 198.51.100.1 : 7:1 }
 }
 chain postrouting {
  type filter hook postrouting priority mangle; policy accept;
  ip saddr 198.51.100.0/24 meta priority set ip saddr map @classes
 }
 chain forwarding {
  type filter hook forward priority filter; policy accept;
  ip saddr @friends accept
 }
}
"""
"""Of another owner, at the hooks and priorities that a network QoS would take."""


@dataclass(frozen=True)
class Rules:
    """Everything of one namespace, as the programs print it in JSON, by what it is.

    Attributes:
        tables: by family and name of the nft table, its objects with their handles.
        qdiscs: the text of `tc -j qdisc show`.
        classes: by device, its classes as text: `tc` of Debian 12 has no JSON of them.
        filters: by device and parent, its filters.
    """

    tables: Mapping[tuple[str, str], tuple[str, ...]]
    qdiscs: str
    classes: Mapping[str, str]
    filters: Mapping[tuple[str, str], str]

    @property
    def class_count(self) -> int:
        """Of the uplink."""
        return len(self.classes[UPLINK].splitlines())

    @property
    def root(self) -> Mapping[str, Any]:
        """The root qdisc of the uplink."""
        (found,) = (one for one in json.loads(self.qdiscs) if one["dev"] == UPLINK and one.get("root"))
        return dict(found)


@dataclass(frozen=True)
class Contents:
    """What rules do: without handles and the order in which objects were made."""

    root: str
    classes: frozenset[str]
    objects: frozenset[str]


def contents_of(rules: Rules) -> Contents:
    """The contents of all tables, and of the uplink's root qdisc."""
    return Contents(
        json.dumps(rules.root),
        frozenset(rules.classes[UPLINK].splitlines()),
        frozenset(json.dumps(_plain(json.loads(each))) for each in itertools.chain(*rules.tables.values())),
    )


def _plain(value: Any) -> Any:
    """Without handles, and lists of elements in order."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if key != "handle"}
    if isinstance(value, list):
        # Lists of statements begin with an object.
        items = [_plain(each) for each in value]
        return items if items and isinstance(items[0], dict) else sorted(items, key=json.dumps)
    return value


def class_bytes(namespace: Namespace) -> Mapping[str, int]:
    """What each class of the uplink has sent since it was made."""
    text = namespace.run("tc", "-s", "class", "show", "dev", UPLINK)
    return {
        found[1]: int(found[2])
        for found in re.finditer(r"^class htb (\S+) .*\n Sent (\d+) bytes", text, re.MULTILINE)
    }


def rules_of(namespace: Namespace) -> Rules:
    """Reads everything that is not a pod's."""
    qdiscs = namespace.run("tc", "-j", "qdisc", "show")
    devices = {one["dev"] for one in json.loads(qdiscs)} & {UPLINK, BRIDGE}
    tables: dict[tuple[str, str], list[str]] = {}
    for entry in json.loads(namespace.run("nft", "-j", "list", "ruleset"))["nftables"]:
        ((kind, value),) = entry.items()
        if kind != "metainfo":
            name = value["name"] if kind == "table" else value["table"]
            tables.setdefault((value["family"], name), []).append(json.dumps(entry))
    return Rules(
        tables={key: tuple(objects) for key, objects in tables.items()},
        qdiscs=qdiscs,
        classes={device: namespace.run("tc", "class", "show", "dev", device) for device in devices},
        filters={
            (device, parent): namespace.run("tc", "-j", "filter", "show", "dev", device, parent)
            for device in devices
            for parent in ("root", "ingress", "egress")
        },
    )


def add_foreign_rules(node: Namespace) -> None:
    """Another owner's tables, and its filters at the uplink and the bridge."""
    node.run("nft", "-f", "-", stdin=FOREIGN_TABLES)
    node.batch(
        "tc",
        f"qdisc add dev {UPLINK} clsact\n"
        f"filter add dev {UPLINK} egress pref 7 protocol ip u32 match ip dport 9 0xffff flowid 7:1\n"
        f"filter add dev {UPLINK} ingress pref 7 protocol ip u32 match ip dport 9 0xffff flowid 7:1\n"
        f"qdisc add dev {BRIDGE} root handle 77: tbf rate 10gbit burst 1mb limit 10mb\n",
    )


def assert_others_stay(before: Rules, now: Rules) -> None:
    """Tables of others, filters and what other devices have are as before, handle by handle."""
    others = {key: objects for key, objects in before.tables.items() if key[1] != TABLE}
    assert others == {key: objects for key, objects in now.tables.items() if key[1] != TABLE}
    assert before.classes[BRIDGE] == now.classes[BRIDGE]
    assert _of_others(before.qdiscs) == _of_others(now.qdiscs)
    for place in ((UPLINK, "ingress"), (UPLINK, "egress"), (BRIDGE, "root")):
        assert before.filters[place] == now.filters[place]


def _of_others(qdiscs: str) -> list[Any]:
    pods = re.compile(r"veth\d+")
    return [
        one
        for one in json.loads(qdiscs)
        if not pods.fullmatch(one["dev"]) and not (one["dev"] == UPLINK and _is_root(one))
    ]


def _is_root(qdisc: Mapping[str, Any]) -> bool:
    # Below the root are those of HTB's leaves, if a kernel makes some by itself.
    return bool(qdisc.get("root")) or qdisc.get("parent", "") not in ("ffff:fff1", "ffff:fff2")
