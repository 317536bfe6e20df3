"""Conversions between the daemon's values and those of the API's messages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.hooks.policy import FailurePolicy, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runtimeproxy.hooks.algebra import Claim
    from runtimeproxy.pods.records import ContainerRecord, PodRecord

_NANOS: Final = 1_000_000_000

MODES: Final = {Mode.ENFORCE: api_pb2.MODE_ENFORCE, Mode.DRY_RUN: api_pb2.MODE_DRY_RUN}
FAILURE_POLICIES: Final = {
    FailurePolicy.IGNORE: api_pb2.FAILURE_POLICY_IGNORE,
    FailurePolicy.FAIL: api_pb2.FAILURE_POLICY_FAIL,
}


def timestamp(time_s: float | None) -> Timestamp | None:
    """Seconds since the epoch as a message; None for none."""
    if time_s is None:
        return None
    seconds, nanos = divmod(round(time_s * _NANOS), _NANOS)
    return Timestamp(seconds=seconds, nanos=nanos)


def duration(time_s: float) -> Duration:
    seconds, nanos = divmod(round(time_s * _NANOS), _NANOS)
    return Duration(seconds=seconds, nanos=nanos)


def shown(value: object) -> str | None:
    """A value as text; None for none, and for one that is taken away."""
    return str(value) if isinstance(value, int | float | str) else None


def owners_of(claims: Iterable[Claim]) -> str:
    """The owners of some claims, joined by `+`."""
    return "+".join(dict.fromkeys(claim.owner for claim in claims))


def pod_name(pod: PodRecord, container: ContainerRecord | None = None) -> str:
    """Namespace and name, and the container's name behind them."""
    name = f"{pod.namespace}/{pod.name}"
    return name if container is None else f"{name}/{container.name}"
