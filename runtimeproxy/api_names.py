"""The vocabulary in messages of the daemon's API: numbers of enums, and fields of `ClaimTarget`."""

from __future__ import annotations

from typing import Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.vocabulary import ClaimLevel, Mode, PluginReport, Role

ROLES: Final = {role: api_pb2.ExplainedClaim.Role.Value(f"ROLE_{role.name}") for role in Role}
ROLE_OF: Final = {number: role for role, number in ROLES.items()}
MODES: Final = {mode: api_pb2.Mode.Value(f"MODE_{mode.name}") for mode in Mode}
MODE_OF: Final = {number: mode for mode, number in MODES.items()}
TARGETS: Final = {
    ClaimLevel.CONTAINER: "container_id",
    ClaimLevel.POD: "pod_uid",
    ClaimLevel.QOS_CLASS: "qos_class",
    ClaimLevel.HOST_APPLICATION: "host_application",
}
LEVEL_OF: Final = {field: level for level, field in TARGETS.items()}


def plugin_status(report: PluginReport) -> api_pb2.QosPluginStatus:
    return api_pb2.QosPluginStatus(
        name=report.name,
        mode=MODES[report.mode],
        is_wanted=report.is_wanted,
        claims=report.claims,
        problem=report.problem,
        explanation=report.explanation,
    )
