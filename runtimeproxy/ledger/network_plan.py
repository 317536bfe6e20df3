"""What `tc` and nftables are to have for network QoS, what they have, and the commands between. Pure.

The link's root is an HTB queueing discipline with the handle `4b52:`. Below the class of the whole link stand
those of the QoS classes with guarantee and ceiling, and below each a leaf for its pods, and one for each pod
with an egress limit of its own. Packets find their leaf by their priority, which a table of nftables sets by
the pod's address before masquerade. What is received is limited by the same table where it is forwarded to
the pod, after masquerade is undone: the link's own ingress would see the node's address.

Source: Linux net/sched/sch_htb.c (htb_classify: a priority that is the number of a leaf), net/netfilter
(nft_meta.c, nft_limit.c, nft_socket.c); tc-htb(8); nft(8).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from runtimeproxy.fields.network import (
    LEAST_BPS,
    MAJOR,
    MOST_RECEIVED_BPS,
    POD_MINORS,
    TOTAL_MINOR,
    NetworkClass,
    NetworkShares,
    Share,
    classid,
    pod_minor,
)

TABLE: Final = "koord_network_qos"
HANDLE: Final = f"{MAJOR:x}:"
_HOOKS: Final[Mapping[str, str]] = {
    "egress": "postrouting",
    "host_egress": "output",
    "ingress": "forward",
    "host_ingress": "input",
}
"""The hooks of the table's chains. `socket` works in the last hooks of a socket alone."""
_OF_HOSTS: Final = ("host_egress", "host_ingress")
"""The chains of host-network pods."""
_PRIORITY: Final = -145
"""After `mangle` (-150), whose rules may set the priority of packets, too, and before masquerade (100).
Source: Linux include/uapi/linux/netfilter_ipv4.h."""
_QUANTUM_BYTES: Final = 60_000
"""What a class may send before the next one of the same priority has its turn; HTB's own follows from the
guarantee, and is unusable for none."""
_BURST_S: Final = 100
"""A class may be ahead of its rate by a hundredth of a second, so that a late timer costs nothing."""
_LEAST_BURST_BYTES: Final = 3_200
"""Two packets."""
_MOST_BURST_BYTES: Final = 2**31
POLICE_BURST_BYTES: Final = 131_072
"""Received packets come in pieces of up to 64 KiB, each of which is dropped as a whole."""
POLICE_BURST_S: Final = 10
"""A limit of what is received takes a tenth of a second of it at once."""
_QUOTABLE: Final = re.compile(r"[A-Za-z0-9_.:@/-]+")
"""Characters of a cgroup's path that mean nothing else in a string of nftables."""
_MOST_COMMENT: Final = 120
"""Source: Linux include/uapi/linux/netfilter/nf_tables.h, libnftnl: comments have at most 128 bytes."""
_UNKNOWN: Final = "the runtime has not told its address yet"
_NO_ADDRESS: Final = "none of its addresses is one of a pod"
_RATE_TOLERANCE: Final = 500
"""`tc` shows a rate with three digits or more: one in so many parts."""


class NetworkPod(NamedTuple):
    """A running pod, as far as the network is concerned."""

    uid: str
    name: str
    """Namespace and name, for people."""
    cgroup: tuple[str, ...]
    """The path of its cgroup below the controllers' mounts."""
    addresses: tuple[str, ...] | None
    """None: not known yet."""
    is_host_network: bool
    network_class: NetworkClass
    egress_bps: int = 0
    """Its own limit; 0: none."""
    ingress_bps: int = 0


class HostMatch(NamedTuple):
    """How packets of a host-network pod are found."""

    expression: str
    """Of nftables."""
    identity: str
    """Another one for another cgroup of the same path: a rule is about the cgroup that was there."""


