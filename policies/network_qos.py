"""Network QoS: shares of the node's link by QoS class, and limits of single pods.

By `networkQOS` of the classes in `resource-qos-config`, with the bandwidth of `system-config` or of the
Node's annotation, and by the annotation `koordinator.sh/networkQOS` of pods, or their pod strategy. What is
sent goes through HTB classes of the link, marked by the pods' addresses; what is received is limited before
it reaches the pod. `runtimeproxy/ledger/network.py` makes it so.
Source: Koordinator pkg/koordlet/runtimehooks/hooks/tc, pkg/koordlet/qosmanager/plugins (network QoS by tc).

Different from there, on purpose: a text is bits/s everywhere, and percent are of the same total; a class that
is not enabled, or has no limit, has the whole link as its ceiling and no guarantee (there: rate 0, which
`tc` refuses); a guarantee above the ceiling is lowered to it; limits of what is received are in force, too;
a pod's own class stands below the one of its QoS class, so that it has a part of that one's share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

from runtimeproxy.fields.network import (
    CLASS_FIELD,
    EGRESS_FIELD,
    INGRESS_FIELD,
    LEAST_BPS,
    MAJOR,
    MOST_RECEIVED_BPS,
    NETWORK_QOS,
    OFF,
    NetworkClass,
    NetworkShares,
    Share,
    classid,
    pod_minor,
)
from runtimeproxy.hooks import NodeChange, PodChange, PodSelector, PodView, Policy, Reason
from runtimeproxy.hooks.reasons import Part, Source
from runtimeproxy.hooks.sources import strategy_source
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.names import NETWORK_QOS as ANNOTATION
from runtimeproxy.slo.schema import NetQoSPolicy, QoSStrategy
from runtimeproxy.slo.schema import NetworkQoS as NetworkOfClass
from runtimeproxy.units import quantity_bytes

CLASSID: Final = "net_cls.classid"
_BITS: Final = 8
_NET_CLS: Final = "net_cls"
_REASON: Final = "network QoS of the class"
_CLASSES: Final = {
    QoSClass.SYSTEM: NetworkClass.SYSTEM,
    QoSClass.LSE: NetworkClass.LS,
    QoSClass.LSR: NetworkClass.LS,
    QoSClass.LS: NetworkClass.LS,
    QoSClass.BE: NetworkClass.BE,
}
"""Pods without a QoS class are in none. Source: as the module."""
_TERWAY: Final = "netQOSPolicy is terway-qos, which is not supported here: only tc is"


class _Planned(NamedTuple):
    shares: NetworkShares
    reason: Reason
    problems: tuple[str, ...]


def share_bps(value: int | str, total_bps: int) -> int:
    """Return a share in bits/s; 0 for none, and for what is no share. Source: as the module.

    `value`: a whole number is percent of the total, 0 to 100; a text a quantity in bits/s.
    """
    if isinstance(value, int):
        return total_bps * value // 100 if 0 <= value <= 100 else 0
    try:
        return max(quantity_bytes(value), 0)
    except ValueError:
        return 0


def whole_bytes(bps: int) -> int:
    """Return a rate that the kernel can have: it counts whole bytes, and at least one."""
    return max(bps - bps % _BITS, LEAST_BPS)


def class_share(qos: NetworkOfClass, total_bps: int) -> tuple[Share, list[str]]:
    """Return what a class may send, and the problems: a guarantee or ceiling that had to be lowered."""
    wanted = share_bps(qos.egress_request, total_bps) if qos.enable else 0
    ceiling = share_bps(qos.egress_limit, total_bps) if qos.enable else 0
    problems: list[str] = []
    if ceiling > total_bps:
        problems.append(f"egressLimit {ceiling} is above the node's {total_bps} bits/s, which apply")
    ceiling = min(ceiling, total_bps) or total_bps
    if wanted > ceiling:
        problems.append(
            f"egressRequest {wanted} is above the class's ceiling of {ceiling} bits/s, which applies"
        )
    return Share(min(whole_bytes(wanted), whole_bytes(ceiling)), whole_bytes(ceiling)), problems


def ingress_ceiling_bps(qos: NetworkOfClass, total_bps: int) -> int:
    """Return the most that a class may receive; 0 for no limit, and for one that nftables cannot hold."""
    limit = share_bps(qos.ingress_limit, total_bps) if qos.enable else 0
    return whole_bytes(limit) if 0 < limit < total_bps and not _receives_too_much(limit) else 0


def _receives_too_much(limit_bps: int) -> str:
    """Why a limit of what is received does not apply; empty if it does."""
    if limit_bps <= MOST_RECEIVED_BPS:
        return ""
    most = f"{MOST_RECEIVED_BPS} bits/s, the most that nftables can limit"
    return f"ingressLimit {limit_bps} is above {most}: it is left out"


def shares(qos: QoSStrategy, total_bps: int) -> tuple[NetworkShares, list[str]]:
    """Return the shares of all classes, and the problems. Source: as the module.

    SYSTEM has what the guarantees of the others leave, and no ceiling but the link.
    """
    total = whole_bytes(total_bps)
    ls, problems = class_share(qos.ls_class.network_qos, total)
    be, of_be = class_share(qos.be_class.network_qos, total)
    problems = [f"lsClass: {each}" for each in problems] + [f"beClass: {each}" for each in of_be]
    left = total - sum(_guaranteed(each) for each in (ls, be))
    if left < 0:
        problems.append(
            f"the guarantees of lsClass and beClass are above the node's {total} bits/s: none is sure"
        )
    for name, each in (("lsClass", qos.ls_class), ("beClass", qos.be_class)):
        if each.network_qos.enable and share_bps(each.network_qos.ingress_request, total):
            problems.append(
                f"{name}: ingressRequest is left out: what is received has passed the link already"
            )
    for name, each in (("lsClass", qos.ls_class), ("beClass", qos.be_class)):
        limit = share_bps(each.network_qos.ingress_limit, total) if each.network_qos.enable else 0
        if limit < total and (problem := _receives_too_much(limit)):
            problems.append(f"{name}: {problem}")
    for name, each in (("lsrClass", qos.lsr_class), ("systemClass", qos.system_class)):
        if each.network_qos.enable:
            whose = "LSR pods are in lsClass" if name == "lsrClass" else "SYSTEM has what the others leave"
            problems.append(f"{name}: networkQOS is left out: {whose}")
    system = Share(whole_bytes(max(left, 0)), total)
    ceilings = (
        0,
        ingress_ceiling_bps(qos.ls_class.network_qos, total),
        ingress_ceiling_bps(qos.be_class.network_qos, total),
    )
    return NetworkShares(total, (system, ls, be), ceilings), problems


def _guaranteed(share: Share) -> int:
    # The least rate of HTB stands for no guarantee.
    return share.guarantee_bps if share.guarantee_bps > LEAST_BPS else 0


def network_class(qos: QoSClass) -> NetworkClass | None:
    """Return the class of a pod by its label; None for none. Source: as the module."""
    return _CLASSES.get(qos)


class NetworkQoS(Policy):
    """Shares the node's link among QoS classes, and limits pods."""

    name: ClassVar[str] = "network-qos"
    is_default: ClassVar[bool] = False
    selector: ClassVar[PodSelector] = PodSelector(qos_classes=frozenset(_CLASSES))
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {
        Input.STRATEGIES: PodSelector(namespaces=frozenset())
    }
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"network_qos"})
    features: ClassVar[frozenset[str]] = frozenset({Feature.TC, Feature.NFT, Feature.NET_ADMIN})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({CLASS_FIELD, EGRESS_FIELD, INGRESS_FIELD, CLASSID}),
        "node": frozenset({"kernel_settings"}),
    }
    priority: ClassVar[int] = 38

    def node(self, node: Node) -> NodeChange | None:
        """Return the shares of the link; off where the bandwidth is not known."""
        if node.state_of(Input.STRATEGIES) is not InputState.KNOWN:
            return None
        if problem := _off(node):
            return NodeChange(
                kernel_settings={NETWORK_QOS: OFF},
                reason=_REASON,
                reasons={NETWORK_QOS: problem},
                problems=(problem,),
            )
        planned = _planned(node)
        return NodeChange(
            kernel_settings={NETWORK_QOS: str(planned.shares)},
            reason=_REASON,
            reasons={NETWORK_QOS: planned.reason},
            problems=planned.problems,
        )

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the pod's class and its own limits."""
        found = network_class(pod.qos)
        if found is None or _off(node):
            return None
        strategy = node.strategy_for(pod)
        network = strategy.network_qos
        label = f"{pod.qos} pods are in {found}, class {MAJOR:x}:{found.leaf:x}"
        values: dict[str, int | str] = {CLASS_FIELD: found.value}
        reasons: dict[str, str | Reason] = {CLASS_FIELD: Reason(label, *_share_text(node, found))}
        minor = found.leaf
        problems = strategy.problems_of(ANNOTATION)
        for field, limit, path in (
            (EGRESS_FIELD, network.egress_limit, "network_qos.egress_limit"),
            (INGRESS_FIELD, network.ingress_limit, "network_qos.ingress_limit"),
        ):
            if limit and field == INGRESS_FIELD and (problem := _receives_too_much(limit)):
                problems += (problem,)
            elif limit:
                value = whole_bytes(limit)
                values[field] = value
                source = Source(path, strategy.provenance_of(path))
                reasons[field] = Reason("limit ", source, f" {limit} bits/s in whole bytes = ", value)
                minor = pod_minor(pod.uid)
        if _NET_CLS in node.facts.controllers:
            values[CLASSID] = classid(MAJOR, minor)
            reasons[CLASSID] = Reason(f"class {MAJOR:x}:{minor:x} = ", values[CLASSID])
        return PodChange(cgroup=values, problems=problems, reason=_REASON, reasons=reasons)


