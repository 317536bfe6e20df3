"""The vocabulary and the messages of the daemon's API, both ways: for the daemon and the QoS manager."""

from __future__ import annotations

from typing import Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.vocabulary import ClaimKey, ClaimLevel, Mode, PluginReport, Role

ROLES: Final = {role: api_pb2.ExplainedClaim.Role.Value(f"ROLE_{role.name}") for role in Role}
ROLE_OF: Final = {number: role for role, number in ROLES.items()}
MODES: Final = {mode: api_pb2.Mode.Value(f"MODE_{mode.name}") for mode in Mode}
MODE_OF: Final = {number: mode for mode, number in MODES.items()}
TARGETS: Final = {
    ClaimLevel.CONTAINER: "container_id",
    ClaimLevel.POD: "pod_uid",
    ClaimLevel.QOS_CLASS: "qos_class",
    ClaimLevel.HOST_APPLICATION: "host_application",
    ClaimLevel.POOL: "pool",
}
LEVEL_OF: Final = {field: level for level, field in TARGETS.items()}


def key_message(key: ClaimKey) -> api_pb2.ClaimKey:
    target = api_pb2.ClaimTarget(**{TARGETS[key.level]: key.target})
    return api_pb2.ClaimKey(target=target, field=key.field, role=ROLES[key.role])


def key_of(message: api_pb2.ClaimKey) -> ClaimKey | str:
    """What a claim is for, or why that cannot be read."""
    kind, role = message.target.WhichOneof("target"), ROLE_OF.get(message.role)
    if kind is None:
        return "the target is missing, or of a kind that is not known"
    if role is None:
        return f"the role {message.role} is not known"
    return ClaimKey(LEVEL_OF[kind], getattr(message.target, kind), message.field, role)


def claim_message(
    key: ClaimKey, value: float | str | None, ceiling: int | None, reason: str
) -> api_pb2.Claim:
    text = None if value is None else str(value)
    return api_pb2.Claim(key=key_message(key), value=text, ceiling=ceiling, reason=reason)


def plugin_status(report: PluginReport) -> api_pb2.QosPluginStatus:
    left_out = [api_pb2.LeftOutPods(reason=reason, pod_uids=uids) for reason, uids in report.left_out.items()]
    return api_pb2.QosPluginStatus(**{**report._asdict(), "mode": MODES[report.mode], "left_out": left_out})


def plugin_report(message: api_pb2.QosPluginStatus) -> PluginReport:
    # Its fields have the names of the message's.
    found = {name: getattr(message, name) for name in PluginReport._fields}
    left_out = {each.reason: tuple(each.pod_uids) for each in message.left_out}
    return PluginReport(**{**found, "mode": MODE_OF.get(message.mode, Mode.OFF), "left_out": left_out})