class TcClass(NamedTuple):
    """A class of the link."""

    minor: int
    parent: int
    """Its minor number; 0: the root."""
    order: int
    rate_bps: int
    ceiling_bps: int

    def command(self, link: str) -> str:
        burst, ceiling_burst = _burst(self.rate_bps), _burst(self.ceiling_bps)
        return (
            f"class replace dev {link} parent {HANDLE}{format(self.parent, 'x') if self.parent else ''} "
            f"classid {HANDLE}{self.minor:x} htb rate {self.rate_bps}bit ceil {self.ceiling_bps}bit "
            f"burst {burst}b cburst {ceiling_burst}b prio {self.order} quantum {_QUANTUM_BYTES}"
        )

    def is_like(self, present: TcClass) -> bool:
        """Whether `tc` shows this one so: rounded, and an inner class without its priority."""
        return (
            self.parent == present.parent
            and present.order in (self.order, -1)
            and _is_near(self.rate_bps, present.rate_bps)
            and _is_near(self.ceiling_bps, present.ceiling_bps)
        )


def _burst(rate_bps: int) -> int:
    return min(max(rate_bps // 8 // _BURST_S, _LEAST_BURST_BYTES), _MOST_BURST_BYTES)


def _is_near(wanted_bps: int, shown_bps: int) -> bool:
    return abs(wanted_bps - shown_bps) <= max(LEAST_BPS, wanted_bps // _RATE_TOLERANCE)


Rules: TypeAlias = tuple[tuple[str, str, str], ...]
"""Chain, expression, and the comment by which a rule is known again."""


@dataclass(frozen=True, slots=True)
class NftState:
    """The part of our table that changes with pods."""

    maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By the map's name, then by the canonical text of an address: the class or limit."""
    limits: frozenset[str] = frozenset()
    host_rules: Rules = ()


class PodPlan(NamedTuple):
    """What pods need beside the shares."""

    classes: Mapping[int, TcClass]
    nft: NftState
    minors: Mapping[str, int]
    """Of pods with a class of their own, by uid."""
    left_out: Mapping[str, str]
    """Why a pod is not in it, by uid."""


class Present(NamedTuple):
    """What the kernel has of ours."""

    classes: Mapping[int, TcClass]
    nft: NftState | None
    """None: no such table, or with other chains or rules than ours."""


# --- the shares of the link --------------------------------------------------------------------------------


def share_classes(shares: NetworkShares) -> dict[int, TcClass]:
    """Return the classes of the link and of the QoS classes, by minor number."""
    found = [TcClass(TOTAL_MINOR, 0, 0, shares.total_bps, shares.total_bps)]
    for name, share in zip(NetworkClass, shares.egress, strict=True):
        found.append(TcClass(name.inner, TOTAL_MINOR, name.order, *share))
        # Its guarantee is that of the class above, which lends it.
        found.append(TcClass(name.leaf, name.inner, name.order, LEAST_BPS, share.ceiling_bps))
    return {each.minor: each for each in found}


def root_commands(link: str) -> list[str]:
    return [f"qdisc add dev {link} root handle {HANDLE} htb default {NetworkClass.SYSTEM.leaf:x}"]


def skeleton(links: Sequence[str]) -> str:
    """Return the commands that make our table anew, without pods.

    Args:
        links: Through which limited packets come.
    """
    lines = [f"add table inet {TABLE}", f"delete table inet {TABLE}", f"add table inet {TABLE}"]
    lines += [f"add map inet {TABLE} {name} {{ type {kind} ; }}" for name, kind in _MAPS.items()]
    lines += [
        f"add chain inet {TABLE} {chain} {{ type filter hook {hook} priority {_PRIORITY} ; policy accept ; }}"
        for chain, hook in _HOOKS.items()
    ]
    lines += [_add_rule(*rule) for rule in fixed_rules(links)]
    return "\n".join(lines)


_MAPS: Final[Mapping[str, str]] = {
    f"{name}{version}": f"ipv{version}_addr : {kind}"
    for name, kind in (("class", "classid"), ("pod_limit", "limit"), ("class_limit", "limit"))
    for version in (4, 6)
}


def fixed_rules(links: Sequence[str]) -> Rules:
    """Return the rules that find pods by their addresses."""
    received = _received(links)
    # A comment that another list of links does not have.
    mark = f"{crc32(received.encode()):08x}"
    rules: list[tuple[str, str, str]] = []
    for version, protocol in ((4, "ip"), (6, "ip6")):
        rules.append(
            ("egress", f"meta priority set {protocol} saddr map @class{version}", f"class IPv{version}")
        )
        rules += [
            (
                "ingress",
                f"{received} limit name {protocol} daddr map @{name}{version} drop",
                f"{name} IPv{version} {mark}",
            )
            for name in ("pod_limit", "class_limit")
        ]
    return tuple(sorted(rules, key=lambda rule: rule[0]))


def _received(links: Sequence[str]) -> str:
    names = ", ".join(f'"{each}"' for each in links)
    return f"iifname {{ {names} }}"


def _add_rule(chain: str, expression: str, comment: str) -> str:
    return f'add rule inet {TABLE} {chain} {expression} comment "{comment}"'


# --- pods --------------------------------------------------------------------------------------------------


def plan_pods(
    shares: NetworkShares,
    pods: Sequence[NetworkPod],
    links: Sequence[str],
    minors: Mapping[str, int],
    host_match: Mapping[str, HostMatch | str],
    node_addresses: Collection[str] = (),
) -> PodPlan:
    """Return what pods need.

    Args:
        shares: Of the link.
        pods: Those with a class. An address that several have is the first one's.
        links: As of `skeleton`.
        minors: Of pods that have a class of their own already, by uid: they keep it.
        host_match: Of host-network pods by uid; a text says why one cannot be found.
        node_addresses: Of the node itself: what it sends is not taken for a pod's.
    """
    taken = {minors[pod.uid] for pod in pods if pod.uid in minors}
    planner = _Planner(shares, _received(links), minors, taken, node_addresses)
    for pod in pods:
        planner.add(pod, host_match.get(pod.uid, "its cgroup is not known"))
    return planner.result()


class _Planner:
    """Adds up what pods need."""

    def __init__(
        self,
        shares: NetworkShares,
        received: str,
        minors: Mapping[str, int],
        taken: set[int],
        node_addresses: Collection[str],
    ) -> None:
        self._shares = shares
        self._received = received
        self._known_minors = minors
        self._taken = taken
        self._node_addresses = frozenset(map(canonical, node_addresses))
        # The pods that have addresses and expressions of host rules.
        self._owners: dict[str, NetworkPod] = {}
        self._classes: dict[int, TcClass] = {}
        self._maps: dict[str, dict[str, str]] = {name: {} for name in _MAPS}
        self._limits: set[str] = set()
        # Pods without limits of their own have one number on cgroup version 1, and so one rule together.
        self._rules: dict[tuple[str, str], str] = {}
        self._minors: dict[str, int] = {}
        self._left_out: dict[str, str] = {}

    def result(self) -> PodPlan:
        rules = tuple((*key, comment) for key, comment in self._rules.items())
        state = NftState(self._maps, frozenset(self._limits), rules)
        return PodPlan(self._classes, state, self._minors, self._left_out)

    def add(self, pod: NetworkPod, match: HostMatch | str) -> None:
        addresses, why = self._found_by(pod, match)
        if why:
            self._left_out[pod.uid] = why
        if not addresses:
            return
        at = tuple(NetworkClass).index(pod.network_class)
        minor = self._own_class(pod, self._shares.egress[at]) if pod.egress_bps else pod.network_class.leaf
        if minor is None:
            self._left_out[pod.uid] = "no number is left for a class of its own"
            return
        self._owners.update(dict.fromkeys(addresses, pod))
        found = {"class": f"{MAJOR:x}:{minor:x}"}
        if pod.ingress_bps:
            found["pod_limit"] = _limit(f"pod_{pod_key(pod.uid)}", pod.ingress_bps)
        if ceiling_bps := self._shares.ingress_ceilings_bps[at]:
            found["class_limit"] = _limit(f"class_{pod.network_class.lower()}", ceiling_bps)
        limits = [each for name, each in found.items() if name != "class"]
        self._limits.update(limits)
        if isinstance(match, HostMatch) and pod.is_host_network:
            self._add_host(match, pod_key(pod.uid), found["class"], limits)
            return
        for address in addresses:
            for name, value in found.items():
                self._maps[f"{name}{6 if ':' in address else 4}"][address] = value

    def _own_class(self, pod: NetworkPod, share: Share) -> int | None:
        """Plan a class for one pod, and return its number; None if none is left."""
        minor = self._known_minors.get(pod.uid) or _free_minor(pod_minor(pod.uid), self._taken)
        if minor is not None:
            self._taken.add(minor)
            self._minors[pod.uid] = minor
            inner, order = pod.network_class.inner, pod.network_class.order
            ceiling_bps = min(pod.egress_bps, share.ceiling_bps)
            self._classes[minor] = TcClass(minor, inner, order, LEAST_BPS, ceiling_bps)
        return minor

    def _found_by(self, pod: NetworkPod, match: HostMatch | str) -> tuple[list[str], str]:
        """Return by which addresses a pod's packets are found, and why it is not by all of them.

        Those of a host-network pod are found by an expression.
        """
        if pod.is_host_network:
            if isinstance(match, str):
                return [], match
            owner = self._owners.get(match.expression)
            if owner is not None and (_limits_of(owner) != _limits_of(pod) or any(_limits_of(pod)[1:])):
                return [], f"pod {owner.name} has the same number of net_cls, and its class"
            return [match.expression], ""
        if pod.addresses is None:
            return [], _UNKNOWN
        found: list[str] = []
        why = ""
        for address in dict.fromkeys(filter(None, map(canonical, pod.addresses))):
            owner = self._owners.get(address)
            if address in self._node_addresses:
                why = f"its address {address} is one of the node"
            elif owner is not None:
                why = f"its address {address} is that of pod {owner.name}, which has been there for longer"
            else:
                found.append(address)
        return found, why or ("" if found else _NO_ADDRESS)

    def _add_host(self, match: HostMatch, key: str, mark: str, limits: Iterable[str]) -> None:
        identity = f"{key} {match.identity}"
        rule = "host_egress", f"{match.expression} meta priority set {mark}"
        self._rules.setdefault(rule, f"{identity} {mark}")
        for each in limits:
            rule = "host_ingress", f'{self._received} {match.expression} limit name "{each}" drop'
            self._rules.setdefault(rule, f"{identity} {each}"[:_MOST_COMMENT])


def _limits_of(pod: NetworkPod) -> tuple[NetworkClass, int, int]:
    return pod.network_class, pod.egress_bps, pod.ingress_bps


def _free_minor(first: int, taken: Collection[int]) -> int | None:
    """Return the first number from there on that is not taken; None if all are."""
    start = first - POD_MINORS.start
    numbers = (POD_MINORS[(start + step) % len(POD_MINORS)] for step in range(len(POD_MINORS)))
    return next((each for each in numbers if each not in taken), None)


def pod_key(uid: str) -> str:
    """Return a name of the pod that nftables takes, and no other pod of a node has."""
    plain = re.sub(r"[^A-Za-z0-9]", "_", uid)[:40]
    return plain if plain == uid.replace("-", "_") else f"{plain}_{crc32(uid.encode()):08x}"


def _limit(name: str, rate_bps: int) -> str:
    # Another rate is another limit: nftables cannot change one. It takes all commands or none, so one that is
    # too high, as a version before this one has saved it, would cost all pods theirs.
    return f"{name}_{min(rate_bps, MOST_RECEIVED_BPS) // 8}"


def canonical(address: str) -> str:
    """Return an address in one spelling, that of IPv4 if it is one; empty for what is none of a pod."""
    with suppress(ValueError):
        found = ip_address(address)
        if found.version == 6:
            found = found.ipv4_mapped or found
        # Routers do not forward those of one link in IPv6, where each link has some that another has, too.
        is_of_link = found.version == 6 and found.is_link_local
        if not (found.is_unspecified or found.is_loopback or found.is_multicast or is_of_link):
            return str(found) if "%" not in address else ""
    return ""


def net_cls_match(uid: str, network_class: NetworkClass, *, has_limit: bool) -> HostMatch:
    """How a host-network pod is found on cgroup version 1: by the number that `net_cls.classid` has."""
    number = classid(MAJOR, pod_minor(uid) if has_limit else network_class.leaf)
    return HostMatch(f"meta cgroup {number}", f"{number}")


def cgroup_match(path: Sequence[str], inode: int) -> HostMatch | str:
    """How a host-network pod is found on cgroup version 2: a socket's cgroup is this one, or below it.

    A text says why it cannot be: nftables has no way to quote what a string may not hold.
    """
    name = "/".join(path)
    if not _QUOTABLE.fullmatch(name):
        return f"nftables cannot name its cgroup {name[:_MOST_COMMENT]!r}"
    return HostMatch(f'socket cgroupv2 level {len(path)} "{name}"', f"{inode}")


# --- commands ----------------------------------------------------------------------------------------------


def tc_commands(link: str, wanted: Mapping[int, TcClass], present: Mapping[int, TcClass]) -> list[str]:
    """Return the commands that make and change classes; those above come first."""
    lines: list[str] = []
    for minor, each in wanted.items():
        found = present.get(minor)
        if found is not None and each.is_like(found):
            continue
        if found is not None and found.parent != each.parent:
            # A class cannot move.
            lines.append(f"class del dev {link} classid {HANDLE}{minor:x}")
        lines.append(each.command(link))
    return lines


def tc_removals(link: str, wanted: Collection[int], present: Collection[int]) -> list[str]:
    """Return the commands that take classes of pods away."""
    gone = sorted(minor for minor in present if minor in POD_MINORS and minor not in wanted)
    return [f"class del dev {link} classid {HANDLE}{minor:x}" for minor in gone]


def nft_commands(wanted: NftState, present: NftState) -> list[str]:
    """Return the commands of one transaction that lead from one state to the other; empty for no change."""
    lines = [_add_limit(name) for name in sorted(wanted.limits - present.limits)]
    for name in _MAPS:
        new, old = wanted.maps.get(name, {}), present.maps.get(name, {})
        changed = {key for key in old if new.get(key) != old[key]}
        if changed:
            lines.append(f"delete element inet {TABLE} {name} {{ {', '.join(sorted(changed))} }}")
        added = [_element(name, key, value) for key, value in sorted(new.items()) if old.get(key) != value]
        if added:
            lines.append(f"add element inet {TABLE} {name} {{ {', '.join(added)} }}")
    if _marks(wanted.host_rules) != _marks(present.host_rules):
        lines += [f"flush chain inet {TABLE} {chain}" for chain in _OF_HOSTS]
        lines += [_add_rule(*rule) for rule in wanted.host_rules]
    lines += [f"delete limit inet {TABLE} {name}" for name in sorted(present.limits - wanted.limits)]
    return lines


def _marks(rules: Rules) -> list[tuple[str, str]]:
    return sorted((chain, comment) for chain, _, comment in rules)


def _add_limit(name: str) -> str:
    rate = int(name.rpartition("_")[2])
    burst = min(max(rate // POLICE_BURST_S, POLICE_BURST_BYTES), _MOST_BURST_BYTES)
    return f"add limit inet {TABLE} {name} {{ rate over {rate} bytes/second burst {burst} bytes ; }}"


def _element(name: str, key: str, value: str) -> str:
    return f'{key} : "{value}"' if "limit" in name else f"{key} : {value}"


# --- what the kernel has -----------------------------------------------------------------------------------


class RootQdisc(NamedTuple):
    """The root queueing discipline of a link."""

    link: str
    kind: str
    handle: str

    @property
    def is_ours(self) -> bool:
        return self.kind == "htb" and self.handle == HANDLE

    @property
    def is_default(self) -> bool:
        # The kernel's own have no handle. Source: Linux net/sched/sch_generic.c, attach_default_qdiscs.
        return self.handle == "0:"


def root_qdiscs(document: object) -> dict[str, RootQdisc]:
    """Return the roots by link, as `tc -j qdisc show` prints them."""
    found: dict[str, RootQdisc] = {}
    for each in document if isinstance(document, list) else ():
        if isinstance(each, dict) and each.get("root") and isinstance(link := each.get("dev"), str):
            found[link] = RootQdisc(link, str(each.get("kind", "")), str(each.get("handle", "")))
    return found


_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_RATE: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([KMGT]?)bit")
_ORDER: Final = re.compile(r"[0-9]{1,3}")
_CLASS_LINE: Final = re.compile(
    rf"class htb {MAJOR:x}:([0-9a-f]{{1,4}}) (root|parent {MAJOR:x}:([0-9a-f]{{0,4}}))( .*)"
)


def tc_classes(text: str) -> dict[int, TcClass]:
    """Return our classes by minor number, as `tc class show` prints them."""
    found: dict[int, TcClass] = {}
    for line in text.splitlines():
        if (match := _CLASS_LINE.match(line.strip())) is None:
            continue
        minor, words = int(match[1], 16), match[4].split()
        pairs = dict(pairwise(words))
        order = int(pairs["prio"]) if _ORDER.fullmatch(pairs.get("prio", "")) else -1
        parent = int(match[3], 16) if match[3] else 0
        found[minor] = TcClass(
            minor, parent, order, _rate_bps(pairs.get("rate", "")), _rate_bps(pairs.get("ceil", ""))
        )
    return found


def _rate_bps(text: str) -> int:
    match = _RATE.fullmatch(text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else -1


def nft_state(document: object, links: Sequence[str]) -> NftState | None:
    """Return our table as `nft -j list table` prints it; None if its chains or rules are not ours."""
    chains: dict[str, tuple[object, ...]] = {}
    maps: dict[str, Mapping[str, str]] = {}
    limits: set[str] = set()
    rules: list[tuple[str, str]] = []
    for kind, each in _objects(document):
        name = str(each.get("name", ""))
        if kind == "chain":
            chains[name] = each.get("hook"), each.get("prio"), each.get("policy")
        elif kind == "map":
            maps[name] = _elements(each.get("elem"))
        elif kind == "limit":
            limits.add(name)
        elif kind == "rule":
            rules.append((str(each.get("chain")), str(each.get("comment", ""))))
    fixed = [(chain, comment) for chain, _, comment in fixed_rules(links)]
    hosts = [(chain, comment) for chain, comment in rules if chain in _OF_HOSTS]
    is_ours = (
        chains == {chain: (hook, _PRIORITY, "accept") for chain, hook in _HOOKS.items()}
        and maps.keys() == _MAPS.keys()
        and sorted(fixed) == sorted(each for each in rules if each not in hosts)
    )
    if not is_ours:
        return None
    return NftState(maps, frozenset(limits), tuple((chain, "", comment) for chain, comment in hosts))


def _objects(document: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    listed = document.get("nftables") if isinstance(document, dict) else None
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            for kind, found in each.items():
                if isinstance(found, dict):
                    yield kind, found


def _elements(listed: object) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, list) and len(each) == 2:
            found[canonical(str(each[0])) or str(each[0])] = str(each[1])
    return found


def rules_shown(document: object) -> list[object]:
    """Return the rules that are no pod's as they are printed, without handles: to see whether one changes."""
    return [
        {key: value for key, value in each.items() if key != "handle"}
        for kind, each in _objects(document)
        if kind == "rule" and each.get("chain") not in _OF_HOSTS
    ]


# --- links -------------------------------------------------------------------------------------------------


def default_links(ipv4_routes: str, ipv6_routes: str) -> tuple[str, ...]:
    """Return the links of default routes, those with the lowest metric first.

    Args:
        ipv4_routes: `/proc/net/route`.
        ipv6_routes: `/proc/net/ipv6_route`.
    """
    found: list[tuple[int, str]] = []
    for line in ipv4_routes.splitlines()[1:]:
        words = line.split()
        # Destination and mask of nothing; RTF_UP, and no RTF_REJECT.
        if len(words) >= 8 and words[1] == words[7] == "0" * 8 and int(words[3], 16) & 0x201 == 1:
            found.append((int(words[6]), words[0]))
    for line in ipv6_routes.splitlines():
        words = line.split()
        is_default = len(words) >= 10 and words[0] == "0" * 32 and words[1] == "00"
        if is_default and words[9] != "lo" and int(words[8], 16) & 0x201 == 1:
            found.append((int(words[5], 16), words[9]))
    return tuple(dict.fromkeys(link for _, link in sorted(found)))