def _off(node: Node) -> str:
    """Why no share can be given; empty if one can."""
    if node.strategies.qos.policies.net_qos_policy is NetQoSPolicy.TERWAY_QOS:
        return _TERWAY
    if not node.strategies.system.total_network_bandwidth:
        return (
            "the node's bandwidth is not known: no totalNetworkBandwidth in system-config, and no "
            "annotation node.koordinator.sh/network-bandwidth"
        )
    return ""


def _planned(node: Node) -> _Planned:
    strategies = node.strategies
    total = strategies.system.total_network_bandwidth
    found, problems = shares(strategies.qos, total)
    path = "system.total_network_bandwidth"
    parts: list[Part] = ["total ", Source(path, strategies.provenance_of(path)), f" {total} bits/s"]
    for name, key in (("LS", "ls_class"), ("BE", "be_class")):
        qos: NetworkOfClass = getattr(strategies.qos, key).network_qos
        if not qos.enable:
            parts.append(f"; {name} not enabled")
            continue
        path = f"qos.{key}.network_qos"
        (source,) = strategy_source(strategies.provenance, f"{path}.enable", f"{path}.enable")[-1:]
        texts = (
            _arithmetic(each, getattr(qos, each), total)
            for each in ("egress_request", "egress_limit", "ingress_limit")
        )
        parts += [f"; {name} ", source, " ", ", ".join(filter(None, texts)) or "no share"]
    parts.append(" = ")
    return _Planned(found, Reason(*parts, str(found)), tuple(problems))


def _arithmetic(name: str, value: int | str, total_bps: int) -> str:
    key = {"egress_request": "egressRequest", "egress_limit": "egressLimit", "ingress_limit": "ingressLimit"}[
        name
    ]
    if not value:
        return ""
    if isinstance(value, int):
        return f"{key} {value} % of {total_bps} = {share_bps(value, total_bps)}"
    return f"{key} {value} = {share_bps(value, total_bps)}"


def _share_text(node: Node, found: NetworkClass) -> tuple[Part, ...]:
    """What the class has, for the reason of a pod."""
    at = tuple(NetworkClass).index(found)
    planned, _ = shares(node.strategies.qos, node.strategies.system.total_network_bandwidth)
    egress, ingress = planned.egress[at], planned.ingress_ceilings_bps[at]
    guarantee = f"guarantee {egress.guarantee_bps}" if _guaranteed(egress) else "no guarantee"
    text = f": {guarantee}, ceiling {egress.ceiling_bps} of {planned.total_bps} bits/s sent"
    text += f", ceiling {ingress} bits/s received" if ingress else ""
    return text, " = ", found.value
