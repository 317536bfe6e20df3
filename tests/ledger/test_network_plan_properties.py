"""Any pods, one set after the other: the commands, read by a simple reader, lead to what was planned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtimeproxy.fields.network import POD_MINORS, NetworkClass, NetworkShares, Share
from runtimeproxy.ledger.network_plan import (
    TABLE,
    HostMatch,
    NetworkPod,
    NftState,
    TcClass,
    cgroup_match,
    nft_commands,
    plan_pods,
    share_classes,
    tc_classes,
    tc_commands,
    tc_removals,
)

LINK = "eth0"
SHARES = NetworkShares(
    10**9,
    (Share(5 * 10**8, 10**9), Share(4 * 10**8, 8 * 10**8), Share(8, 10**8)),
    (0, 8 * 10**8, 10**8),
)
ADDRESSES = (
    "10.0.0.1",
    "::ffff:10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "fd00::1",
    "FD00:0::1",
    "fe80::1",
    "x;y",
    "",
)
LIMITS_BPS = st.sampled_from((0, 0, 8, 80, 10**6, 2**40, 2**63 - 1))
_TC = re.compile(
    rf"class replace dev {LINK} parent 4b52:([0-9a-f]*) classid 4b52:([0-9a-f]+) "
    r"htb rate (\d+)bit ceil (\d+)bit burst \d+b cburst \d+b prio (\d+) quantum \d+"
)
_NFT = re.compile(
    rf"(?:(add|delete) (limit|element) inet {TABLE} (\w+)(?: {{ (.*) }})?"
    rf'|flush chain inet {TABLE} (\w+)|add rule inet {TABLE} (\w+) (.*) comment "([^"]*)")'
)


class Kernel:
    """What nftables and HTB have, as far as pods are concerned."""

    def __init__(self) -> None:
        self.classes: dict[int, TcClass] = {}
        self.limits: set[str] = set()
        self.maps: dict[str, dict[str, str]] = {}
        self.rules: list[tuple[str, str, str]] = []

    def tc(self, lines: Iterable[str]) -> None:
        for line in lines:
            if (gone := re.fullmatch(rf"class del dev {LINK} classid 4b52:([0-9a-f]+)", line)) is not None:
                del self.classes[int(gone[1], 16)]
                continue
            found = _TC.fullmatch(line)
            assert found is not None, line
            parent, minor = int(found[1] or "0", 16), int(found[2], 16)
            assert parent == 0 or parent in self.classes
            assert minor not in self.classes or self.classes[minor].parent == parent
            self.classes[minor] = TcClass(minor, parent, int(found[5]), int(found[3]), int(found[4]))

    def nft(self, lines: Iterable[str]) -> None:
        for line in lines:
            found = _NFT.fullmatch(line)
            assert found is not None, line
            verb, kind, name, body, flushed, chain, expression, comment = found.groups()
            if flushed:
                self.rules = [each for each in self.rules if each[0] != flushed]
            elif chain:
                self.rules.append((chain, expression, comment))
            elif kind == "limit":
                self._limit(verb, name, body)
            else:
                self._elements(verb, self.maps.setdefault(name, {}), body)

    def _limit(self, verb: str, name: str, body: str | None) -> None:
        if verb == "delete":
            used = {value.strip('"') for values in self.maps.values() for value in values.values()}
            assert name not in used
            assert not any(f'"{name}"' in expression for _, expression, _ in self.rules)
            self.limits.remove(name)
            return
        limit = re.fullmatch(r"rate over (\d+) bytes/second burst (\d+) bytes ;", body or "")
        assert limit is not None, body
        # Source: Linux net/netfilter/nft_limit.c, nft_limit_init.
        assert (int(limit[1]) + int(limit[2])) * 10**9 < 2**64
        assert int(limit[1]) > 0
        assert name not in self.limits
        self.limits.add(name)

    def _elements(self, verb: str, values: dict[str, str], body: str) -> None:
        for each in body.split(", "):
            key, _, value = each.partition(" : ")
            if verb == "delete":
                del values[key]
            else:
                assert key not in values
                assert not value.startswith('"') or value.strip('"') in self.limits
                values[key] = value

    def nft_state(self) -> NftState:
        maps = {
            name: {key: value.strip('"') for key, value in each.items()} for name, each in self.maps.items()
        }
        return NftState(maps, frozenset(self.limits), tuple(self.rules))


@st.composite
def pods(draw: st.DrawFn) -> tuple[NetworkPod, ...]:
    uids = draw(st.lists(st.sampled_from([f"u-{each}" for each in range(6)]), unique=True, max_size=5))
    return tuple(
        NetworkPod(
            uid,
            f"x/{uid}",
            ("kubepods", f"pod{uid}"),
            draw(st.none() | st.lists(st.sampled_from(ADDRESSES), max_size=3).map(tuple)),
            draw(st.booleans()),
            draw(st.sampled_from(NetworkClass)),
            draw(LIMITS_BPS),
            draw(LIMITS_BPS),
        )
        for uid in uids
    )


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(pods(), min_size=1, max_size=4))
def test_commands_lead_to_what_was_planned(sets: list[tuple[NetworkPod, ...]]) -> None:
    kernel, minors = Kernel(), dict[str, int]()
    kernel.tc(tc_commands(LINK, share_classes(SHARES), {}))
    for found in sets:
        matches = {
            pod.uid: cgroup_match(pod.cgroup, number)
            for number, pod in enumerate(found)
            if pod.is_host_network
        }
        plan = plan_pods(SHARES, found, (LINK,), minors, matches, {"10.0.0.3"})
        minors = dict(plan.minors)
        kernel.tc(tc_commands(LINK, plan.classes, kernel.classes))
        kernel.nft(nft_commands(plan.nft, kernel.nft_state()))
        kernel.tc(tc_removals(LINK, plan.classes, kernel.classes))
        state = kernel.nft_state()
        assert {name: each for name, each in state.maps.items() if each} == {
            name: dict(each) for name, each in plan.nft.maps.items() if each
        }
        assert (state.limits, state.host_rules) == (plan.nft.limits, plan.nft.host_rules)
        assert kernel.classes == {**share_classes(SHARES), **plan.classes}
        assert nft_commands(plan.nft, state) == []
        check_pods(found, plan.left_out, state, kernel.classes, matches)


def check_pods(
    found: Iterable[NetworkPod],
    left_out: Mapping[str, str],
    state: NftState,
    classes: Mapping[int, TcClass],
    matches: Mapping[str, HostMatch | str],
) -> None:
    """Each pod has its class by all of its addresses, or it is said."""
    assert "10.0.0.3" not in state.maps.get("class4", {})
    for pod in found:
        if pod.uid in left_out:
            continue
        if pod.is_host_network:
            match = matches[pod.uid]
            assert isinstance(match, HostMatch)
            marks = {
                expression.rpartition(" ")[2]
                for chain, expression, _ in state.host_rules
                if chain == "host_egress" and expression.startswith(f"{match.expression} ")
            }
        else:
            by_address = {**state.maps.get("class4", {}), **state.maps.get("class6", {})}
            plain = {"::ffff:10.0.0.1": "10.0.0.1", "FD00:0::1": "fd00::1"}
            marks = {
                by_address[plain.get(each, each)]
                for each in pod.addresses or ()
                if each not in ("fe80::1", "x;y", "", "10.0.0.3")
            }
        (mark,) = marks
        minor = int(mark.partition(":")[2], 16)
        own = classes[minor]
        assert own.parent == pod.network_class.inner
        assert (minor in POD_MINORS) is bool(pod.egress_bps)
        if pod.egress_bps:
            at = tuple(NetworkClass).index(pod.network_class)
            assert own.ceiling_bps == min(pod.egress_bps, SHARES.egress[at].ceiling_bps)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.builds(
            TcClass,
            st.integers(1, 0xFFFE),
            st.integers(0, 0xFFFE),
            st.integers(0, 7),
            st.integers(8, 10**14),
            st.integers(8, 10**14),
        ),
        max_size=5,
    )
)
def test_classes_as_tc_shows_them_are_those_that_were_made(classes: list[TcClass]) -> None:
    made = {each.minor: each for each in classes}
    lines = [
        f"class htb 4b52:{each.minor:x} "
        + (f"parent 4b52:{each.parent:x} " if each.parent else "root ")
        + f"prio {each.order} rate {each.rate_bps}bit ceil {each.ceiling_bps}bit burst 1b cburst 1b"
        for each in made.values()
    ]
    assert tc_classes("\n".join(lines)) == made
