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


def advised_values(message: api_pb2.AdvisedPool) -> tuple[int | None, int | None, int | None, int | None]:
    """What an advisor says of a pool: CPUs required, CPUs that overlap, millicores and bytes of headroom."""
    return (
        message.required_cpus if message.HasField("required_cpus") else None,
        message.overlap_cpus if message.HasField("overlap_cpus") else None,
        message.headroom_millicpu if message.HasField("headroom_millicpu") else None,
        message.headroom_bytes if message.HasField("headroom_bytes") else None,
    )


def claim_message(
    key: ClaimKey, value: float | str | None, ceiling: int | None, reason: str
) -> api_pb2.Claim:
    text = None if value is None else str(value)
    return api_pb2.Claim(key=key_message(key), value=text, ceiling=ceiling, reason=reason)


def plugin_status(report: PluginReport) -> api_pb2.QosPluginStatus:
    left_out = [api_pb2.LeftOutPods(reason=reason, pod_uids=uids) for reason, uids in report.left_out.items()]
    notes = [api_pb2.PodNote(text=text, pod_uids=uids) for text, uids in report.pod_notes.items()]
    others = {"mode": MODES[report.mode], "left_out": left_out, "pod_notes": notes}
    return api_pb2.QosPluginStatus(**{**report._asdict(), **others})


def plugin_report(message: api_pb2.QosPluginStatus) -> PluginReport:
    # Its fields have the names of the message's.
    found = {name: getattr(message, name) for name in PluginReport._fields}
    left_out = {each.reason: tuple(each.pod_uids) for each in message.left_out}
    notes = {each.text: tuple(each.pod_uids) for each in message.pod_notes}
    mode = MODE_OF.get(message.mode, Mode.OFF)
    return PluginReport(**{**found, "mode": mode, "left_out": left_out, "pod_notes": notes})
