"""The policy `network-qos` on cgroup v2: what host-network pods send is in the class of their cgroup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.lab.deadline import wait_until
from tests.network.load import Flow, Load, steady_mbit
from tests.network.namespaces import UPLINK, Namespace
from tests.node.guest.machine import (
    CONFIG,
    PATIENCE_S,
    PROGRAM,
    SERVICE,
    SHARED_UNITS,
    UnexpectedError,
    expect,
    run,
    systemctl,
    with_drop_ins,
)
from tests.node.guest.node import Check, Node
from tests.node.guest.strategies import objects

_CONFIG = "[policies.network-qos]\nenabled = true\n"
_DROP_IN = SHARED_UNITS / f"{SERVICE}.d" / "60-network.conf"
_TOTAL_MBIT = 8
_GUARANTEES_MBIT = {"LS": 4, "BE": 2}
_CEILING_OF_BE_MBIT = 3
"""Well below what an emulated CPU sends on a busy host."""
_TOLERANCE = 0.15
_WINDOW_S = 5.0
_PEER, _NODE = "192.0.2.1", "192.0.2.2"


def classes_of_host_network(node: Node) -> str:
    """Pods of LS and BE at one time have their guarantees, and one of BE alone has its ceiling.

    The unit as it is has no CAP_NET_ADMIN, which the status says. At the end the qdisc is the one of before.
    """
    before = CONFIG.read_text() if CONFIG.exists() else ""
    with _uplink() as peer:
        qdiscs = run("tc", "-j", "qdisc", "show")
        CONFIG.write_text(f"{before}\n{_CONFIG}")
        systemctl("reload", SERVICE)
        folder = objects()
        folder.strategies(_strategies())
        refused = wait_until(lambda: _status("NET_ADMIN"), "what the unit lacks", PATIENCE_S)
        with with_drop_ins(_DROP_IN):
            systemctl("restart", SERVICE)
            wait_until(lambda: "htb" in run("tc", "qdisc", "show", "dev", UPLINK), "HTB", PATIENCE_S)
            wait_until(lambda: _has_rules(node), "rules of host-network pods", PATIENCE_S)
            shared, alone = _measure(node, peer)
            folder.strategies({"resource-qos-config": {"clusterStrategy": {}}})
            wait_until(lambda: run("tc", "-j", "qdisc", "show") == qdiscs, "the qdisc of before", PATIENCE_S)
            expect("tables of nftables", run("nft", "list", "tables"), "")
            CONFIG.write_text(before)
            systemctl("reload", SERVICE)
            folder.strategies({})
        systemctl("restart", SERVICE)
    for name, mbit in _GUARANTEES_MBIT.items():
        _expect_rate(f"{name} beside the other", shared[name], mbit)
    _expect_rate("BE alone", alone, _CEILING_OF_BE_MBIT)
    seen = ", ".join(f"{name} {mbit:.2f}" for name, mbit in shared.items())
    return f"{refused}; Mbit/s at one time: {seen}; BE alone {alone:.2f}"


def _measure(node: Node, peer: Namespace) -> tuple[Mapping[str, float], float]:
    """LS, BE and a process of the node at one time; BE alone."""
    pods = {name: node.pods[name].container_cgroup / "cgroup.procs" for name in _GUARANTEES_MBIT}
    flows = [(_flow(peer, procs),) for procs in pods.values()]
    with Load([*flows, (_flow(peer, Path("/sys/fs/cgroup/cgroup.procs")),)]) as load:
        measured = steady_mbit(load, _WINDOW_S)
    with Load([(_flow(peer, pods["BE"]),)]) as load:
        (alone,) = steady_mbit(load, _WINDOW_S)
    return dict(zip(pods, measured, strict=False)), alone


def _flow(peer: Namespace, procs: Path) -> Flow:
    return Flow(None, peer, _PEER, 4, procs)


@contextmanager
def _uplink() -> Iterator[Namespace]:
    """A link with the default route, whose other end has a namespace of its own."""
    with Namespace("peer") as peer:
        run("ip", "link", "add", UPLINK, "type", "veth", "peer", "name", "up0", "netns", peer.name)
        run("ip", "address", "add", f"{_NODE}/24", "dev", UPLINK)
        run("ip", "link", "set", UPLINK, "up")
        peer.run("ip", "address", "add", f"{_PEER}/24", "dev", "up0")
        peer.run("ip", "link", "set", "up0", "up")
        run("ip", "route", "add", "default", "via", _PEER)
        yield peer


def _strategies() -> Mapping[str, object]:
    def block(name: str, limit_mbit: int) -> Mapping[str, object]:
        values = {"egressRequest": f"{_GUARANTEES_MBIT[name]}M", "egressLimit": f"{limit_mbit}M"}
        return {"networkQOS": {"enable": True, **values}}

    classes = {"lsClass": block("LS", _TOTAL_MBIT), "beClass": block("BE", _CEILING_OF_BE_MBIT)}
    return {
        "resource-qos-config": {"clusterStrategy": classes},
        "system-config": {"clusterStrategy": {"totalNetworkBandwidth": f"{_TOTAL_MBIT}M"}},
    }


def _status(word: str) -> str:
    shown = run(PROGRAM, "status", code=None)
    return next((line.strip() for line in shown.splitlines() if word in line.replace("-", "_").upper()), "")


def _has_rules(node: Node) -> bool:
    rules = run("nft", "list", "ruleset")
    return all(node.pods[name].cgroup.name in rules for name in _GUARANTEES_MBIT)


def _expect_rate(what: str, seen_mbit: float, wanted_mbit: float) -> None:
    if abs(seen_mbit - wanted_mbit) > _TOLERANCE * wanted_mbit:
        raise UnexpectedError(f"{what}: {seen_mbit:.2f} Mbit/s instead of {wanted_mbit}")


CHECKS = (
    Check("network QoS: classes of host-network pods, and the qdisc of before", classes_of_host_network),
)
